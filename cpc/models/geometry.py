"""Geometry of latents, from the kernels, strides and padding of layers in a row.

A layer is (kernel, stride), its padding (zeros to the left, zeros to the right). Layers are in
order from the input upwards.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Int, Num

from cpc.types import ArrayLike, UserError

PADDINGS = ("causal", "same", "valid")
#: Waveforms, signals of several channels, or ids of words; and the real samples of each row, None
#: if all are: what follows these counts as zeros, whatever it is.
Signals: TypeAlias = Num[Array, "b s *channels"]
NumSamples: TypeAlias = Int[ArrayLike, " b"] | None


class StridedLayers:
    """The geometry of a module that has `layers`, a (kernel, stride) for each."""

    layers: Any

    @property
    def stride(self) -> int:
        """Samples between two latents; of an image encoder, pixels before the mean."""
        return math.prod(stride for _, stride in self.layers)

    @property
    def receptive_field(self) -> int:
        """Samples that one latent depends on; of an image encoder, pixels per side.

        >>> from cpc.models import ConvEncoder, LogMelEncoder
        >>> ConvEncoder().receptive_field, LogMelEncoder().receptive_field
        (465, 720)
        """
        field = 1
        for kernel, stride in reversed(self.layers):
            field = (field - 1) * stride + kernel
        return field


class ConvGeometry(StridedLayers):
    """The geometry of an encoder of signals that has `layers` and a `padding` of `zeros_around`."""

    padding: Any

    @property
    def pads(self) -> list[tuple[int, int]]:
        """Zeros to the left and right of each layer's input."""
        return zeros_around(self.layers, self.padding)

    @property
    def frames_around(self) -> tuple[int, int]:
        """Frames of `stride` samples before and after its own that a latent depends on.

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
        """Number of samples to which a shorter signal is padded with zeros: they give one latent.

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
        """Return the number of latents of each row's `num_samples` real samples; zeros follow.

        A latent exists if its frame is within the real samples, as if the signal ended there; the
        first always does. Without padding a latent also must not depend on any later sample.

        >>> from cpc.models import ConvEncoder
        >>> ConvEncoder().num_existing(jnp.array([100, 320, 479])).tolist()
        [1, 2, 2]
        """
        stride = self.stride
        return jnp.maximum(1, (num_samples - (self.shortest - stride)) // stride)


def check_norm(norm: str, norms: Sequence[str], widths: Sequence[int]) -> None:
    """Check that an encoder's norm is known, and that "group" fills its groups of 32 channels."""
    if norm not in norms:
        raise UserError(f"encoder norm {norm!r} is unknown: choose one of {', '.join(norms)}")
    uneven = [width for width in widths if width > 32 and width % 32]
    if norm == "group" and uneven:
        raise UserError(
            f"group norm has groups of 32 channels, which {uneven[0]} channels do not fill: "
            "make model.width a multiple of 32, or choose another norm"
        )


def zeros_around(
    layers: Sequence[tuple[int, int]], padding: str | Sequence[int]
) -> list[tuple[int, int]]:
    """Return the zeros to the left and right of each layer's input.

    causal   kernel - stride on the left: output t depends on no sample from (t + 1) * stride on;
    same     (kernel - stride + 1) // 2 on both sides;
    valid    none; or one number for each layer, of zeros on both of its sides.

    >>> zeros_around([(10, 5), (8, 4)], "causal"), zeros_around([(10, 5), (8, 4)], (3, 2))
    ([(5, 0), (4, 0)], [(3, 3), (2, 2)])
    """
    if isinstance(padding, str) and padding not in PADDINGS:
        raise UserError(
            f"the encoder's padding is {padding!r}: choose causal, same or valid, the words of "
            "model.padding"
        )
    if padding == "causal":
        return [(kernel - stride, 0) for kernel, stride in layers]
    if padding == "same":
        halves = [(kernel - stride + 1) // 2 for kernel, stride in layers]
    else:
        halves = [0] * len(layers) if padding == "valid" else [int(pad) for pad in padding]
    if len(halves) != len(layers):
        raise UserError(
            f"the encoder has {len(layers)} layers but {len(halves)} paddings: give one for each"
        )
    return [(half, half) for half in halves]


def output_lengths(
    layers: Sequence[tuple[int, int]], pads: Sequence[tuple[int, int]], num_samples: Any
) -> list[Any]:
    """Return the number of outputs of each layer for so many samples, a number or an array.

    >>> output_lengths([(10, 5), (8, 4)], [(5, 0), (4, 0)], 20480)
    [4096, 1024]
    """
    lengths = []
    for (kernel, stride), pad in zip(layers, pads, strict=True):
        num_samples = (num_samples + sum(pad) - kernel) // stride + 1
        lengths.append(num_samples)
    return lengths
