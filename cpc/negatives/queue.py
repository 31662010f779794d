"""A queue of latents of earlier batches, as more negatives (He et al. 2020, section 3.1).

Its negatives cost no encoding and get no gradient, and they are stale: an older encoder made them,
so log N - L is an estimate, not a bound on mutual information. Watch their `ages`. For the slow
encoder of momentum contrast, optax.incremental_update moves its parameters.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from cpc.types import AnyPosition, Position, UserError


class Queue(NamedTuple):
    """A ring of fixed size: one pytree, to be carried in the state of the training."""

    keys: Float[Array, "n d"]
    positions: AnyPosition
    """Of the keys, (n,). Sequences are below 0, so that no rule takes them for the batch's."""
    pushed: Int[Array, " n"]
    """The step at which each came."""
    exists: Bool[Array, " n"]
    cursor: Int[Array, ""]
    """The slot that is written next: once the ring is full, the oldest."""


def make_queue(size: int, width: int, dtype: DTypeLike = jnp.float32) -> Queue:
    """An empty queue for `size` latents of a width.

    >>> queue = make_queue(4, 2)
    >>> queue.keys.shape, int(queue.exists.sum())
    ((4, 2), 0)
    """
    if size < 1 or width < 1:
        raise UserError(f"a queue of {size} latents of width {width}: both must be 1 or more")
    return Queue(
        keys=jnp.zeros((size, width), dtype),
        # One array each: a donated state may not hold the same buffer twice.
        positions=Position(*(jnp.full(size, -1, jnp.int32) for _ in Position._fields)),
        pushed=jnp.zeros(size, jnp.int32),
        exists=jnp.zeros(size, bool),
        cursor=jnp.zeros((), jnp.int32),
    )


def push(
    queue: Queue,
    keys: Float[Array, "m d"],
    positions: AnyPosition,
    step: int | Int[Array, ""],
    where: Bool[Array, " m"] | None = None,
) -> Queue:
    """The queue after a batch: its latents take the place of the oldest.

    Of more latents than the queue holds, the last stay. Sequence s of the batch becomes -1 - s:
    rules see that queued latents are of other sequences, and tell group, time and lane as ever. A
    window of the same recording in an earlier batch is another sequence to them, and the `sample`
    of a `SoundPosition` is not kept. Rules that split the batch into shards allow none of the
    queue. Keys are cut off from the gradient; those outside of `where`, which may hold NaN, take no
    slot.

    >>> here = Position(*(jnp.arange(3),) * 4)
    >>> queue = push(make_queue(2, 1), jnp.array([[1.0], [2.0], [3.0]]), here, step=7)
    >>> queue.keys[:, 0], queue.positions.sequence
    (Array([3., 2.], dtype=float32), Array([-3, -2], dtype=int32))
    """
    size, width = queue.keys.shape
    m = keys.shape[0]
    if keys.shape[1] != width:
        raise UserError(f"keys of width {keys.shape[1]} do not fit a queue of width {width}")
    if any(jnp.shape(p) != (m,) for p in positions):
        raise UserError(f"positions have shapes {[jnp.shape(p) for p in positions]}: give ({m},)")
    exists = jnp.ones(m, bool) if where is None else where
    sequence = jnp.asarray(positions.sequence)
    sequence = jnp.minimum(sequence, -1 - sequence)  # what is below 0 already stays
    number, total = jnp.cumsum(exists, dtype=jnp.int32), jnp.sum(exists, dtype=jnp.int32)
    new = Queue(
        keys=jax.lax.stop_gradient(keys),
        positions=Position(sequence, positions.time, positions.lane, positions.group),
        pushed=jnp.full(m, step, jnp.int32),
        exists=exists,
        cursor=(queue.cursor + total) % size,
    )
    stays = exists & (number > total - size)
    # What is beyond the last slot is not written.
    slots = jnp.where(stays, (queue.cursor + number - 1) % size, size + jnp.arange(m))

    def write(old, new):
        if old.ndim == 0:
            return new
        return old.at[slots].set(new.astype(old.dtype), mode="drop", unique_indices=True)

    return jax.tree.map(write, queue, new)


def ages(queue: Queue, step: int | Int[Array, ""]) -> Int[Array, " n"]:
    """Steps since each latent came; -1 where there is none.

    With m latents a step, a full queue of n is up to ceil(n / m) steps old before the next push.

    >>> here = Position(*(jnp.zeros(1, jnp.int32),) * 4)
    >>> ages(push(make_queue(2, 1), jnp.ones((1, 1)), here, step=7), 9)
    Array([ 2, -1], dtype=int32)
    """
    return jnp.where(queue.exists, jnp.asarray(step, jnp.int32) - queue.pushed, -1)
