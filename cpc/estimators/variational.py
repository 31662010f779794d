"""Estimates with the mean exponent of a critic: DV, MINE, TUBA, NWJ, JS, SMILE; CLUB.

With r(x, y) = p(x, y) / (p(x) p(y)) and f the scores, joint pairs (i, i), product pairs (i, j):
no ceiling, but a variance that grows as e^I: the partition of n draws from a Gaussian law varies
by (e^(2I) - 1) / n. A batch without the tail reads high (McAllester & Stratos 2020). All raise a
UserError for scores that are not square, or a single pair.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cpc.estimators.estimate import Estimate, exp, known_number, log_mean_exp_off, mean_off, split
from cpc.types import UserError

#: Decay and lower limit of MINE's moving average.
MINE_DECAY, MIN_MINE_AVERAGE = 0.9, 1e-4


def donsker_varadhan(scores: Float[Array, "n n"]) -> Estimate:
    """Estimate I by the supremum of Donsker & Varadhan.

    mean f_ii - log mean_(i != j) e^f_ij; best f = log r + any constant.

    A lower bound for exact means only: the logarithm of a sampled mean is biased upwards, by 15 %
    at I = 10 nats with 64 pairs.

    >>> donsker_varadhan(jnp.array([[2.0, 0.0], [0.0, 2.0]])).value
    Array(2., dtype=float32)
    """
    joint, product = split(scores)
    return Estimate(joint.mean() - log_mean_exp_off(product))


def mine(
    scores: Float[Array, "n n"], log_average: float | int | Float[Array, ""]
) -> tuple[Estimate, Float[Array, ""]]:
    """Estimate I by Donsker-Varadhan, with the gradient of MINE (Belghazi et al. 2018, eq. 12).

    The value is `donsker_varadhan`. Its gradient is that of mean f_ii - u / b, where
    u = mean_(i != j) e^f_ij and b = max(0.9 average + 0.1 u, 1e-4) is held constant: the
    average over steps, whose log is 0 before the first, lowers the bias of the gradient, not that
    of the value. Returns the estimate, and log b for the next step.

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

    A lower bound for every a(x) that does not depend on y: one of each row, or one for all.

    >>> tuba(jnp.array([[2.0, 0.0], [0.0, 2.0]]), 0.0).value
    Array(2., dtype=float32)
    """
    joint, product = split(scores)
    log_baseline = jnp.broadcast_to(jnp.asarray(log_baseline, jnp.float32), joint.shape)
    partition = mean_off(exp(product - log_baseline[:, None]))
    return Estimate(1.0 + (joint - log_baseline).mean() - partition, is_bound=True, side="lower")


def nwj(scores: Float[Array, "n n"]) -> Estimate:
    """Estimate I by the bound of Nguyen, Wainwright & Jordan (2010), or f-GAN KL, or MINE-f.

    mean f_ii - mean_(i != j) e^(f_ij - 1): TUBA with a = e; best f = 1 + log r.

    A lower bound, without bias at the best critic, with a large variance.
    """
    return tuba(scores, 1.0)


def js(scores: Float[Array, "n n"]) -> Estimate:
    """Estimate I with a critic that was trained on `js_objective` (Poole et al. 2019, sec. 2.3).

    1 + mean f_ii - mean_(i != j) e^f_ij: NWJ at 1 + f, since that training ends at f = log r.

    A lower bound. Public code returns `nwj(scores)` instead, which at f = log r is I - 1/e.
    """
    return tuba(scores, 0.0)


def js_objective(scores: Float[Array, "n n"]) -> Float[Array, ""]:
    """Return the objective of critics for `js` and `smile`, to be maximised; not an estimate.

    -mean softplus(-f_ii) - mean_(i != j) softplus(f_ij); best f = log r (Hjelm et al. 2019, eq. 4).

    >>> js_objective(jnp.zeros((2, 2))) + 2 * jnp.log(2.0)
    Array(0., dtype=float32)
    """
    joint, product = split(scores)
    return -jax.nn.softplus(-joint).mean() - mean_off(jax.nn.softplus(product))


def smile(scores: Float[Array, "n n"], clip: float | int | Float[Array, ""]) -> Estimate:
    """Estimate I by DV with a clipped partition (Song & Ermon 2020, eq. 13).

    mean f_ii - log mean_(i != j) clip(e^f_ij, e^-clip, e^clip); the joint scores are not clipped.
    Train with `js_objective`, whose optimum is f = log r; clip = inf gives Donsker-Varadhan.

    Not a bound: little variance, but a bias of either sign. The exact critic reads up to 2 nats too
    high; critics that fit badly hide this.

    >>> smile(jnp.array([[3.0, -9.0], [-9.0, 3.0]]), clip=1.0).value
    Array(4., dtype=float32)
    """
    known = known_number("clip", clip)
    if known is not None and not known > 0:
        raise UserError(f"clip is {clip}: it must be above 0, in nats; inf clips nothing")
    joint, _ = split(scores)
    clip = jnp.asarray(clip, jnp.float32)
    _, clipped = split(jnp.clip(scores.astype(jnp.float32), -clip, clip))
    return Estimate(joint.mean() - log_mean_exp_off(clipped))


def flo(scores: Float[Array, "n n"], u: Float[Array, " n"]) -> Estimate:
    """Estimate I by the Fenchel-Legendre bound (Guo et al. 2022).

    1 - mean_i [ u_i + mean_(j != i) e^(f_ij - f_ii - u_i) ]; best f = log r + h(x), u = -log r.

    A lower bound for every f and u, because -log z = max over u of 1 - u - z e^-u. `u` are those of
    the joint pairs, learned together with f.

    >>> flo(jnp.array([[2.0, 0.0], [0.0, 2.0]]), jnp.full(2, -2.0)).value
    Array(2., dtype=float32)
    """
    joint, product = split(scores)
    if u.shape != joint.shape:
        raise UserError(f"u has the shape {u.shape}: one number a joint pair is {joint.shape}")
    u = u.astype(jnp.float32)
    partition = mean_off(exp(product - joint[:, None] - u[:, None]))
    return Estimate(1.0 - u.mean() - partition, is_bound=True, side="lower")


def club(log_conditional: Float[Array, "n n"]) -> Estimate:
    """Estimate I from above by a model of the conditional (Cheng et al. 2020, eq. 7).

    mean log q(y_i|x_i) - mean_(i != j) log q(y_j|x_i); an upper bound only if q = p(y|x), so that
    `is_bound` is False. Any f = log q + h(y) gives the same.

    >>> club(jnp.array([[2.0, 0.0], [1.0, 4.0]])).value
    Array(2.5, dtype=float32)
    """
    joint, product = split(log_conditional)
    return Estimate(joint.mean() - mean_off(product), side="upper")
