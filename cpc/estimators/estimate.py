"""The result of an estimator: the value and its claims."""

import dataclasses
import functools
import math
from typing import Any

import jax


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
