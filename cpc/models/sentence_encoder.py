"""Encoders g_enc of sentences: ids of words to one latent a sentence."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from cpc.models.layers import Conv
from cpc.types import CPCOutputs, PyTree


class SentenceEncoder(nn.Module):
    """Embeddings of words, a 1-D convolution, ReLU, mean over words (the paper's section 3.3).

    In: ids of words (b, t, w), t sentences of at most w words, filled up with any negative id. Out:
    latents (b, t, width), one a sentence; that of a sentence without words is zero. Padding has no
    part in the convolution or the mean.
    """

    vocabulary: int
    embedding_width: int = 128
    width: int = 256
    kernel: int = 3
    dtype: DTypeLike = jnp.float32

    @property
    def num_layers(self) -> int:
        """Number of layers: the convolution."""
        return 1

    @nn.nowrap
    def upto(self, number: int, variables: PyTree) -> tuple["SentenceEncoder", PyTree]:
        """Return the encoder itself, whose only layer is the last, and its variables."""
        return self, variables

    @nn.compact
    def __call__(self, x: Num[Array, "b t w"], train: bool = False) -> Float[Array, "b t d"]:
        """Return the latents of the sentences."""
        b, t, w = x.shape
        ids: Any = x.astype(jnp.int32).reshape(b * t, w)
        is_word = (ids >= 0)[..., None]
        table = self.param(
            "embedding", nn.initializers.normal(0.1), (self.vocabulary, self.embedding_width)
        )
        embedded = jnp.where(is_word, jnp.asarray(table)[jnp.maximum(ids, 0)], 0)
        conv = Conv(self.width, (self.kernel,), padding="SAME", dtype=self.dtype, name="conv")
        z = jnp.where(is_word, nn.relu(conv(embedded.astype(self.dtype))).astype(jnp.float32), 0)
        z = z.sum(axis=1) / jnp.maximum(is_word.sum(axis=1), 1)
        return z.reshape(b, t, self.width).astype(self.dtype)


class QuickThoughts(nn.Module):
    """Two encoders, one of a sentence and one of its neighbours (Logeswaran and Lee 2018).

    c = f(x) of each sentence predicts z = g(x) of the next and, in a direction of its own, of the
    one before. Scores are f g: nothing lies between, and no context goes beyond the sentence.
    """

    encoder: nn.Module
    """g, of the sentence that is sought."""
    context: nn.Module
    """f, of the sentence that seeks; as wide as g."""

    def __call__(self, x: Num[Array, "b t w"], train: bool = False) -> CPCOutputs:
        """Return latents, contexts, and these once more as the predictions at the one offset."""
        z, c = self.embed(x, train)
        return CPCOutputs(z, c, c[:, :, None])

    def embed(
        self, x: Num[Array, "b t w"], train: bool = False
    ) -> tuple[Float[Array, "b t d"], Float[Array, "b t d"]]:
        """Return latents and contexts."""
        return self.encoder(x, train), self.context(x, train)

    def encode(self, x: Num[Array, "b t w"], train: bool = False) -> Float[Array, "b t d"]:
        """Return latents alone."""
        return self.encoder(x, train)

    @property
    def num_layers(self) -> dict[str, int]:
        """Number of layers of either encoder."""
        return {"z": self.encoder.num_layers, "c": self.context.num_layers}

    @nn.nowrap
    def upto(self, part: str, number: int, variables: PyTree) -> tuple["QuickThoughts", PyTree]:
        """Return the model itself: its encoders have one layer."""
        return self, variables
