"""Losses of single pairs: sigmoid and triplet."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cpc.losses.masking import (
    Number,
    check,
    logistic_loss,
    mean_where,
    read_single,
    scale,
    subtract,
)
from cpc.types import UserError

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
