"""Windows drawn over all recorded time, short clips whole: pure in (seed, step, process)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from cpc.data.recordings import SAMPLE_RATE_HZ, Recordings, gains, read_windows
from cpc.types import Batch, UserError


class WindowCounts(NamedTuple):
    """What drawing windows of one length makes of a set of recordings."""

    num_utterances: int
    num_short: int
    """Utterances shorter than a window: drawn whole, and filled up with zeros."""
    seconds: float
    seconds_short: float


def count_windows(recordings: Recordings, window_samples: int) -> WindowCounts:
    """How many utterances, and how much time, are shorter than a window."""
    short = recordings.lengths < window_samples
    return WindowCounts(
        num_utterances=len(recordings),
        num_short=int(short.sum()),
        seconds=float(recordings.lengths.sum() / SAMPLE_RATE_HZ),
        seconds_short=float(recordings.lengths[short].sum() / SAMPLE_RATE_HZ),
    )


def windows_of_each(lengths: Int[np.ndarray, " n"], window_samples: int) -> Int[np.ndarray, " n"]:
    """How many windows each recording counts for: those that fit in, or w if it is too short.

    w = W sum_long (L - W + 1) / sum_long L, where L are the samples of the recordings of W or more.
    Drawn whole as often as w windows are, a short one is heard as long as they are for each second
    that was recorded. 1 where all are short.

    >>> windows_of_each(np.array([10, 3, 25]), 8).tolist()
    [3, 5, 18]
    """
    places, is_long = lengths - window_samples + 1, lengths >= window_samples
    heard, recorded = window_samples * int(places[is_long].sum()), int(lengths[is_long].sum())
    return np.where(is_long, places, max(1, round(heard / max(recorded, 1))))


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
    """`step -> batch` of windows, every possible window of long enough recordings equally likely.

    A clip shorter than a window is drawn whole, as often as `windows_of_each` says. Without short
    clips the draws are those of the windows alone.

    The samples are those of the pack, half of what float32 would take to copy to the device; there,
    `unpack` makes waveforms of them.

    The draws are those of the global batch, and each process takes its rows, so that neither the
    number of processes nor of threads changes what is drawn. With `one_speaker` all windows of a
    batch are one speaker's, who is drawn in proportion to recorded time (the number of windows),
    so that over many batches every window is drawn as often as without.

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

    Raises:
        UserError: no recordings, recordings without `rms`, a batch or window below 1, or a batch
            that does not divide among the processes.
    """
    if batch_size < 1:
        raise UserError(f"a batch of {batch_size} windows holds nothing: choose at least 1")
    if window_samples < 1:
        raise UserError(f"a window of {window_samples} samples holds nothing: choose at least 1")
    if batch_size % num_processes:
        raise UserError(
            f"a batch of {batch_size} does not divide among {num_processes} processes: "
            f"choose a multiple of {num_processes}"
        )
    if not len(recordings):
        raise UserError("there are no recordings to draw windows from: check what was selected")
    rms = recordings.rms
    if rms is None:
        raise UserError("the recordings have no loudness yet: pack them")
    _, speaker_of = np.unique(np.asarray(recordings.speakers), return_inverse=True)
    windows = _all_windows(recordings.lengths, speaker_of, window_samples)
    gain = gains(rms) / np.float32(32768)
    real = np.minimum(recordings.lengths, window_samples)
    is_short = recordings.lengths < window_samples
    # A clip has a window on either side to itself, as its own may be counted from its end, too.
    slots = np.where(is_short, 2 * window_samples, recordings.lengths)
    line = np.append(0, np.cumsum(slots))[:-1] + np.where(is_short, window_samples, 0)
    rows_each = batch_size // num_processes
    rows = np.arange(process * rows_each, (process + 1) * rows_each)

    def batch(step: int) -> Batch:
        rng = np.random.default_rng((seed, step))
        drawn = _draw(rng, windows, speaker_of, batch_size, one_speaker)[rows]
        row = np.searchsorted(windows.ends, drawn, side="right")
        utterance = windows.utterances[row]
        first = windows.ends[row] - windows.counts[row]
        start = np.minimum(drawn - first, recordings.lengths[utterance] - real[utterance])
        num_samples = {"num_samples": real[utterance].astype(np.int32)} if is_short.any() else {}
        return {
            "x": read_windows(recordings, utterance, start, window_samples),
            "gain": gain[utterance],
            "sequence": rows.astype(np.int32),
            "speaker": speaker_of[utterance].astype(np.int32),
            "utterance": utterance.astype(np.int32),
            "start": start.astype(np.int32),
            "sample": (line[utterance] + start).astype(np.int32),
            **num_samples,
        }

    return batch


class _Windows(NamedTuple):
    """All windows in a row: utterance `utterances[i]` has those before `ends[i]`."""

    utterances: Int[np.ndarray, " u"]
    """Speaker by speaker."""
    counts: Int[np.ndarray, " u"]
    """Start positions of each; of a short clip, as many as it counts for."""
    ends: Int[np.ndarray, " u"]
    """Cumulative sum of the counts."""


def _all_windows(
    lengths: Int[np.ndarray, " n"], speaker_of: Int[np.ndarray, " n"], window_samples: int
) -> _Windows:
    utterances = np.argsort(speaker_of, kind="stable")
    counts = windows_of_each(lengths, window_samples)[utterances]
    return _Windows(utterances, counts, np.cumsum(counts))


def _draw(
    rng: np.random.Generator,
    windows: _Windows,
    speaker_of: Int[np.ndarray, " n"],
    batch_size: int,
    one_speaker: bool,
) -> Int[np.ndarray, " b"]:
    """Numbers of windows, uniform over all or over those of the speaker of one drawn window."""
    begin, end = 0, int(windows.ends[-1])
    if one_speaker:
        speaker_of_row = speaker_of[windows.utterances]
        speaker = speaker_of_row[np.searchsorted(windows.ends, rng.integers(end), side="right")]
        mine = np.flatnonzero(speaker_of_row == speaker)
        begin = int(windows.ends[mine[0]] - windows.counts[mine[0]])
        end = int(windows.ends[mine[-1]])
    return rng.integers(begin, end, batch_size)
