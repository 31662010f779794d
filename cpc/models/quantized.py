"""Quantised latents: each is the nearest of a few learned vectors (van den Oord et al. 2017)."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from cpc.models.geometry import ConvGeometry, NumSamples, Signals
from cpc.models.layers import Dense, part_of
from cpc.types import PyTree

#: Counts are smoothed by so much, so that no vector is divided by nothing.
EPSILON = 1e-5
#: What the codes before the first batch count for: as little as their being random deserves.
FIRST = 1e-3
#: A code that is used less than so many times the mean is dead.
DEAD = 0.1


class Codebook(NamedTuple):
    """Running averages of what the latents of a batch gave to each code."""

    counts: Float[Array, " n"]
    """Latents."""
    sums: Float[Array, "n d"]
    """Their sum."""

    @property
    def vectors(self) -> Float[Array, "n d"]:
        """The codes: sums over counts, which are smoothed towards each other a little."""
        whole = self.counts.sum()
        smoothed = (self.counts + EPSILON) / (whole + len(self.counts) * EPSILON) * whole
        return self.sums / smoothed[:, None]


def nearest_codes(vectors: Float[Array, "n d"], z: Float[Array, "... d"]) -> Int[Array, "..."]:
    """Return the index of the vector with the least Euclidean distance to each latent.

    >>> nearest_codes(jnp.array([[0.0, 0.0], [2.0, 0.0]]), jnp.array([[0.9, 5.0], [1.1, 0.0]]))
    Array([0, 1], dtype=int32)
    """
    distances = jnp.square(vectors).sum(-1) - 2 * jnp.matmul(z.astype(jnp.float32), vectors.T)
    return distances.argmin(-1).astype(jnp.int32)


def move_codebook(
    codebook: Codebook,
    z: Float[Array, "m d"],
    codes: Int[Array, " m"],
    exists: Bool[Array, " m"],
    decay: float,
) -> Codebook:
    """Return the codebook after one more batch: k-means, averaged over batches.

    N <- decay N + (1 - decay) n,  M <- decay M + (1 - decay) sum z,  of each code's n latents z
    """
    given = given_to_codes(z, codes, exists, len(codebook.counts))
    return Codebook(
        *(decay * old + (1 - decay) * new for old, new in zip(codebook, given, strict=True))
    )


def given_to_codes(
    z: Float[Array, "m d"], codes: Int[Array, " m"], exists: Bool[Array, " m"], num_codes: int
) -> Codebook:
    """Return the number of latents of each code, and their sums; those alone that exist."""
    rows = jnp.where(exists[:, None], z, 0).astype(jnp.float32)
    counts = jax.ops.segment_sum(exists.astype(jnp.float32), codes, num_codes)
    return Codebook(counts, jax.ops.segment_sum(rows, codes, num_codes))


def restart_codes(
    codebook: Codebook, z: Float[Array, "m d"], exists: Bool[Array, " m"]
) -> Codebook:
    """Return the codebook with latents of the batch, evenly spread, in place of dead codes."""
    mean, num_codes = codebook.counts.mean(), len(codebook.counts)
    dead = codebook.counts < DEAD * mean
    spread = jnp.arange(num_codes) * exists.sum() // num_codes
    latents = z[jnp.argsort(~exists, stable=True)[spread]].astype(jnp.float32)
    return Codebook(
        jnp.where(dead, mean, codebook.counts),
        jnp.where(dead[:, None], mean * latents, codebook.sums),
    )


def perplexity(counts: Float[Array, " n"]) -> Float[Array, ""]:
    """Return e^H of the codes' frequencies: how many there would be if all were as frequent.

    >>> perplexity(jnp.array([2.0, 2.0, 0.0]))
    Array(2., dtype=float32)
    """
    p = counts / jnp.maximum(counts.sum(), 1.0)
    return jnp.exp(-jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1.0)), 0.0).sum())


class QuantizedEncoder(ConvGeometry, nn.Module):
    """An encoder whose latents are projected, and each replaced by the nearest code.

    The gradient passes the replacement as if it were none (straight through), and pulls the
    projection towards its code by the penalty beta mean (z - sg[e])^2. The codes follow the latents
    in training as k-means do (`move_codebook`), and stay where they are in evaluation.

    Collections: "codebook", and what is known of the last batch trained on, "penalties" and
    "measures".
    """

    encoder: Any
    num_codes: int = 512
    width: int = 64
    decay: float = 0.99
    """Of the averages over batches."""
    commitment: float = 0.25
    """beta."""
    restart: bool = False
    """Whether dead codes begin anew, at latents of the batch."""
    dtype: DTypeLike = jnp.float32

    @property
    def num_layers(self) -> int:
        """Number of layers: those of the encoder, and the codes."""
        return self.encoder.num_layers + 1

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Kernel and stride of each layer of the encoder."""
        return self.encoder.layers

    @property
    def padding(self) -> Any:
        """Padding of the encoder."""
        return self.encoder.padding

    @nn.nowrap
    def upto(self, number: int, variables: PyTree) -> tuple[nn.Module, PyTree]:
        """Return the encoder that ends after its first `number` layers, and its variables."""
        if number == self.num_layers:
            return self, variables
        return self.encoder.upto(number, part_of(variables, "encoder"))

    @nn.nowrap
    def find_codes(self, variables: PyTree, z: Float[Array, "... d"]) -> Int[Array, "..."]:
        """Return the codes of quantised latents, given the encoder's own variables."""
        return nearest_codes(Codebook(**variables["codebook"]).vectors, z)

    @nn.compact
    def __call__(
        self, x: Signals, train: bool = False, num_samples: NumSamples = None
    ) -> Float[Array, "b t d"]:
        """Return the code vectors of the latents of signals."""
        z = self.encoder(x, train, num_samples)
        z = Dense(self.width, dtype=self.dtype, name="project")(z)
        shape = self.num_codes, self.width
        counts = self.variable("codebook", "counts", jnp.full, shape[:1], FIRST)
        sums = self.variable(
            "codebook", "sums", lambda: FIRST * jax.random.normal(self.make_rng("params"), shape)
        )
        codebook = Codebook(counts.value, sums.value)
        latents = z.astype(jnp.float32)
        codes = nearest_codes(codebook.vectors, latents)
        nearest = jax.lax.stop_gradient(codebook.vectors[codes])
        if train or self.is_initializing():
            exists = jnp.ones(z.shape[:2], bool)
            if num_samples is not None:
                exists = jnp.arange(z.shape[1]) < self.num_existing(num_samples)[:, None]
            error = jnp.where(exists[..., None], latents - nearest, 0.0)
            number = jnp.maximum(exists.sum(), 1) * self.width
            self._say("penalties", "commitment", self.commitment * jnp.square(error).sum() / number)
            flat = jax.lax.stop_gradient(latents).reshape(-1, self.width)
            codes, exists = codes.ravel(), exists.ravel()
            used = given_to_codes(flat, codes, exists, self.num_codes).counts
            self._say("measures", "perplexity", perplexity(used))
            codebook = move_codebook(codebook, flat, codes, exists, self.decay)
            if self.restart:
                codebook = restart_codes(codebook, flat, exists)
            if not self.is_initializing():
                counts.value, sums.value = codebook
        # The code to the last bit, and the gradient of z.
        return nearest.astype(z.dtype) + (z - jax.lax.stop_gradient(z))

    def _say(self, collection, name, value):
        """Leave a number of the batch, where it is asked for; an exported model has no such."""
        if self.is_mutable_collection(collection):
            self.variable(collection, name, jnp.zeros, ()).value = value
