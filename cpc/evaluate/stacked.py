"""Rows of neighbouring frames without copies."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from cpc.types import ArrayLike


class Stacked(NamedTuple):
    """Rows of consecutive frames, copied only when they are read.

    Row i is `frames[first[i] : first[i] + num]`, flattened.
    """

    frames: Float[np.ndarray, "n d"]
    first: Int[np.ndarray, " rows"]
    num: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of the numbers in each."""
        return len(self.first), self.num * self.frames.shape[1]


def with_neighbours(frames: Float[np.ndarray, "t d"], reach: int) -> Stacked:
    """Return each frame of an utterance with `reach` frames on either side, ends repeated.

    >>> read_rows(with_neighbours(np.array([[1.0], [2.0], [3.0]]), 1))
    array([[1., 1., 2.],
           [1., 2., 3.],
           [2., 3., 3.]])
    """
    first = np.arange(len(frames), dtype=np.int32)
    if len(frames):
        frames = np.pad(frames, ((reach, reach), (0, 0)), mode="edge")
    return Stacked(frames, first, 2 * reach + 1)


def as_stacked(features: Float[ArrayLike, "n d"] | Stacked) -> Stacked:
    """Return rows as `Stacked`; rows of an array are single frames."""
    if isinstance(features, Stacked):
        return features
    frames = np.asarray(features)
    return Stacked(frames, np.arange(len(frames), dtype=np.int32), 1)


def read_rows(
    features: Float[ArrayLike, "n d"] | Stacked, start: int = 0, stop: int | None = None
) -> Float[np.ndarray, "rows d"]:
    """Return the rows from `start` to `stop` as an array."""
    if not isinstance(features, Stacked):
        return np.asarray(features[start:stop])
    index = features.first[start:stop, None] + np.arange(features.num)
    return features.frames[index].reshape(len(index), features.shape[1])


def join(parts: Sequence[Float[ArrayLike, "_ _"] | Stacked]) -> Stacked:
    """Return the rows of utterances, one after the other."""
    stacked = [as_stacked(part) for part in parts]
    starts = np.cumsum([0, *(len(one.frames) for one in stacked)])
    first = [one.first + np.int32(start) for one, start in zip(stacked, starts, strict=False)]
    frames = np.concatenate([one.frames for one in stacked])
    return Stacked(frames, np.concatenate(first), stacked[0].num)


def keep(rows: Stacked, chosen: Int[np.ndarray, " m"]) -> Stacked:
    """Return the chosen rows, without frames that none of them reads."""
    frames, first, num = rows.frames, rows.first[chosen], rows.num
    used = np.zeros(len(frames), bool)
    for of_row in range(num):
        used[first + of_row] = True
    if used.all():
        return Stacked(frames, first, num)
    return Stacked(frames[used], (np.cumsum(used, dtype=np.int32) - 1)[first], num)
