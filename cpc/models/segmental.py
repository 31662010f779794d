"""Segmental CPC, which finds segments from the similarity of frames and predicts between segments.

The model is from Bhati et al. (2021), "Segmental contrastive predictive coding for unsupervised
word segmentation". Its frame contexts are from Cuervo et al. (2022), "Contrastive prediction
strategies for unsupervised segmentation and categorization of phonemes and words".
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from cpc.models.cpc import encode_real
from cpc.models.geometry import Latents, NumSamples, Signals
from cpc.models.layers import Dense, part_of, with_part
from cpc.types import CPCOutputs, PyTree


def boundaries(
    z: Float[Array, "b t d"], threshold: float, mask: Bool[Array, "b t"] | None = None
) -> Bool[Array, "b t"]:
    """Return a mask of the latents at which a segment begins, except for the first segment.

    With d_t = 1 - cos(z_t, z_(t+1)), scaled to 0..1 over the sequence, a segment ends at t if

        p_t = min(max(p1_t, p2_t) - threshold, p1_t) > 0,
        pn_t = min(max(d_t - d_(t+n), 0), max(d_t - d_(t-n), 0))

    (Bhati et al., section 2.2). The gradient is stopped, because training with the gradient of
    tanh(10 p), as in the paper, resulted in fewer and fewer segments.
    """
    z = jax.lax.stop_gradient(z).astype(jnp.float32)
    unit = z / jnp.sqrt(jnp.maximum(jnp.square(z).sum(-1, keepdims=True), 1e-12))
    d = 1 - (unit[:, 1:] * unit[:, :-1]).sum(-1)
    valid = jnp.ones_like(d, bool) if mask is None else mask[:, 1:]
    low = jnp.where(valid, d, jnp.inf).min(1, keepdims=True, initial=jnp.inf)
    high = jnp.where(valid, d, -jnp.inf).max(1, keepdims=True, initial=-jnp.inf)
    spread = jnp.where(valid.any(1, keepdims=True), high - low, 1.0)
    d = jnp.where(valid, (d - low) / jnp.maximum(spread, 1e-6), 0.0)

    def prominence(n):
        left = jnp.pad(d, ((0, 0), (n, 0)))[:, : d.shape[1]]
        right = jnp.pad(d, ((0, 0), (0, n)))[:, n:]
        return jnp.minimum(jax.nn.relu(d - right), jax.nn.relu(d - left))

    p1, p2 = prominence(1), prominence(2)
    p = jax.nn.relu(jnp.minimum(jnp.maximum(p1, p2) - threshold, p1))
    return jnp.pad(p > 0, ((0, 0), (1, 0)))


def segment_of(begins: Bool[Array, "b t"]) -> Int[Array, "b t"]:
    """Return each latent's segment index."""
    return jnp.cumsum(begins.astype(jnp.int32), axis=1)


def segment_means(
    z: Float[Array, "b t d"],
    begins: Bool[Array, "b t"],
    mask: Bool[Array, "b t"] | None = None,
) -> tuple[Float[Array, "b s d"], Bool[Array, "b s"]]:
    """Return each segment's mean latent, and a mask of the rows that contain a segment.

    There are s = t // 2 + 1 rows, the maximum number of segments, because peaks are never adjacent.
    """
    is_in = _is_in_segment(begins, mask)
    if mask is not None:
        z = jnp.where(mask[..., None], z, 0.0)
    size = is_in.sum(-1, keepdims=True)
    sums = jnp.einsum("bst,btd->bsd", is_in.astype(jnp.float32), z.astype(jnp.float32))
    return sums / jnp.maximum(size, 1), size[..., 0] > 0


def segment_bounds(
    begins: Bool[Array, "b t"], mask: Bool[Array, "b t"] | None = None
) -> tuple[Int[Array, "b s"], Int[Array, "b s"]]:
    """Return each segment's start and stop index; a row without a segment has start t and stop 0.

    >>> segment_bounds(jnp.array([[False, False, True, False]]))
    (Array([[0, 2, 4]], dtype=int32), Array([[2, 4, 0]], dtype=int32))
    """
    is_in, time = _is_in_segment(begins, mask), jnp.arange(begins.shape[1], dtype=jnp.int32)
    return jnp.where(is_in, time, len(time)).min(-1), jnp.where(is_in, time + 1, 0).max(-1)


def _is_in_segment(begins, mask):
    is_in = segment_of(begins)[:, None] == jnp.arange(begins.shape[1] // 2 + 1)[:, None]
    return is_in if mask is None else is_in & mask[:, None]


class SegmentalCPC(nn.Module):
    """CPC between frames and between segments of frames.

    A network with one hidden layer maps the mean z of segment m to s_m, and `predictor` predicts
    later segments from the context of s_1 .. s_m. The model returns the outputs for frames,
    followed by the outputs for segments (s, c, predictions).

    If `frame_context` is given, frames have their own contexts c and predictions. Otherwise, z_t
    itself predicts z_(t+1), so the outputs for frames are (z, z, z). The feature c of a frame is
    then its segment's context, and so it depends on the whole segment.
    """

    encoder: nn.Module
    context: nn.Module
    predictor: nn.Module
    width: int
    """Width of s, which must be the output width of `predictor`."""
    threshold: float = 0.05
    frame_context: nn.Module | None = None
    frame_predictor: nn.Module | None = None
    dtype: DTypeLike = jnp.float32

    def setup(self):
        """Create the layers from segment means to s."""
        self.hidden = Dense(self.width, dtype=self.dtype)
        self.output = Dense(self.width, dtype=self.dtype)

    def __call__(
        self, x: Signals, train: bool = False, num_samples: NumSamples = None
    ) -> tuple[CPCOutputs, CPCOutputs]:
        """Return the latents, contexts and predictions for frames and for segments."""
        z = self.encode(x, train, num_samples)
        s, c, _ = self._segments(z, self.existing(num_samples, z.shape[1]))
        return self._frames(z), CPCOutputs(s, c, self.predictor(c))

    def embed(
        self, x: Signals, train: bool = False, num_samples: NumSamples = None
    ) -> tuple[Float[Array, "b t d"], Float[Array, "b t h"]]:
        """Return latents with their frames' contexts, or segments' if `frame_context` is None."""
        z = self.encode(x, train, num_samples)
        if self.frame_context is not None:
            return z, self.frame_context(z)
        _, c, begins = self._segments(z, self.existing(num_samples, z.shape[1]))
        return z, jnp.take_along_axis(c, segment_of(begins)[..., None], axis=1)

    def encode(self, x: Signals, train: bool = False, num_samples: NumSamples = None) -> Latents:
        """Return latents without computing contexts."""
        return encode_real(self.encoder, x, train, num_samples)

    @property
    def num_layers(self) -> dict[str, int]:
        """Number of layers of the encoder, "z", and of the network that computes the feature c."""
        return {"z": self.encoder.num_layers, "c": getattr(self, self._part("c")).num_layers}

    @nn.nowrap
    def upto(self, part: str, number: int, variables: PyTree) -> tuple["SegmentalCPC", PyTree]:
        """Truncate the encoder, "z", or context, "c", and its variables after `number` layers."""
        name = self._part(part)
        shorter, own = getattr(self, name).upto(number, part_of(variables, name))
        return self.clone(**{name: shorter}), with_part(variables, name, own)

    @nn.nowrap
    def existing(self, num_samples: NumSamples, length: int) -> Bool[Array, "b t"] | None:
        """Return a mask of the valid latents, or None if `num_samples` is None."""
        if num_samples is None:
            return None
        return jnp.arange(length) < self.encoder.num_existing(num_samples)[:, None]

    def _part(self, part):
        c = "context" if self.frame_context is None else "frame_context"
        return {"z": "encoder", "c": c}[part]

    def _frames(self, z):
        if self.frame_context is None or self.frame_predictor is None:
            return CPCOutputs(z, z, z[..., None, :])
        c = self.frame_context(z)
        return CPCOutputs(z, c, self.frame_predictor(c))

    def _segments(self, z, mask):
        begins = boundaries(z, self.threshold, mask)
        means, _ = segment_means(z, begins, mask)
        s = self.output(nn.relu(self.hidden(means.astype(self.dtype))))
        return s, self.context(s), begins
