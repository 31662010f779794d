"""Predictors: contexts to the latents that they expect at each offset."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float


class LinearPredictor(nn.Module):
    """One linear map for each offset k: W_k c (van den Oord et al., eq. 3)."""

    num_offsets: int
    width: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, c: Float[Array, "b t ... h"]) -> Float[Array, "b t ... k d"]:
        """Predictions of the latents that lie the offsets ahead."""
        return nn.DenseGeneral(
            (self.num_offsets, self.width), use_bias=False, dtype=self.dtype, name="W"
        )(c)


def linear_maps(params: Mapping[str, Any]) -> Float[Array, "k h d"] | None:
    """The W_k among a CPC's parameters; None if they hold no single LinearPredictor."""
    kernel = params.get("predictor", {}).get("W", {}).get("kernel")
    return None if kernel is None else jnp.moveaxis(kernel, 1, 0)
