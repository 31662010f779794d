"""Sentence encoders g_enc, and Quick Thoughts models that consist of two sentence encoders."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from cpc.models.layers import Conv
from cpc.types import CPCOutputs, PyTree


class SentenceEncoder(nn.Module):
    """Word embeddings, a 1-D convolution, ReLU and the mean over words.

    This is the encoder of van den Oord et al. (2018, section 3.3). The input (b, t, w) contains the
    word ids of t sentences, padded to w words with negative ids. The output (b, t, width) contains
    one latent per sentence. Padding is ignored, and the latent of an empty sentence is zero.
    """

    vocabulary: int
    embedding_width: int = 128
    width: int = 256
    kernel: int = 3
    dtype: DTypeLike = jnp.float32

    @property
    def num_layers(self) -> int:
        """Number of layers, which is 1 for the convolution."""
        return 1

    @nn.nowrap
    def upto(self, number: int, variables: PyTree) -> tuple["SentenceEncoder", PyTree]:
        """Return the encoder and its variables unchanged, because there is only one layer."""
        return self, variables

    @nn.compact
    def __call__(self, x: Num[Array, "b t w"], train: bool = False) -> Float[Array, "b t d"]:
        """Return one latent per sentence."""
        b, t, w = x.shape
        ids: Any = x.astype(jnp.int32).reshape(b * t, w)
        is_word = (ids >= 0)[..., None]
        shape = self.vocabulary, self.embedding_width
        table = self.param("embedding", nn.initializers.normal(0.1), shape)
        embedded = jnp.where(is_word, jnp.asarray(table)[jnp.maximum(ids, 0)], 0)
        conv = Conv(self.width, (self.kernel,), padding="SAME", dtype=self.dtype, name="conv")
        z = jnp.where(is_word, nn.relu(conv(embedded.astype(self.dtype))).astype(jnp.float32), 0)
        z = z.sum(axis=1) / jnp.maximum(is_word.sum(axis=1), 1)
        return z.reshape(b, t, self.width).astype(self.dtype)


class QuickThoughts(nn.Module):
    """Two encoders for sentences and their neighbours (Logeswaran and Lee 2018).

    The context c = f(x) of a sentence predicts the latent z = g(x) of the next and, backward, of
    the previous sentence. Scores are products of f and g, without W_k or a context network.
    """

    encoder: nn.Module
    """Encoder g of the predicted sentences."""
    context: nn.Module
    """Encoder f of the predicting sentences, with the width of g."""

    def __call__(self, x: Num[Array, "b t w"], train: bool = False) -> CPCOutputs:
        """Return latents, contexts, and predictions that are equal to the contexts."""
        z, c = self.embed(x, train)
        return CPCOutputs(z, c, c[:, :, None])

    def embed(
        self, x: Num[Array, "b t w"], train: bool = False
    ) -> tuple[Float[Array, "b t d"], Float[Array, "b t d"]]:
        """Return latents and contexts."""
        return self.encoder(x, train), self.context(x, train)

    def encode(self, x: Num[Array, "b t w"], train: bool = False) -> Float[Array, "b t d"]:
        """Return latents without computing contexts."""
        return self.encoder(x, train)

    @property
    def num_layers(self) -> dict[str, int]:
        """Number of layers of each encoder."""
        return {"z": self.encoder.num_layers, "c": self.context.num_layers}

    @nn.nowrap
    def upto(self, part: str, number: int, variables: PyTree) -> tuple["QuickThoughts", PyTree]:
        """Return the model and its variables unchanged, because each encoder has one layer."""
        return self, variables
