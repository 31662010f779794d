"""Units found by k-means: agreement with phones, bit rate, and their scores.

The measures are those of HuBERT (Hsu et al. 2021, section IV-E) and of the ZeroSpeech challenge.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Float, Int, Num

from cpc.evaluate.probe import check_finite
from cpc.results import Score
from cpc.results.compare import TAIL, as_student
from cpc.types import UserError

#: Frames of a batch of k-means, and its random starts.
BATCH_FRAMES, NUM_STARTS = 4096, 3
NUM_RESAMPLES = 500
#: Counts of resampled tables that are held at a time.
MAX_COUNTS = 2**24


class Agreement(NamedTuple):
    """How units and phones agree; each is 0..1 and an array over leading axes of the counts."""

    pnmi: Any
    """Phone-normalised mutual information, I(phone; unit) / H(phone)."""
    phone_purity: Any
    """Accuracy if each unit stands for its most frequent phone."""
    cluster_purity: Any
    """Accuracy if each phone stands for its most frequent unit."""


def fit_units(
    frames: Float[np.ndarray, "n d"], num_units: int, seed: int = 0
) -> Float[np.ndarray, "k d"]:
    """Return the centers of mini-batch k-means (Sculley 2010), from scikit-learn."""
    if not 2 <= num_units <= len(frames):
        raise UserError(
            f"the number of units must be 2 to the number of frames, {len(frames):,} (got "
            f"{num_units:,}): choose another number, or give more frames"
        )
    check_finite(frames)
    from sklearn.cluster import MiniBatchKMeans  # over a second to import

    fit = MiniBatchKMeans(
        num_units, batch_size=BATCH_FRAMES, n_init=NUM_STARTS, random_state=seed
    ).fit(np.asarray(frames, np.float32))
    return np.asarray(fit.cluster_centers_, np.float32)


def assign_units(
    frames: Float[np.ndarray, "n d"], centers: Float[np.ndarray, "k d"]
) -> Int[np.ndarray, " n"]:
    """Return the nearest center of each frame, by Euclidean distance.

    >>> assign_units(np.array([[0.9, 0.0], [0.1, 0.0]]), np.array([[0.0, 0.0], [1.0, 0.0]]))
    array([1, 0])
    """
    check_finite(frames)
    return (np.square(centers).sum(axis=1) - 2 * frames @ centers.T).argmin(axis=1)


def drop_repeats(units: Int[np.ndarray, " t"]) -> Int[np.ndarray, " _"]:
    """Return the first unit of each run of equal units.

    >>> drop_repeats(np.array([3, 3, 1, 1, 3]))
    array([3, 1, 3])
    """
    return units[np.append(True, units[1:] != units[:-1])[: len(units)]]


def measure_agreement(joint: Num[np.ndarray, "*r p k"]) -> Agreement:
    """Return the agreement of units with phones, from counts of frames by phone and unit.

    >>> both = np.array([[2.0, 2.0, 0.0], [0.0, 0.0, 4.0]])  # two units share the first phone
    >>> [float(value) for value in measure_agreement(both)]
    [1.0, 1.0, 0.75]
    """
    p = joint / np.maximum(joint.sum(axis=(-2, -1), keepdims=True), 1)
    of_phone, of_unit = p.sum(axis=-1), p.sum(axis=-2)
    phone_bits = entropy_bits(of_phone)
    both_bits = entropy_bits(p.reshape(*p.shape[:-2], -1))
    shared = np.maximum(phone_bits + entropy_bits(of_unit) - both_bits, 0)
    pnmi = np.where(phone_bits > 0, shared / np.where(phone_bits > 0, phone_bits, 1), np.nan)
    return Agreement(pnmi, p.max(axis=-2).sum(axis=-1), p.max(axis=-1).sum(axis=-1))


def entropy_bits(p: Float[np.ndarray, "*r n"]) -> Float[np.ndarray, "*r"] | float:
    """Return the entropy of probabilities along the last axis, in bits."""
    return -(p * np.log2(np.where(p > 0, p, 1))).sum(axis=-1)


def bits_per_second(
    counts: Num[np.ndarray, "*r k"], seconds: Num[np.ndarray, "*r"] | float
) -> Float[np.ndarray, "*r"] | float:
    """Return the bit rate of units without repeats: their entropy times units per second.

    `counts` has the number of runs of each unit. Durations of runs are not encoded.

    >>> float(bits_per_second(np.array([5, 5]), 2.0))
    5.0
    """
    number = counts.sum(axis=-1)
    bits = entropy_bits(counts / np.maximum(number, 1)[..., None])
    return bits * number / seconds


def unit_scores(
    units: Sequence[Int[np.ndarray, " _"]],
    phones: Sequence[Int[np.ndarray, " _"]],
    frame_seconds: float,
    *,
    num_units: int,
    num_phones: int,
    data: str,
    features: str,
    setting: str = "",
) -> Iterator[Score]:
    """Yield PNMI, both purities and bits per second of test utterances, with intervals.

    Args:
        units: the unit of each frame of each utterance.
        phones: likewise, -1 if unlabelled; such frames count for the bit rate only.
    """
    lengths = [len(own) for own in units]
    utterances = np.repeat(np.arange(len(units)), lengths)
    phone, unit = np.concatenate(phones), np.concatenate(units)
    known = phone >= 0
    cells, size = phone * num_units + unit, num_phones * num_units
    joint = count_rows(utterances[known], cells[known], (len(units), size))
    runs = [drop_repeats(own) for own in units]
    counts = count_rows(
        np.repeat(np.arange(len(runs)), [len(own) for own in runs]),
        np.concatenate(runs),
        (len(units), num_units),
    )
    seconds = np.array(lengths) * frame_seconds
    with_seconds = scipy.sparse.hstack([counts, seconds[:, None]], format="csr")

    def agree(sums: np.ndarray) -> np.ndarray:
        return np.stack(measure_agreement(sums.reshape(-1, num_phones, num_units)), axis=-1)

    def rate(sums: np.ndarray) -> np.ndarray:
        return bits_per_second(sums[:, :-1], sums[:, -1])[:, None]

    total = joint.sum(axis=0).reshape(num_phones, num_units)
    chances = 0.0, total.sum(axis=1).max() / total.sum(), total.sum(axis=0).max() / total.sum()
    question = data, "frame", features, f"k-means {num_units}"
    names = "PNMI", "phone purity", "cluster purity"
    for name, (value, low, high), chance in zip(
        names, intervals(agree, joint), chances, strict=True
    ):
        yield Score(
            "units", *question, name, value, max(low, 0.0), min(high, 1.0), float(chance),
            num_test=int(known.sum()), setting=setting,
        )  # fmt: skip
    ((value, low, high),) = intervals(rate, with_seconds)
    yield Score(
        "units", data, "second", features, f"k-means {num_units}", "bits per second", value, low,
        high, higher_is_better=False, num_test=round(seconds.sum()), setting=setting,
    )  # fmt: skip


def count_rows(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> Any:
    """Return how often each pair of a row and a column occurs, as a sparse array."""
    return scipy.sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)


def intervals(
    statistic: Callable[[np.ndarray], np.ndarray], counts: Any
) -> list[tuple[float, float, float]]:
    """Return (value, low, high) of each statistic of the counts (u, n) summed over utterances.

    The interval is the percentile bootstrap over utterances, widened `as_student`. It is shifted so
    that the mean of the draws is the value: a draw has fewer different utterances, in which units
    seem to know more. Both ends are NaN with fewer than two utterances.
    """
    value = statistic(np.asarray(counts.sum(axis=0))[None])[0]
    number = int((np.asarray(counts.sum(axis=1)) > 0).sum())
    if number < 2:
        return [(float(one), float("nan"), float("nan")) for one in value]
    draws = np.random.default_rng(0).multinomial(
        counts.shape[0], np.full(counts.shape[0], 1 / counts.shape[0]), NUM_RESAMPLES
    )
    rows = max(1, MAX_COUNTS // counts.shape[1])
    found = np.concatenate(
        [statistic(draws[i : i + rows] @ counts) for i in range(0, NUM_RESAMPLES, rows)]
    )
    ends = np.nanquantile(found, [TAIL, 1 - TAIL], axis=0) + value - np.nanmean(found, axis=0)
    return [
        (float(one), *as_student(one, low, high, number))
        for one, low, high in zip(value, *ends, strict=True)
    ]
