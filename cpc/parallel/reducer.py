"""All keys on every device, or keys that travel: the choice, and the first of the two.

Left to the compiler, the scan over blocks of anchors adds up the gradients of the keys over the
devices once a block. Here each device scores its own anchors, and they are added up once.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jaxtyping import Array, Float

from cpc.losses.blocks import LossReducer, Plan, sharded_losses, summed_losses
from cpc.losses.tiles import AnchorScores, Latents
from cpc.parallel.ring import check_divides, join_keys, ring_losses, split_keys
from cpc.types import UserError

#: What the gradients of gathered keys may take of a device's memory.
GATHERED_BYTES = 2**28


def make_reducer(mesh: jax.sharding.Mesh, axis: str) -> LossReducer:
    """A function like `summed_losses`, of a batch split over the axis of a mesh.

    Losses, scores and gradients are those of one device to float32 rounding, for any rule over
    positions. Keys begin with the latents of the anchors, in their order; positives are among
    these. Negatives that are drawn (`choose`) leave the work to the compiler, so that the draws do
    not depend on the devices.
    """
    if axis not in mesh.shape:
        raise UserError(f"the mesh has no axis {axis!r}: choose one of {', '.join(mesh.shape)}")
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise UserError(
            "the mesh has axes whose shardings are explicit, as jax.make_mesh makes them by "
            "default: make it with axis_types=(AxisType.Auto,), one each axis, or by "
            "cpc.train.make_mesh"
        )

    def reducer(
        queries: Float[Array, "k b a d"],
        keys: Float[Array, "n d"],
        anchors: Latents,
        candidates: Latents,
        rng: Array,
        plan: Plan,
    ) -> tuple[Float[Array, " k"], AnchorScores, Float[Array, "k s"]]:
        num_devices, num_keys = mesh.shape[axis], anchors.exists.size
        num_shards = plan.num_shards(queries.shape[1])
        has_shards = num_shards % num_devices == 0 and len(keys) == num_keys
        if num_devices == 1 or has_shards or plan.choose is not None:  # nothing has to travel
            return sharded_losses(queries, keys, anchors, candidates, rng, plan)
        travels = plan.can_tile and takes_ring(len(plan.offsets), *keys.shape)
        across = ring_losses if travels else gathered_losses
        return across(queries, keys, anchors, candidates, plan, mesh, axis)

    return reducer


def takes_ring(num_offsets: int, num_candidates: int, width: int) -> bool:
    """Whether keys should travel: where all of them, and their gradients, are too much to hold.

    A device that gathers holds n d floats of keys, and of gradients n d for each offset, because
    the weights of the offsets come only with the backward pass; it does 3 products. The ring holds
    its share, n d / p, but computes the scores again for the gradient: 4 products. Between the two
    lies `GATHERED_BYTES`: at the paper's size, 8 windows of 128 latents a device, 8 devices gather
    and 16 make a ring.

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
    """`summed_losses` of each device's own anchors against all keys, gathered once; no `choose`.

    What gathers the keys scatters the sum of their gradients, once, in the backward pass. The
    losses are added up outside: a sum over devices inside would be differentiated into another.
    """
    check_divides(queries.shape[1], mesh.shape[axis])
    rows, shards = jax.P(None, axis), jax.P(axis)

    def of_device(queries, keys, anchors, candidates):
        keys, candidates = jax.tree.map(
            lambda x: join_keys(jax.lax.all_gather(x[0], axis), anchors.exists.size),
            (keys, candidates),
        )
        b = len(anchors.exists)
        own = jax.lax.axis_index(axis) * b + jnp.arange(b)
        unused = jax.random.key(0)  # nothing is drawn
        result: Any = summed_losses(queries, keys, anchors, candidates, unused, plan, own)
        losses, scores, received = result
        return losses[None], scores, received[None]

    of_devices: Any = jax.shard_map(
        of_device,
        mesh=mesh,
        in_specs=(rows, shards, shards, shards),
        out_specs=(shards, rows, shards),
        check_vma=False,  # loss and rule are free to begin a loop with what is no device's own
    )
    shared = split_keys(keys, candidates, anchors.exists.size, mesh.shape[axis])
    losses, scores, received = of_devices(queries, shared[0], anchors, shared[1])
    return jnp.sum(losses, 0), scores, jnp.sum(received, 0)
