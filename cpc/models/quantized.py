"""Vector quantization of latents with a learned codebook (van den Oord et al. 2017)."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from cpc.models.geometry import ConvGeometry, Latents, NumSamples, Signals
from cpc.models.layers import Dense, part_of
from cpc.types import PyTree

#: Added to counts to avoid a division by zero for unused codes.
EPSILON = 1e-5
#: Initial count of each code, which is small because the initial codes are random.
INITIAL_COUNT = 1e-3
#: A code is dead if its count is below this multiple of the mean count.
DEAD_RATIO = 0.1


class Codebook(NamedTuple):
    """Each code's count and sum of assigned latents, as running averages over batches."""

    counts: Float[Array, " n"]
    sums: Float[Array, "n d"]

    @property
    def vectors(self) -> Float[Array, "n d"]:
        """Code vectors: the sums divided by additively smoothed counts."""
        total = self.counts.sum()
        smoothed = (self.counts + EPSILON) / (total + len(self.counts) * EPSILON) * total
        return self.sums / smoothed[:, None]


def nearest_codes(vectors: Float[Array, "n d"], z: Float[Array, "... d"]) -> Int[Array, "..."]:
    """Return the index of the vector nearest to each latent in Euclidean distance.

    >>> nearest_codes(jnp.array([[0.0, 0.0], [2.0, 0.0]]), jnp.array([[0.9, 5.0], [1.1, 0.0]]))
    Array([0, 1], dtype=int32)
    """
    distances = jnp.square(vectors).sum(-1) - 2 * jnp.matmul(z.astype(jnp.float32), vectors.T)
    return distances.argmin(-1).astype(jnp.int32)


def given_to_codes(
    z: Float[Array, "m d"], codes: Int[Array, " m"], mask: Bool[Array, " m"], num_codes: int
) -> Codebook:
    """Count and sum the latents that are assigned to each code, ignoring masked latents."""
    rows = jnp.where(mask[:, None], z, 0).astype(jnp.float32)
    counts = jax.ops.segment_sum(mask.astype(jnp.float32), codes, num_codes)
    return Codebook(counts, jax.ops.segment_sum(rows, codes, num_codes))


def restart_codes(codebook: Codebook, z: Float[Array, "m d"], mask: Bool[Array, " m"]) -> Codebook:
    """Replace rarely assigned codes with latents at regular intervals in the batch."""
    mean, num_codes = codebook.counts.mean(), len(codebook.counts)
    dead = codebook.counts < DEAD_RATIO * mean
    spread = jnp.arange(num_codes) * mask.sum() // num_codes
    latents = z[jnp.argsort(~mask, stable=True)[spread]].astype(jnp.float32)
    return Codebook(
        jnp.where(dead, mean, codebook.counts),
        jnp.where(dead[:, None], mean * latents, codebook.sums),
    )


def perplexity(counts: Float[Array, " n"]) -> Float[Array, ""]:
    """Return e^H, where H is the entropy of the code frequencies in nats.

    >>> perplexity(jnp.array([2.0, 2.0, 0.0]))
    Array(2., dtype=float32)
    """
    p = counts / jnp.maximum(counts.sum(), 1.0)
    return jnp.exp(-jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1.0)), 0.0).sum())


class QuantizedEncoder(ConvGeometry, nn.Module):
    """An encoder whose latents are projected and replaced by the nearest code vectors.

    Gradients pass the replacement unchanged (straight-through), and the penalty beta mean
    (z - sg[e])^2 pulls projections z towards their codes e, where sg stops the gradient. Training
    updates codes by k-means with averages over batches: the count of a code with n latents becomes
    decay count + (1 - decay) n, and its sum changes in the same way. Codes are fixed in evaluation.

    Variables are "codebook" and, for the last training batch, "penalties" and "measures".
    """

    encoder: Any
    num_codes: int = 512
    width: int = 64
    decay: float = 0.99
    commitment: float = 0.25
    """Weight beta of the penalty."""
    restart: bool = False
    """Whether to replace rarely assigned codes with latents of the batch."""
    dtype: DTypeLike = jnp.float32

    @property
    def num_layers(self) -> int:
        """Number of encoder layers, plus one for the codes."""
        return self.encoder.num_layers + 1

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Kernel size and stride of each layer of the encoder."""
        return self.encoder.layers

    @property
    def padding(self) -> Any:
        """Padding of the encoder."""
        return self.encoder.padding

    @nn.nowrap
    def upto(self, number: int, variables: PyTree) -> tuple[nn.Module, PyTree]:
        """Return the encoder truncated after `number` layers, with its variables."""
        if number == self.num_layers:
            return self, variables
        return self.encoder.upto(number, part_of(variables, "encoder"))

    @nn.nowrap
    def find_codes(self, variables: PyTree, z: Float[Array, "... d"]) -> Int[Array, "..."]:
        """Return the code indices of quantized latents, given the variables of this encoder."""
        return nearest_codes(Codebook(**variables["codebook"]).vectors, z)

    @nn.compact
    def __call__(self, x: Signals, train: bool = False, num_samples: NumSamples = None) -> Latents:
        """Return the code vectors nearest to the projected latents."""
        z = self.encoder(x, train, num_samples)
        z = Dense(self.width, dtype=self.dtype, name="project")(z)
        shape = self.num_codes, self.width
        draw = nn.initializers.normal(INITIAL_COUNT)
        counts = self.variable("codebook", "counts", jnp.full, shape[:1], INITIAL_COUNT)
        sums = self.variable("codebook", "sums", lambda: draw(self.make_rng("params"), shape))
        codebook = Codebook(counts.value, sums.value)
        latents = z.astype(jnp.float32)
        codes = nearest_codes(codebook.vectors, latents)
        nearest = jax.lax.stop_gradient(codebook.vectors[codes])
        if train or self.is_initializing():
            mask = jnp.ones(z.shape[:2], bool)
            if num_samples is not None:
                mask = jnp.arange(z.shape[1]) < self.num_existing(num_samples)[:, None]
            error = jnp.where(mask[..., None], latents - nearest, 0.0)
            number = jnp.maximum(mask.sum(), 1) * self.width
            penalty = self.commitment * jnp.square(error).sum() / number
            self._record("penalties", "commitment", penalty)
            flat = jax.lax.stop_gradient(latents).reshape(-1, self.width)
            codes, mask = codes.ravel(), mask.ravel()
            given = given_to_codes(flat, codes, mask, self.num_codes)
            self._record("measures", "perplexity", perplexity(given.counts))
            pairs = zip(codebook, given, strict=True)
            codebook = Codebook(*(self.decay * a + (1 - self.decay) * b for a, b in pairs))
            if self.restart:
                codebook = restart_codes(codebook, flat, mask)
            if not self.is_initializing():
                counts.value, sums.value = codebook
        # Straight-through estimator whose value is exactly the code.
        return nearest.astype(z.dtype) + (z - jax.lax.stop_gradient(z))

    def _record(self, collection, name, value):
        """Store a value of the batch if the collection is mutable, as in training."""
        if self.is_mutable_collection(collection):
            self.variable(collection, name, jnp.zeros, ()).value = value
