"""Estimators of mutual information I, in nats, from a critic's scores or from samples.

A critic gives a score f_ij to each pair (x_i, y_j) of a batch. Pairs (i, i) are drawn from the
joint distribution, pairs (i, j) from the product of the marginals, and the density ratio of the two
is r(x, y) = p(x, y) / (p(x) p(y)). "best f" is the critic with the best expected estimate.

InfoNCE, its interpolation with TUBA, and ML-CPC classify the pairs of a batch and have a ceiling.
DV, MINE, TUBA, NWJ, JS, SMILE and CLUB have no ceiling. If an estimator averages e^f, its variance
grows as e^I: for n Gaussian draws, this average (the partition) has variance (e^(2I) - 1) / n, and
a batch without samples from the tail gives too high a value (McAllester & Stratos 2020).

Scores that are not square, or that contain a single pair, raise `UserError`.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cpc import losses
from cpc.types import UserError, check_number, check_shape


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("value", "ceiling"),
    meta_fields=("is_bound", "side"),
)
@dataclasses.dataclass(frozen=True)
class Estimate:
    """An estimate of mutual information I with its estimator's guarantees, stored as a pytree.

    >>> Estimate(1.5, is_bound=True, ceiling=4.2, side="lower")
    Estimate(value=1.5, is_bound=True, ceiling=4.2, side='lower')
    """

    value: Any
    """The estimate in nats, a float32 scalar or an array with the axes of a vmap."""
    is_bound: bool = False
    """Whether the expected value over batches of this size bounds I for every critic."""
    ceiling: Any = math.inf
    """Largest value, in nats, of any critic on a batch of this size, or inf without a limit."""
    side: str = ""
    """Either "lower" if the expected value is at most I, "upper" if it is at least I, or "". This
    holds for every critic if `is_bound` is True, and otherwise for the exact critic."""


#: Scores above this value use the tangent of e^s: e^75 times 1e4 does not overflow float32.
LARGEST_EXPONENT = 75.0
#: Replaces the -inf of impossible pairs in differences and sums that would be NaN.
LOWEST = -1e30


def split(scores):
    """Return the joint scores (n,) in float32, and all scores (n, n) with -inf on the diagonal."""
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or scores.shape[0] < 2:
        problem = f"scores has the shape {scores.shape}, but must be (n, n) with n at least 2"
        raise UserError(f"{problem}: pass a row per x and a column per y, in the same order")
    scores = scores.astype(jnp.float32)
    return jnp.diagonal(scores), jnp.where(off_diagonal(scores.shape[0]), scores, -jnp.inf)


def off_diagonal(n):
    """Return a mask (n, n) of the product pairs, the entries off the diagonal."""
    return ~jnp.eye(n, dtype=bool)


def mean_off(values):
    """Return the mean off the diagonal. Entries are divided first, so that the sum is finite."""
    n = values.shape[0]
    return jnp.where(off_diagonal(n), values / (n * (n - 1)), 0.0).sum()


def log_mean_exp_off(product):
    """Return log mean e^s over the product pairs of `split`."""
    n = product.shape[0]
    return jax.nn.logsumexp(jnp.maximum(product, LOWEST)) - jnp.log(n * (n - 1.0))


def exp(scores):
    """Return e^s up to s = 75, and its tangent above. The tangent stays finite in float32.

    The supremum of r s - e^s over s is unchanged for ratios r below e^75, and so are the bounds
    that rely on it. A diverging critic gets a finite value far below I and a finite gradient.
    """
    excess = jnp.maximum(scores - LARGEST_EXPONENT, 0.0)
    return jnp.exp(jnp.minimum(scores, LARGEST_EXPONENT)) * (1.0 + excess)


def info_nce(scores: Float[Array, "n n"]) -> Estimate:
    """Estimate I by classifying which y_j belongs to each x_i (van den Oord et al. 2018).

    log n + mean_i [ f_ii - log sum_j e^f_ij ]; best f = log r + any h(x).

    The estimate is a lower bound with the ceiling log n. For the best critic, it is about 10 % too
    low if I is half of the ceiling.

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
    """Estimate I by an interpolation between InfoNCE and TUBA (Poole et al. 2019, eq. 10).

    1 + mean_(i != j) [ f_ii - log b_i(j) ] - mean_(i != j) e^f_ij / b_i(i), with the baseline
    b_i(k) = alpha mean_(l != k) e^f_il + (1 - alpha) a_i; best f = log r + log a(x).

    The estimate is a lower bound for every a(x) that does not depend on y. A smaller alpha gives
    less bias and more variance. alpha = 1 is InfoNCE among n - 1 candidates with the ceiling
    log(n - 1), and alpha = 0 is TUBA, which has no ceiling. Between the two, the ceiling is
    1 + log((n - 1) / alpha). `log_baseline` is log a, one number or one per row. It may be learned.

    A critic that separates all pairs reaches the ceiling, 1 + log 14:

    >>> sure = jnp.where(jnp.eye(8, dtype=bool), 300.0, -300.0)
    >>> estimate = interpolated(sure, 0.0, 0.5)
    >>> round(float(estimate.value), 3), round(float(estimate.ceiling), 3)
    (3.639, 3.639)
    """
    check_number("alpha", alpha, least=0, most=1)
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
    """Return an array [i, k] of log sum_(j != k) e^s_ij.

    Subtracting one term from the sum loses precision only at the largest score of a row, so for
    that entry the sum is computed directly.
    """
    top = jnp.argmax(scores, axis=1, keepdims=True) == jnp.arange(scores.shape[1])
    total = jax.nn.logsumexp(scores, axis=1, keepdims=True)
    below = jax.nn.logsumexp(jnp.where(top, -jnp.inf, scores), axis=1, keepdims=True)
    probability = jnp.exp(jnp.where(top, -jnp.inf, scores - total))  # at most 1/2
    return jnp.where(top, below, total + jnp.log1p(-probability))


def ml_cpc(
    scores: Float[Array, "n n"], alpha: float | int | Float[Array, ""] | None = None
) -> Estimate:
    """Estimate I with one softmax over all pairs of a batch (Song & Ermon 2020, multi-label CPC).

    mean_i log [ n^2 e^f_ii / (alpha sum_j e^f_jj + (n - alpha) / (n - 1) sum_(j != k) e^f_jk) ]

    The estimate is a lower bound with the ceiling log(n / alpha). alpha is the weight of the joint
    pairs in the sum. It must be between n / (n (n - 1) + 1), the default, and 1. The default gives
    the ceiling log(n (n - 1) + 1).

    >>> ml_cpc(jnp.zeros((4, 4))).value + 0.0
    Array(0., dtype=float32)
    """
    joint, product = split(scores)
    n = len(joint)
    smallest = n / (n * (n - 1) + 1)
    alpha = smallest if alpha is None else alpha
    check_number("alpha", alpha, least=min(smallest, np.float32(smallest)), most=1)
    alpha = jnp.asarray(alpha, jnp.float32)
    log_sum = jnp.logaddexp(
        jnp.log(alpha) + jax.nn.logsumexp(joint),
        jnp.log((n - alpha) / (n - 1)) + jax.nn.logsumexp(jnp.maximum(product, LOWEST)),
    )
    value = 2 * math.log(n) + joint.mean() - log_sum
    return Estimate(value, is_bound=True, ceiling=math.log(n) - jnp.log(alpha), side="lower")


#: Decay and lower limit of MINE's moving average.
MINE_DECAY, MIN_MINE_AVERAGE = 0.9, 1e-4


def donsker_varadhan(scores: Float[Array, "n n"]) -> Estimate:
    """Estimate I by the Donsker-Varadhan representation of the KL divergence.

    mean f_ii - log mean_(i != j) e^f_ij; best f = log r + any constant.

    This is a lower bound only if both means are exact. The logarithm of a sampled mean is biased,
    which makes the estimate 15 % too high at I = 10 nats with 64 pairs.

    >>> donsker_varadhan(jnp.array([[2.0, 0.0], [0.0, 2.0]])).value
    Array(2., dtype=float32)
    """
    joint, product = split(scores)
    return Estimate(joint.mean() - log_mean_exp_off(product))


def mine(
    scores: Float[Array, "n n"], log_average: float | int | Float[Array, ""]
) -> tuple[Estimate, Float[Array, ""]]:
    """Estimate I by Donsker-Varadhan, with the gradient of MINE (Belghazi et al. 2018, eq. 12).

    The value equals `donsker_varadhan`. The gradient is that of mean f_ii - u / b, where
    u = mean_(i != j) e^f_ij and b = max(0.9 average + 0.1 u, 1e-4) is treated as a constant. The
    moving average over training steps reduces the bias of the gradient, but not of the value.

    Args:
      scores: scores f of a batch.
      log_average: log of the moving average after the previous step, or 0 at the first step.

    Returns:
      The estimate, and log b, which is the `log_average` of the next step.

    The average moves from 1 to 0.9 + 0.1 e:

    >>> estimate, log_average = mine(jnp.ones((3, 3)), 0.0)
    >>> estimate.value, round(float(jnp.exp(log_average)), 4)
    (Array(0., dtype=float32), 1.1718)
    """
    joint, product = split(scores)
    log_mean, log_average = log_mean_exp_off(product), jnp.asarray(log_average, jnp.float32)
    log_average = jnp.logaddexp(
        jnp.log(MINE_DECAY) + log_average, jnp.log1p(-MINE_DECAY) + log_mean
    )
    log_average = jax.lax.stop_gradient(jnp.maximum(log_average, jnp.log(MIN_MINE_AVERAGE)))
    ratio = jnp.exp(log_mean - log_average)
    no_value = ratio - jax.lax.stop_gradient(ratio)
    return Estimate(joint.mean() - jax.lax.stop_gradient(log_mean) - no_value), log_average


def tuba(
    scores: Float[Array, "n n"], log_baseline: float | int | Float[Array, ""] | Float[Array, " n"]
) -> Estimate:
    """Estimate I by the bound with a baseline a(x) > 0 (Poole et al. 2019, eq. 5).

    1 + mean (f_ii - log a_i) - mean_(i != j) e^f_ij / a_i; best f = log r + log a(x).

    This is a lower bound for every a(x) that does not depend on y. `log_baseline` is log a(x).

    >>> tuba(jnp.array([[2.0, 0.0], [0.0, 2.0]]), 0.0).value
    Array(2., dtype=float32)
    """
    joint, product = split(scores)
    log_baseline = jnp.broadcast_to(jnp.asarray(log_baseline, jnp.float32), joint.shape)
    partition = mean_off(exp(product - log_baseline[:, None]))
    return Estimate(1.0 + (joint - log_baseline).mean() - partition, is_bound=True, side="lower")


def nwj(scores: Float[Array, "n n"]) -> Estimate:
    """Estimate I by the NWJ lower bound (Nguyen, Wainwright & Jordan 2010).

    mean f_ii - mean_(i != j) e^(f_ij - 1); best f = 1 + log r.

    This is TUBA with a = e, also called f-GAN KL or MINE-f. The lower bound has no bias for the
    best critic, but a large variance.
    """
    return tuba(scores, 1.0)


def js(scores: Float[Array, "n n"]) -> Estimate:
    """Estimate I with a critic that was trained on `js_objective` (Poole et al. 2019, sec. 2.3).

    1 + mean f_ii - mean_(i != j) e^f_ij; best f = log r.

    This is the NWJ lower bound at 1 + f, because training on `js_objective` converges to f = log r.
    Public code returns `nwj(scores)` instead, which is I - 1/e at f = log r.
    """
    return tuba(scores, 0.0)


def js_objective(scores: Float[Array, "n n"]) -> Float[Array, ""]:
    """Return the Jensen-Shannon objective, to be maximised by critics for `js` and `smile`.

    -mean softplus(-f_ii) - mean_(i != j) softplus(f_ij); best f = log r (Hjelm et al. 2019, eq. 4).

    The objective is not an estimate of mutual information.

    >>> js_objective(jnp.zeros((2, 2))) + 2 * jnp.log(2.0)
    Array(0., dtype=float32)
    """
    joint, product = split(scores)
    return -jax.nn.softplus(-joint).mean() - mean_off(jax.nn.softplus(product))


def smile(scores: Float[Array, "n n"], clip: float | int | Float[Array, ""]) -> Estimate:
    """Estimate I by Donsker-Varadhan with clipped product scores (Song & Ermon 2020, eq. 13).

    mean f_ii - log mean_(i != j) clip(e^f_ij, e^-clip, e^clip)

    The joint scores are not clipped. Train the critic with `js_objective`, whose optimum is
    f = log r. If clip = inf, the estimate equals `donsker_varadhan`.

    The estimate has a small variance, but it is not a bound: its bias may have either sign. With
    the exact critic it is up to 2 nats too high. The error of a poorly fitted critic can hide this.

    >>> smile(jnp.array([[3.0, -9.0], [-9.0, 3.0]]), clip=1.0).value
    Array(4., dtype=float32)
    """
    check_number("clip", clip, above=0)
    joint, _ = split(scores)
    clip = jnp.asarray(clip, jnp.float32)
    _, clipped = split(jnp.clip(scores.astype(jnp.float32), -clip, clip))
    return Estimate(joint.mean() - log_mean_exp_off(clipped))


def flo(scores: Float[Array, "n n"], u: Float[Array, " n"]) -> Estimate:
    """Estimate I by the Fenchel-Legendre bound (Guo et al. 2022).

    1 - mean_i [ u_i + mean_(j != i) e^(f_ij - f_ii - u_i) ]; best f = log r + h(x), u = -log r.

    The estimate is a lower bound for every f and u, because -log z = max over u of 1 - u - z e^-u.
    `u` has one value per joint pair and is learned together with f.

    >>> flo(jnp.array([[2.0, 0.0], [0.0, 2.0]]), jnp.full(2, -2.0)).value
    Array(2., dtype=float32)
    """
    joint, product = split(scores)
    check_shape("u", u, len(joint))
    u = u.astype(jnp.float32)
    partition = mean_off(exp(product - joint[:, None] - u[:, None]))
    return Estimate(1.0 - u.mean() - partition, is_bound=True, side="lower")


def club(log_conditional: Float[Array, "n n"]) -> Estimate:
    """Estimate I from above with a model q of the conditional p(y|x) (Cheng et al. 2020, eq. 7).

    mean log q(y_i|x_i) - mean_(i != j) log q(y_j|x_i)

    This is an upper bound only if q = p(y|x), so `is_bound` is False. Adding h(y) has no effect.

    >>> club(jnp.array([[2.0, 0.0], [1.0, 4.0]])).value
    Array(2.5, dtype=float32)
    """
    joint, product = split(log_conditional)
    return Estimate(joint.mean() - mean_off(product), side="upper")


def ksg(
    x: Float[np.ndarray, "n dx"] | Float[Array, "n dx"],
    y: Float[np.ndarray, "n dy"] | Float[Array, "n dy"],
    k: int = 3,
) -> Estimate:
    """Estimate I by nearest neighbours (Kraskov, Stögbauer & Grassberger 2004, algorithm 1).

    psi(k) + psi(n) - mean [ psi(n_x + 1) + psi(n_y + 1) ]

    psi is the digamma function. n_x is the number of points whose x is closer than the k-th nearest
    neighbour of the pair, and n_y the same for y. Distances are the largest coordinate difference.

    The estimate may be above or below I, has the ceiling psi(n) - psi(k), and is accurate only in
    few dimensions. Scale x and y to comparable ranges first. It takes O(n log n) time on the host.

    Raises:
      UserError: k is not between 1 and n - 1, or there are more than k copies of one pair.

    >>> x = np.arange(50.0)[:, None]
    >>> round(ksg(x, x).value, 3), round(ksg(x, x).ceiling, 3)  # psi(n) - psi(3)
    (2.979, 2.979)
    """
    x, y = _pairs(x, y)
    n = len(x)
    check_number("k", k, least=1, below=n)
    pairs = np.concatenate([x, y], axis=1)
    from scipy.spatial import KDTree  # imported late because it takes half a second
    from scipy.special import digamma

    # The nearest point is the pair itself.
    radius = KDTree(pairs).query(pairs, k=k + 1, p=np.inf)[0][:, -1]
    if not radius.all():
        problem = f"more than k = {k} pairs are equal"
        raise UserError(f"{problem}: pass continuous data, or add a little noise to x and y")
    inside = np.nextafter(radius, 0)  # counts strictly closer points only
    nearer = [KDTree(z).query_ball_point(z, inside, p=np.inf, return_length=True) for z in (x, y)]
    value = digamma(k) + digamma(n) - sum(digamma(count).mean() for count in nearer)
    return Estimate(float(value), ceiling=float(digamma(n) - digamma(k)))


def cca(
    x: Float[np.ndarray, "n dx"] | Float[Array, "n dx"],
    y: Float[np.ndarray, "n dy"] | Float[Array, "n dy"],
) -> Estimate:
    """Estimate I of jointly Gaussian data by canonical correlations.

    -1/2 sum_i log(1 - rho_i^2), with rho_i the canonical correlations.

    Only linear dependence counts. The estimate is infinite if a linear combination of y is an exact
    linear function of x. For independent Gaussian data it is dx dy / (2 n) too high on average.

    >>> x = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    >>> y = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    >>> round(cca(x, x + y).value / math.log(2), 6)  # rho^2 = 1/2
    0.5
    """
    x, y = _pairs(x, y)
    if len(x) <= x.shape[1] + y.shape[1]:
        problem = f"x and y have {len(x)} pairs in {x.shape[1]} + {y.shape[1]} dimensions"
        raise UserError(f"{problem}: pass more pairs than dimensions")
    rho = np.linalg.svd(column_space(x).T @ column_space(y), compute_uv=False)
    if (rho > 1 - 1e-12).any():
        return Estimate(math.inf)
    return Estimate(float(-0.5 * np.log1p(-np.square(rho)).sum()))


def column_space(x):
    """Return orthonormal columns that span the centred columns of x (n, d)."""
    u, size, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    return u[:, size > 1e-10 * size.max(initial=0.0)]


def _pairs(x, y):
    try:
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"x or y has non-numeric entries ({error}): pass two arrays") from None
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise UserError(f"the shape of x is {x.shape} and y is {y.shape}: pass (n, dx) and (n, dy)")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise UserError("x or y has values that are not finite: remove these pairs")
    return x, y
