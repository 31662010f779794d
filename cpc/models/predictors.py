"""Predictors: contexts to the latents that they expect at each offset."""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from cpc.models.contexts import CausalTransformer
from cpc.models.linear import Dense
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


class HiddenPredictor(nn.Module):
    """A hidden layer of ReLUs on the context, shared by all offsets, then a linear map for each."""

    num_offsets: int
    width: int
    hidden_width: int = 512
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, c: Float[Array, "b t ... h"]) -> Float[Array, "b t ... k d"]:
        """Return the predictions of the latents that lie the offsets ahead."""
        h = nn.relu(Dense(self.hidden_width, dtype=self.dtype, name="hidden")(c))
        return LinearPredictor(self.num_offsets, self.width, dtype=self.dtype, name="linear")(h)

    @nn.nowrap
    def linear_maps(self, params: PyTree) -> None:
        """Return None: predictions are not linear in the context."""


class TransformerPredictor(nn.Module):
    """A causal Transformer layer over the contexts, then a linear map for each offset.

    Differs from Riviere et al. (2020), who give each offset a layer of its own: one is shared.
    """

    num_offsets: int
    width: int
    hidden_width: int = 256
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, c: Float[Array, "b t h"]) -> Float[Array, "b t k d"]:
        """Return the predictions of the latents that lie the offsets ahead."""
        h = CausalTransformer(self.hidden_width, 1, dtype=self.dtype, name="layer")(c)
        return LinearPredictor(self.num_offsets, self.width, dtype=self.dtype, name="linear")(h)

    @nn.nowrap
    def linear_maps(self, params: PyTree) -> None:
        """Return None: predictions are not linear in the context."""
