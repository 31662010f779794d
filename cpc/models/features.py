"""Extraction of features from signals of any length, in batches of few shapes or as a stream.

Streaming gives the same features as processing the whole signal, because chunks overlap by the
samples that a latent depends on, and contexts continue from the state after the previous chunk.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Array, Float

from cpc.models.cpc import CPC
from cpc.models.layers import end_at, part_of
from cpc.types import PyTree, UserError

#: Longer signals are embedded in chunks of this many samples, which are 30 s or 200 MB per layer of
#: width 512.
CHUNK_SAMPLES = 480_000
#: Shorter signals of similar length share batches of at most this many samples.
BATCH_SAMPLES = 1_920_000
#: Smallest padded length of a signal, in samples.
MIN_SAMPLES = 2560
#: Array (s,) or (s, channels).
Signal: TypeAlias = Float[np.ndarray, "..."]
#: Features of one signal or image, by layer name.
Features = dict[str, np.ndarray]


class Layers:
    """Selected layers of a CPC, ImageCPC or sentence model, which are computed together.

    `layer_depths` lists the names of layers. `preprocess` is applied to batches and also compiled.
    """

    def __init__(
        self,
        module: Any,
        variables: PyTree,
        names: Sequence[str],
        preprocess: Callable[[Any], Any] | None = None,
    ):
        self.names = tuple(names)
        self._module, self._variables = module, variables
        self._encoders: dict[str, Any] = {
            name: getattr(end_at(module, variables, name)[0], "encoder", None) for name in names
        }
        self._apply = jax.jit(functools.partial(_apply, module, self.names, preprocess))

    def embed_batch(self, x: Any) -> Features:
        """Return the layers for a batch as float32 NumPy arrays."""
        outputs = self._apply(self._variables, x)
        return {name: np.asarray(array, np.float32) for name, array in outputs.items()}

    def embed_rows(self, rows: Sequence[np.ndarray]) -> list[Features]:
        """Return the layers for arrays of the same shape, padding the batch to a power of two."""
        batch = self.embed_batch(pad_rows(rows))
        return [{name: batch[name][row] for name in self.names} for row in range(len(rows))]

    @property
    def strides(self) -> dict[str, int]:
        """Number of samples per frame of each layer."""
        return {name: encoder.stride for name, encoder in self._encoders.items()}

    @property
    def stride(self) -> int:
        """Number of samples per frame of the coarsest layer."""
        return max(self.strides.values())

    @property
    def can_stream(self) -> bool:
        """Whether signals can be read in chunks, because no layer depends on all later samples."""
        is_causal = isinstance(self._module, CPC) and not self._module.is_bidirectional
        return is_causal or all(name.startswith("z") for name in self.names)

    def embed_group(self, signals: Sequence[Signal], num_frames: int) -> list[Features]:
        """Return the layers for each signal, computed in one padded batch.

        The result has max(1, s // stride) frames per signal. Signals are padded with their mirror
        image to `num_frames` frames of `stride` samples, plus the samples that they look ahead.
        """
        ahead = max(e.frames_around[1] * e.stride for e in self._encoders.values())
        length = num_frames * self.stride + ahead
        rows = self.embed_rows([mirror(signal, length) for signal in signals])
        return [
            {name: row[name][: max(1, len(x) // self.strides[name])] for name in self.names}
            for x, row in zip(signals, rows, strict=True)
        ]

    def embed_long(self, read: Callable[[int, int], Signal], num_samples: int) -> Features:
        """Return the layers for a long signal, which is read in chunks once per layer.

        `read(start, stop)` returns samples from start to stop. stop is at most `num_samples`.
        """

        def read_mirrored(start: int, stop: int) -> np.ndarray:
            return mirror(read(start, min(stop, num_samples)), stop - start)

        features = {}
        for name in self.names:
            module, variables = end_at(self._module, self._variables, name)
            stride = module.encoder.stride
            frames, chunk = max(1, num_samples // stride), max(1, CHUNK_SAMPLES // stride)
            parts = stream_latents(module, variables, read_mirrored, frames, chunk)
            if name.startswith("c"):
                parts = stream_contexts(module, variables, parts)
            features[name] = np.concatenate([np.asarray(part[0], "f4") for part in parts])[:frames]
        return features

    def embed_signals(self, signals: Sequence[Signal]) -> list[Features]:
        """Return the layers for each signal, in the order of the signals."""
        groups, long = group_signals(list(map(len, signals)), self.stride, self.can_stream)
        features: list[Features] = [{}] * len(signals)
        for num_frames, members in groups:
            batch = self.embed_group([signals[index] for index in members], num_frames)
            for index, row in zip(members, batch, strict=True):
                features[index] = row
        for index in long:
            x = signals[index]
            features[index] = self.embed_long(lambda start, stop, x=x: x[start:stop], len(x))
        return features


def _apply(module: Any, names: Sequence[str], preprocess: Any, variables: PyTree, x: Any) -> Any:
    x = x if preprocess is None else preprocess(x)
    outputs = {}
    for name in names:  # XLA computes shared layers once
        end, own = end_at(module, variables, name)
        is_context = name.startswith("c")
        found = end.apply(own, x, method="embed" if is_context else "encode")
        outputs[name] = found[1] if is_context else found
    return outputs


def group_signals(
    lengths: Sequence[int], stride: int, can_stream: bool = True
) -> tuple[list[tuple[int, list[int]]], list[int]]:
    """Return each batch as (padded length, signal indices), and the indices of signals to stream.

    Each padded length, in frames, is a quarter above the previous one, so few shapes are compiled.

    >>> group_signals([16_000, 1_000_000, 15_900], 160)
    ([(112, [0, 2])], [1])
    """
    max_frames = max(1, CHUNK_SAMPLES // stride)
    by_length, long = defaultdict(list), []
    for index, num_samples in enumerate(lengths):
        frames = max(1, -(-num_samples // stride))
        if frames > max_frames and can_stream:
            long.append(index)
            continue
        padded = max(1, MIN_SAMPLES // stride)
        while padded < frames:
            padded = max(padded + 1, padded * 5 // 4)
        by_length[min(padded, max_frames) if frames <= max_frames else padded].append(index)
    groups = []
    for padded, members in sorted(by_length.items()):
        rows = 2 ** int(np.log2(max(1, BATCH_SAMPLES // stride // padded)))
        groups += [(padded, members[i : i + rows]) for i in range(0, len(members), rows)]
    return groups, long


def mirror(signal: np.ndarray, length: int) -> np.ndarray:
    """Pad a signal (s, ...) with its mirror image, or truncate it, to `length` float32 samples.

    >>> mirror(np.array([1.0, 2.0]), 5).tolist(), mirror(np.array([1.0, 2.0]), 1).tolist()
    ([1.0, 2.0, 2.0, 1.0, 1.0], [1.0])
    """
    ends = [(0, max(0, length - len(signal))), *((0, 0) for _ in signal.shape[1:])]
    return np.pad(np.asarray(signal[:length], np.float32), ends, mode="symmetric")


def pad_rows(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Stack arrays, and repeat the last one until the number of rows is a power of two.

    >>> pad_rows([np.array([1]), np.array([2]), np.array([3])])[:, 0].tolist()
    [1, 2, 3, 3]
    """
    return np.stack([*rows, *[rows[-1]] * (2 ** (len(rows) - 1).bit_length() - len(rows))])


def stream_latents(
    module: CPC,
    variables: PyTree,
    read: Callable[[int, int], Float[np.ndarray, "..."]],
    num_frames: int,
    chunk_frames: int,
) -> Iterator[Float[Array, "1 t d"]]:
    """Yield the latents of a recording in chunks of `chunk_frames` frames.

    The last chunk may extend past the end of the recording. `read(start, stop)` must return
    stop - start samples, also past the end.
    """
    encoder, own = module.encoder, part_of(variables, "encoder")
    before, after = encoder.frames_around
    # Chunks start `after` frames early, so that `read` can mirror even a last chunk of one frame.
    around = before + after
    length = (around + chunk_frames + after) * encoder.stride
    for first in range(0, num_frames, chunk_frames):
        # The first chunks begin at the start of the recording, where the encoder pads.
        start = max(0, first - around)
        x = read(start * encoder.stride, start * encoder.stride + length)
        yield _encode(encoder, own, x[None], first - start, chunk_frames)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _encode(encoder, variables, x, skip, num_frames):
    return jax.lax.dynamic_slice_in_dim(encoder.apply(variables, x), skip, num_frames, axis=1)


def stream_contexts(
    module: Any, variables: PyTree, latents: Iterator[Float[Array, "1 t d"]]
) -> Iterator[Float[Array, "1 t h"]]:
    """Yield the contexts for chunks of latents, carrying the context state between chunks."""
    if not isinstance(module, CPC) or module.is_bidirectional:
        raise UserError(
            "contexts of both directions and of segments need the whole recording: embed z"
        )
    own, state = part_of(variables, "context"), None
    for z in latents:
        c, state = _advance(module.context, own, z, state)
        yield c


@functools.partial(jax.jit, static_argnums=0)
def _advance(context, variables, z, state):
    return context.apply(variables, z, state, method="advance")
