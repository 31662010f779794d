"""How many negatives, how hard and how far away: closed forms, and the numbers they ask for."""

import bisect
import functools
import math
import warnings
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from cpc.negatives.noise import hit_rate
from cpc.types import UserError

#: A required probability counts as reached if its logarithm is, but for rounding.
SLACK = 1e-12


def min_negatives(density: float | int, required_rate: float | int) -> int:
    """Smallest number of independent negatives that hold a hard one often enough.

    k = ceil( log(1 - h) / log(1 - rho) ),  so that 1 - (1 - rho)^k >= h

    with rho (`density`) the fraction of hard negatives, and h the chance of at least one. It is
    also the size at which a queue's negatives hold a hard one that often.

    >>> min_negatives(0.05, 0.95)
    59
    """
    _check_share("density", density)
    _check_share("required_rate", required_rate)
    if required_rate == 0:
        return 0
    if density == 1:
        return 1
    if density == 0 or required_rate == 1:
        raise UserError(
            f"no number of negatives holds a hard one with probability {required_rate} if a "
            f"fraction of {density} is hard: ask for less than 1, of a fraction above 0"
        )
    return math.ceil(math.log1p(-required_rate) / math.log1p(-density) * (1 - SLACK))


def min_negatives_without_replacement(
    num_hard: int, pool_size: int, required_rate: float | int
) -> int:
    """Smallest number of different negatives of a pool that hold a hard one often enough.

    1 - C(P - H, k) / C(P, k) >= h,  the hypergeometric counterpart of `min_negatives`

    for a pool of P of which H are hard.

    Of ten with three hard ones, eight always hold one:

    >>> min_negatives_without_replacement(3, 10, 1.0)
    8
    """
    _check_share("required_rate", required_rate)
    if not 0 <= num_hard <= pool_size:
        raise UserError(f"num_hard is {num_hard}: it must be from 0 to the pool's {pool_size}")
    if required_rate == 0:
        return 0
    if num_hard == 0:
        raise UserError("num_hard is 0: no number of negatives holds a hard one")
    left = pool_size - np.arange(pool_size - num_hard)  # before each of the draws that may all miss
    log_miss = np.cumsum(np.log1p(-num_hard / left))
    log_allowed = math.log1p(-required_rate) * (1 - SLACK) if required_rate < 1 else -math.inf
    return 1 + int(np.count_nonzero(log_miss > log_allowed))


def effective_margin(
    beta: float | int, temperature: float | int, num_negatives: int, *, highest: float | int = 1.0
) -> float:
    """Score that a positive must pass, to have half of the softmax against equal negatives.

    m = beta + tau log K,  L = log(1 + K e^((beta - a) / tau)) = softplus((m - a) / tau)

    The loss lies at most log 2 above the hinge max(0, m - a) / tau. m is a threshold on the
    positive's score a; its margin over the negatives' is tau log K.

    Args:
      beta: the score that all K negatives have.
      highest: the greatest score there is: 1 for cosines, infinity for inner products.

    Warns:
      UserWarning: the threshold lies above the greatest score.

    >>> round(effective_margin(0.2, 0.1, 2048), 4)
    0.9625
    """
    if not temperature > 0:
        raise UserError(f"temperature is {temperature}: it must be above 0")
    if num_negatives < 1:
        raise UserError(f"num_negatives is {num_negatives}: it must be 1 or more")
    margin = beta + temperature * math.log(num_negatives)
    if margin > highest:
        most = math.floor(math.exp((highest - beta) / temperature))
        warnings.warn(
            f"a positive must score {margin:.3g} to win against {num_negatives} negatives at "
            f"{beta:.3g}, but no score is above {highest:.3g}: lower the temperature, or take at "
            f"most {most} negatives",
            stacklevel=2,
        )
    return margin


class Window(NamedTuple):
    """What is left of a sequence around which a window is excluded."""

    width: int
    """Latents left out on either side of the target."""
    candidates: int
    rate: float
    """Share of false negatives among the candidates; NaN without any."""
    expected: float
    """False negatives among the drawn ones."""
    at_least_one: float
    """Chance that one is among them."""


def exclude_window(
    same: Float[np.ndarray, " t"], target: int, width: int, num_negatives: int
) -> Window:
    """The false negatives among draws from a sequence, outside a window round the target.

        P = mean of p(same | lag) over |lag| > D;  expected K P;  at least one 1 - (1 - P)^K

    Args:
      same: p(same | lag), the chance that a latent `lag` steps away is a false negative, from lag 0
        on; as many as the sequence has latents.
      target: place of the positive.
      width: D, in latents; num_negatives: K draws.

    The first neighbour may be a false negative, the second is none; a quarter of two draws:

    >>> exclude_window(np.array([1.0, 0.5, 0.0]), target=0, width=0, num_negatives=2).expected
    0.5
    """
    if not 0 <= target < len(same):
        raise UserError(f"target is {target}: it must be from 0 to {len(same) - 1}")
    if width < 0 or num_negatives < 0:
        raise UserError(f"width is {width} and num_negatives {num_negatives}: give 0 or more")
    if not ((same >= 0) & (same <= 1)).all():
        raise UserError("same must hold probabilities, from 0 to 1")
    lag = np.abs(np.arange(len(same)) - target)
    kept = lag[lag > width]
    if not kept.size:
        return Window(width, 0, math.nan, math.nan, math.nan)
    rate = float(same[kept].mean())
    return Window(
        width, kept.size, rate, num_negatives * rate, float(hit_rate(rate, num_negatives))
    )


def exclusion_window(
    same: Float[np.ndarray, " t"],
    target: int,
    num_negatives: int,
    max_expected: float | int,
) -> Window:
    """The smallest window (see `exclude_window`) with at most so many expected false negatives.

    Raises:
      UserError: no window meets the budget and leaves `num_negatives` candidates (the sentence
        says how few false negatives are attainable).

    >>> same = np.exp(-np.arange(128) / 6)
    >>> exclusion_window(same, 64, 16, 0.25).width
    12
    """
    windows = [exclude_window(same, target, d, num_negatives) for d in range(len(same))]
    enough = [w for w in windows if w.candidates >= max(num_negatives, 1)]
    if not enough:
        raise UserError(
            f"a sequence of {len(same)} latents has no {num_negatives} candidates besides the "
            "target: take fewer negatives or longer sequences"
        )
    for window in enough:
        if window.expected <= max_expected:
            return window
    best = min(enough, key=lambda window: window.expected)
    raise UserError(
        f"no window leaves {num_negatives} candidates and at most {max_expected} false negatives: "
        f"{best.expected:.3g} is attainable, with a window of {best.width}"
    )


class Pool(NamedTuple):
    """What a source of negatives offers and costs at each step."""

    negatives: int
    hit_rate: float
    """Chance that an anchor's negatives hold a hard one."""
    embedding_numbers: int
    """Numbers kept in memory."""
    multiply_adds: int
    """To score all anchors."""
    oldest_steps: int
    """Age of the oldest negative; an old one was encoded by old parameters."""
    has_gradient: bool
    """Whether the loss reaches the encoder through the negatives."""


def compare_pool(
    batch_size: int, pool_size: int, width: int, density: float | int
) -> tuple[Pool, Pool]:
    """In-batch negatives against a queue of earlier ones.

                  negatives  hit rate                memory  compute  age
        in-batch  B - 1      1 - (1 - rho)^(B - 1)   B d     B^2 d    0
        queue     P          1 - (1 - rho)^P         P d     B P d    up to P / B

    for B embeddings a step, P in the queue, of d numbers each, of which a fraction rho is hard.

    >>> batch, queue = compare_pool(8, 64, 4, 0.5)
    >>> queue.negatives, queue.multiply_adds, queue.oldest_steps
    (64, 2048, 8)
    """
    if min(batch_size, pool_size, width) < 1:
        raise UserError(
            f"batch_size is {batch_size}, pool_size {pool_size} and width {width}: give 1 or more"
        )

    def pool(negatives, kept, age, has_gradient):
        rate = float(hit_rate(density, negatives))
        return Pool(negatives, rate, kept * width, batch_size * kept * width, age, has_gradient)

    return (
        pool(batch_size - 1, batch_size, 0, True),
        pool(pool_size, pool_size, math.ceil(pool_size / batch_size), False),
    )


def _check_share(name, value):
    if not 0 <= value <= 1:
        raise UserError(f"{name} is {value}: it must be from 0 to 1")


class LagCounts(NamedTuple):
    """Pairs of latents of one sequence by the steps between them, from 0 on."""

    pairs: Int[np.ndarray, " t"]
    """With both labels known."""
    same: Int[np.ndarray, " t"]
    """Of these, with the same label."""


def count_same(labels: Int[np.ndarray, "b t"]) -> LagCounts:
    """Count pairs of latents with the same label, by the steps between them.

    same / pairs estimates p(same | lag), which `exclusion_window` takes. Labels below 0 are
    unknown.

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
    rate_of = functools.partial(mean_hit_rate, fractions)
    return bisect.bisect_left(range(2**62), required_rate * (1 - SLACK), lo=1, key=rate_of)


def _with_negatives(fractions):
    known = fractions[~np.isnan(fractions)]
    if not known.size:
        raise UserError(
            f"of {fractions.size} anchors none has negatives: give the fraction of one that has"
        )
    return known
