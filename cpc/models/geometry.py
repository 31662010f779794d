"""Geometry of latents, from the kernels, strides and padding of consecutive layers.

A layer is (kernel, stride), and its padding (zeros on the left, zeros on the right). Layers are
ordered from the input upwards.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from cpc.types import ArrayLike, UserError

PADDINGS = ("causal", "same", "valid")
#: Waveforms, signals of several channels, or word ids.
Signals: TypeAlias = Num[Array, "b s *channels"]
#: Number of real samples in each row, or None if all are; later samples are padding and count as
#: zeros.
NumSamples: TypeAlias = Int[ArrayLike, " b"] | None


class StridedLayers:
    """The geometry of a module with `layers`, a sequence of (kernel, stride)."""

    layers: Any

    @property
    def stride(self) -> int:
        """Samples between two latents; for an image encoder, pixels before the mean."""
        return math.prod(stride for _, stride in self.layers)

    @property
    def receptive_field(self) -> int:
        """Samples that one latent depends on; for an image encoder, pixels per side.

        >>> from cpc.models import ConvEncoder, LogMelEncoder
        >>> ConvEncoder().receptive_field, LogMelEncoder().receptive_field
        (465, 720)
        """
        field = 1
        for kernel, stride in reversed(self.layers):
            field = (field - 1) * stride + kernel
        return field


class ConvGeometry(StridedLayers):
    """A signal encoder with `layers` and the `padding` of `zeros_around`: its geometry and call."""

    kernels: Any
    padding: Any
    through: Any

    def __call__(
        self, x: Signals, train: bool = False, num_samples: NumSamples = None
    ) -> Float[Array, "b t d"]:
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
        """Frames of `stride` samples before and after its own frame that a latent depends on.

        The frame of latent t is the samples from t * stride to (t + 1) * stride.

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
        """Smallest number of samples that gives a latent; shorter signals are padded with zeros.

        >>> from cpc.models import ConvEncoder
        >>> ConvEncoder().shortest, ConvEncoder(padding="valid").shortest
        (160, 465)
        """
        zeros, stride = 0, 1
        for pad, (_, step) in zip(self.pads, self.layers, strict=True):
            zeros, stride = zeros + sum(pad) * stride, stride * step
        return max(stride, self.receptive_field - zeros)

    def num_latents(self, num_samples: int) -> int:
        """Return the number of latents of a signal of `num_samples` samples.

        >>> from cpc.models import ConvEncoder
        >>> ConvEncoder().num_latents(20480), ConvEncoder(padding="valid").num_latents(20480)
        (128, 126)
        """
        return output_lengths(self.layers, self.pads, max(num_samples, self.shortest))[-1]

    def num_existing(self, num_samples: Int[ArrayLike, " b"]) -> Int[Array, " b"]:
        """Return the number of valid latents in each row of `num_samples` real samples.

        A latent is valid if its frame is within the real samples; the first always is.

        >>> from cpc.models import ConvEncoder
        >>> ConvEncoder().num_existing(jnp.array([100, 320, 479])).tolist()
        [1, 2, 2]
        """
        stride = self.stride
        return jnp.maximum(1, (num_samples - (self.shortest - stride)) // stride)


def check_norm(norm: str, norms: Sequence[str], widths: Sequence[int]) -> None:
    """Validate an encoder's norm, and the width of its layers for "group"."""
    if norm not in norms:
        raise UserError(f"encoder norm {norm!r} is unknown: choose one of {', '.join(norms)}")
    uneven = [width for width in widths if width > 32 and width % 32]
    if norm == "group" and uneven:
        raise UserError(
            f"group norm needs a multiple of 32 channels (got {uneven[0]} channels): change width"
        )


def zeros_around(
    layers: Sequence[tuple[int, int]], padding: str | Sequence[int]
) -> list[tuple[int, int]]:
    """Return the zeros on the left and right of each layer's input.

    causal   kernel - stride on the left: output t only depends on samples before (t + 1) * stride;
    same     (kernel - stride + 1) // 2 on both sides;
    valid    none; or one number per layer, of zeros on each side.

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
        raise UserError(f"encoder has {len(layers)} layers and {len(halves)} paddings: match them")
    return [(half, half) for half in halves]


def output_lengths(
    layers: Sequence[tuple[int, int]], pads: Sequence[tuple[int, int]], num_samples: Any
) -> list[Any]:
    """Return the number of outputs of each layer for `num_samples`, a number or an array.

    >>> output_lengths([(10, 5), (8, 4)], [(5, 0), (4, 0)], 20480)
    [4096, 1024]
    """
    lengths = []
    for (kernel, stride), pad in zip(layers, pads, strict=True):
        num_samples = (num_samples + sum(pad) - kernel) // stride + 1
        lengths.append(num_samples)
    return lengths
