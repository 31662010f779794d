"""Signal encoders g_enc, which apply convolutions to the raw signal or to log-mel energies."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from cpc.mel import cosine_basis, log_mel, mel_filters
from cpc.models import geometry
from cpc.models.convolution import convolve_signal
from cpc.models.geometry import ConvGeometry, NumSamples, Signals, check_norm, output_lengths
from cpc.models.layers import first_layers
from cpc.types import PyTree, UserError

EPSILON = 1e-5
NORMS = ("none", "layer", "channel", "batch", "group")
#: Mean and standard deviation of the log energies of speech with a root mean square of 0.05.
ENERGY_MEAN, ENERGY_SCALE = -13.0, 5.0
#: Length of the Fourier transform in samples, so that each of 80 mel filters covers a bin.
FFT_LENGTH = 2048


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def channel_norm(
    x: Float[Array, "b t d"],
    scale: Float[Array, " d"],
    bias: Float[Array, " d"],
    num_groups: int,
    unbiased: bool,
) -> Float[Array, "b t d"]:
    """Normalize groups of channels in each frame, computed in float32 for any input dtype.

        n = (x - mean) / sqrt(v + 1e-5)    v = sum_c (x_c - mean)^2 / (width - u)
        y = scale n + bias

    Sums are over the channels of a group, and u is 1 for the unbiased variance, otherwise 0. The
    gradient with g = scale dy,

        dx = (g - mean(g) - n sum(g n) / (width - u)) / sqrt(v + 1e-5),

    needs two sums over channels. Automatic differentiation would need two sums per operation.
    """
    return _norm_forward(x, scale, bias, num_groups, unbiased)[0]


def _statistics(x, num_groups, unbiased):
    """Return the mean and 1 / sqrt(v + 1e-5) of each group, both (b, t, groups, 1)."""
    groups = x.astype(jnp.float32).reshape(*x.shape[:2], num_groups, -1)
    mean = groups.mean(-1, keepdims=True)
    squares = jnp.square(groups - mean).sum(-1, keepdims=True)
    return mean, jax.lax.rsqrt(squares / (groups.shape[-1] - unbiased) + EPSILON)


def _apply_statistics(x, mean, shrink):
    groups = x.astype(jnp.float32).reshape(*mean.shape[:-1], -1)
    return (groups - mean) * shrink


def _norm_forward(x, scale, bias, num_groups, unbiased):
    statistics = _statistics(x, num_groups, unbiased)
    y = _apply_statistics(x, *statistics).reshape(x.shape) * scale + bias
    return y, (x, *statistics, scale)  # recomputing n is cheaper than storing it


def _norm_backward(num_groups, unbiased, residuals, dy):
    x, mean, shrink, scale = residuals
    n = _apply_statistics(x, mean, shrink)
    g = (dy * scale).reshape(n.shape)
    along = (g * n).sum(-1, keepdims=True) / (n.shape[-1] - unbiased)
    dx = shrink * (g - g.mean(-1, keepdims=True) - n * along)
    dscale = (dy * n.reshape(dy.shape)).sum((0, 1))
    return dx.reshape(x.shape).astype(x.dtype), dscale, dy.sum((0, 1))


channel_norm.defvjp(_norm_forward, _norm_backward)


class ChannelNorm(nn.Module):
    """Normalization over the channels of each frame; CPC_audio uses the `unbiased` variance."""

    num_groups: int = 1
    unbiased: bool = False
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Normalize x, with statistics computed in float32 for any input dtype."""
        width = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (width,))
        bias = self.param("bias", nn.initializers.zeros, (width,))
        y: Any = channel_norm(x, scale, bias, self.num_groups, self.unbiased)
        return y.astype(self.dtype)


class ConvEncoder(ConvGeometry, nn.Module):
    """Strided convolutions with ReLU on a raw signal (van den Oord et al. 2018, section 3.1).

    The input is a waveform (b, s) or a multi-channel signal (b, s, channels). The output is latents
    (b, t, width), one every `stride` samples. In the paper, this is 160 samples or 10 ms at 16 kHz.
    See `geometry.zeros_around` for `padding`. A signal too short for one latent is padded with
    zeros on the right.

    Norms come before the ReLU. "layer", "channel" (unbiased variance) and "group" (32 channels per
    group) only use one frame. "batch" uses the whole batch in training, which leaks some
    information about it into every frame.

    If a row has `num_samples` real samples followed by zeros, batch norm ignores the latents whose
    frame is not within the real samples. With "same" padding, the last valid latents look ahead at
    zeros in every layer, as at the end of any signal.
    """

    width: int = 512
    kernels: Sequence[int] = (10, 8, 4, 4, 4)
    strides: Sequence[int] = (5, 4, 2, 2, 2)
    norm: str = "none"
    padding: str | Sequence[int] = "causal"
    dtype: DTypeLike = jnp.float32
    remat: bool = False
    """Whether to recompute the layers for the gradient instead of storing their activations."""
    channels: int = 1

    def __post_init__(self):
        super().__post_init__()
        check_norm(self.norm, NORMS, [self.width])
        layers = list(itertools.zip_longest(self.kernels, self.strides, fillvalue=0))
        if not layers or any(stride < 1 or kernel < stride for kernel, stride in layers):
            raise UserError(
                f"kernels {[*self.kernels]} and strides {[*self.strides]} do not fit: pass one of "
                "each per layer, for at least one layer, with no kernel shorter than its stride"
            )
        if self.norm in ("channel", "layer", "group") and self.width < 2:
            raise UserError(f"{self.norm} norm needs 2 channels (got {self.width}): increase width")
        geometry.zeros_around(self.layers, self.padding)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Kernel and stride of each layer, from the input upwards."""
        return list(zip(self.kernels, self.strides, strict=True))

    @nn.nowrap
    def upto(self, number: int, variables: PyTree) -> tuple["ConvEncoder", PyTree]:
        """Return the encoder's first `number` layers and their variables."""
        shorter = self.clone(
            kernels=self.kernels[:number],
            strides=self.strides[:number],
            padding=self.padding if isinstance(self.padding, str) else self.padding[:number],
        )
        return shorter, first_layers(variables, number)

    def through(
        self,
        x: Signals,
        train: bool = False,
        num_samples: NumSamples = None,
        cuts: tuple[int, ...] = (),
    ) -> list[Float[Array, "b _ d"]]:
        """Return the latents after each layer in `cuts` and the last layer; cuts stop gradients."""
        x = x[..., None] if x.ndim == 2 else x
        if x.shape[2] != self.channels:
            raise UserError(f"x has {x.shape[2]} channels, not {self.channels}: set channels")
        encode = ConvEncoder._encode
        if self.remat:
            encode = nn.remat(encode, static_argnums=(2, 4))
        return encode(self, x, train, num_samples, cuts)

    @nn.compact
    def _encode(self, x, train, num_samples, cuts):
        x = jnp.pad(x, ((0, 0), (0, max(0, self.shortest - x.shape[1])), (0, 0)))
        y, pads, ends, mask = x.astype(self.dtype), self.pads, [], None
        looks_ahead, lengths = any(right for _, right in pads), []
        if num_samples is not None:  # output lengths for the real samples only
            lengths = output_lengths(self.layers, pads, jnp.maximum(num_samples, self.shortest))
        for i, (kernel, stride) in enumerate(self.layers):
            # He initialization preserves the scale through five ReLU layers.
            shape, bias = (kernel, y.shape[-1], self.width), None
            w = self.param(f"kernel{i}", nn.initializers.he_normal(), shape)
            if self.norm != "batch":  # a bias before batch norm has no effect
                bias = self.param(f"bias{i}", nn.initializers.zeros, (self.width,))
            y = convolve_signal(y, w.astype(self.dtype), bias, stride, pads[i])
            if lengths:
                mask = (jnp.arange(y.shape[1]) < lengths[i][:, None])[..., None]
            y = nn.relu(self._normalise(y, i, train, mask))
            if mask is not None and looks_ahead:
                y = jnp.where(mask, y, 0)  # the last latents of a signal look ahead at zeros
            if i + 1 in cuts:
                ends.append(y)
                y = jax.lax.stop_gradient(y)
        return [*ends, y]

    def _normalise(self, y, i, train, mask):
        options = {"dtype": self.dtype, "name": f"norm{i}"}
        if self.norm == "none":
            return y
        if self.norm == "batch":
            batch_norm = nn.BatchNorm(use_running_average=not train, momentum=0.9, **options)
            return batch_norm(y, mask=mask)
        groups = max(1, self.width // 32) if self.norm == "group" else 1
        return ChannelNorm(groups, self.norm == "channel", **options)(y)


class LogMelEncoder(ConvGeometry, nn.Module):
    """Convolutions over log-mel energies (after van Niekerk et al. 2020, "VQ-CPC").

    The input is a waveform (b, s). The output is latents (b, t, width), one every `stride` samples
    (160 samples are 10 ms at 16 kHz). The energies of 80 mel filters in Hamming windows of 25 ms
    are scaled to a mean near 0 and a variance near 1. They are the input of a `ConvEncoder` with
    stride 1, whose first kernel covers 3 frames and whose four other kernels cover one frame.

    If `num_cepstra` is set, the convolutions receive the lowest coefficients of the energies'
    cosine transform, scaled to the same mean square. These coefficients describe the spectral
    envelope without the pitch harmonics, which 80 filters resolve.

    Unlike in the paper, there is a latent every 10 ms instead of 20 ms, the default is causal, and
    there is no pre-emphasis, which the first bias can replace.
    """

    width: int = 512
    kernels: Sequence[int] = (3, 1, 1, 1, 1)
    norm: str = "none"
    padding: str = "causal"
    dtype: DTypeLike = jnp.float32
    remat: bool = False
    """Whether to recompute convolutions for the gradient instead of storing their activations."""
    window_samples: int = 400
    hop_samples: int = 160
    num_mels: int = 80
    sample_rate_hz: int = 16000
    num_cepstra: int = 0
    """Number of cepstral coefficients that replace the energies, or 0 to use the energies."""

    def __post_init__(self):
        super().__post_init__()
        limits = {"num_cepstra": self.num_mels, "window_samples": FFT_LENGTH}
        for name, limit in limits.items():
            if getattr(self, name) > limit:
                raise UserError(f"{name} must be at most {limit} (got {getattr(self, name)})")
        self.make_convolutions()

    @nn.nowrap
    def make_convolutions(self) -> ConvEncoder:
        """Return the convolutions that are applied to the energies."""
        names = ("width", "kernels", "norm", "padding", "dtype", "remat")
        shared = {name: getattr(self, name) for name in names}
        strides, channels = (1,) * len(self.kernels), self.num_cepstra or self.num_mels
        return ConvEncoder(strides=strides, channels=channels, parent=None, **shared)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Window and hop of the energies, followed by the kernel and stride of each convolution."""
        return [(self.window_samples, self.hop_samples), *((kernel, 1) for kernel in self.kernels)]

    @nn.nowrap
    def upto(self, number: int, variables: PyTree) -> tuple["LogMelEncoder", PyTree]:
        """Return the encoder's first `number` layers and their variables."""
        return self.clone(kernels=self.kernels[:number]), first_layers(variables, number)

    @nn.compact
    def through(
        self,
        x: Signals,
        train: bool = False,
        num_samples: NumSamples = None,
        cuts: tuple[int, ...] = (),
    ) -> list[Float[Array, "b t d"]]:
        """Return the latents after each convolution in `cuts` and the last; see `ConvEncoder`."""
        left, right = self.pads[0]
        x = jnp.pad(x, ((0, 0), (left, right + max(0, self.shortest - x.shape[1]))))
        filters = mel_filters(self.sample_rate_hz, FFT_LENGTH, self.num_mels)
        energies = log_mel(x, np.hamming(self.window_samples), self.hop_samples, filters)
        convolutions = self.make_convolutions().clone(parent=self, name="convolutions")
        energies = (energies - ENERGY_MEAN) / ENERGY_SCALE
        if self.num_cepstra:  # the lowest coefficients contain nearly all of the sum of squares
            basis = cosine_basis(self.num_cepstra, self.num_mels)
            energies = energies @ basis.T * np.sqrt(self.num_cepstra / self.num_mels, dtype="f")
        if num_samples is not None:
            num_padded = jnp.maximum(num_samples, self.shortest)  # silence also has energies
            (number,) = output_lengths(self.layers[:1], self.pads[:1], num_padded)
            mask = jnp.arange(energies.shape[1]) < number[:, None]
            energies, num_samples = jnp.where(mask[..., None], energies, 0.0), number
        return convolutions.through(energies, train, num_samples, cuts)
