"""Geometry of latents, computed from the kernels, strides and padding of consecutive layers.

A layer is a pair (kernel, stride), and its padding is a pair (zeros on the left, zeros on the
right). Layers are ordered from the input upwards.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from cpc.types import ArrayLike, UserError

PADDINGS = ("causal", "same", "valid")
#: Waveforms, multi-channel signals, or word ids.
Signals: TypeAlias = Num[Array, "b s *channels"]
#: One latent per frame.
Latents: TypeAlias = Float[Array, "b t d"]
#: Number of real samples in each row, or None if there is no padding. Later samples count as zeros.
NumSamples: TypeAlias = Int[ArrayLike, " b"] | None


class StridedLayers:
    """The geometry of a module with `layers`, a sequence of (kernel, stride)."""

    layers: Any

    @property
    def stride(self) -> int:
        """Number of samples between two latents, or of pixels before an image encoder's mean."""
        return math.prod(stride for _, stride in self.layers)

    @property
    def receptive_field(self) -> int:
        """Number of samples that one latent depends on, or of pixels per side for images.

        >>> from cpc.models import ConvEncoder, LogMelEncoder
        >>> ConvEncoder().receptive_field, LogMelEncoder().receptive_field
        (465, 720)
        """
        field = 1
        for kernel, stride in reversed(self.layers):
            field = (field - 1) * stride + kernel
        return field


class ConvGeometry(StridedLayers):
    """The geometry and call of a signal encoder with `layers` and `padding`; see `zeros_around`."""

    kernels: Any
    padding: Any
    through: Any

    def __call__(self, x: Signals, train: bool = False, num_samples: NumSamples = None) -> Latents:
        """Return the latents of signals."""
        return self.through(x, train, num_samples)[-1]

    @property
    def num_layers(self) -> int:
        """Number of convolutions."""
        return len(self.kernels)

    @property
    def pads(self) -> list[tuple[int, int]]:
        """Zeros on the left and right of each layer's input."""
        return zeros_around(self.layers, self.padding)

    @property
    def frames_around(self) -> tuple[int, int]:
        """Number of earlier and later frames of `stride` samples that a latent depends on.

        The frame of latent t is from sample t * stride to sample (t + 1) * stride.

        >>> from cpc.models import ConvEncoder
        >>> ConvEncoder().frames_around, ConvEncoder(padding="same").frames_around
        ((2, 0), (1, 1))
        """
        left, stride = 0, 1
        for (pad, _), (_, step) in zip(self.pads, self.layers, strict=True):
            left, stride = left + pad * stride, stride * step
        right = self.receptive_field - stride - left
        return math.ceil(left / stride), max(0, math.ceil(right / stride))

    @property
    def shortest(self) -> int:
        """Minimum number of samples for one latent. Shorter signals are padded with zeros.

        >>> from cpc.models import ConvEncoder
        >>> ConvEncoder().shortest, ConvEncoder(padding="valid").shortest
        (160, 465)
        """
        zeros, stride = 0, 1
        for pad, (_, step) in zip(self.pads, self.layers, strict=True):
            zeros, stride = zeros + sum(pad) * stride, stride * step
        return max(stride, self.receptive_field - zeros)

    def num_latents(self, num_samples: int) -> int:
        """Return the number of latents for a signal of `num_samples` samples.

        >>> from cpc.models import ConvEncoder
        >>> ConvEncoder().num_latents(20480), ConvEncoder(padding="valid").num_latents(20480)
        (128, 126)
        """
        return output_lengths(self.layers, self.pads, max(num_samples, self.shortest))[-1]

    def num_existing(self, num_samples: Int[ArrayLike, " b"]) -> Int[Array, " b"]:
        """Return each row's number of valid latents, given its number of real samples.

        A latent is valid if its frame is within the real samples. The first latent is always valid.

        >>> from cpc.models import ConvEncoder
        >>> ConvEncoder().num_existing(jnp.array([100, 320, 479])).tolist()
        [1, 2, 2]
        """
        return jnp.maximum(1, (num_samples - self.shortest) // self.stride + 1)


def check_norm(norm: str, norms: Sequence[str], widths: Sequence[int]) -> None:
    """Check that an encoder supports a norm and, for "group", that its widths can be grouped."""
    if norm not in norms:
        raise UserError(f"encoder norm {norm!r} is unknown: choose one of {', '.join(norms)}")
    uneven = [width for width in widths if width > 32 and width % 32]
    if norm == "group" and uneven:
        raise UserError(f"group norm needs a multiple of 32 channels (got {uneven[0]} channels)")


def zeros_around(
    layers: Sequence[tuple[int, int]], padding: str | Sequence[int]
) -> list[tuple[int, int]]:
    """Return the number of zeros on the left and right of each layer's input.

    For s samples and the strides and receptive field of all layers together, `padding` is one of:

        causal   kernel - stride zeros on the left. Then there are s // stride outputs, and output t
                 only depends on samples before (t + 1) * stride.
        same     (kernel - stride + 1) // 2 zeros on both sides. Outputs look ahead.
        valid    no zeros. Then there are (s - receptive_field) // stride + 1 outputs.

    Alternatively, `padding` contains a number of zeros per layer, which are added on each side.

    >>> zeros_around([(10, 5), (8, 4)], "causal"), zeros_around([(10, 5), (8, 4)], (3, 2))
    ([(5, 0), (4, 0)], [(3, 3), (2, 2)])
    """
    if isinstance(padding, str) and padding not in PADDINGS:
        raise UserError(f"padding {padding!r} is unknown: choose causal, same or valid")
    if padding == "causal":
        return [(kernel - stride, 0) for kernel, stride in layers]
    if padding == "same":
        halves = [(kernel - stride + 1) // 2 for kernel, stride in layers]
    else:
        halves = [0] * len(layers) if padding == "valid" else [int(pad) for pad in padding]
    if len(halves) != len(layers):
        raise UserError(f"got {len(layers)} layers and {len(halves)} paddings: pass one per layer")
    return [(half, half) for half in halves]


def output_lengths(
    layers: Sequence[tuple[int, int]], pads: Sequence[tuple[int, int]], num_samples: Any
) -> list[Any]:
    """Return the output length of each layer for `num_samples`, a number or an array of numbers.

    >>> output_lengths([(10, 5), (8, 4)], [(5, 0), (4, 0)], 20480)
    [4096, 1024]
    """
    lengths = []
    for (kernel, stride), pad in zip(layers, pads, strict=True):
        num_samples = (num_samples + sum(pad) - kernel) // stride + 1
        lengths.append(num_samples)
    return lengths
