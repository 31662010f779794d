"""Whether a sampler draws what it says: frequencies against its own log q."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, Num

from cpc.negatives.audit_rows import Audit, make_rows
from cpc.negatives.hits import accidental_hits, hit_rate
from cpc.negatives.noise import probabilities
from cpc.types import Array, ArrayLike, UserError


def audit_table(q: Num[ArrayLike, "..."]) -> Audit:
    """How spread a noise distribution over classes is.

    Args:
      q: probabilities or weights (v,).

    Raises:
      UserError: negative or NaN entries, all zero.

    >>> rows = audit_table(np.ones(8))
    >>> [(row.name, round(row.value, 4)) for row in rows if "classes" in row.name]
    [('classes', 8), ('effective_classes', 8.0)]
    """
    q = probabilities(q)
    possible = q[q > 0]
    entropy = float(-(possible * np.log(possible)).sum())
    return make_rows(
        classes=len(possible),
        entropy=entropy,
        effective_classes=float(np.exp(entropy)),
        most_probable=float(q.max()),
    )


def audit_sampler(
    draw: Callable[[Array], Any],
    q: Num[ArrayLike, "..."],
    targets: Int[ArrayLike, " m"],
    *,
    labels: Int[ArrayLike, " v"] | None = None,
    rng: Array | None = None,
    num_rounds: int = 50,
) -> Audit:
    """What a sampler of class ids draws, beside what its probabilities predict.

    Predictions are those of independent draws. Weights are 1 / q, those of the log-Q correction at
    equal scores.

    Args:
      draw: draw(rng) -> int ids (n,) for all anchors together, or (m, n) for each its own.
      q: probability of each class in one draw, or weights, (v,).
      targets: ids of the positives.
      labels: a class of each id; another id of the target's label is a false negative.
      rng: of the draws.
      num_rounds: how often it draws.

    Raises:
      UserError: probabilities as in `audit_table`; ids or targets outside the table, or not for as
        many anchors; no round.

    >>> uniform = lambda rng: jax.random.randint(rng, (3, 5), 0, 10)
    >>> rows = audit_sampler(uniform, np.ones(10), np.arange(3))
    >>> round({row.name: row.value for row in rows}["accidental_hits_predicted"], 5)  # 1 - .9^5
    0.40951
    """
    if num_rounds < 1:
        raise UserError(f"num_rounds is {num_rounds}: draw at least once")
    q, targets = probabilities(q), np.asarray(targets)
    _check_ids("targets", targets, q)
    counts, rounds = np.zeros(len(q), np.int64), []
    for key in jax.random.split(jax.random.key(0) if rng is None else rng, num_rounds):
        ids = np.asarray(draw(key))
        _check_ids("drawn ids", ids, q)
        counts += np.bincount(ids.ravel(), minlength=len(q))
        rounds.append(_one_round(ids, q, targets, labels))
    num, hits, false, effective, entropy, repeats = map(float, np.mean(rounds, 0))
    false_negatives = {}
    if labels is not None:
        _, label = np.unique(labels, return_inverse=True)
        others = np.bincount(label, q)[label] - q  # the label's probability without the target
        false_negatives = {
            "false_negatives": false,
            "false_negatives_predicted": float(others[targets].mean()),
        }
    possible = q[q > 0]
    return audit_table(q) + make_rows(
        negatives_mean=num,
        accidental_hits=hits,
        accidental_hits_predicted=float(np.mean(hit_rate(q[targets], int(num)))),
        **false_negatives,
        effective_negatives=effective,
        effective_negatives_predicted=float(num * len(possible) ** 2 / (1 / possible).sum()),
        weight_entropy=entropy,
        duplicates=repeats,
        duplicates_predicted=float(1 - np.sum(hit_rate(q, int(num))) / num),
        impossible_draws=int(counts[q == 0].sum()),
        chi_square=_chi_square(counts, q),
    )


def _one_round(ids, q, targets, labels):
    """Means over the anchors: draws, hits, false negatives, size and entropy of 1 / q, repeats."""
    hit = np.asarray(accidental_hits(targets, ids))
    same = np.zeros(1, bool)
    if labels is not None:
        labels = np.asarray(labels)
        same = np.asarray(accidental_hits(labels[targets], labels[ids])) & ~hit
    ids = np.atleast_2d(ids)
    num = ids.shape[1]
    weights = np.where(q[ids] > 0, 1 / np.where(q[ids] > 0, q[ids], 1.0), 0.0)
    weight = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    entropy = -(weight * np.log(np.where(weight > 0, weight, 1.0))).sum(-1)
    squares = np.square(weight).sum(-1)
    effective = np.where(squares > 0, 1 / np.where(squares > 0, squares, 1.0), 0.0)
    distinct = 1 + (np.diff(np.sort(ids, -1)) > 0).sum(-1)
    means = (hit.any(-1), same, effective, entropy, 1 - distinct / num)
    return num, *(x.mean() for x in means)


def _check_ids(name, ids, q):
    if not ids.size or not np.issubdtype(ids.dtype, np.integer):
        raise UserError(f"the {name} have shape {ids.shape} and type {ids.dtype}: give integers")
    if ids.min() < 0 or ids.max() >= len(q):
        raise UserError(
            f"the {name} go from {ids.min()} to {ids.max()}: a table of {len(q)} classes has ids "
            f"0 to {len(q) - 1}"
        )


def _chi_square(counts, q):
    """Per degree of freedom; rare classes are pooled until each bin expects 5 draws."""
    order = np.argsort(q)
    expected, observed = np.cumsum(counts.sum() * q[order]), np.cumsum(counts[order])
    ends, reached = [], 0.0
    while True:
        end = int(np.searchsorted(expected, reached + 5))
        if end >= len(q):
            break
        ends.append(end)
        reached = expected[end]
    if len(ends) < 2:
        return None
    ends[-1] = len(q) - 1  # what is left joins the last bin
    bins, want = np.diff(observed[ends], prepend=0), np.diff(expected[ends], prepend=0)
    return float(((bins - want) ** 2 / want).sum() / (len(ends) - 1))
