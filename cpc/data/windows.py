"""Windows drawn over all recorded time, short clips whole: pure in (seed, step, process)."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int

from cpc.data.pipeline import rows_of_process
from cpc.data.recordings import Recordings, gains, read_windows
from cpc.types import Batch, UserError

#: draw(rng, number) -> recordings and starts of windows, (number,) each.
DrawWindows: TypeAlias = Callable[
    [np.random.Generator, int], tuple[Int[np.ndarray, " b"], Int[np.ndarray, " b"]]
]


def uniform_windows(lengths: Int[np.ndarray, " n"], window_length: int) -> DrawWindows:
    """Return a draw of windows that hears every second of all recordings as often.

    A recording of L is drawn in proportion to max(L, W), W the window's length, and then where its
    window begins, from 0 to L - W. So W of L are heard of a long one, and a short one whole.

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
    """Return a draw of which all windows are of one speaker, that of a uniform first window."""
    draw_first = uniform_windows(lengths, window_length)

    def draw(rng, number):
        first, _ = draw_first(rng, number)
        own = np.flatnonzero(speaker_of == speaker_of[first[0]])
        which, start = uniform_windows(lengths[own], window_length)(rng, number)
        return own[which], start

    return draw


def make_batches(recordings: Recordings, **options: Any) -> Callable[[int], Batch]:
    """`make_packed_batches` with x in float32, as models take it: full scale 1, times the gain."""
    draw = make_packed_batches(recordings, **options)
    return lambda step: unpack(draw(step))


def unpack(batch: Batch) -> Batch:
    """Windows in float32, brought to their loudness: on the device, where the batch is there.

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
    """`step -> batch` of windows, drawn over all recorded time as by `uniform_windows`.

    Of a recording every window is equally likely, and a clip shorter than a window is drawn whole.

    The samples are those of the pack, half of what float32 would take to copy to the device; there,
    `unpack` makes waveforms of them.

    The draws are those of the global batch, and each process takes its rows, so that neither the
    number of processes nor of threads changes what is drawn. With `one_speaker` all windows of a
    batch are one speaker's, who is drawn in proportion to what is drawn of each, so that over many
    batches every window is drawn as often as without.

    A batch, b = batch_size / num_processes:

        x: int16 (b, s).
        gain: float32 (b,), to full scale 1 and to the loudness at which the window's whole
            utterance has `TARGET_RMS`: it says nothing about the speaker.
        sequence: int32 (b,), row in the global batch.
        speaker: int32 (b,), index into the sorted names of the speakers of `recordings`.
        utterance: int32 (b,), index into `recordings`.
        start: int32 (b,), sample of the utterance at which the window begins.
        sample: int32 (b,), the same on a line of all recordings, modulo 2^32: a recording takes its
            length of it, a clip shorter than a window two of these. It tells what overlaps.
        num_samples: int32 (b,), how many samples are real; the others are 0. Only if there are
            clips shorter than a window, in whatever batch.
    """
    rows = rows_of_process(batch_size, process, num_processes, "windows")
    if window_samples < 1:
        raise UserError(f"a window of {window_samples} samples holds nothing: choose at least 1")
    if not len(recordings):
        raise UserError("there are no recordings to draw windows from: check what was selected")
    if recordings.rms is None:
        raise UserError("the recordings have no loudness yet: pack them")
    gain = gains(recordings.rms) / np.float32(32768)
    _, speaker_of = np.unique(np.asarray(recordings.speakers), return_inverse=True)
    lengths = recordings.lengths
    draw = uniform_windows(lengths, window_samples)
    if one_speaker:
        draw = one_speaker_windows(lengths, window_samples, speaker_of)
    real = np.minimum(lengths, window_samples)
    is_short = lengths < window_samples
    # A clip has a window on either side to itself, as its own may be counted from its end, too.
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
