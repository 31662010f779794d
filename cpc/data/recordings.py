"""Sets of recordings with names, speakers and lengths, and random access to their samples."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from cpc.data.walk import Skipped, read_named, same_name
from cpc.types import UserError

#: Called with one sentence about an alteration.
Note: TypeAlias = Callable[[str], object]

SAMPLE_RATE_HZ = 16_000
#: Root mean square to which each utterance is scaled. Loudness differs by several decibels between
#: sources and would otherwise reveal the speaker.
TARGET_RMS = 0.05
#: Limit on the gain of silent recordings.
MAX_GAIN = 500.0
FULL_SCALE = 32768
#: A constant offset above this fraction of the standard deviation is subtracted.
MAX_OFFSET = 0.1
#: Peak below which 16 bits preserve little of a recording that had a finer resolution.
MIN_PEAK = 32 / FULL_SCALE


@dataclass(frozen=True)
class Recordings:
    """A set of utterances, read as mono int16 at 16 kHz from any storage."""

    names: tuple[str, ...]
    """Unique utterance ids."""
    speakers: tuple[str, ...]
    """The speaker of each utterance."""
    lengths: Int[np.ndarray, " n"]
    """Number of samples of each utterance at 16 kHz, int64."""
    read: Callable[[int, int, int], np.ndarray]
    """(index, start, stop) -> int16 (stop - start,), by seeking; `UserError` if damaged."""
    rms: Float[np.ndarray, " n"] | None = None
    """Root mean square of samples / 32768 of each utterance, from which its gain to `TARGET_RMS` is
    computed; None until packed."""
    stream: Callable[[int, Note], Iterator[np.ndarray]] | None = None
    """(index, note) -> the whole utterance in small parts: int16, or float32 that may exceed full
    scale, 1; `note` is called with a sentence on each alteration. None: use `read`."""
    skipped: tuple[Skipped, ...] = ()
    """(path or utterance id, reason) of all utterances and files that are left out."""
    shortened: tuple[Skipped, ...] = ()
    """(path or utterance id, reason) of utterances that are incomplete or altered."""
    fingerprint: str = ""
    """Digest of names, sizes and modification times of the source; a pack depends on it."""

    def __len__(self) -> int:
        return len(self.names)


def select(recordings: Recordings, indices: Sequence[int] | np.ndarray) -> Recordings:
    """Return the utterances `indices`, in that order."""
    indices = np.asarray(indices, np.int64).reshape(-1)

    def read(index: int, start: int, stop: int) -> np.ndarray:
        return recordings.read(int(indices[index]), start, stop)

    def stream(index: int, note: Note) -> Iterator[np.ndarray]:
        return read_parts(recordings, int(indices[index]), note)

    return replace(
        recordings,
        names=tuple(recordings.names[i] for i in indices),
        speakers=tuple(recordings.speakers[i] for i in indices),
        lengths=recordings.lengths[indices],
        read=read,
        stream=stream,
        rms=None if recordings.rms is None else recordings.rms[indices],
    )


def split_by_utterance(
    recordings: Recordings, test_fraction: float, seed: int
) -> tuple[Recordings, Recordings]:
    """Split each speaker's utterances into train and test by a seeded shuffle.

    Every speaker with at least two utterances is on both sides; a single utterance is for training.
    """
    if not 0 < test_fraction < 1:
        raise UserError(f"test_fraction is {test_fraction}: choose a number between 0 and 1")
    is_test = np.zeros(len(recordings), bool)
    of_speaker = np.asarray(recordings.speakers, object)
    for number, speaker in enumerate(sorted(set(recordings.speakers))):
        mine = np.flatnonzero(of_speaker == speaker)
        if len(mine) > 1:
            num_test = int(np.clip(round(test_fraction * len(mine)), 1, len(mine) - 1))
            is_test[np.random.default_rng((seed, number)).permutation(mine)[:num_test]] = True
    return select(recordings, np.flatnonzero(~is_test)), select(recordings, np.flatnonzero(is_test))


def read_list(path: str | Path) -> tuple[str, ...]:
    """Read utterance ids, one per line; blank lines are ignored."""
    text = read_named(path, "the list of utterances")
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def split_by_lists(
    recordings: Recordings, train_ids: Sequence[str], test_ids: Sequence[str]
) -> tuple[Recordings, Recordings]:
    """Split by two lists of utterance ids, as in the paper's `train_split.txt`.

    Raises:
        UserError: an id is in both lists, or is neither a recording nor a damaged one.
    """
    where = {name: i for i, name in enumerate(recordings.names)}
    damaged = {name for path, _ in recordings.skipped for name in ids_of(path)}
    listed = list(dict.fromkeys((*train_ids, *test_ids)))
    absent = [name for name in listed if name not in where and name not in damaged]
    if absent:
        raise UserError(
            f"{len(absent)} of {len(listed)} listed utterances are not among the "
            f"{len(recordings)} recordings, the first {', '.join(absent[:3])}: "
            + explain_ids(absent, recordings.names)
        )
    both = sorted(set(train_ids) & set(test_ids))
    if both:
        raise UserError(
            f"{len(both)} utterances are in both lists, the first {both[0]}: remove each from one"
        )
    train, test = (
        select(recordings, [where[name] for name in dict.fromkeys(ids) if name in where])
        for ids in (train_ids, test_ids)
    )
    return train, test


def explain_ids(absent: Sequence[str], names: Sequence[str]) -> str:
    """Explain why listed ids do not match the names of recordings.

    >>> explain_ids(["ann/utt0.wav"], ["ann/utt0", "bob/utt0"])
    'write ids without a suffix, named like ann/utt0'
    >>> explain_ids(["ann/utt0.wav 48000"], ["ann/utt0", "bob/utt0"])
    'write one id per line, named like ann/utt0'
    """
    like = f"named like {names[0]}" if names else "that occur among the recordings"
    known = set(names)
    for name in absent:
        first = name.split()[0] if name.split() else name
        if first != name and not known.isdisjoint([first, *ids_of(first)]):
            return f"write one id per line, {like}"
        matches = [one for one in ids_of(name) if one in known]
        if matches:
            is_ending = os.path.splitext(name)[0] == matches[0]  # noqa: PTH122 (an id may be no path)
            return f"write ids without {'a suffix' if is_ending else 'folders'}, {like}"
    return f"write ids {like}, and check that the lists belong to this folder"


def ids_of(path: str) -> list[str]:
    """Return all ids under which the file `path` may be listed.

    >>> ids_of("ann/1.wav")
    ['ann/1', '1', 'ann/1.wav', '1.wav']
    """
    bare, ending = os.path.splitext(same_name(path))  # noqa: PTH122 (an id may be no path)
    parts = bare.split("/")
    tails = ["/".join(parts[i:]) for i in range(len(parts))]
    return [*tails, *(tail + ending for tail in tails)]


def read_windows(
    recordings: Recordings,
    indices: Int[np.ndarray, " b"],
    starts: Int[np.ndarray, " b"],
    length: int,
) -> Int[np.ndarray, "b s"]:
    """Return samples `[start, start + length)` of several utterances, int16 (b, length).

    Samples beyond the end of an utterance are 0.
    """
    windows = np.zeros((len(indices), length), np.int16)
    stops = np.minimum(recordings.lengths[indices], starts + length).tolist()
    spans = zip(windows, indices.tolist(), starts.tolist(), stops, strict=True)
    for window, index, start, stop in spans:
        window[: stop - start] = recordings.read(index, start, stop)
    return windows


def read_parts(recordings: Recordings, index: int, note: Note) -> Iterator[np.ndarray]:
    """Return one utterance in small parts from beginning to end, as `Recordings.stream`."""
    if recordings.stream is not None:
        return recordings.stream(index, note)
    return iter((recordings.read(index, 0, int(recordings.lengths[index])),))


class Levels(NamedTuple):
    """Statistics over all samples of a recording, relative to full scale 1."""

    num_samples: int
    mean: float
    deviation: float  # standard deviation
    lowest: float
    highest: float
    is_int16: bool  # whether the source has 16 bits

    @property
    def offset(self) -> float:
        """Constant to subtract: the mean, or 0 if it is small relative to the deviation."""
        units = round(self.mean * FULL_SCALE)
        return units / FULL_SCALE if abs(self.mean) > MAX_OFFSET * self.deviation else 0.0

    @property
    def rms(self) -> float:
        """Root mean square without the offset, which measures loudness."""
        return (self.deviation**2 + (self.mean - self.offset) ** 2) ** 0.5

    @property
    def peak(self) -> float:
        """Largest sample without the offset."""
        return max(self.highest - self.offset, self.offset - self.lowest)

    def describe(self) -> list[str]:
        """Return one sentence per alteration of the recording."""
        notes = []
        if self.offset:
            notes.append(
                f"kept, but a constant offset of {self.offset:.3g} times full scale is removed "
                f"(standard deviation {self.deviation:.3g})"
            )
        if not self.is_int16 and self.peak < MIN_PEAK:
            notes.append(
                f"kept, but its peak is only {self.peak:.2g} times full scale, of which 16 bits "
                "preserve little: scale it up"
            )
        return notes


def sum_of_squares(samples: Int[np.ndarray, " s"]) -> int:
    """Return the exact sum of squares of int16 samples; parts add up to the whole."""
    wide = samples.astype(np.int64)
    return int(wide @ wide)


def measure_levels(parts: Iterable[np.ndarray]) -> Levels:
    """Measure a recording given in parts: int16, or float32 with full scale 1."""
    num, total, squares, lowest, highest, is_int16 = 0, 0, 0, np.inf, -np.inf, True
    for part in parts:
        is_int16 = part.dtype == np.int16
        wide = part.astype(np.int64 if is_int16 else np.float64)
        num += len(part)
        total, squares = total + wide.sum().item(), squares + (wide @ wide).item()
        if len(part):
            lowest, highest = min(lowest, part.min().item()), max(highest, part.max().item())
    if not num:
        return Levels(0, 0.0, 0.0, 0.0, 0.0, is_int16)
    scale, mean = FULL_SCALE if is_int16 else 1, total / num
    deviation = max(squares / num - mean**2, 0.0) ** 0.5
    return Levels(num, mean / scale, deviation / scale, lowest / scale, highest / scale, is_int16)


def to_int16(part: np.ndarray, levels: Levels) -> Int[np.ndarray, " s"]:
    """Convert part of a recording to int16 without its offset, scaled down beyond full scale.

    >>> hot = np.array([0.0, 4.0, -2.0], np.float32)
    >>> to_int16(hot, measure_levels([hot - hot.mean()])).tolist()
    [0, 32767, -19661]
    """
    offset, peak = levels.offset, levels.peak
    if part.dtype == np.int16 and not offset:
        return part
    wide: Float[np.ndarray, " s"] = part.astype(np.float32)
    wide = wide / FULL_SCALE if part.dtype == np.int16 else wide
    scaled = (wide - np.float32(offset)) * np.float32(FULL_SCALE / max(peak, 1.0))
    return np.clip(np.round(scaled), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def gains(rms: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return the gain that brings each utterance to `TARGET_RMS`, float32.

    >>> gains(np.array([0.1, 0.0])).tolist()
    [0.5, 500.0]
    """
    return np.minimum(TARGET_RMS / np.maximum(rms, 1e-9), MAX_GAIN).astype(np.float32)


def root_mean_square(samples: Int[np.ndarray, " s"]) -> float:
    """Return the root mean square of int16 samples relative to full scale; 0 without samples."""
    return (sum_of_squares(samples) / max(len(samples), 1)) ** 0.5 / FULL_SCALE


def bring_to_loudness(sound: Float[np.ndarray, " s"], rms: float) -> Float[np.ndarray, " s"]:
    """Scale a float32 waveform to a root mean square, as a packed recording is scaled.

    A large constant offset is subtracted (`Levels.offset`). The result equals that for a packed
    recording, except for rounding to 16 bits.

    >>> bring_to_loudness(np.array([0.75, 0.25], np.float32), 0.0625).round(4).tolist()
    [0.0625, -0.0625]
    """
    levels = measure_levels([sound.astype(np.float32)])
    gain = gains(np.asarray([levels.rms]))[0] * np.float32(rms / TARGET_RMS)
    return (sound - np.float32(levels.offset)).astype(np.float32) * gain


def at_loudness(recordings: Recordings, rms: float | None) -> Recordings:
    """Return packed recordings that are read at another root mean square; None: unscaled.

    For networks trained on sound with another loudness than `TARGET_RMS`.
    """
    if recordings.rms is None:
        raise ValueError("the recordings are not packed")
    claimed = recordings.rms * (TARGET_RMS / rms) if rms else np.full(len(recordings), TARGET_RMS)
    return replace(recordings, rms=claimed.astype(np.float32))


def read_all(recordings: Recordings, index: int) -> Float[np.ndarray, " s"]:
    """Return one whole utterance as float32 at `TARGET_RMS`, as in windows."""
    samples = recordings.read(index, 0, int(recordings.lengths[index]))
    if recordings.rms is None:
        samples = to_int16(samples, measure_levels([samples]))
        rms = root_mean_square(samples)
    else:
        rms = recordings.rms[index]
    return samples.astype(np.float32) / 32768 * gains(np.asarray([rms], np.float32))[0]
