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

#: Callback that receives one sentence for each alteration of a recording.
Note: TypeAlias = Callable[[str], object]

SAMPLE_RATE_HZ = 16_000
#: Root mean square to which each utterance is scaled. Loudness differs by several decibels between
#: sources and would otherwise reveal the speaker.
TARGET_RMS = 0.05
#: Maximum gain, which applies to silent recordings.
MAX_GAIN = 500.0
FULL_SCALE = 32768
#: A constant offset above this fraction of the standard deviation is subtracted.
MAX_OFFSET = 0.1
#: Peak below which 16 bits lose most of the resolution of finer samples.
MIN_PEAK = 32 / FULL_SCALE


@dataclass(frozen=True)
class Recordings:
    """A set of utterances, read as mono int16 at 16 kHz from any storage."""

    names: tuple[str, ...]
    """Unique utterance ids."""
    speakers: tuple[str, ...]
    """The speaker of each utterance."""
    lengths: Int[np.ndarray, " n"]
    """Length of each utterance in samples at 16 kHz, int64."""
    read: Callable[[int, int, int], np.ndarray]
    """(index, start, stop) -> int16 (stop - start,), by seeking. Raises `UserError` if damaged."""
    rms: Float[np.ndarray, " n"] | None = None
    """Each utterance's root mean square of samples / 32768. It determines the gain to `TARGET_RMS`.
    None if the recordings are not packed."""
    stream: Callable[[int, Note], Iterator[np.ndarray]] | None = None
    """(index, note) -> iterator over short arrays of the utterance, int16 or float32. Float samples
    may exceed full scale, 1. `note` is called for each alteration. If None, `read` is used."""
    skipped: tuple[Skipped, ...] = ()
    """(path or utterance id, reason) for each utterance or file that is left out."""
    shortened: tuple[Skipped, ...] = ()
    """(path or utterance id, reason) for each utterance that is incomplete or altered."""
    fingerprint: str = ""
    """Digest of source names, sizes and modification times. A change makes packs stale."""

    def __len__(self) -> int:
        return len(self.names)


def select(recordings: Recordings, indices: Sequence[int] | np.ndarray) -> Recordings:
    """Return the utterances at `indices`, in that order."""
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

    Speakers with at least two utterances are in both sets. A speaker's only utterance is in the
    training set.
    """
    if not 0 < test_fraction < 1:
        raise UserError(f"test_fraction must be between 0 and 1 (got {test_fraction})")
    is_test = np.zeros(len(recordings), bool)
    of_speaker = np.asarray(recordings.speakers, object)
    for number, speaker in enumerate(sorted(set(recordings.speakers))):
        mine = np.flatnonzero(of_speaker == speaker)
        if len(mine) > 1:
            num_test = int(np.clip(round(test_fraction * len(mine)), 1, len(mine) - 1))
            is_test[np.random.default_rng((seed, number)).permutation(mine)[:num_test]] = True
    return select(recordings, np.flatnonzero(~is_test)), select(recordings, np.flatnonzero(is_test))


def read_list(path: str | Path) -> tuple[str, ...]:
    """Read a list of utterance ids with one id per line, ignoring blank lines."""
    text = read_named(path, "the list of utterances")
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def split_by_lists(
    recordings: Recordings, train_ids: Sequence[str], test_ids: Sequence[str]
) -> tuple[Recordings, Recordings]:
    """Split recordings into train and test by lists of ids, as in the paper's `train_split.txt`.

    Raises:
        UserError: an id is in both lists, or matches neither a recording nor a skipped file.
    """
    where = {name: i for i, name in enumerate(recordings.names)}
    damaged = {name for path, _ in recordings.skipped for name in ids_of(path)}
    listed = list(dict.fromkeys((*train_ids, *test_ids)))
    absent = [name for name in listed if name not in where and name not in damaged]
    if absent:
        raise UserError(
            f"{len(absent)} of {len(listed)} listed utterances are not among the "
            f"{len(recordings)} recordings, the first {', '.join(absent[:3])}: "
            + explain_ids(recordings.names)
        )
    both = sorted(set(train_ids) & set(test_ids))
    if both:
        raise UserError(
            f"{len(both)} utterances are in both lists, the first {both[0]}: remove each from one "
            "list"
        )
    train, test = (
        select(recordings, [where[name] for name in dict.fromkeys(ids) if name in where])
        for ids in (train_ids, test_ids)
    )
    return train, test


def explain_ids(names: Sequence[str]) -> str:
    """Return a hint for the error about listed ids that are not among the recordings `names`."""
    example = f", named like {names[0]}" if names else ""
    return f"write one id per line{example}, and check that the lists belong to this folder"


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
    """Iterate over one utterance in short arrays, calling `note` for each alteration."""
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
        """Return the constant to subtract: the mean if above `MAX_OFFSET` deviations, else 0."""
        units = round(self.mean * FULL_SCALE)
        return units / FULL_SCALE if abs(self.mean) > MAX_OFFSET * self.deviation else 0.0

    @property
    def rms(self) -> float:
        """Return the loudness, the root mean square after the offset is subtracted."""
        return (self.deviation**2 + (self.mean - self.offset) ** 2) ** 0.5

    @property
    def peak(self) -> float:
        """Return the largest absolute sample after the offset is subtracted."""
        return max(self.highest - self.offset, self.offset - self.lowest)

    def describe(self) -> list[str]:
        """Return one sentence for each loss in converting the recording to 16 bits."""
        notes = []
        if self.offset:
            notes.append(
                f"kept, but a constant offset of {self.offset:.3g} times full scale is removed "
                f"(standard deviation {self.deviation:.3g})"
            )
        if not self.is_int16 and self.peak < MIN_PEAK:
            notes.append(
                f"kept, but its peak is only {self.peak:.2g} times full scale, so 16 bits preserve "
                "little detail: scale the recording up"
            )
        return notes


def sum_of_squares(samples: Int[np.ndarray, " s"]) -> int:
    """Return the sum of squares of int16 samples as an exact integer."""
    wide = samples.astype(np.int64)
    return int(wide @ wide)


def measure_levels(parts: Iterable[np.ndarray]) -> Levels:
    """Measure a recording given as consecutive arrays, int16 or float32 with full scale 1."""
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
    """Convert one part of a recording to int16 after subtracting the recording's offset.

    If the recording's peak exceeds full scale, the samples are scaled down to fit.

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
    """Return the float32 gain that scales each utterance to `TARGET_RMS`.

    >>> gains(np.array([0.1, 0.0])).tolist()
    [0.5, 500.0]
    """
    return np.minimum(TARGET_RMS / np.maximum(rms, 1e-9), MAX_GAIN).astype(np.float32)


def root_mean_square(samples: Int[np.ndarray, " s"]) -> float:
    """Return the root mean square of int16 samples relative to full scale; 0 if there are none."""
    return (sum_of_squares(samples) / max(len(samples), 1)) ** 0.5 / FULL_SCALE


def bring_to_loudness(sound: Float[np.ndarray, " s"], rms: float) -> Float[np.ndarray, " s"]:
    """Scale a float32 waveform to the root mean square `rms`.

    A large constant offset is subtracted (`Levels.offset`). Packing the recording first gives the
    same result, except for rounding to 16 bits.

    >>> bring_to_loudness(np.array([0.75, 0.25], np.float32), 0.0625).round(4).tolist()
    [0.0625, -0.0625]
    """
    levels = measure_levels([sound.astype(np.float32)])
    gain = gains(np.asarray([levels.rms]))[0] * np.float32(rms / TARGET_RMS)
    return (sound - np.float32(levels.offset)).astype(np.float32) * gain


def at_loudness(recordings: Recordings, rms: float | None) -> Recordings:
    """Return packed recordings whose windows have the root mean square `rms`, not `TARGET_RMS`.

    If `rms` is None, samples are not scaled. Use this for networks trained at another loudness.
    """
    if recordings.rms is None:
        raise ValueError("the recordings are not packed: pack them first")
    claimed = recordings.rms * (TARGET_RMS / rms) if rms else np.full(len(recordings), TARGET_RMS)
    return replace(recordings, rms=claimed.astype(np.float32))


def read_all(recordings: Recordings, index: int) -> Float[np.ndarray, " s"]:
    """Return one whole utterance as float32, scaled to `TARGET_RMS` like windows."""
    samples = recordings.read(index, 0, int(recordings.lengths[index]))
    if recordings.rms is None:
        samples = to_int16(samples, measure_levels([samples]))
        rms = root_mean_square(samples)
    else:
        rms = recordings.rms[index]
    return samples.astype(np.float32) / 32768 * gains(np.asarray([rms], np.float32))[0]
