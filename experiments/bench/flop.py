"""Floating-point operations of a training step, counted by hand.

The compiler's own count takes the body of a loop once, however often it runs, and so misses nearly
all of a recurrence and of a criterion over blocks.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cpc.models import ConvEncoder, LogMelEncoder
from cpc.models.geometry import output_lengths
from cpc.types import PyTree

#: A product costs its forward pass, the gradient to its input and the gradient to its weights.
FORWARD_AND_BACKWARD = 3


class Flop(NamedTuple):
    """Operations of the parts of one step, forward and backward."""

    encoder: int
    context: int
    predictor: int
    criterion: int


def count_flop(
    params: PyTree,
    encoder: ConvEncoder | LogMelEncoder,
    batch_size: int,
    window_samples: int,
    offsets: Sequence[int],
    num_shards: int = 1,
) -> Flop:
    """Operations that the products of a step need, a multiplication and an addition being two.

    As the network's formulas have them: an encoder that shares products does fewer, so that its
    fraction of a peak can pass 1.

    With b windows of t latents in S shards, and A = b sum_k (t - k) pairs of anchor and offset:

        convolution of layer i  2 b t_i |kernel_i|
        context                 2 b t |W| of each matrix, and 4 b t^2 h of each attention
        predictor               2 A h d
        criterion               2 A (b t / S) d

    each three times, but the first convolution twice: the waveform needs no gradient. The Fourier
    transform and the filters of log-mel energies are not counted.

    Elementwise work, norms and the optimizer are not counted, nor is what the program computes
    beyond need, such as scores of anchors without a positive: the rate that follows is a lower one.
    """
    frames = output_lengths(encoder.layers, encoder.pads, window_samples)
    weights = params["encoder"].get("convolutions", params["encoder"])  # log-mel energies have none
    layers = [
        2 * batch_size * count * _size(weights[f"kernel{i}"])
        for i, count in enumerate(frames[-encoder.num_layers :])
    ]
    latents = batch_size * frames[-1]
    matrices = [leaf for leaf in _leaves(params["context"]) if len(leaf.shape) > 1]
    context = 2 * latents * sum(_size(matrix) for matrix in matrices)
    for name, layer in params["context"].items():
        if name.startswith("attention"):
            context += 4 * latents * frames[-1] * layer["kernel"].shape[0]
    h, _, d = params["predictor"]["W"]["kernel"].shape
    pairs = batch_size * sum(frames[-1] - k for k in offsets)
    return Flop(
        encoder=FORWARD_AND_BACKWARD * sum(layers) - layers[0],
        context=FORWARD_AND_BACKWARD * context,
        predictor=FORWARD_AND_BACKWARD * 2 * pairs * h * d,
        criterion=FORWARD_AND_BACKWARD * 2 * pairs * (latents // num_shards) * d,
    )


def _size(leaf) -> int:
    return int(np.prod(leaf.shape))


def _leaves(tree) -> list:
    if hasattr(tree, "shape"):
        return [tree]
    return [leaf for branch in tree.values() for leaf in _leaves(branch)]
