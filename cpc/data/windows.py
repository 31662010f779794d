"""Audio windows sampled uniformly over time, as a function of seed, step and process."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int

from cpc.data.pipeline import rows_of_process
from cpc.data.recordings import Recordings, gains, read_windows
from cpc.types import Batch, UserError

#: draw(rng, number) -> (indices of recordings, starts of windows), each of shape (number,).
DrawWindows: TypeAlias = Callable[
    [np.random.Generator, int], tuple[Int[np.ndarray, " b"], Int[np.ndarray, " b"]]
]


def uniform_windows(lengths: Int[np.ndarray, " n"], window_length: int) -> DrawWindows:
    """Return a function that draws windows uniformly over the recorded time.

    For windows of length W, a recording of length L is drawn with probability proportional to
    max(L, W), and then a start is drawn from 0 to L - W. A recording shorter than W is drawn
    whole.

    >>> draw = uniform_windows(np.array([2, 4, 16]), 4)
    >>> recordings, starts = draw(np.random.default_rng(0), 24_000)
    >>> np.round(np.bincount(recordings) / 1000).tolist(), starts.max().item()
    ([4.0, 4.0, 16.0], 12)
    """
    ends, last = np.cumsum(np.maximum(lengths, window_length)), lengths - window_length

    def draw(rng, number):
        which = np.searchsorted(ends, rng.integers(ends[-1], size=number), side="right")
        return which, rng.integers(np.maximum(last, 0)[which] + 1)

    return draw


def one_speaker_windows(
    lengths: Int[np.ndarray, " n"], window_length: int, speaker_of: Int[np.ndarray, " n"]
) -> DrawWindows:
    """Return a function that draws all windows of a batch from one speaker.

    The function draws one window with `uniform_windows` and takes its speaker.
    """
    draw_first = uniform_windows(lengths, window_length)

    def draw(rng, number):
        first, _ = draw_first(rng, number)
        own = np.flatnonzero(speaker_of == speaker_of[first[0]])
        which, start = uniform_windows(lengths[own], window_length)(rng, number)
        return own[which], start

    return draw


def make_batches(recordings: Recordings, **options: Any) -> Callable[[int], Batch]:
    """Return `step -> batch` as `make_packed_batches` does, with unpacked float32 waveforms."""
    draw = make_packed_batches(recordings, **options)
    return lambda step: unpack(draw(step))


def unpack(batch: Batch) -> Batch:
    """Convert the int16 windows of a batch to float32, multiplied by their gain.

    >>> unpack({"x": np.array([[4, -8]], np.int16), "gain": np.array([0.5], np.float32)})
    {'x': array([[ 2., -4.]], dtype=float32)}
    """
    rest = {name: value for name, value in batch.items() if name != "gain"}
    return {**rest, "x": batch["x"] * batch["gain"][:, None]}


def make_packed_batches(
    recordings: Recordings,
    *,
    window_samples: int,
    batch_size: int,
    seed: int,
    one_speaker: bool = False,
    process: int = 0,
    num_processes: int = 1,
) -> Callable[[int], Batch]:
    """Return a function from the step to a batch of int16 windows, drawn by `uniform_windows`.

    Windows stay int16, as in the pack. This halves the bytes copied to the device, where `unpack`
    converts them to waveforms.

    Every process draws the whole global batch and takes its own rows, so batches depend on neither
    the number of processes nor the number of threads. If `one_speaker` is true, all windows of a
    batch come from one speaker, drawn in proportion to the speaker's recorded time. Over many
    batches, every window is as likely as if it were false.

    A batch contains, with b = batch_size / num_processes:

        x: int16 (b, s).
        gain: float32 (b,), factor that converts samples to full scale 1 and scales the utterance
            to `TARGET_RMS`, so that loudness does not reveal the speaker.
        sequence: int32 (b,), row in the global batch.
        speaker: int32 (b,), index into the sorted speaker names of `recordings`.
        utterance: int32 (b,), index into `recordings`.
        start: int32 (b,), position of the window's first sample in the utterance.
        sample: int32 (b,), position of that sample if all recordings are joined, modulo 2^32, to
            compute which windows overlap. A recording occupies its own length, but a clip shorter
            than a window occupies two windows.
        num_samples: int32 (b,), number of recorded samples. The rest of the window is 0. Present
            only if some recording is shorter than a window, whether or not it is in this batch.
    """
    rows = rows_of_process(batch_size, process, num_processes, "windows")
    if window_samples < 1:
        raise UserError(f"a window of {window_samples} samples is empty: choose at least 1")
    if not len(recordings):
        raise UserError("no recordings to draw windows from: check the selection")
    if recordings.rms is None:
        raise UserError("the loudness of the recordings is unknown: pack them first")
    gain = gains(recordings.rms) / np.float32(32768)
    _, speaker_of = np.unique(np.asarray(recordings.speakers), return_inverse=True)
    lengths = recordings.lengths
    draw = uniform_windows(lengths, window_samples)
    if one_speaker:
        draw = one_speaker_windows(lengths, window_samples, speaker_of)
    real = np.minimum(lengths, window_samples)
    is_short = lengths < window_samples
    # A short clip gets a window of margin on either side, as it may be placed from its end.
    slots = np.where(is_short, 2 * window_samples, lengths)
    line = np.append(0, np.cumsum(slots))[:-1] + np.where(is_short, window_samples, 0)

    def batch(step: int) -> Batch:
        utterance, start = draw(np.random.default_rng((seed, step)), batch_size)
        utterance, start = utterance[rows], start[rows]
        num_samples = {"num_samples": real[utterance].astype(np.int32)} if is_short.any() else {}
        return {
            "x": read_windows(recordings, utterance, start, window_samples),
            "gain": gain[utterance],
            "sequence": rows,
            "speaker": speaker_of[utterance].astype(np.int32),
            "utterance": utterance.astype(np.int32),
            "start": start.astype(np.int32),
            "sample": (line[utterance] + start).astype(np.int32),
            **num_samples,
        }

    return batch
