"""Normalisation over the channels of each frame, with a gradient of its own.

    v = sum_c (x_c - mean)^2 / (width - u)    n = (x - mean) / sqrt(v + 1e-5)    y = scale n + bias

over the channels of a group, u = 1 for the unbiased variance. With g = scale dy,

    dx = (g - mean(g) - n sum(g n) / (width - u)) / sqrt(v + 1e-5):

two sums over the channels, where automatic differentiation goes over them once for each operation.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

EPSILON = 1e-5


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def channel_norm(
    x: Float[Array, "b t d"],
    scale: Float[Array, " d"],
    bias: Float[Array, " d"],
    num_groups: int,
    unbiased: bool,
) -> Float[Array, "b t d"]:
    """Return x normalized over the channels of each frame, in float32 whatever its dtype."""
    return _forward(x, scale, bias, num_groups, unbiased)[0]


def _statistics(x, num_groups, unbiased):
    """Mean and 1 / sqrt(v + 1e-5) of each group, (b, t, groups, 1)."""
    groups = _groups(x, num_groups)
    mean = groups.mean(-1, keepdims=True)
    squares = jnp.square(groups - mean).sum(-1, keepdims=True)
    return mean, jax.lax.rsqrt(squares / (groups.shape[-1] - unbiased) + EPSILON)


def _normalised(x, mean, shrink):
    return (_groups(x, mean.shape[-2]) - mean) * shrink


def _groups(x, num_groups):
    return x.astype(jnp.float32).reshape(*x.shape[:2], num_groups, -1)


def _forward(x, scale, bias, num_groups, unbiased):
    statistics = _statistics(x, num_groups, unbiased)
    y = _normalised(x, *statistics).reshape(x.shape) * scale + bias
    return y, (x, *statistics, scale)  # n is made again: cheaper than to write and read it


def _backward(num_groups, unbiased, residuals, dy):
    x, mean, shrink, scale = residuals
    n = _normalised(x, mean, shrink)
    g = (dy * scale).reshape(n.shape)
    along = (g * n).sum(-1, keepdims=True) / (n.shape[-1] - unbiased)
    dx = shrink * (g - g.mean(-1, keepdims=True) - n * along)
    dscale = (dy * n.reshape(dy.shape)).sum((0, 1))
    return dx.reshape(x.shape).astype(x.dtype), dscale, dy.sum((0, 1))


channel_norm.defvjp(_forward, _backward)
