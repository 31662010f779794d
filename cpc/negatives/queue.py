"""A queue of latents from earlier batches, used as additional negatives (He et al. 2020, sec. 3.1).

Queued negatives need no encoding and receive no gradient. An older encoder computed them, so
log N - L is not a bound on mutual information. Monitor their age with `ages`. The slow encoder of
momentum contrast can be updated with optax.incremental_update.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from cpc.types import AnyPosition, Position, check_number, check_shape


class Queue(NamedTuple):
    """A fixed-size ring buffer of latents, stored as a pytree in the training state."""

    keys: Float[Array, "n d"]
    positions: AnyPosition
    """Positions of the keys, (n,). Their sequences are negative, unlike those of a batch."""
    pushed: Int[Array, " n"]
    """Step at which each key was added."""
    mask: Bool[Array, " n"]
    cursor: Int[Array, ""]
    """Index of the next slot to write. If the queue is full, it holds the oldest latent."""


def make_queue(size: int, width: int, dtype: DTypeLike = jnp.float32) -> Queue:
    """Return an empty queue for `size` latents of `width` features.

    >>> queue = make_queue(4, 2)
    >>> queue.keys.shape, int(queue.mask.sum())
    ((4, 2), 0)
    """
    check_number("size", size, least=1)
    check_number("width", width, least=1)
    return Queue(
        keys=jnp.zeros((size, width), dtype),
        # Use separate arrays, because a donated state must not contain the same buffer twice.
        positions=Position(*(jnp.full(size, -1, jnp.int32) for _ in Position._fields)),
        pushed=jnp.zeros(size, jnp.int32),
        mask=jnp.zeros(size, bool),
        cursor=jnp.zeros((), jnp.int32),
    )


def push(
    queue: Queue,
    keys: Float[Array, "m d"],
    positions: AnyPosition,
    step: int | Int[Array, ""],
    where: Bool[Array, " m"] | None = None,
) -> Queue:
    """Return the queue after replacing its oldest latents with a batch of new latents.

    If the batch is larger than the queue, only its last latents are stored. Sequence s of the batch
    is stored as -1 - s, so rules treat queued latents as other sequences, and rules that split the
    batch into shards never allow them. The sample indices of a `SoundPosition` are dropped. Keys
    receive no gradient. Keys masked by `where` may be NaN and are not stored.

    >>> here = Position(*(jnp.arange(3),) * 4)
    >>> queue = push(make_queue(2, 1), jnp.array([[1.0], [2.0], [3.0]]), here, step=7)
    >>> queue.keys[:, 0], queue.positions.sequence
    (Array([3., 2.], dtype=float32), Array([-3, -2], dtype=int32))
    """
    size, m = len(queue.keys), len(keys)
    check_shape("keys", keys, m, queue.keys.shape[1])
    for name, each in positions._asdict().items():
        check_shape(name, each, m)
    mask = jnp.ones(m, bool) if where is None else where
    sequence = jnp.asarray(positions.sequence)
    sequence = jnp.minimum(sequence, -1 - sequence)  # negative sequences are unchanged
    number, total = jnp.cumsum(mask, dtype=jnp.int32), jnp.sum(mask, dtype=jnp.int32)
    new = Queue(
        keys=jax.lax.stop_gradient(keys),
        positions=Position(sequence, positions.time, positions.lane, positions.group),
        pushed=jnp.full(m, step, jnp.int32),
        mask=mask,
        cursor=(queue.cursor + total) % size,
    )
    stays = mask & (number > total - size)
    # Slots beyond the last one are not written.
    slots = jnp.where(stays, (queue.cursor + number - 1) % size, size + jnp.arange(m))

    def write(old, new):
        if old.ndim == 0:
            return new
        return old.at[slots].set(new.astype(old.dtype), mode="drop", unique_indices=True)

    return jax.tree.map(write, queue, new)


def ages(queue: Queue, step: int | Int[Array, ""]) -> Int[Array, " n"]:
    """Return the number of steps since each latent was added, or -1 for empty slots.

    If each step adds m latents, the n slots are up to ceil(n / m) steps old before the next push.

    >>> here = Position(*(jnp.zeros(1, jnp.int32),) * 4)
    >>> ages(push(make_queue(2, 1), jnp.ones((1, 1)), here, step=7), 9)
    Array([ 2, -1], dtype=int32)
    """
    return jnp.where(queue.mask, jnp.asarray(step, jnp.int32) - queue.pushed, -1)
