"""Predictors: modules that map contexts to the expected latents at each offset."""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from cpc.models.contexts import CausalTransformer
from cpc.models.layers import Dense
from cpc.types import PyTree


class LinearPredictor(nn.Module):
    """A linear map W_k c for each offset k (van den Oord et al. 2018, eq. 3).

    If `use_bias` is true, the map is affine, W_k c + b_k (Schneider et al. 2019, "wav2vec").
    """

    num_offsets: int
    width: int
    dtype: DTypeLike = jnp.float32
    use_bias: bool = False

    @nn.compact
    def __call__(self, c: Float[Array, "b t ... h"]) -> Float[Array, "b t ... k d"]:
        """Predict the latents at each offset from contexts."""
        return nn.DenseGeneral(
            (self.num_offsets, self.width), use_bias=self.use_bias, dtype=self.dtype, name="W"
        )(c)

    @nn.nowrap
    def linear_maps(self, params: PyTree) -> Float[Array, "k h d"] | None:
        """Return the matrices W_k, or None if a bias makes the predictions affine."""
        if self.use_bias:
            return None
        return jnp.moveaxis(params["W"]["kernel"], 1, 0)


class HiddenPredictor(nn.Module):
    """A hidden ReLU layer shared by all offsets, followed by a linear map per offset."""

    num_offsets: int
    width: int
    hidden_width: int = 512
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, c: Float[Array, "b t ... h"]) -> Float[Array, "b t ... k d"]:
        """Predict the latents at each offset from contexts."""
        h = nn.relu(Dense(self.hidden_width, dtype=self.dtype, name="hidden")(c))
        return LinearPredictor(self.num_offsets, self.width, dtype=self.dtype, name="linear")(h)


class TransformerPredictor(nn.Module):
    """A causal Transformer layer shared by all offsets, followed by a linear map per offset."""

    num_offsets: int
    width: int
    hidden_width: int = 256
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, c: Float[Array, "b t h"]) -> Float[Array, "b t k d"]:
        """Predict the latents at each offset from contexts."""
        h = CausalTransformer(self.hidden_width, 1, dtype=self.dtype, name="layer")(c)
        return LinearPredictor(self.num_offsets, self.width, dtype=self.dtype, name="linear")(h)


class OffsetTransformer(nn.Module):
    """The layers of `TransformersPredictor` for one offset."""

    width: int
    hidden_width: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, c: Float[Array, "b t h"]) -> Float[Array, "b t d"]:
        """Predict the latents at one offset from contexts."""
        h = CausalTransformer(self.hidden_width, 1, dtype=self.dtype, name="layer")(c)
        return nn.Dense(self.width, use_bias=False, dtype=self.dtype, name="linear")(h)


class TransformersPredictor(nn.Module):
    """A separate causal Transformer layer and linear map per offset, computed together by vmap.

    This follows Riviere et al. (2020), "Unsupervised pretraining transfers well across languages",
    except that the layers have the architecture of `CausalTransformer`.
    """

    num_offsets: int
    width: int
    hidden_width: int = 256
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, c: Float[Array, "b t h"]) -> Float[Array, "b t k d"]:
        """Predict the latents at each offset from contexts."""
        predict_all = nn.vmap(
            OffsetTransformer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=None,  # pyright: ignore[reportArgumentType]
            out_axes=2,
            axis_size=self.num_offsets,
        )
        return predict_all(self.width, self.hidden_width, self.dtype, name="offsets")(c)
