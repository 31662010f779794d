"""Features of a recording of any length, a chunk at a time, equal to those of the whole.

A latent depends on few samples around its own, so that chunks of sound overlap by these. A context
goes on from what the chunk before has left: the states of a GRU, or the latents that convolutions
and attention reach back to. An LSTM has to be given all latents at once.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cpc.models.contexts import GRU, CausalConv, CausalTransformer
from cpc.models.cpc import CPC
from cpc.models.encoders import ConvEncoder
from cpc.types import PyTree


def frames_around(encoder: ConvEncoder) -> tuple[int, int]:
    """Latents before and after a latent's own whose samples it sees too.

    >>> frames_around(ConvEncoder()), frames_around(ConvEncoder(padding="same"))
    ((2, 0), (1, 1))
    """
    left, stride = 0, 1
    for (pad, _), step in zip(encoder.pads(), encoder.strides, strict=True):
        left, stride = left + pad * stride, stride * step
    right = encoder.receptive_field - stride - left
    return math.ceil(left / stride), max(0, math.ceil(right / stride))


def stream_latents(
    module: CPC,
    variables: PyTree,
    read: Callable[[int, int], Float[np.ndarray, " _"]],
    num_frames: int,
    chunk_frames: int,
) -> Iterator[Float[Array, "1 t d"]]:
    """The latents of a recording, `chunk_frames` at a time; the last may lie beyond its end.

    Args:
      read: samples [start, stop), stop - start of them also beyond the end of the recording.
      num_frames: latents wanted, one each `stride` samples.
    """
    encoder = module.encoder
    assert isinstance(encoder, ConvEncoder)
    before, after = frames_around(encoder)
    length = (before + chunk_frames + after) * encoder.stride
    own = {kind: tree["encoder"] for kind, tree in variables.items() if "encoder" in tree}
    for first in range(0, num_frames, chunk_frames):
        # The first windows begin at the recording's beginning, where the encoder pads.
        start = max(0, first - before)
        x = read(start * encoder.stride, start * encoder.stride + length)
        yield _encode(encoder, own, x[None], first - start, chunk_frames)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _encode(encoder, variables, x, skip, num_frames):
    return jax.lax.dynamic_slice_in_dim(encoder.apply(variables, x), skip, num_frames, axis=1)


def stream_contexts(
    module: CPC, variables: PyTree, latents: Iterator[Float[Array, "1 t d"]]
) -> Iterator[Float[Array, "1 t h"]]:
    """The contexts of latents that come in chunks, those of an LSTM in one piece."""
    context, params = module.context, variables["params"]["context"]
    if isinstance(context, GRU):
        states = [jnp.zeros((1, context.width), context.dtype)] * context.num_layers
        for z in latents:
            c, states = _continue_gru(context, params, z, states)
            yield c
        return
    reach = context_reach(context)
    if reach is None:
        yield _apply(context, params, jnp.concatenate(list(latents), axis=1), 0)
        return
    seen = None
    for z in latents:
        whole = z if seen is None else jnp.concatenate([seen, z], axis=1)
        yield _apply(context, params, whole, whole.shape[1] - z.shape[1])
        seen = whole[:, max(0, whole.shape[1] - reach) :]


def context_reach(context: Any) -> int | None:
    """Latents before its own that a context depends on; None: all.

    >>> context_reach(CausalConv(num_layers=2)), context_reach(GRU())
    (6, None)
    """
    if isinstance(context, CausalConv):
        return (context.kernel - 1) * (2**context.num_layers - 1)
    if isinstance(context, CausalTransformer):
        return context.num_layers * (context.span - 1)
    return None


@functools.partial(jax.jit, static_argnums=0)
def _continue_gru(context, params, z, states):
    """Layer by layer, each a GRU of one layer with the state that the chunk before has left."""
    layer, ends = GRU(context.width, 1, context.dtype), []
    for i, state in enumerate(states):
        own = {f"{name}0": params[f"{name}{i}"] for name in ("input", "recurrent", "bias")}
        z = jnp.asarray(layer.apply({"params": own}, z, state))
        ends.append(z[:, -1])
    return z, ends


@functools.partial(jax.jit, static_argnums=(0, 3))
def _apply(context, params, z, skip):
    return context.apply({"params": params}, z)[:, skip:]
