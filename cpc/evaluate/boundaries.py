"""Detection of phone boundaries where neighbouring frames differ most, and scores for it.

The detector needs no labels: it finds the peaks of 1 - cos between neighbouring frames (Kreuk et
al. 2020; Bhati et al. 2021). Each boundary has at most one match within a tolerance.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.signal
from jaxtyping import Float, Int, Num

from cpc.results.compare import TAIL, as_student
from cpc.types import UserError

#: Peak prominences among which `fit_prominence` chooses.
PROMINENCES = np.linspace(0, 0.6, 61)
NUM_RESAMPLES = 2000


class Matches(NamedTuple):
    """Counts of boundaries in one utterance, or arrays of counts for several utterances."""

    hits: Any
    """Number of found boundaries that match a true boundary."""
    found: Any
    true: Any


def change(frames: Float[np.ndarray, "t d"]) -> Float[np.ndarray, " _"]:
    """Return 1 - cos between consecutive frames, scaled to 0..1 over the utterance.

    >>> change(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], np.float32))
    array([0., 1.], dtype=float32)
    """
    norms = np.linalg.norm(frames, axis=1)
    cosines = (frames[1:] * frames[:-1]).sum(1) / np.maximum(norms[1:] * norms[:-1], 1e-12)
    if not len(cosines):
        return cosines
    low, high = cosines.min(), cosines.max()
    return (high - cosines) / max(high - low, 1e-12)


def peaks(changes: Float[np.ndarray, " _"], prominence: float) -> Int[np.ndarray, " _"]:
    """Return the indices of the frames that follow a peak with at least the given prominence.

    >>> peaks(np.array([0.0, 0.9, 0.1, 0.2, 0.1, 1.0, 0.0]), 0.5)
    array([2, 6])
    """
    return scipy.signal.find_peaks(changes, prominence=prominence)[0] + 1


def match_boundaries(
    found: Num[np.ndarray, " _"], true: Num[np.ndarray, " _"], tolerance: float
) -> Matches:
    """Count found and true boundaries, and the maximum number of one-to-one matches.

    Two boundaries can match if their distance is at most the tolerance.

    >>> match_boundaries(np.array([10, 11, 50]), np.array([12, 30, 51]), 2.0)
    Matches(hits=2, found=3, true=3)
    """
    found, true = np.sort(found), np.sort(true)
    hits = i = j = 0
    while i < len(found) and j < len(true):
        if abs(found[i] - true[j]) <= tolerance:
            hits, i, j = hits + 1, i + 1, j + 1
        elif found[i] < true[j]:
            i += 1
        else:
            j += 1
    return Matches(hits, len(found), len(true))


def f1(matches: Matches) -> Any:
    """Return 2 hits / (found + true), the harmonic mean of precision and recall."""
    return 2 * matches.hits / np.maximum(np.asarray(matches.found) + matches.true, 1)


def r_value(matches: Matches) -> Any:
    """Return the R-value (Rasanen et al. 2009), a score that superfluous boundaries do not raise.

        R = 1 - (|r1| + |r2|) / 2      r1 = sqrt((1 - recall)^2 + os^2)
                                       r2 = (recall - 1 - os) / sqrt 2      os = found / true - 1

    The R-value is at most 1, for perfect detection, and can be negative.

    >>> print(r_value(Matches(10, 10, 10)), round(float(r_value(Matches(10, 30, 10))), 3))
    1.0 -0.707
    """
    true = np.maximum(matches.true, 1)
    recall, more = matches.hits / true, matches.found / true - 1
    r1 = np.sqrt(np.square(1 - recall) + np.square(more))
    r2 = (recall - 1 - more) / np.sqrt(2)
    return 1 - (np.abs(r1) + np.abs(r2)) / 2


def total(matches: Iterable[Matches]) -> Matches:
    """Sum counts over utterances: the entries of `matches`, or the first axis of its arrays."""
    return Matches(*(np.sum(parts, axis=0) for parts in zip(*matches, strict=True)))


def r_value_interval(matches: Sequence[Matches]) -> tuple[float, float]:
    """Return the percentile interval of the R-value, resampling whole utterances.

    The interval is widened by `as_student`, but not beyond 1. Both ends are NaN if fewer than two
    utterances have boundaries.
    """
    counts = np.array([one for one in matches if one.found or one.true])  # (utterances, 3)
    if len(counts) < 2:
        return float("nan"), float("nan")
    rng, shares = np.random.default_rng(0), np.full(len(counts), 1 / len(counts))
    drawn = rng.multinomial(len(counts), shares, NUM_RESAMPLES)
    values = r_value(Matches(*(drawn @ counts).T))
    low, high = np.quantile(values, [TAIL, 1 - TAIL])
    low, high = as_student(float(r_value(total(matches))), low, high, len(counts))
    return low, min(high, 1.0)


def fit_prominence(
    changes: Sequence[Float[np.ndarray, " _"]],
    true: Sequence[Num[np.ndarray, " _"]],
    tolerance: float,
) -> float:
    """Return the prominence whose peaks in `changes` have the highest R-value.

    `true` contains the indices of the frames that follow a boundary. The tolerance is in frames.
    """
    if not sum(map(len, true)):
        raise UserError("no utterance has a boundary: label at least two phones in an utterance")
    values = [
        r_value(total(match_all([peaks(x, one) for x in changes], true, tolerance)))
        for one in PROMINENCES
    ]
    return float(PROMINENCES[int(np.argmax(values))])


def match_all(
    found: Sequence[np.ndarray], true: Sequence[np.ndarray], tolerance: float
) -> list[Matches]:
    """Match found and true boundaries in each utterance."""
    return [match_boundaries(*pair, tolerance) for pair in zip(found, true, strict=True)]
