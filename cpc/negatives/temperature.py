"""Softmax entropy as a function of temperature, and the temperature for a given entropy.

A training run can use a fixed temperature, learn an unconstrained parameter that
`bounded_temperature` maps to a temperature, or adjust the temperature at each step so that the
entropy stays at a target (`hold_entropy`).
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from cpc.types import UserError, check_number

Number = float | int | Float[Array, ""]

#: Range of the temperatures that `solve_temperature` returns.
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-6, 1e6


def entropy(
    scores: Float[Array, "m n"],
    temperature: Number | Float[Array, " m"] = 1.0,
    where: Bool[Array, "m n"] | None = None,
) -> Float[Array, " m"]:
    """Return the entropy of softmax(s / tau) over each anchor's candidates, in nats.

    H = -sum_j p_j log p_j,  dH/dtau = Var_p(s) / tau^3

    The entropy increases with the temperature tau. Its lower limit is the log of the number of
    candidates that share the highest score, and its upper limit is log n. The temperature is one
    number or one per anchor. Scores masked by `where` may be NaN and have zero gradient. An anchor
    without candidates has entropy 0.

    Equal scores have entropy log n:

    >>> entropy(jnp.zeros((1, 4))) - jnp.log(4.0)
    Array([0.], dtype=float32)
    """
    _check_positive(temperature)
    below, p, log_total = _softmax(scores, temperature, where)
    return log_total - (p * below).sum(-1)


def negative_weights(
    scores: Float[Array, "m n"],
    temperature: Number | Float[Array, " m"] = 1.0,
    where: Bool[Array, "m n"] | None = None,
) -> Float[Array, "m n"]:
    """Return the softmax over each anchor's negatives.

    r_j = e^(s_j / tau) / sum_l e^(s_l / tau), where l runs over the negatives

    r_j is the fraction of the repulsive gradient that comes from negative j (Wang and Liu 2021).
    The arguments are the same as for `entropy`.

    >>> negative_weights(jnp.array([[0.5, 0.5, -1e4]]))
    Array([[0.5, 0.5, 0. ]], dtype=float32)
    """
    _check_positive(temperature)
    return _softmax(scores, temperature, where)[1]


def solve_temperature(
    scores: Float[Array, "m n"],
    target_entropy: Number,
    where: Bool[Array, "m n"] | None = None,
) -> Float[Array, ""]:
    """Return the temperature at which the anchors' mean softmax entropy equals the target.

    The solver is Newton's method in log tau, where the slope is Var_p(s / tau), with bisection if a
    step would leave the bracket. For one temperature per anchor, apply `jax.vmap` over single rows.
    The result is between MIN_TEMPERATURE and MAX_TEMPERATURE, and no gradient flows through it.
    Under jit, an unattainable target gives the closest end of this range.

    Raises:
      UserError: no temperature in the range gives the target, and the values are not traced.

    Scores of 1 and 0 have odds of 3 to 1, an entropy of 0.5623, at tau = 1 / log 3:

    >>> f"{solve_temperature(jnp.array([[1.0, 0.0]]), 0.5623351):.4f}"
    '0.9102'
    """
    low, high = MIN_TEMPERATURE, MAX_TEMPERATURE
    if not any(isinstance(x, Tracer) for x in (scores, target_entropy, where)):
        least, most = (float(_mean_entropy(scores, tau, where)[0]) for tau in (low, high))
        if not least < target_entropy < most:
            problem = f"no temperature from {low:g} to {high:g} gives a mean entropy of"
            fix = f"pass target_entropy above {least:.6g} and below {most:.6g}"
            raise UserError(f"{problem} {float(target_entropy):.6g} nats: {fix}")
    middle = jnp.sqrt(jnp.float32(low)) * jnp.sqrt(jnp.float32(high))
    return _solve(scores, target_entropy, where, middle, low, high, num_steps=60, longest=math.inf)


def hold_entropy(
    temperature: Number,
    scores: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None,
    target_fraction: Number,
    low: float | int,
    high: float | int,
) -> Float[Array, ""]:
    """Return the next temperature of a training run that holds its softmax entropy constant.

    The target is the temperature at which the anchors' mean entropy is `target_fraction` of its
    maximum, the mean of log n for n candidates. The function takes four Newton steps to it, as in
    `solve_temperature`, each by at most a factor of 2. No gradient flows through the result.

    Args:
      temperature: the current temperature.
      scores: a sample of the scores of this step, not divided by a temperature.
      where: mask of the candidates.
      target_fraction: a number between 0 (all weight on one candidate) and 1 (uniform weights).
      low, high: bounds of the result, which hold even if the target cannot be reached.

    >>> scores, tau = jnp.array([[0.5, 0.3, 0.1]]), 1.0
    >>> for _ in range(5):
    ...     tau = hold_entropy(tau, scores, None, 0.5, 0.01, 10.0)
    >>> entropy(scores, tau) / jnp.log(3.0)
    Array([0.5], dtype=float32)
    """
    _check_bounds(low, high)
    check_number("target_fraction", target_fraction, above=0, below=1)
    greatest = _mean_entropy(jnp.zeros_like(scores), 1.0, where)[0]
    target = target_fraction * greatest
    start = jnp.clip(jnp.asarray(temperature, jnp.float32), low, high)
    return _solve(scores, target, where, start, low, high, num_steps=4, longest=math.log(2))


def bounded_temperature(raw: Number, low: float | int, high: float | int) -> Float[Array, ""]:
    """Map an unconstrained parameter to a temperature between bounds.

    tau = low (high / low)^sigmoid(raw). At raw = 0, tau is the geometric mean of the bounds.

    >>> bounded_temperature(0.0, 0.25, 1.0)
    Array(0.5, dtype=float32)
    """
    _check_bounds(low, high)
    fraction = jax.nn.sigmoid(jnp.asarray(raw, jnp.float32))
    return jnp.float32(low) * jnp.exp(fraction * math.log(high / low))


def raw_temperature(tau: Number, low: float | int, high: float | int) -> Float[Array, ""]:
    """Return the unconstrained parameter that `bounded_temperature` maps to tau.

    >>> raw_temperature(0.5, 0.25, 1.0)
    Array(0., dtype=float32)
    """
    _check_bounds(low, high)
    check_number("tau", tau, above=low, below=high)
    fraction = jnp.log(jnp.asarray(tau, jnp.float32) / jnp.float32(low)) / math.log(high / low)
    return jnp.log(fraction) - jnp.log1p(-fraction)


def _softmax(scores, temperature, where):
    """Return (s - max s) / tau, the softmax, and the log of the softmax's denominator."""
    where = jnp.ones(scores.shape, bool) if where is None else where
    scores = jnp.where(where, scores.astype(jnp.float32), -jnp.inf)
    highest = lax.stop_gradient(scores.max(-1, keepdims=True, initial=-jnp.inf))
    below = jnp.where(where, scores - highest, 0.0)  # (m, n)
    below = below / jnp.asarray(temperature, jnp.float32)[..., None]
    mass = jnp.where(where, jnp.exp(below), 0.0)
    total = jnp.where(where.any(-1), mass.sum(-1), 1.0)
    return below, mass / total[:, None], jnp.log(total)


def _mean_entropy(scores, temperature, where):
    """Return the mean entropy of anchors that have candidates, and its derivative by log tau."""
    below, p, log_total = _softmax(scores, temperature, where)
    mean = (p * below).sum(-1)
    variance = (p * jnp.square(below - mean[:, None])).sum(-1)
    counted = len(scores) if where is None else where.any(-1).sum(dtype=jnp.float32)
    num_counted = jnp.maximum(counted, 1)
    return (log_total - mean).sum() / num_counted, variance.sum() / num_counted


@functools.partial(jax.jit, static_argnames=("num_steps", "longest"))
def _solve(scores, target, where, start, low, high, *, num_steps, longest):
    """Solve for tau by Newton's method in log tau with a bracket and steps of at most `longest`."""
    target, start, low, high = (jnp.asarray(x, jnp.float32) for x in (target, start, low, high))
    scores, target, start = lax.stop_gradient((scores, target, start))

    def step(_, state):
        log_tau, least, most = state
        value, slope = _mean_entropy(scores, jnp.exp(log_tau), where)
        missing = target - value
        least = jnp.where(missing > 0, log_tau, least)
        most = jnp.where(missing < 0, log_tau, most)
        tiny = jnp.finfo(jnp.float32).tiny
        moved = log_tau + jnp.clip(missing / jnp.maximum(slope, tiny), -longest, longest)
        inside = (moved >= least) & (moved <= most)
        return jnp.where(inside, moved, (least + most) / 2), least, most

    bracket = jnp.log(low), jnp.log(high)
    log_tau, _, _ = lax.fori_loop(0, num_steps, step, (jnp.log(start), *bracket))
    return jnp.clip(jnp.exp(log_tau), low, high)


def _check_positive(temperature):
    # Under jit, comparing even a known JAX array gives a tracer, so compare NumPy arrays.
    if not isinstance(temperature, Tracer) and not (np.asarray(temperature) > 0).all():
        raise UserError(f"temperature is {temperature}: pass a number above 0")


def _check_bounds(low, high):
    if not 0 < low < high < float("inf"):
        raise UserError(f"temperature bounds are {low} and {high}: pass bounds with 0 < low < high")
