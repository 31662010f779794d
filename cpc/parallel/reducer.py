"""The loss of a batch sharded over devices, with keys gathered on each device or sent in a ring.

If the compiler partitions the loss, it sums the gradients of the keys over devices once per block
of anchors. Here each device scores its own anchors, and the gradients are summed only once.

In the ring, each of p steps scores a device's anchors against the shard of keys that the device
holds, while the next shard is transferred. The backward pass sends the keys around again, with
their gradients, and recomputes the scores. A device holds O(n d / p) keys, one tile of scores, and
one number for each of its anchors and each sequence.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jaxtyping import Array, Bool, Float

from cpc.losses.blocks import (
    LossReducer,
    Plan,
    received_weights,
    sharded_losses,
    sum_by_sequence,
    summed_losses,
)
from cpc.losses.tiles import (
    AnchorScores,
    Latents,
    Negatives,
    add_tile,
    compare,
    derivatives,
    finish,
    init_negatives,
    rescale_sums,
    split_axis,
)
from cpc.types import UserError

#: Maximum size in bytes of gathered keys and their gradients on a device.
GATHERED_BYTES = 2**28


def make_reducer(mesh: jax.sharding.Mesh, axis: str) -> LossReducer:
    """Return a version of `summed_losses` for a batch that is sharded over a mesh axis.

    Results equal those on one device up to float32 rounding, for any rule. The keys must start with
    the latents of the anchors, in the same order, and include all positives. If there is a sampler,
    the compiler partitions the loss, so that the draws do not depend on the number of devices.
    """
    if axis not in mesh.shape:
        raise UserError(f"mesh has no axis {axis!r}: choose one of {', '.join(mesh.shape)}")
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        fix = "pass axis_types=(AxisType.Auto,) per axis, or use cpc.train.make_mesh"
        raise UserError(f"mesh has explicit axes (the default of jax.make_mesh): {fix}")

    def reducer(queries, keys, anchors, candidates, rng, plan):
        num_devices, num_keys = mesh.shape[axis], anchors.mask.size
        num_shards = plan.num_shards(queries.shape[1])
        has_shards = num_shards % num_devices == 0 and len(keys) == num_keys
        if num_devices == 1 or has_shards or plan.sampler is not None:  # no keys need to be moved
            return sharded_losses(queries, keys, anchors, candidates, rng, plan)
        travels = plan.can_tile and takes_ring(len(plan.offsets), *keys.shape)
        across = ring_losses if travels else gathered_losses
        return across(queries, keys, anchors, candidates, plan, mesh, axis)

    return reducer


def takes_ring(num_offsets: int, num_candidates: int, width: int) -> bool:
    """Return whether to send keys in a ring, because gathering would exceed `GATHERED_BYTES`.

    If keys are gathered, a device holds n d floats of keys and n d floats of gradients for each
    offset, because the offsets' weights are known only in the backward pass. It computes 3 matrix
    products. In the ring, it holds n d / p floats but recomputes the scores, a fourth product. With
    the paper's 8 windows of 128 latents per device, 8 devices gather and 16 devices use the ring.

    >>> [takes_ring(12, devices * 8 * 128, 512) for devices in (8, 16)]
    [False, True]
    """
    return 4 * (num_offsets + 1) * num_candidates * width > GATHERED_BYTES


def gathered_losses(
    queries: Float[Array, "k b a d"],
    keys: Float[Array, "n d"],
    anchors: Latents,
    candidates: Latents,
    plan: Plan,
    mesh: jax.sharding.Mesh,
    axis: str,
) -> tuple[Float[Array, " k"], AnchorScores, Float[Array, "k s"]]:
    """Return `summed_losses` of each device's anchors against all keys, after gathering these once.

    Samplers (`plan.sampler`) are not supported. The gather's backward pass is one reduce-scatter.
    Summing the losses outside of shard_map avoids another reduction.
    """
    rows, shards = jax.P(None, axis), jax.P(axis)

    def of_device(queries, keys, anchors, candidates):
        keys, candidates = jax.tree.map(
            lambda x: join_keys(jax.lax.all_gather(x[0], axis), anchors.mask.size),
            (keys, candidates),
        )
        b = len(anchors.mask)
        own = jax.lax.axis_index(axis) * b + jnp.arange(b)
        unused = jax.random.key(0)  # no negatives are sampled
        result: Any = summed_losses(queries, keys, anchors, candidates, unused, plan, own)
        losses, scores, received = result
        return losses[None], scores, received[None]

    specs = (rows, shards, shards, shards), (shards, rows, shards)
    keys, candidates = split_keys(keys, candidates, anchors, mesh.shape[axis])
    of_devices = _split(of_device, mesh, *specs)
    losses, scores, received = of_devices(queries, keys, anchors, candidates)
    return jnp.sum(losses, 0), scores, jnp.sum(received, 0)


def split_keys(
    keys: Float[Array, "n d"], candidates: Latents, anchors: Latents, num_devices: int
) -> tuple[Float[Array, "p m d"], Latents]:
    """Split keys and latents over p devices, as arrays (p, m, d) and (p, m).

    Each device gets the keys of its own sequences, which come first in the order of the anchors.
    Further keys from a queue are split evenly and padded with masked latents.
    """
    num_sequences, num_own = len(anchors.mask), anchors.mask.size
    if num_sequences % num_devices:
        problem = f"{num_sequences} sequences cannot be split over {num_devices} devices"
        raise UserError(f"{problem}: use a batch size that is a multiple of {num_devices}")

    def cut(x):
        own, further = x[:num_own], x[num_own:]
        pad = -len(further) % num_devices
        further = jnp.pad(further, [(0, pad)] + [(0, 0)] * (x.ndim - 1))
        parts = [part.reshape(num_devices, -1, *x.shape[1:]) for part in (own, further)]
        return jnp.concatenate(parts, 1) if len(further) else parts[0]

    return jax.tree.map(cut, (keys, candidates))


def join_keys(shards: Array, num_own: int) -> Array:
    """Join shards (p, m, ...) to (n, ...), batch keys first. Each shard has `num_own` of these."""
    own, further = shards[:, :num_own], shards[:, num_own:]
    parts = [x.reshape(-1, *x.shape[2:]) for x in (own, further)]
    return jnp.concatenate(parts) if further.size else parts[0]


class Collected(NamedTuple):
    """Statistics of anchors that are accumulated over shards of keys."""

    positive: Float[Array, "..."]
    has_positive: Bool[Array, "..."]
    seen: Negatives


def ring_losses(
    queries: Float[Array, "k b a d"],
    keys: Float[Array, "n d"],
    anchors: Latents,
    candidates: Latents,
    plan: Plan,
    mesh: jax.sharding.Mesh,
    axis: str,
) -> tuple[Float[Array, " k"], AnchorScores, Float[Array, "k s"]]:
    """Return `summed_losses` of InfoNCE over all allowed negatives, with a ring over a mesh axis.

    A device scores its own shard of the keys first, which contains all of its positives.
    """
    num_own = anchors.mask.size // mesh.shape[axis]
    keys, candidates = split_keys(keys, candidates, anchors, mesh.shape[axis])
    held = keys.shape[1]
    block = min(num_own, plan._replace(columns=held).choose_block(held))
    plan = plan._replace(block=block, num_sequences=plan.num_sequences // mesh.shape[axis])
    return _ring(queries, keys, anchors, candidates, plan, mesh, axis)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _ring(*arguments):
    return _forward(*arguments)[0]


def _forward(queries, keys, anchors, candidates, plan, mesh, axis):
    rows, shards = jax.P(None, axis), jax.P(axis)
    block = plan.block

    def of_device(queries, keys, anchors, candidates):
        tasks, join = _cut_tasks(queries, anchors, plan.offsets, block)
        held: Any = jax.tree.map(lambda x: x[0], (keys, candidates))
        length = queries.shape[2]
        sequence_shape = plan.num_sequences, length

        def step(carry, _):
            collected, held = carry
            arriving = _rotate(held, mesh, axis)  # overlaps with the computation below
            collected, by_sequence = jax.lax.map(
                lambda x: _add_shard(x[0], x[1], held, plan.rule, sequence_shape),
                (collected, tasks),
            )
            return (collected, arriving), by_sequence

        nothing = Collected(
            jnp.zeros(block, jnp.float32), jnp.zeros(block, bool), init_negatives(block)
        )
        collected = jax.tree.map(lambda x: jnp.tile(x, (len(tasks[0]), 1)), nothing)
        (collected, _), sums = jax.lax.scan(step, (collected, held), length=mesh.shape[axis])
        (exp, highest), seen = sums, collected.seen
        scores, size = jax.vmap(finish)(seen, collected.positive, collected.has_positive)
        weights = join(_in_order(rescale_sums(exp, highest, seen, size), axis))
        m = anchors.mask.size
        weights = weights.reshape(len(weights), m, -1)
        own = (jax.lax.axis_index(axis) * m + jnp.arange(m)) // length
        received = received_weights(weights, own)
        return *jax.tree.map(join, (scores, (seen.highest, seen.total, size))), received[None]

    specs = (rows, shards, shards, shards), (rows, rows, shards)
    scores, kept, received = _split(of_device, mesh, *specs)(queries, keys, anchors, candidates)
    result = scores.loss.sum((1, 2)), scores, jnp.sum(received, 0)
    return result, (queries, keys, anchors, candidates, *kept)


def _backward(plan, mesh, axis, kept, cotangents):
    rows, shards = jax.P(None, axis), jax.P(axis)
    rule, block = plan.rule, plan.block

    def of_device(queries, keys, anchors, candidates, highest, total, size, g):
        tasks, join = _cut_tasks(queries, anchors, plan.offsets, block)
        size = g[:, None, None] * size
        kept = [_cut_rows(x.reshape(len(g), -1), block) for x in (highest, total, size)]

        def step(carry, _):
            dqueries, dkeys, held = carry
            arriving, dkeys = _rotate(held, mesh, axis), _rotate(dkeys, mesh, axis)

            def one_task(own, x):
                (keys, there), (dq, (highest, total, size), (q, here, k)) = held, x
                scores, where, is_positive = compare(q, keys, here, there, rule, k)
                where = where & (total > 0)[:, None]  # anchors without a positive have total 0
                w = derivatives(scores, where, is_positive, highest, total, size)
                w = w.astype(keys.dtype)
                dq = dq + jnp.matmul(w, keys, preferred_element_type=jnp.float32)
                return own + jnp.matmul(w.T, q, preferred_element_type=jnp.float32), dq

            own = jnp.zeros(dkeys.shape, jnp.float32)
            own, dqueries = jax.lax.scan(one_task, own, (dqueries, kept, tasks))
            return (dqueries, dkeys + own, arriving), None

        held: Any = jax.tree.map(lambda x: x[0], (keys, candidates))
        begin = jnp.zeros(tasks[0].shape, jnp.float32), jnp.zeros(held[0].shape, jnp.float32)
        (dqueries, dkeys, _), _ = jax.lax.scan(step, (*begin, held), length=mesh.shape[axis])
        home = _rotate(dkeys, mesh, axis)
        return join(dqueries).astype(queries.dtype), home[None].astype(keys.dtype)

    specs = (rows, shards, shards, shards, rows, rows, rows, jax.P()), (rows, shards)
    return *_split(of_device, mesh, *specs)(*kept, cotangents[0]), None, None


_ring.defvjp(_forward, _backward)


def _split(function, mesh, in_specs, out_specs) -> Any:
    return jax.shard_map(  # check_vma=False: loops may start with device-invariant values
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def _rotate(tree, mesh, axis):
    """Send each device's arrays to the next device of the ring."""
    p = mesh.shape[axis]
    return jax.tree.map(
        lambda x: jax.lax.ppermute(x, axis, [(i, (i + 1) % p) for i in range(p)]), tree
    )


def _cut_tasks(queries, anchors, offsets, block):
    """Return tasks (queries, anchors, offset) of `block` anchors, and a function to undo it."""
    k, b, a, d = queries.shape
    rows = jax.tree.map(lambda x: _cut_rows(x.reshape(1, -1), block), anchors)
    tasks = (
        _cut_rows(queries.reshape(k, b * a, d), block),
        jax.tree.map(lambda x: jnp.tile(x, (k, 1)), rows),
        jnp.repeat(jnp.array(offsets), len(rows.mask)),
    )

    def join(x):  # (k blocks, block, ...) -> (k, b, a, ...)
        joined = x.reshape(k, len(x) * x.shape[1] // k, *x.shape[2:])
        return joined[:, : b * a].reshape(k, b, a, *x.shape[2:])

    return tasks, join


def _cut_rows(x, block):
    """Reshape (k, rows, ...) to (k blocks, block, ...), padded with zeros and False masks."""
    return split_axis(x, block, 1).reshape(-1, block, *x.shape[2:])


def _add_shard(collected, task, held, rule, sequence_shape):
    """Return statistics with one more shard, and sums of e^(s - M) for each sequence with M."""
    (q, here, k), (keys, there) = task, held
    scores, where, is_positive = compare(q, keys, here, there, rule, k)
    positive = collected.positive + jnp.where(is_positive, scores, 0.0).sum(-1)
    has_positive = collected.has_positive | is_positive.any(-1)
    where &= has_positive[:, None]
    seen = add_tile(collected.seen, scores, positive, where)
    exp = jnp.exp(jnp.where(where, scores - seen.highest[:, None], -jnp.inf))
    by_sequence = sum_by_sequence(exp, *sequence_shape), seen.highest
    return Collected(positive, has_positive, seen), by_sequence


def _in_order(x, axis):
    """Reorder weights (p, tasks, block, s) from ring steps to sequences, (tasks, block, b)."""
    p = len(x)
    steps = (jax.lax.axis_index(axis) - jnp.arange(p)) % p  # ring step of each device's shard
    return jnp.moveaxis(x[steps], 0, 2).reshape(*x.shape[1:3], p * x.shape[-1])
