"""The strict bound, with one negative from each other sequence of the batch."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cpc.losses import OffsetSums, cpc_loss
from cpc.types import CPCOutputs, Position, Rule

_STRICT = Rule("strict", lambda anchor, other, _: anchor.sequence != other.sequence, aligned=True)


def bound_over_sequences(
    z: Float[Array, "b t *lanes d"],
    predictions: Float[Array, "b t *lanes k d"],
    offsets: tuple[int, ...] | None = None,
    *,
    where: Bool[Array, "b t *lanes"] | None = None,
    sound: tuple[Int[Array, "#b #t *lanes"], Int[Array, "#b #t *lanes"]] | None = None,
) -> OffsetSums:
    """Return sums for log b - L, with one candidate per sequence, aligned with the positive.

    I(z_(t+k); c_t) >= log b - E [ log sum_j e^s(c_t of i, z_(t+k) of j) - s(i, i) ]

    Independent sequences make the candidates independent draws from the marginal, so that this is a
    lower bound for any scores (van den Oord et al. 2018, section 2.3). It equals the CPC loss under
    the rule `one_per_sequence`, at b / t of the work. A single sequence has no negatives: all its
    sums are 0.

    Args:
      offsets: of the predictions; 1 to k by default.
      where: which latents exist; the others are not candidates.
      sound: the `window` and the `end` of a `SoundPosition`. A sequence whose sound overlaps that
        of an earlier one is left out: copies raise log b and are not harder to distinguish.
    """
    b, length, *lanes, _ = z.shape
    if b == 1:
        zero = jnp.zeros(predictions.shape[-2], jnp.float32)
        return OffsetSums(*(zero for _ in OffsetSums._fields))
    flat = Position.grid(b, length, math.prod(lanes))
    positions = jax.tree.map(lambda p: p.reshape(z.shape[:-1]), flat)
    if sound is not None:
        exists = jnp.ones(z.shape[:-1], bool) if where is None else where
        where = exists & is_new(*sound, exists).reshape(b, *(1,) * (len(lanes) + 1))
    dtype = jnp.result_type(z, predictions)
    outputs = CPCOutputs(z.astype(dtype), z, predictions.astype(dtype))
    return cpc_loss(outputs, positions, _STRICT, where=where, offsets=offsets)[1]


def is_new(
    window: Int[Array, "#b #t *lanes"],
    end: Int[Array, "#b #t *lanes"],
    exists: Bool[Array, "b t *lanes"],
) -> Bool[Array, " b"]:
    """Return which sequences share no sound with an earlier one.

    The sound of a sequence is from its `window` to the last `end` of its latents that exist. Both
    count modulo 2^32, so only differences are compared.
    """
    b = len(exists)
    start = jnp.broadcast_to(window, exists.shape).reshape(b, -1)[:, 0]
    length = jnp.where(exists, end - window, 0).reshape(b, -1).max(-1)
    ahead = start[:, None] - start
    overlaps = (ahead > -length[:, None]) & (ahead < length) & (length > 0)
    return ~jnp.tril(overlaps, -1).any(-1)
