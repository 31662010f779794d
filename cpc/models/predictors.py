"""Predictors: contexts to the latents that they expect at each offset."""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from cpc.types import PyTree


class LinearPredictor(nn.Module):
    """One linear map for each offset k: W_k c (van den Oord et al., eq. 3)."""

    num_offsets: int
    width: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, c: Float[Array, "b t ... h"]) -> Float[Array, "b t ... k d"]:
        """Return the predictions of the latents that lie the offsets ahead."""
        return nn.DenseGeneral(
            (self.num_offsets, self.width), use_bias=False, dtype=self.dtype, name="W"
        )(c)

    @nn.nowrap
    def linear_maps(self, params: PyTree) -> Float[Array, "k h d"]:
        """Return the W_k, which its parameters hold with the offsets in the middle."""
        return jnp.moveaxis(params["W"]["kernel"], 1, 0)
