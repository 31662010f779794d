"""Features of a recording of any length, a chunk at a time, equal to those of the whole.

A latent depends on few samples around its own, so that chunks of sound overlap by these. A context
goes on from what the chunk before has left.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from cpc.models.cpc import CPC
from cpc.models.layers import part_of
from cpc.types import PyTree, UserError


def stream_latents(
    module: CPC,
    variables: PyTree,
    read: Callable[[int, int], Float[np.ndarray, "..."]],
    num_frames: int,
    chunk_frames: int,
) -> Iterator[Float[Array, "1 t d"]]:
    """Yield the latents of a recording, `chunk_frames` at a time; the last may lie beyond its end.

    Args:
      read: samples [start, stop), stop - start of them also beyond the end of the recording.
      num_frames: latents wanted, one each `stride` samples.
    """
    encoder, own = module.encoder, part_of(variables, "encoder")
    before, after = encoder.frames_around
    around = before + after  # a last chunk of one frame has as many to mirror beyond the end
    length = (around + chunk_frames + after) * encoder.stride
    for first in range(0, num_frames, chunk_frames):
        # The first windows begin at the recording's beginning, where the encoder pads.
        start = max(0, first - around)
        x = read(start * encoder.stride, start * encoder.stride + length)
        yield _encode(encoder, own, x[None], first - start, chunk_frames)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _encode(encoder, variables, x, skip, num_frames):
    return jax.lax.dynamic_slice_in_dim(encoder.apply(variables, x), skip, num_frames, axis=1)


def stream_contexts(
    module: Any, variables: PyTree, latents: Iterator[Float[Array, "1 t d"]]
) -> Iterator[Float[Array, "1 t h"]]:
    """Yield the contexts of latents that come in chunks.

    Raises:
      UserError: contexts that see latents after them.
    """
    if not isinstance(module, CPC) or module.is_bidirectional:
        raise UserError(
            "contexts of both directions, and of segments, see a recording to its end, and cannot "
            "be made a chunk at a time: cut it into shorter ones, or embed its latents, z"
        )
    own, state = part_of(variables, "context"), None
    for z in latents:
        c, state = _advance(module.context, own, z, state)
        yield c


@functools.partial(jax.jit, static_argnums=0)
def _advance(context, variables, z, state):
    return context.apply(variables, z, state, method="advance")
