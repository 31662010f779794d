"""The result of an estimator, and score matrices with the joint pairs on the diagonal."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from cpc.types import UserError


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("value", "ceiling"),
    meta_fields=("is_bound", "side"),
)
@dataclasses.dataclass(frozen=True)
class Estimate:
    """An estimate of mutual information with its claims; a pytree.

    >>> Estimate(1.5, is_bound=True, ceiling=4.2, side="lower")
    Estimate(value=1.5, is_bound=True, ceiling=4.2, side='lower')
    """

    value: Any
    """Nats; float32 (), or the axes of a vmap."""
    is_bound: bool = False
    """Whether the value bounds I in expectation for every critic, batch by batch."""
    ceiling: Any = math.inf
    """Nats that no batch of this size can exceed, whatever the critic; inf if there is none."""
    side: str = ""
    """The side of I on which the expected value lies, "lower" or "upper": with every critic if
    `is_bound`, otherwise with the exact one. "" if it may lie on either."""


#: e^75 times a score of 1e4 is still a number in float32.
LARGEST_EXPONENT = 75.0
#: Replaces -inf, an impossible pair, if a difference or a sum of such would be NaN.
LOWEST = -1e30


def split(scores):
    """Return float32 scores of the joint pairs (n,), and the matrix with -inf in their place."""
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or scores.shape[0] < 2:
        raise UserError(
            f"scores has the shape {scores.shape}: it must be (n, n) with 2 pairs or more, rows x, "
            "columns y, joint pairs on the diagonal"
        )
    scores = scores.astype(jnp.float32)
    return jnp.diagonal(scores), jnp.where(off_diagonal(scores.shape[0]), scores, -jnp.inf)


def known_number(name: str, value: Any) -> np.float32 | None:
    """Return an option as one float32 number, or None while it is traced."""
    if jnp.ndim(value):
        raise UserError(f"{name} has the shape {jnp.shape(value)}: it must be one number")
    return None if isinstance(value, Tracer) else np.float32(value)


def off_diagonal(n):
    """Return where the pairs of the product law are, (n, n)."""
    return ~jnp.eye(n, dtype=bool)


def mean_off(values):
    """Return the mean off the diagonal; entries are divided first, so that the sum is finite."""
    n = values.shape[0]
    return jnp.where(off_diagonal(n), values / (n * (n - 1)), 0.0).sum()


def log_mean_exp_off(product):
    """Return log mean e^s over the product pairs of `split`."""
    n = product.shape[0]
    return jax.nn.logsumexp(jnp.maximum(product, LOWEST)) - jnp.log(n * (n - 1.0))


def exp(scores):
    """Return e^s, continued by its tangent above s = 75 to stay finite in float32.

    sup over s of (r s - e^s) is the same for ratios r below e^75, and so are the bounds by it: a
    diverging critic gets a finite value far below the truth, and a gradient.
    """
    excess = jnp.maximum(scores - LARGEST_EXPONENT, 0.0)
    return jnp.exp(jnp.minimum(scores, LARGEST_EXPONENT)) * (1.0 + excess)
