"""Predictors: contexts to the latents that they expect at each offset."""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from cpc.models.contexts import CausalTransformer
from cpc.models.layers import Dense
from cpc.types import PyTree


class LinearPredictor(nn.Module):
    """One linear map for each offset k: W_k c (van den Oord et al., eq. 3).

    With a bias it is affine, W_k c + b_k (Schneider et al. 2019, "wav2vec").
    """

    num_offsets: int
    width: int
    dtype: DTypeLike = jnp.float32
    use_bias: bool = False

    @nn.compact
    def __call__(self, c: Float[Array, "b t ... h"]) -> Float[Array, "b t ... k d"]:
        """Return the predictions of the latents that lie the offsets ahead."""
        return nn.DenseGeneral(
            (self.num_offsets, self.width), use_bias=self.use_bias, dtype=self.dtype, name="W"
        )(c)

    @nn.nowrap
    def linear_maps(self, params: PyTree) -> Float[Array, "k h d"] | None:
        """Return the W_k; None with a bias: predictions are more than W_k c then."""
        if self.use_bias:
            return None
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


class TransformerPredictor(nn.Module):
    """A causal Transformer layer over the contexts, shared, then a linear map for each offset."""

    num_offsets: int
    width: int
    hidden_width: int = 256
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, c: Float[Array, "b t h"]) -> Float[Array, "b t k d"]:
        """Return the predictions of the latents that lie the offsets ahead."""
        h = CausalTransformer(self.hidden_width, 1, dtype=self.dtype, name="layer")(c)
        return LinearPredictor(self.num_offsets, self.width, dtype=self.dtype, name="linear")(h)


class OffsetTransformer(nn.Module):
    """The part of `TransformersPredictor` for one offset."""

    width: int
    hidden_width: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, c: Float[Array, "b t h"]) -> Float[Array, "b t d"]:
        """Return the predictions of the latents that lie one offset ahead."""
        h = CausalTransformer(self.hidden_width, 1, dtype=self.dtype, name="layer")(c)
        return nn.Dense(self.width, use_bias=False, dtype=self.dtype, name="linear")(h)


class TransformersPredictor(nn.Module):
    """For each offset a causal Transformer layer of its own over the contexts, and a linear map.

    As in Riviere et al. (2020), "Unsupervised pretraining transfers well across languages", except
    that the layers are those of `CausalTransformer`. They are computed together.
    """

    num_offsets: int
    width: int
    hidden_width: int = 256
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, c: Float[Array, "b t h"]) -> Float[Array, "b t k d"]:
        """Return the predictions of the latents that lie the offsets ahead."""
        side_by_side = nn.vmap(
            OffsetTransformer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=None,  # pyright: ignore[reportArgumentType]
            out_axes=2,
            axis_size=self.num_offsets,
        )
        return side_by_side(self.width, self.hidden_width, self.dtype, name="offsets")(c)
