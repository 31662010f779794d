"""Lower bounds that classify pairs of a batch: InfoNCE, its interpolation with TUBA, ML-CPC.

All raise a UserError for scores that are not square, or a single pair.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cpc import losses
from cpc.estimators.estimate import (
    LOWEST,
    Estimate,
    exp,
    known_number,
    mean_off,
    off_diagonal,
    split,
)
from cpc.types import UserError


def info_nce(scores: Float[Array, "n n"]) -> Estimate:
    """Estimate I by how well x_i finds its y_i in the row (van den Oord et al. 2018).

    log n + mean_i [ f_ii - log sum_j e^f_ij ]; best f = log r + any h(x).

    A lower bound with the ceiling log n; it is low by 10 % at half of it.

    >>> info_nce(jnp.zeros((4, 4))).value
    Array(0., dtype=float32)
    """
    joint, product = split(scores)
    n = len(joint)
    loss = losses.info_nce(joint, product, off_diagonal(n))
    return Estimate(math.log(n) - loss.mean(), is_bound=True, ceiling=math.log(n), side="lower")


def interpolated(
    scores: Float[Array, "n n"],
    log_baseline: float | int | Float[Array, ""] | Float[Array, " n"],
    alpha: float | int | Float[Array, ""],
) -> Estimate:
    """Estimate I between InfoNCE and TUBA: less bias for more variance (Poole et al. 2019, eq. 10).

    1 + mean_(i != j) [ f_ii - log b_i(j) ] - mean_(i != j) e^f_ij / b_i(i), with the baseline
    b_i(k) = alpha mean_(l != k) e^f_il + (1 - alpha) a_i; best f = log r + log a(x).

    A lower bound for every a(x) that does not depend on y. alpha = 1 is InfoNCE among n - 1, with
    the ceiling log(n - 1); alpha = 0 is TUBA, without one; between, it is 1 + log((n - 1) / alpha).
    log a is that of each row, or one for all, and may be learned.

    A critic without doubt ends at its ceiling, 1 + log 14:

    >>> sure = jnp.where(jnp.eye(8, dtype=bool), 300.0, -300.0)
    >>> estimate = interpolated(sure, 0.0, 0.5)
    >>> round(float(estimate.value), 3), round(float(estimate.ceiling), 3)
    (3.639, 3.639)
    """
    known = known_number("alpha", alpha)
    if known is not None and not 0 <= known <= 1:
        raise UserError(f"alpha is {alpha}: it must be from 0, TUBA, to 1, InfoNCE")
    scores = jnp.maximum(scores.astype(jnp.float32), LOWEST)
    joint, product = split(scores)
    n = len(joint)
    alpha = jnp.asarray(alpha, jnp.float32)
    log_baseline = jnp.broadcast_to(jnp.asarray(log_baseline, jnp.float32), joint.shape)
    without = _log_sum_without(scores) - math.log(n - 1)
    log_b = jnp.logaddexp(
        jnp.log(alpha) + without, jnp.log1p(-alpha) + log_baseline[:, None]
    )  # (n, n): row i without column k
    partition = mean_off(exp(product - jnp.diagonal(log_b)[:, None]))
    value = 1.0 + mean_off(joint[:, None] - log_b) - partition
    ceiling = math.log(n - 1) - jnp.log(alpha) + (alpha < 1)
    return Estimate(value, is_bound=True, ceiling=ceiling, side="lower")


def _log_sum_without(scores):
    """Return the log of the sum of e^s over row i without column k, [i, k].

    Only at the largest score of a row would total - own cancel; there the sum is computed directly.
    """
    top = jnp.argmax(scores, axis=1, keepdims=True) == jnp.arange(scores.shape[1])
    total = jax.nn.logsumexp(scores, axis=1, keepdims=True)
    below = jax.nn.logsumexp(jnp.where(top, -jnp.inf, scores), axis=1, keepdims=True)
    probability = jnp.exp(jnp.where(top, -jnp.inf, scores - total))  # at most 1/2
    return jnp.where(top, below, total + jnp.log1p(-probability))


def ml_cpc(
    scores: Float[Array, "n n"], alpha: float | int | Float[Array, ""] | None = None
) -> Estimate:
    """Estimate I by all pairs of a batch in one softmax (Song & Ermon 2020, multi-label CPC).

    mean_i log [ n^2 e^f_ii / (alpha sum_j e^f_jj + (n - alpha) / (n - 1) sum_(j != k) e^f_jk) ]

    A lower bound with the ceiling log(n / alpha). alpha, the weight of the joint pairs in the sum,
    is from n / (n (n - 1) + 1), the default with the ceiling log(n (n - 1) + 1), to 1.

    >>> ml_cpc(jnp.zeros((4, 4))).value + 0.0
    Array(0., dtype=float32)
    """
    joint, product = split(scores)
    n = len(joint)
    smallest = n / (n * (n - 1) + 1)
    alpha = smallest if alpha is None else alpha
    known = known_number("alpha", alpha)
    if known is not None and not np.float32(smallest) <= known <= 1:
        raise UserError(f"alpha is {alpha}: with {n} pairs it must be from {smallest:.4g} to 1")
    alpha = jnp.asarray(alpha, jnp.float32)
    log_sum = jnp.logaddexp(
        jnp.log(alpha) + jax.nn.logsumexp(joint),
        jnp.log((n - alpha) / (n - 1)) + jax.nn.logsumexp(jnp.maximum(product, LOWEST)),
    )
    value = 2 * math.log(n) + joint.mean() - log_sum
    return Estimate(value, is_bound=True, ceiling=math.log(n) - jnp.log(alpha), side="lower")
