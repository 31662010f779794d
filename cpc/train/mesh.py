"""Device meshes and placement. Batches are split over devices, and other arrays are replicated.

Only this file names a mesh axis. The axis type is Auto: the loss is written for the global batch as
if on one device, and the compiler inserts the communication.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from cpc.types import PyTree, UserError

BATCH_AXIS = "batch"
Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm]
KINDS = ("auto", "cpu", "gpu", "tpu")


def choose_devices(kind: str = "auto") -> list[Device]:
    """Return all devices of one kind. The kind "auto" means JAX's default devices.

    Raises UserError if the kind is unknown or this machine has no such device.
    """
    if kind not in KINDS:
        raise UserError(f"the device is unknown (got {kind!r}): choose one of {', '.join(KINDS)}")
    try:
        return jax.devices(None if kind == "auto" else kind)
    except (RuntimeError, AssertionError) as error:  # JAX asserts on a missing plug-in
        advice = "" if kind == "auto" else "choose 'auto', or "
        extra = "tpu" if kind == "tpu" else "cuda"
        # The error does not list other kinds: with an absent one in JAX_PLATFORMS, no query works.
        raise UserError(
            f"No {'' if kind == 'auto' else f'{kind} '}device was found here: {advice}pip install "
            f"'cpc-jax[{extra}]', and check JAX_PLATFORMS if it is set"
        ) from error


def make_mesh(num_devices: int | None = None, devices: Sequence[Device] | None = None) -> Mesh:
    """Return a one-dimensional mesh of the first `num_devices` devices (default: all)."""
    devices = choose_devices() if devices is None else devices
    count = len(devices) if num_devices is None else num_devices
    if not 0 < count <= len(devices):
        raise UserError(
            f"{count} devices were requested, but {len(devices)} are here: use 1 to {len(devices)}"
        )
    return jax.make_mesh(
        (count,), (BATCH_AXIS,), axis_types=(AxisType.Auto,), devices=tuple(devices[:count])
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding that splits an array's first axis over all mesh devices."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXIS))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding that places a full copy of an array on every mesh device."""
    return NamedSharding(mesh, PartitionSpec())


def check_batch_size(batch_size: int, mesh: Mesh) -> None:
    """Raise UserError if a batch from all processes cannot be split evenly over the devices."""
    if batch_size % mesh.size:
        raise UserError(
            f"a batch of {batch_size} cannot be split over {mesh.size} devices: use a multiple of "
            "the number of devices"
        )


def put_batch(batch: PyTree, mesh: Mesh) -> PyTree:
    """Split a host batch over the devices. Each process passes its own rows of the batch."""
    sharding = batch_sharding(mesh)

    def put(rows: np.ndarray) -> jax.Array:
        check_batch_size(len(rows) * jax.process_count(), mesh)
        return jax.make_array_from_process_local_data(sharding, rows)

    return jax.tree.map(put, batch)


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
    """Copy every leaf of a tree to every device. All processes must pass the same values."""
    if jax.process_count() == 1:
        return jax.device_put(tree, replicated(mesh))

    def put(leaf: Any) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = put(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        return jax.make_array_from_process_local_data(replicated(mesh), np.asarray(leaf))

    return jax.tree.map(put, tree)
