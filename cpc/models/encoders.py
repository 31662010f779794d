"""Encoders g_enc: raw signal to latents z."""

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from cpc.models.channel_norm import channel_norm
from cpc.models.convolution import convolve
from cpc.types import UserError

NORMS = ("none", "layer", "channel", "batch", "group")


class ChannelNorm(nn.Module):
    """Normalises the channels of each frame by itself, so that no frame sees another.

    y = scale * (x - mean(x)) / sqrt(var(x) + 1e-5) + bias over the channels of a group.
    `unbiased` divides the variance by one channel less, as facebookresearch/CPC_audio does.
    """

    num_groups: int = 1
    unbiased: bool = False
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Normalise x; statistics in float32 whatever the input."""
        width = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (width,))
        bias = self.param("bias", nn.initializers.zeros, (width,))
        y: Any = channel_norm(x, scale, bias, self.num_groups, self.unbiased)
        return y.astype(self.dtype)


class ConvEncoder(nn.Module):
    """Strided convolutions with ReLU on a raw waveform (van den Oord et al. 2018, section 3.1).

    Waveform (b, s) in, latents (b, t, width) out, one latent each `stride` samples (160 as in the
    paper: 10 ms at 16 kHz). Padding:

    causal   kernel - stride zeros on the left: t = s // stride, and latent t depends on no sample
             from (t + 1) * stride on;
    same     (kernel - stride + 1) // 2 zeros on both sides: latents look ahead by 152 samples;
    valid    none: t = (s - receptive_field) // stride + 1; or one number of zeros for each layer.

    A waveform shorter than a latent is padded with zeros on the right to give one. Norms act
    before the ReLU: "layer", "channel" (unbiased variance) and "group" (32 channels each) see one
    frame only; "batch" sees the batch in training and so tells every frame a little of the others.
    """

    width: int = 512
    kernels: Sequence[int] = (10, 8, 4, 4, 4)
    strides: Sequence[int] = (5, 4, 2, 2, 2)
    norm: str = "none"
    padding: str | Sequence[int] = "causal"
    dtype: DTypeLike = jnp.float32
    remat: bool = False
    """Compute the layers again for the gradient: their activations are not kept meanwhile."""

    def __post_init__(self):
        """Reject what no waveform could be encoded with."""
        super().__post_init__()
        if self.norm not in NORMS:
            raise UserError(
                f"encoder norm {self.norm!r} is unknown: choose one of {', '.join(NORMS)}"
            )
        if len(self.kernels) != len(self.strides):
            raise UserError(
                f"the encoder has {len(self.kernels)} kernels but {len(self.strides)} strides: "
                "give one of each for every layer"
            )
        if self.norm == "group" and self.width > 32 and self.width % 32:
            raise UserError(
                f"group norm has groups of 32 channels, which {self.width} channels do not fill: "
                "make model.width a multiple of 32, or choose another norm"
            )
        if self.norm in ("channel", "layer", "group") and self.width < 2:
            raise UserError("a norm over the channels needs at least 2: raise model.width")
        if isinstance(self.padding, str) and self.padding not in ("causal", "same", "valid"):
            raise UserError(
                f"encoder padding {self.padding!r} is unknown: choose causal, same or valid"
            )

    @property
    def stride(self) -> int:
        """Samples between two latents."""
        return math.prod(self.strides)

    @property
    def receptive_field(self) -> int:
        """Samples that one latent depends on: 465 for the paper's encoder."""
        field = 1
        for kernel, stride in zip(reversed(self.kernels), reversed(self.strides), strict=True):
            field = (field - 1) * stride + kernel
        return field

    def pads(self) -> list[tuple[int, int]]:
        """Zeros to the left and right of each layer's input."""
        layers = list(zip(self.kernels, self.strides, strict=True))
        if self.padding == "causal":
            return [(kernel - stride, 0) for kernel, stride in layers]
        if self.padding == "same":
            halves = [(kernel - stride + 1) // 2 for kernel, stride in layers]
            return [(half, half) for half in halves]
        if self.padding == "valid":
            return [(0, 0)] * len(layers)
        return [(int(pad), int(pad)) for pad in self.padding]

    def __call__(self, x: Float[Array, "b s"], train: bool = False) -> Float[Array, "b t d"]:
        """Waveform to latents."""
        encode = ConvEncoder._encode
        if self.remat:
            encode = nn.remat(encode, static_argnums=(2,))
        return encode(self, x, train)

    @nn.compact
    def _encode(self, x, train):
        shortest = self.receptive_field if self.padding == "valid" else self.stride
        x = jnp.pad(x, ((0, 0), (0, max(0, shortest - x.shape[1]))))
        y = x[..., None].astype(self.dtype)
        pads = self.pads()
        for i, (kernel, stride) in enumerate(zip(self.kernels, self.strides, strict=True)):
            # He initialisation keeps the scale through five ReLU layers.
            w = self.param(
                f"kernel{i}", nn.initializers.he_normal(), (kernel, y.shape[-1], self.width)
            )
            y = convolve(y, w.astype(self.dtype), stride, pads[i])
            if self.norm != "batch":  # a bias before batch norm has no effect
                bias = self.param(f"bias{i}", nn.initializers.zeros, (self.width,))
                y = (y + bias).astype(self.dtype)  # as in `cpc.models.linear`
            y = nn.relu(self._normalise(y, i, train))
        return y

    def _normalise(self, y, i, train):
        name = f"norm{i}"
        if self.norm == "none":
            return y
        if self.norm == "batch":
            return nn.BatchNorm(
                use_running_average=not train, momentum=0.9, dtype=self.dtype, name=name
            )(y)
        groups = max(1, self.width // 32) if self.norm == "group" else 1
        return ChannelNorm(groups, self.norm == "channel", self.dtype, name=name)(y)
