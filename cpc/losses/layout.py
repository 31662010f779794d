"""What the losses take for granted of a batch's positions: their order, and some negative.

Positions that are known, as numpy arrays or outside of `jax.jit`, give a Python boolean; others one
that the compiled program finds.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from cpc.types import AnyPosition, NegativeRule, UserError, is_positive


def is_grid(positions: AnyPosition, where: Any, shape: tuple[int, ...]) -> Any:
    """Return whether all sequences have the same lanes, and times that count upwards from the same.

    Positions broadcast to the shape (b, t, *lanes); latents that do not exist may be anywhere.
    """
    xp, exists = _read(positions, where, shape)
    b, t = shape[:2]
    time, lane = (
        xp.broadcast_to(xp.asarray(x), shape).reshape(b, t, -1)
        for x in (positions.time, positions.lane)
    )
    start = time - xp.arange(t)[:, None]
    exists = exists.reshape(b, t, -1)
    lanes, of_lanes = (xp.moveaxis(x, -1, 0).reshape(lane.shape[-1], -1) for x in (lane, exists))
    times_fit = _one_value_each(xp, start.reshape(1, -1), exists.reshape(1, -1))
    return _known(times_fit & _one_value_each(xp, lanes, of_lanes))


def is_in_shards(
    positions: AnyPosition, where: Any, shape: tuple[int, ...], shard_size: int
) -> Any:
    """Return whether so many sequences after each other, (b, t, ...), are always one shard."""
    xp, exists = _read(positions, where, shape)
    shard = xp.broadcast_to(xp.asarray(positions.sequence), shape) // shard_size
    num_shards = shape[0] // shard_size
    return _known(
        _one_value_each(xp, shard.reshape(num_shards, -1), exists.reshape(num_shards, -1))
    )


def check_negatives(
    anchors: AnyPosition, candidates: AnyPosition, rule: NegativeRule, offsets: Iterable[int]
) -> None:
    """Check that some anchor has a positive and a negative, if all positions are known.

    Latents count whether they exist or not, since a batch may hold little but padding. Anchors are
    compared with all candidates in blocks until one is found, which mostly is in the first block.

    Args:
      anchors: positions, (m,).
      candidates: positions, (n,).
      rule: rule(anchor, candidate, offset) -> bool.
      offsets: of the positives.

    Raises:
      UserError: no anchor has a positive, or none of these a negative, so that the loss would be 0
        without a gradient.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((anchors, candidates))):
        return
    there = jax.tree.map(lambda p: np.asarray(p)[None], candidates)
    some_positive, size = False, max(1, 2**18 // there.time.size)
    eagerly = jax.ensure_compile_time_eval  # known positions stay known under jit
    with eagerly():
        for k, start in itertools.product(offsets, range(0, len(anchors.time), size)):
            here = jax.tree.map(lambda p, i=start: np.asarray(p)[i : i + size, None], anchors)
            positive, negative = is_positive(here, there, k), rule(here, there, k)
            if isinstance(negative, Tracer):
                return
            with_positive = positive.any(-1)
            some_positive |= with_positive.any()
            if (np.asarray(negative) & ~positive)[with_positive].any():
                return
    if not some_positive:
        times = np.min(there.time), np.max(there.time)
        raise UserError(
            f"no anchor has a positive {offsets} steps ahead (got times {times[0]} to {times[1]}): "
            "pass times that count latents, as Position.grid does"
        )
    name, num = getattr(rule, "name", "given"), len(np.unique(there.sequence))
    raise UserError(
        f"no anchor has a negative under the rule {name} (got {num} sequences): pass a larger "
        "batch or another rule"
    )


def _read(positions, where, shape) -> tuple[Any, Any]:
    """The library that can look at the positions, and which latents exist."""
    leaves = jax.tree.leaves((positions, where))
    xp = jnp if any(isinstance(leaf, Tracer) for leaf in leaves) else np
    return xp, xp.ones(shape, bool) if where is None else xp.asarray(where)


def _one_value_each(xp, x, exists) -> Any:
    """Whether each row holds one value where it exists, and no two rows the same."""
    highest = np.iinfo(np.int32).max
    least = xp.where(exists, x, highest).min(-1)
    most = xp.where(exists, x, -highest).max(-1)
    ascending = xp.sort(least)
    differ = (ascending[1:] > ascending[:-1]) | (ascending[1:] == highest)
    return (least >= most).all() & differ.all()


def _known(fits):
    return fits if isinstance(fits, Tracer) else bool(fits)
