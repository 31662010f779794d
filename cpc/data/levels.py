"""Levels of a recording: its constant offset, loudness and peak, and its samples in 16 bits."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

FULL_SCALE = 32768
#: A constant offset above this fraction of the standard deviation is subtracted.
MAX_OFFSET = 0.1
#: Samples, at 16 bits, below which little of a recording at a finer resolution remains.
MIN_PEAK = 32 / FULL_SCALE


class Levels(NamedTuple):
    """Sums over all samples of a recording, on the scale on which full scale is 1."""

    num_samples: int
    mean: float
    deviation: float
    """Root mean square without the mean."""
    lowest: float
    highest: float
    is_int16: bool
    """Whether the samples had 16 bits already."""

    @property
    def offset(self) -> float:
        """Constant to subtract: the mean if it is not small compared with the sound, else 0."""
        units = round(self.mean * FULL_SCALE)
        return units / FULL_SCALE if abs(self.mean) > MAX_OFFSET * self.deviation else 0.0

    @property
    def rms(self) -> float:
        """Root mean square without the offset: the loudness."""
        return (self.deviation**2 + (self.mean - self.offset) ** 2) ** 0.5

    @property
    def peak(self) -> float:
        """Largest sample without the offset."""
        return max(self.highest - self.offset, self.offset - self.lowest)

    def describe(self) -> list[str]:
        """Return how the recording is altered, one sentence each."""
        notes = []
        if self.offset:
            notes.append(
                f"kept, without its constant offset of {self.offset:.3g} times full scale, next to "
                f"sound of {self.deviation:.3g}"
            )
        if not self.is_int16 and self.peak < MIN_PEAK:
            notes.append(
                f"kept, but it reaches only {self.peak:.2g} times full scale, of which 16 bits "
                "keep little: scale it up"
            )
        return notes


def sum_of_squares(samples: Int[np.ndarray, " s"]) -> int:
    """Return the sum of the squares of int16 samples: exact, so that parts add up to the whole."""
    wide = samples.astype(np.int64)
    return int(wide @ wide)


def measure_levels(parts: Iterable[np.ndarray]) -> Levels:
    """Measure a recording, given in parts: int16, or float32 with full scale at 1."""
    num, total, squares, lowest, highest, is_int16 = 0, 0, 0, np.inf, -np.inf, True
    for part in parts:
        is_int16 = part.dtype == np.int16
        wide = part.astype(np.int64 if is_int16 else np.float64)
        num, total, squares = (
            num + len(part),
            total + wide.sum().item(),
            squares + (wide @ wide).item(),
        )
        if len(part):
            lowest, highest = min(lowest, part.min().item()), max(highest, part.max().item())
    if not num:
        return Levels(0, 0.0, 0.0, 0.0, 0.0, is_int16)
    scale, mean = FULL_SCALE if is_int16 else 1, total / num
    deviation = max(squares / num - mean**2, 0.0) ** 0.5
    return Levels(num, mean / scale, deviation / scale, lowest / scale, highest / scale, is_int16)


def to_int16(part: np.ndarray, levels: Levels) -> Int[np.ndarray, " s"]:
    """Return a part of a recording as int16, without its offset; scaled if it exceeds full scale.

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
