"""Embedding of whole utterances of any length, with few compiled shapes."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from jaxtyping import Float, Int

from cpc.types import ArrayLike

MAX_SHAPES = 16
MAX_CANDIDATES = 512
#: Frames that a CPU embeds in the time it takes to compile one more shape for two networks.
SHAPE_FRAMES = 25_000
#: The same for a GPU. An H100 compiles a shape in 11 to 15 s and embeds a million frames per s.
SHAPE_FRAMES_OFF_CPU = 3_000_000
#: Number of frames in each piece of a long utterance, which is 30 s of sound.
PIECE_FRAMES = 3_000


def embed_utterances(
    embed: Callable[[np.ndarray], ArrayLike],
    waveforms: Iterable[Float[np.ndarray, "..."]],
    stride: int,
    batch_frames: int = 25_000,
    shape_frames: int = SHAPE_FRAMES,
    ahead: int = 0,
    embed_long: Callable[[np.ndarray], np.ndarray] | None = None,
) -> list[Float[np.ndarray, "_ _"]]:
    """Embed utterances of any length in padded batches of few shapes.

    Utterances of similar length share a batch. Each utterance is padded with its own mirror image,
    so that features which look ahead see plausible sound. Padding frames are dropped.

    Args:
        embed: a function, preferably jitted, from float32 arrays (b, s) or (b, s, channels) to
            (b, at least s // stride, f).
        waveforms: a float32 array (s,) or (s, channels) for each utterance.
        stride: number of samples per frame.
        batch_frames: maximum number of frames in a batch.
        shape_frames: padding frames that each further shape must save. This is the number of frames
            embedded while one shape is compiled. At least 3,000,000 if not on a CPU.
        ahead: number of later frames that a frame depends on. With this padding, a frame does not
            depend on the shape of its batch.
        embed_long: embeds one utterance of more than `batch_frames` frames in less memory, for
            example in pieces. By default, such an utterance is a batch of its own.

    Returns:
        Float32 NumPy arrays with max(1, s // stride) frames per utterance.
    """
    waveforms = list(waveforms)
    if not waveforms:
        return []
    lengths = np.array([max(1, -(-len(w) // stride)) for w in waveforms])  # in frames
    if jax.default_backend() != "cpu":
        shape_frames = max(shape_frames, SHAPE_FRAMES_OFF_CPU)
    features: list[np.ndarray] = [np.empty((0, 0), np.float32)] * len(waveforms)
    if embed_long is not None:
        for index in np.flatnonzero(lengths > batch_frames):
            features[index] = embed_long(waveforms[index])
        lengths = np.where(lengths > batch_frames, 0, lengths)
        if not lengths.any():
            return features
    bounds = bucket_lengths(lengths[lengths > 0], shape_frames)
    bucket = np.where(lengths > 0, np.searchsorted(bounds, lengths), -1)

    def embed_bucket(number: int) -> None:
        num_padded, members = int(bounds[number]), np.flatnonzero(bucket == number)
        num_batches = -(-len(members) // max(1, batch_frames // num_padded))
        rows = -(-len(members) // num_batches)
        for start in range(0, len(members), rows):
            chosen = members[start : start + rows]
            length = (num_padded + ahead) * stride
            batch = np.zeros((rows, length, *waveforms[0].shape[1:]), np.float32)
            for row, index in enumerate(chosen):
                batch[row] = continue_mirrored(waveforms[index], length)
            embedded = np.asarray(embed(batch), np.float32)
            for row, index in enumerate(chosen):
                num_frames = max(1, len(waveforms[index]) // stride)
                features[index] = embedded[row, :num_frames].copy()

    # Two threads each compile and run one shape at a time, the largest first. Recurrent contexts on
    # a CPU, and compilation for other devices, leave a core for a second shape.
    by_size = np.argsort(-bounds * np.bincount(bucket + 1)[1:], kind="stable")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(embed_bucket, by_size.tolist()))
    return features


def embed_pieces(
    embed: Callable[[np.ndarray], ArrayLike],
    waveform: Float[np.ndarray, "..."],
    stride: int,
    *,
    before: int = 0,
    ahead: int = 0,
) -> Float[np.ndarray, "_ _"]:
    """Embed one long utterance in overlapping pieces.

    All pieces have the same shape. `before` and `ahead` are the numbers of earlier and later frames
    that a frame depends on.
    """
    num_frames, parts = max(1, len(waveform) // stride), []
    length = (before + PIECE_FRAMES + ahead) * stride
    for first in range(0, num_frames, PIECE_FRAMES):
        start = max(0, first - before)
        piece = waveform[start * stride : start * stride + length]
        made = embed(continue_mirrored(piece, length)[None])
        parts.append(np.asarray(made, np.float32)[0, first - start : first - start + PIECE_FRAMES])
    return np.concatenate(parts)[:num_frames]


def bucket_lengths(
    lengths: Int[np.ndarray, " u"], shape_frames: int = SHAPE_FRAMES
) -> Int[np.ndarray, " buckets"]:
    """Return at most 16 ascending padded lengths that minimise the padding of all utterances.

    Each length saves at least `shape_frames` frames of padding. The lengths are found by dynamic
    programming over all distinct lengths, or over their quantiles if there are more than 512.
    """
    candidates = np.unique(lengths)
    if len(candidates) > MAX_CANDIDATES:
        levels = np.linspace(0, 1, MAX_CANDIDATES)
        candidates = np.unique(np.quantile(lengths, levels, method="higher"))
    below = np.searchsorted(np.sort(lengths), candidates, side="right")
    below = np.concatenate([[0], below])  # number of utterances within the first j candidates
    # cost[i, j] is the number of padded frames if utterances between candidates i and j share j.
    cost = np.where(
        np.arange(len(below))[:, None] < np.arange(1, len(below)),
        (below[1:] - below[:, None]) * candidates.astype(np.float64),
        np.inf,
    )
    best, choices = cost[0], [np.zeros(len(candidates), int)]
    totals = [best[-1]]  # one entry per number of shapes
    for _ in range(min(MAX_SHAPES, len(candidates)) - 1):
        through = np.concatenate([[0.0], best])[:, None] + cost
        choices.append(through.argmin(axis=0))
        best = through.min(axis=0)
        totals.append(best[-1])
    number = int(np.argmin(totals + shape_frames * np.arange(len(totals))))
    bounds, end = [], len(candidates)
    for choice in choices[number::-1]:
        if end > 0:
            bounds.append(candidates[end - 1])
            end = int(choice[end - 1])
    return np.array(bounds[::-1])


def continue_mirrored(
    waveform: Float[np.ndarray, " s *channels"], length: int
) -> Float[np.ndarray, " length *channels"]:
    """Extend a waveform to `length` samples by repeated mirror images."""
    if len(waveform) == 0:
        return np.zeros((length, *waveform.shape[1:]), np.float32)
    ends = [(0, max(0, length - len(waveform))), *((0, 0) for _ in waveform.shape[1:])]
    return np.pad(np.asarray(waveform, np.float32), ends, mode="symmetric")
