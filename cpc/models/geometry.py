"""Where the samples of a latent lie, from the kernels, strides and zeros of layers in a row.

A layer is (kernel, stride), its padding (zeros to the left, zeros to the right); all functions take
them from the input upwards.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from cpc.types import UserError

PADDINGS = ("causal", "same", "valid")


def receptive_field(layers: Sequence[tuple[int, int]]) -> int:
    """Return the samples that one output of the last layer depends on.

    >>> receptive_field([(10, 5), (8, 4), (4, 2), (4, 2), (4, 2)])
    465
    """
    field = 1
    for kernel, stride in reversed(layers):
        field = (field - 1) * stride + kernel
    return field


def zeros_around(
    layers: Sequence[tuple[int, int]], padding: str | Sequence[int]
) -> list[tuple[int, int]]:
    """Return the zeros to the left and right of each layer's input.

    causal   kernel - stride on the left: output t depends on no sample from (t + 1) * stride on;
    same     (kernel - stride + 1) // 2 on both sides;
    valid    none; or one number for each layer, of zeros on both of its sides.

    Raises:
        UserError: the padding is none of these.

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


def frames_around(
    layers: Sequence[tuple[int, int]], pads: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """Return how many frames before and after its own a latent's samples reach into.

    The frame of latent t is the samples from t * stride to (t + 1) * stride.

    >>> frames_around([(10, 5), (8, 4)], [(5, 0), (4, 0)])
    (2, 0)
    """
    left, stride = 0, 1
    for (pad, _), (_, step) in zip(pads, layers, strict=True):
        left, stride = left + pad * stride, stride * step
    right = receptive_field(layers) - stride - left
    return math.ceil(left / stride), max(0, math.ceil(right / stride))


def shortest_input(layers: Sequence[tuple[int, int]], pads: Sequence[tuple[int, int]]) -> int:
    """Return the fewest samples that fill a frame and, with the zeros, one output.

    >>> shortest_input([(10, 5), (8, 4)], [(5, 0), (4, 0)])
    20
    >>> shortest_input([(10, 5), (8, 4)], [(0, 0), (0, 0)])
    45
    """
    zeros, stride = 0, 1
    for pad, (_, step) in zip(pads, layers, strict=True):
        zeros, stride = zeros + sum(pad) * stride, stride * step
    return max(stride, receptive_field(layers) - zeros)


def num_existing(
    layers: Sequence[tuple[int, int]], pads: Sequence[tuple[int, int]], num_samples: Any
) -> Any:
    """Return how many outputs exist where so many samples, an array, are real and zeros follow.

    Those whose frame lies within them, at least 1, as if the signal ended there. Without padding an
    output also has to see nothing beyond.

    >>> num_existing([(10, 5), (8, 4)], [(5, 0), (4, 0)], jnp.array([3, 39, 40])).tolist()
    [1, 1, 2]
    """
    stride = math.prod(stride for _, stride in layers)
    return jnp.maximum(1, (num_samples - (shortest_input(layers, pads) - stride)) // stride)


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
