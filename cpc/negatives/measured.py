"""What the closed forms ask for, measured: labels by distance, and how many hard negatives."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from cpc.negatives.closed_forms import SLACK
from cpc.types import UserError


class LagCounts(NamedTuple):
    """Pairs of latents of one sequence by the steps between them, from 0 on."""

    pairs: Int[np.ndarray, " t"]
    """With both labels known."""
    same: Int[np.ndarray, " t"]
    """Of these, with the same label."""


def count_same(labels: Int[np.ndarray, "b t"]) -> LagCounts:
    """Count pairs of latents with the same label, by the steps between them.

    same / pairs estimates p(same | lag), which `exclusion_window` takes.

    Args:
      labels: a class each, below 0 where unknown.

    >>> count_same(np.array([[5, 5, 7, -1]]))
    LagCounts(pairs=array([3, 2, 1, 0]), same=array([3, 1, 0, 0]))
    """
    length = labels.shape[1]
    before = [labels[:, : length - lag] for lag in range(length)]
    after = [labels[:, lag:] for lag in range(length)]
    known = [(a >= 0) & (b >= 0) for a, b in zip(before, after, strict=True)]
    same = [k & (a == b) for k, a, b in zip(known, before, after, strict=True)]
    return LagCounts(np.array([k.sum() for k in known]), np.array([s.sum() for s in same]))


def hard_fractions(
    positive: Float[np.ndarray, " m"],
    negatives: Float[np.ndarray, "m n"],
    where: Bool[np.ndarray, "m n"],
    margin: float = 0.0,
) -> Float[np.ndarray, " m"]:
    """Return the fraction of each anchor's negatives that score above positive - margin; rho_i.

    NaN for an anchor without negatives.

    >>> allowed = np.array([[True, True, False]])
    >>> hard_fractions(np.array([1.0]), np.array([[0.0, 2.0, 3.0]]), allowed)
    array([0.5])
    """
    hard = where & (negatives > positive[:, None] - margin)
    counted = where.sum(-1)
    return np.where(counted > 0, hard.sum(-1) / np.maximum(counted, 1), np.nan)


def mean_hit_rate(fractions: Float[np.ndarray, " m"], num_negatives: int) -> float:
    """Return how many anchors have a hard one among so many independent draws, on average.

    mean_i 1 - (1 - rho_i)^k <= 1 - (1 - mean rho)^k, by Jensen's inequality: anchors differ, and
    the mean of rho promises more than k draws hold. Anchors without negatives, NaN, are left out.

    >>> mean_hit_rate(np.array([0.0, 0.5]), 1)
    0.25
    """
    fractions = np.minimum(_with_negatives(fractions), 1 - 1e-12)
    return float(np.mean(-np.expm1(num_negatives * np.log1p(-fractions))))


def min_negatives_for(fractions: Float[np.ndarray, " m"], required_rate: float) -> int:
    """Return the smallest k at which `mean_hit_rate` reaches the required rate.

    `min_negatives` is this where all anchors have the same fraction.

    >>> [min_negatives_for(np.array(each), 0.95) for each in ([0.05, 0.05], [0.9, 0.01])]
    [59, 230]
    """
    if not 0 < required_rate < 1:
        raise UserError(f"required_rate is {required_rate}: it must be between 0 and 1")
    fractions = _with_negatives(fractions)
    attainable = float(np.mean(fractions > 0))
    if required_rate >= attainable:
        raise UserError(
            f"{1 - attainable:.1%} of the anchors have no hard negative: a hit rate of "
            f"{required_rate} is out of reach, ask for less than {attainable:.3f}"
        )
    required_rate *= 1 - SLACK
    high = 1
    while mean_hit_rate(fractions, high) < required_rate:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = math.ceil((low + high) / 2)
        if mean_hit_rate(fractions, middle) < required_rate:
            low = middle
        else:
            high = middle
    return high


def _with_negatives(fractions):
    known = fractions[~np.isnan(fractions)]
    if not known.size:
        raise UserError(
            f"of {fractions.size} anchors none has negatives: give the fraction of one that has"
        )
    return known
