"""The strict bound: each other sequence of the batch gives one negative."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cpc.losses import OffsetSums, info_nce, same_place_losses, sum_anchors


def bound_over_sequences(
    z: Float[Array, "b t *lanes d"],
    predictions: Float[Array, "b t *lanes k d"],
    offsets: tuple[int, ...] | None = None,
) -> OffsetSums:
    """Sums for log b - L with the latents at the positive's place in all sequences as candidates.

    I(z_(t+k); c_t) >= log b - E [ log sum_j e^s(c_t of i, z_(t+k) of j) - s(i, i) ]

    Sequences drawn independently make the candidates independent draws from the marginal, so that
    this is a lower bound for any scores (van den Oord et al. 2018, section 2.3). It equals the CPC
    loss under the rule `one_per_sequence`, at b / t of the work. Entry i of the predictions is of
    offsets[i]; 1 to k by default.
    """
    b, length, *lanes, width = z.shape
    num_offsets = predictions.shape[-2]
    _, scores = same_place_losses(
        jnp.moveaxis(predictions, -2, 0).reshape(num_offsets, b, -1, width),
        z.reshape(b, -1, width),
        jnp.ones((b, length * math.prod(lanes)), bool),
        jax.random.key(0),
        info_nce,
        None,
        offsets or tuple(range(1, num_offsets + 1)),
        math.prod(lanes),
    )
    return sum_anchors(scores)
