"""Whether a config fits the devices, before anything is read or compiled."""

import bisect
import functools
import math
import os
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from cpc import losses
from cpc.losses.tiles import block_size
from cpc.parallel import takes_ring
from cpc.types import UserError
from experiments.training.plan import Plan

#: What a container may use, where it is limited: of cgroups 2 and 1.
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_memory(plan: Plan, mesh: jax.sharding.Mesh) -> None:
    """Check that the scores and gradients of the loss fit a device; the network comes on top.

    Raises:
        UserError: they do not, with the numbers, and what of the config needs less.
    """
    config = plan.config
    num_latents, width, num_offsets = sizes_of(plan)
    if plan.rule.aligned and not config.negatives.queue:
        return  # few of the candidates are scored, and no block of them is kept
    needed = functools.partial(loss_bytes, plan, mesh.size)
    batch_size, memory = config.data.batch_size, device_bytes(mesh)
    if needed(batch_size) <= memory:
        return
    step = math.lcm(mesh.size * config.optim.accumulate, config.negatives.shards)
    batches = range(step, batch_size + 1, step)  # what a batch needs grows with it
    fits = step * bisect.bisect_right(batches, memory, key=needed)
    usual = block_size(*candidates_held(plan, mesh.size, batch_size))
    blocks = (usual >> halvings for halvings in range(1, usual.bit_length()))
    block = next((size for size in blocks if needed(batch_size, size) <= memory), 0)
    queue = f" and {config.negatives.queue:,} of a queue" if config.negatives.queue else ""
    raise UserError(
        f"the loss alone takes {giga(needed(batch_size))} of a device's {giga(memory)}, for "
        f"{batch_size} x {num_latents:,} candidates{queue}, {width} wide, at {num_offsets} offsets "
        f"in blocks of {usual} anchors: "
        + (f"data.batch_size={fits} fits" if fits else "no data.batch_size fits")
        + "; fewer offsets (model.num_offsets), a smaller negatives.queue, model.dtype=bfloat16 or "
        "more devices need less"
        + (f"; called from Python, cpc_loss fits with block={block}" if block else "")
    )


def check_sizes(plan: Plan, mesh: jax.sharding.Mesh, shape: Sequence[int]) -> None:
    """Check that weights, a batch and the evaluation fit a device, as far as they are known.

    `shape` is of one input.

    Raises:
        UserError: one of them does not, with the keys that make it smaller.
    """
    config, memory = plan.config, device_bytes(mesh)
    options, (num_latents, width, num_offsets) = config.model, sizes_of(plan)
    size, contexts = jnp.dtype(options.dtype).itemsize, options.context_width
    (key, number), *_ = config.evaluate.items()
    recurrent = contexts**2 // options.get("context_blocks", 1)
    weights = options.context_layers * recurrent + num_offsets * contexts * width
    rows = config.data.batch_size // mesh.size
    predicted = size * num_latents * width * (1 + num_offsets)
    needed = {
        # Each layer of a context has so many at least; beside them gradients and two moments.
        "weights (model.context_width, model.context_layers, model.num_offsets)": 16 * weights,
        "a batch (data.batch_size, or the size of its inputs)": rows
        * (4 * math.prod(shape) + size * num_latents * (width + contexts)),
        # The strict bound contrasts all of it.
        f"an evaluation (evaluate.{key})": number // mesh.size * predicted,
    }
    for what, num_bytes in needed.items():
        if num_bytes > memory:
            name, _, keys = what.partition(" (")
            raise UserError(
                f"{name} alone takes {giga(num_bytes)} or more of a device's {giga(memory)}: "
                f"lower {keys.rstrip(')')}"
            )


def check_host(key: str, num_bytes: int) -> None:
    """Check that what a key asks to be made up fits the memory of this machine."""
    if num_bytes > host_bytes():
        raise UserError(
            f"the data alone take {giga(num_bytes)} of this machine's {giga(host_bytes())}: "
            f"lower {key}"
        )


def sizes_of(plan: Plan) -> tuple[int, int, int]:
    """Return the latents of a sequence, their width, and the predictions of each."""
    return plan.geometry.num_latents, plan.geometry.width, plan.geometry.num_offsets


def candidates_held(plan: Plan, num_devices: int, batch_size: int) -> tuple[int, int | None]:
    """Candidates whose keys a device holds; how many are scored at a time, None to choose."""
    config, (num_latents, width, num_offsets) = plan.config, sizes_of(plan)
    can_tile = losses.describe(plan.loss).can_tile and not plan.is_aligned and plan.choose is None
    num_candidates = batch_size * num_latents + config.negatives.queue
    if not can_tile:
        return num_candidates, num_candidates
    if num_devices > 1 and takes_ring(num_offsets, num_candidates, width):
        # Keys that travel leave a shard of them on each device, and scores in whole rows of it.
        shard = -(-num_candidates // num_devices)
        return shard, shard
    return num_candidates, None


def loss_bytes(plan: Plan, num_devices: int, batch_size: int, block: int | None = None) -> int:
    """What one of the devices holds for the loss of a batch, by default in blocks as it chooses."""
    config, (num_latents, width, num_offsets) = plan.config, sizes_of(plan)
    held, columns = candidates_held(plan, num_devices, batch_size)
    travels = held < batch_size * num_latents + config.negatives.queue
    block = block_size(held, columns) if block is None else block
    if plan.choose is not None:  # the compiler cuts the blocks of the batch
        block = -(-block // num_devices)
    return losses.loss_bytes(
        batch_size // num_devices * num_latents,
        held,
        width,
        num_offsets=num_offsets,
        num_sequences=1 if travels else batch_size // num_devices,
        block=block,
        columns=columns,
        itemsize=jnp.dtype(config.model.dtype).itemsize,
    )


def device_bytes(mesh: jax.sharding.Mesh) -> int:
    """Memory of a device of this process; CPU devices share what the machine, or container, has."""
    own = [one for one in mesh.devices.flat if one.process_index == jax.process_index()]
    known = own[0].memory_stats() or {}
    if "bytes_limit" in known:
        return known["bytes_limit"]
    return host_bytes() // len(own)


def host_bytes() -> int:
    """Memory that this process may use, of the machine or of its container."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in LIMITS:
        try:
            sizes.append(int(pathlib.Path(path).read_text()))
        except (OSError, ValueError):  # none of this kind, or "max"
            continue
    return min(sizes)


def giga(num_bytes: int) -> str:
    """Return a number of bytes in words.

    >>> giga(3_220_000_000)
    '3.22 GB'
    """
    return f"{num_bytes / 1e9:.3g} GB"
