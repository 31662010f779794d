"""Frames side by side without their copies: how a probe sees a frame among its neighbours."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from cpc.types import ArrayLike


class Stacked(NamedTuple):
    """Rows that are frames side by side, copied only where they are read.

    Row i is `frames[around[i]]`, flattened: with 17 frames of 39 numbers each, a row takes 39
    numbers and 17 indices, and not 663 numbers.
    """

    frames: Float[np.ndarray, "n d"]
    around: Int[np.ndarray, "rows w"]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of the numbers in each."""
        return len(self.around), self.around.shape[1] * self.frames.shape[1]


def with_neighbours(frames: Float[np.ndarray, "t d"], reach: int) -> Stacked:
    """Each frame of an utterance between `reach` on either side; at its ends they are repeated.

    >>> read_rows(with_neighbours(np.array([[1.0], [2.0], [3.0]]), 1))
    array([[1., 1., 2.],
           [1., 2., 3.],
           [2., 3., 3.]])
    """
    around = np.arange(len(frames))[:, None] + np.arange(-reach, reach + 1)
    return Stacked(frames, np.clip(around, 0, len(frames) - 1).astype(np.int32))


def as_stacked(features: Float[ArrayLike, "n d"] | Stacked) -> Stacked:
    """The same rows as `Stacked`, those of an array being single frames."""
    if isinstance(features, Stacked):
        return features
    frames = np.asarray(features)
    return Stacked(frames, np.arange(len(frames), dtype=np.int32)[:, None])


def read_rows(
    features: Float[ArrayLike, "n d"] | Stacked, start: int = 0, stop: int | None = None
) -> Float[np.ndarray, "rows d"]:
    """The rows from `start` to `stop`, laid side by side."""
    if not isinstance(features, Stacked):
        return np.asarray(features[start:stop])
    index = features.around[start:stop]
    return features.frames[index].reshape(len(index), features.shape[1])


def join(parts: Sequence[Float[ArrayLike, "_ _"] | Stacked]) -> Stacked:
    """The rows of utterances, one after the other."""
    stacked = [as_stacked(part) for part in parts]
    starts = np.cumsum([0, *(len(one.frames) for one in stacked)])
    index = [one.around + np.int32(start) for one, start in zip(stacked, starts, strict=False)]
    return Stacked(np.concatenate([one.frames for one in stacked]), np.concatenate(index))


def keep(rows: Stacked, chosen: Int[np.ndarray, " m"]) -> Stacked:
    """The chosen rows, with no frame that none of them reads."""
    frames, index = rows.frames, rows.around[chosen]
    used = np.zeros(len(frames), bool)
    used[index] = True
    if used.all():
        return Stacked(frames, index)
    return Stacked(frames[used], (np.cumsum(used, dtype=np.int32) - 1)[index])
