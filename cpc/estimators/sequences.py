"""The strict bound: each other sequence of the batch gives one negative."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from cpc.losses import OffsetSums, cpc_loss
from cpc.types import CPCOutputs, Position, Rule, SoundPosition

_STRICT = Rule("strict", lambda anchor, other, _: anchor.sequence != other.sequence, aligned=True)


def bound_over_sequences(
    z: Float[Array, "b t *lanes d"],
    predictions: Float[Array, "b t *lanes k d"],
    offsets: tuple[int, ...] | None = None,
    *,
    where: Bool[Array, "b t *lanes"] | None = None,
    rule: Rule | None = None,
    sound: tuple[Int[Array, "#b #t *lanes"], ...] = (),
) -> OffsetSums:
    """Return sums for log b - L: the candidates are aligned with the positive, one a sequence.

    I(z_(t+k); c_t) >= log b - E [ log sum_j e^s(c_t of i, z_(t+k) of j) - s(i, i) ]

    Sequences drawn independently make the candidates independent draws from the marginal, so that
    this is a lower bound for any scores (van den Oord et al. 2018, section 2.3). It equals the CPC
    loss under the rule `one_per_sequence`, at b / t of the work. Entry i of the predictions is of
    offsets[i]; 1 to k by default. `where` says which latents exist: the others are no candidates.
    A `rule` leaves out more of the candidates, and may look at what a `SoundPosition` adds to a
    `Position`: `sound`, in this order.
    """
    b, length, *lanes, _ = z.shape
    column = np.arange(math.prod(lanes)).reshape(lanes)
    ones = (1,) * len(lanes)
    positions: Any = Position(
        sequence=np.arange(b).reshape(b, 1, *ones),
        time=np.arange(length).reshape(1, length, *ones),
        lane=column[None, None],
        group=np.zeros((1, 1, *ones), int),
    )
    if sound:
        positions = SoundPosition(*positions, *sound)
    strict = _STRICT if rule is None else _STRICT & rule
    dtype = jnp.result_type(z, predictions)
    outputs = CPCOutputs(z.astype(dtype), z, predictions.astype(dtype))
    return cpc_loss(outputs, positions, strict, where=where, offsets=offsets)[1]
