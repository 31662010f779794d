"""Sigmoid and triplet losses of single pairs, and losses of several positives.

`logistic_pairs` and `softmax_pairs` are of anchors with several positives, each a datum of its own,
that share their negatives: skip-gram has one for each word of the window. Pair by pair they are the
losses of `cpc.losses` (`negative_sampling`, `nce`, `sampled_softmax`, ...), whose corrections are
taken off the scores before; together the negatives are scored once an anchor and not once a pair.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cpc.losses.masking import (
    Number,
    check,
    check_matrix,
    log_sum_exp,
    logistic_loss,
    mean_where,
    read_mask,
    read_single,
    scale,
    subtract,
)
from cpc.types import ArrayLike, UserError, check_type


def logistic_pairs(
    positive: Float[Array, "m p"],
    negatives: Float[Array, "m n"],
    where_positive: Bool[Array, "m p"],
    where: Bool[Array, "m p n"] | None = None,
    *,
    weight: Number = 1.0,
) -> Float[Array, " m"]:
    """Return the logistic losses of each anchor, in nats, summed over its positives.

    L = sum_p [ -log sigma(s_p) - w sum_n log sigma(-s_n) ]

    With w = k / n, the n negatives stand for k in every pair: the expectation is that of k own
    draws, whatever n is, so that many anchors can share a large sample. Any other w sets the
    ratio of negatives to positives.

    Scores are corrected as the objective asks. `where` says which negatives count for which
    positive, all by default; what does not count may hold NaN.

    >>> two = jnp.ones((1, 2), bool)
    >>> logistic_pairs(jnp.zeros((1, 2)), jnp.zeros((1, 3)), two) / jnp.log(2.0)
    Array([8.], dtype=float32)
    """
    check_pairs(positive, negatives, where_positive, where)
    positive = jnp.where(where_positive, positive, 0).astype(jnp.float32)
    counts = where_positive[..., None] if where is None else where & where_positive[..., None]
    negatives = jnp.where(counts.any(1), negatives, 0).astype(jnp.float32)
    noise = jax.nn.softplus(negatives) * counts.sum(1)  # in as many pairs as it counts for
    data = jnp.where(where_positive, jax.nn.softplus(-positive), 0.0)
    return data.sum(-1) + jnp.asarray(weight, jnp.float32) * noise.sum(-1)


def softmax_pairs(
    positive: Float[Array, "m p"],
    negatives: Float[Array, "m n"],
    where_positive: Bool[Array, "m p"],
    where: Bool[Array, "m p n"] | None = None,
) -> Float[Array, " m"]:
    """Return the softmax losses of each anchor, in nats, summed over its positives.

    L = sum_p [ log(e^s_p + sum_n e^s_n) - s_p ]: no positive is another's negative. Scores and
    masks are as those of `logistic_pairs`.

    >>> two = jnp.ones((1, 2), bool)
    >>> softmax_pairs(jnp.zeros((1, 2)), jnp.zeros((1, 3)), two) / jnp.log(2.0)
    Array([4.], dtype=float32)
    """
    check_pairs(positive, negatives, where_positive, where)
    positive = jnp.where(where_positive, positive, 0).astype(jnp.float32)
    negatives = negatives.astype(jnp.float32)
    if where is None:
        rest = log_sum_exp(negatives, jnp.ones(negatives.shape, bool))[:, None]
        loss = jnp.logaddexp(positive, rest) - positive
    else:
        where = where & where_positive[..., None]
        m, p, n = where.shape
        rows = jnp.broadcast_to(negatives[:, None], where.shape).reshape(m * p, n)
        rest = log_sum_exp(rows, where.reshape(m * p, n)).reshape(m, p)
        some = where.any(-1)
        loss = jnp.where(some, jnp.logaddexp(positive, jnp.where(some, rest, 0.0)) - positive, 0.0)
    return jnp.where(where_positive, loss, 0.0).sum(-1)


def check_pairs(positive: Any, negatives: Any, where_positive: Any, where: Any) -> None:
    """Check that scores of pairs and their masks fit each other."""
    check_matrix("positive", positive)
    check_matrix("negatives", negatives)
    m, p = positive.shape
    if len(negatives) != m:
        raise UserError(
            f"negatives do not fit {m} anchors (got shape {negatives.shape}): pass scores ({m}, n)"
        )
    fix = f"pass booleans ({m}, {p})"
    check_type("where_positive", where_positive, ArrayLike, fix)
    read_mask("where_positive", where_positive, (m, p))
    if where is not None:
        read_mask("where", where, (m, p, negatives.shape[1]))


MINING = ("hard", "semi_hard", "all")


def sigmoid(
    positive: Float[Array, " m"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    temperature: Number = 1.0,
    bias: Number = 0.0,
) -> Float[Array, " m"]:
    """Sigmoid loss of each anchor, in nats: each pair a yes or no, summed over candidates.

    L = -log sigma(s_0 / tau + b) - sum_j log sigma(-s_j / tau - b)  (Zhai et al. 2023, section 3.2)

    The optimal logit s / tau + b is log r - log K for K negatives: the bias takes the imbalance.
    The paper starts at tau = 1 / 10 (its t is 1 / tau) and b = -10 and learns both.

    Logits of zero are 1 + K fair coins:

    >>> sigmoid(jnp.ones(1), jnp.ones((1, 3)), temperature=0.1, bias=-10) / jnp.log(2.0)
    Array([4.], dtype=float32)
    """
    rows = scale(read_single(positive, negatives, where), temperature)
    bias = jnp.asarray(bias, jnp.float32)
    return logistic_loss(subtract(rows, -bias, -bias))


def triplet(
    positive: Float[Array, " m"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    margin: Number,
    mining: str = "hard",
) -> Float[Array, " m"]:
    """Triplet loss of each anchor, in the unit of the scores: the positive ahead by a margin.

    L = max(0, d_p - d_n + margin),  d = -s  (Schroff et al. 2015, section 3)

    Scores are similarities; give minus the distance to use a distance. Any scores that keep the
    margin are optimal, so that nothing is estimated: there is no log N.

    Args:
      margin: 0 or more.
      mining: which of them is n. "hard": the nearest. "semi_hard": the nearest of those with
        d_p < d_n < d_p + margin; if there are none, the farthest of all. "all": every one, and L is
        the mean over them, those that cost nothing included.

    A positive at distance 1, negatives at 0.5, 1.25, 4 and 8:

    >>> far = -jnp.array([[0.5, 1.25, 4.0, 8.0]])
    >>> [float(triplet(-jnp.ones(1), far, margin=0.5, mining=word)[0])
    ...     for word in ("hard", "semi_hard", "all")]
    [1.0, 0.25, 0.3125]
    """
    if mining not in MINING:
        raise UserError(f"mining is {mining!r}: it must be one of {', '.join(MINING)}")
    check("margin", margin, least=0)
    margin = jnp.asarray(margin, jnp.float32)
    rows = read_single(positive, negatives, where)
    scores, own = rows.negatives, rows.positive

    if mining == "all":
        return mean_where(jax.nn.relu(scores - own + margin), rows.where)
    chosen = _nearest(scores, rows.where)
    if mining == "semi_hard":
        inside = rows.where & (scores < own) & (scores > own - margin)
        farthest = -_nearest(-scores, rows.where)
        chosen = jnp.where(inside.any(-1), _nearest(scores, inside), farthest)
    return jnp.where(rows.counted, jax.nn.relu(chosen - own[:, 0] + margin), 0.0)


def _nearest(scores, where):
    """The highest counted score of each row; 0 if it has none."""
    highest = jnp.where(where, scores, -jnp.inf).max(-1, initial=-jnp.inf)
    return jnp.where(where.any(-1), highest, 0.0)
