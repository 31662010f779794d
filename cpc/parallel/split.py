"""The candidates in equal shards, one a device."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cpc.losses.tiles import Latents
from cpc.types import UserError


def split_keys(
    keys: Float[Array, "n d"], candidates: Latents, num_own: int, num_devices: int
) -> tuple[Float[Array, "p m d"], Latents]:
    """Return keys (p, m, d) and their latents (p, m) for each of p devices.

    The first `num_own` keys are the batch's latents in order: a device keeps those of its own
    sequences. Further ones (of a queue) are spread evenly, with latents that do not exist as
    padding.
    """

    def cut(x, fill):
        own, further = x[:num_own], x[num_own:]
        pad = -len(further) % num_devices
        further = jnp.pad(further, [(0, pad)] + [(0, 0)] * (x.ndim - 1), constant_values=fill)
        parts = [part.reshape(num_devices, -1, *x.shape[1:]) for part in (own, further)]
        return jnp.concatenate(parts, 1) if len(further) else parts[0]

    latents = Latents(
        jax.tree.map(lambda x: cut(x, -1), candidates.positions), cut(candidates.exists, False)
    )
    return cut(keys, 0), latents


def join_keys(shards: Array, num_own: int) -> Array:
    """Join the gathered shards (p, m, ...) into (n, ...): first the `num_own` of each, in order."""
    own, further = shards[:, :num_own], shards[:, num_own:]
    parts = [x.reshape(-1, *x.shape[2:]) for x in (own, further)]
    return jnp.concatenate(parts) if further.size else parts[0]


def check_divides(num_sequences: int, num_devices: int) -> None:
    """Raise UserError if the sequences of a batch cannot be split evenly over the devices."""
    if num_sequences % num_devices:
        raise UserError(
            f"{num_sequences} sequences cannot be split over {num_devices} devices; make the batch "
            f"a multiple of {num_devices}"
        )
