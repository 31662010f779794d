"""Losses of anchors with several positives, each a datum of its own, that share their negatives.

Skip-gram has a positive for each word of the window. Pair by pair these are the losses of
`cpc.losses` (`negative_sampling`, `nce`, `sampled_softmax`, ...), whose corrections are taken off
the scores before; together the negatives are scored once an anchor and not once a pair.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cpc.losses.masking import Number, check_matrix, log_sum_exp, read_mask
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
