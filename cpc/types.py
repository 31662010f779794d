"""The words that everything else shares.

Axis letters have one meaning everywhere, in einsum, annotations and comments:

    b batch          s raw samples    t latent time        k offset, 1-based as in the paper
    i j patch row and column          y x pixels           d latent width    h context width
    m anchors        n candidates

Symbols are the paper's: x the input, z the latents, c the contexts, W_k the predictor of offset k.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

Array: TypeAlias = jax.Array
ArrayLike: TypeAlias = jax.Array | np.ndarray
PyTree: TypeAlias = Any

#: One batch on its way to the device: "x" the inputs, "sequence" the row in the global batch,
#: "speaker" (or any class whose sharing the sampler controls), maybe labels; "_mask" marks padding.
Batch: TypeAlias = dict[str, Any]


class Position(NamedTuple):
    """Where a latent comes from: int32 arrays of one shape, one entry a latent.

    Negative rules look at positions and at nothing else: `rule(anchor, candidate, offset) -> bool`,
    where the two positions broadcast against each other.
    """

    sequence: ArrayLike
    """The recording's window, or the image: its row in the global batch."""
    time: ArrayLike
    """Latent time, or the patch row."""
    lane: ArrayLike
    """The patch column; 0 for audio."""
    group: ArrayLike
    """The speaker, or any class whose sharing the sampler controls."""


#: rule(anchor, candidate, offset) -> bool array: may the candidate be a negative of the anchor?
NegativeRule: TypeAlias = Callable[[Position, Position, Any], Any]


class CPCOutputs(NamedTuple):
    """What a CPC model computes from a batch."""

    z: Array
    """Latents (b, t, d)."""
    c: Array
    """Contexts (b, t, h); c[:, t] has seen the latents up to and including t."""
    predictions: Array
    """W_k c (b, t, k, d): entry i predicts the latent offsets[i] steps ahead (audio: i + 1)."""


class UserError(Exception):
    """A mistake in a config, a path or a file: one sentence that says what is wrong and what to do.

    The commands print it without a traceback and exit with status 2.
    """
