"""Units that k-means finds in frames of speech, and their agreement with phones.

Purity and PNMI follow HuBERT (Hsu et al. 2021, section IV-E); the bit rate follows ZeroSpeech
(Dunbar et al. 2019).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

from cpc.evaluate.accuracy import bootstrap_interval
from cpc.evaluate.probe import check_finite
from cpc.results import Outcomes, Score, digest
from cpc.types import UserError

#: Frames per batch of k-means, maximum number of passes over the frames, and random starts.
BATCH_FRAMES, MAX_PASSES, NUM_STARTS = 4096, 20, 3


class Units(NamedTuple):
    """The k-means centers, and the mean squared distance from a frame to its nearest center."""

    centers: Float[np.ndarray, "k d"]
    temperature: float


def fit_units(frames: Float[np.ndarray, "n d"], num_units: int, seed: int = 0) -> Units:
    """Cluster frames by the mini-batch k-means of scikit-learn (Sculley 2010)."""
    if len(frames) < num_units:
        raise UserError(
            f"{num_units:,} units need as many frames or more (got {len(frames):,}): add frames"
        )
    check_finite(frames)
    from sklearn.cluster import MiniBatchKMeans  # over a second to import

    fit = MiniBatchKMeans(
        num_units,
        max_iter=MAX_PASSES,
        batch_size=BATCH_FRAMES,
        n_init=NUM_STARTS,  # pyright: ignore[reportArgumentType]
        random_state=seed,
    ).fit(frames)
    centers = np.asarray(fit.cluster_centers_, np.float32)
    return Units(centers, max(float(fit.inertia_) / len(frames), 1e-30))


def unit_posteriors(frames: Float[np.ndarray, "n d"], units: Units) -> Float[np.ndarray, "n k"]:
    """Return the probability of each unit, the softmax of `-|x - center|^2 / temperature`.

    This is the posterior under equally likely Gaussians at the centers, whose variance per
    dimension is half the temperature. The most probable unit is the one with the nearest center.

    >>> unit_posteriors(np.array([[0.0], [3.0]]), Units(np.array([[0.0], [2.0]]), 1.0)).round(2)
    array([[0.98, 0.02],
           [0.  , 1.  ]])
    """
    check_finite(frames)
    near = 2 * frames @ units.centers.T - np.square(units.centers).sum(axis=1)
    return softmax(near / units.temperature, axis=1)


def drop_repeats(units: Int[np.ndarray, " t"]) -> Int[np.ndarray, " _"]:
    """Return the first unit of each run of equal units."""
    return units[np.append(True, units[1:] != units[:-1])[: len(units)]]


def unit_scores(
    units: Sequence[Int[np.ndarray, " _"]],
    phones: Sequence[Int[np.ndarray, " _"]],
    frame_seconds: float,
    *,
    data: str,
    features: str,
    method: str = "k-means",
    setting: str = "",
) -> Iterator[Score]:
    """Yield PNMI, phone purity, cluster purity and bits per second of test utterances.

    - PNMI: phone-normalised mutual information, I(phone; unit) / H(phone).
    - Phone purity: accuracy if each unit predicts its most frequent phone.
    - Cluster purity: accuracy if each phone predicts its most frequent unit. It falls with the
      number of units, while PNMI and phone purity rise.
    - Bits per second: entropy of units without repeats, times the number of such units per second.
      Durations are not encoded. The task of this score is "codes", as for quantised latents.

    The first three are ratios of sums over utterances, with intervals from `bootstrap_interval`.
    Resamples keep the probabilities and the most frequent phones and units of all utterances.

    Args:
        units: an array for each utterance, with the unit of each frame.
        phones: arrays with the phone of each frame. Frames with -1 only count for bits per second.
    """
    utterances = np.repeat(np.arange(len(units)), [len(own) for own in units])
    phone, unit = np.concatenate(phones), np.concatenate(units)
    known = phone >= 0
    phone, unit, utterances = phone[known], unit[known], utterances[known]
    joint, number = np.zeros((phone.max() + 1, unit.max() + 1)), len(phone)
    np.add.at(joint, (phone, unit), 1)
    of_phone, of_unit, ones = joint.sum(axis=1), joint.sum(axis=0), np.ones(number)
    nats = np.log(number / of_phone[phone])
    shared = np.log(number * joint[phone, unit] / (of_phone[phone] * of_unit[unit]))
    for metric, sums, counts, chance in (
        ("PNMI", shared, nats, 0.0),
        ("phone purity", phone == joint.argmax(axis=0)[unit], ones, of_phone.max() / number),
        ("cluster purity", unit == joint.argmax(axis=1)[phone], ones, of_unit.max() / number),
    ):
        sums, counts = (np.bincount(utterances, x, minlength=len(units)) for x in (sums, counts))
        yield Score(
            "units", data, "frame", features, method, metric, float(sums.sum() / counts.sum()),
            *bootstrap_interval(sums, counts), float(chance), num_test=number, setting=setting,
            outcomes=Outcomes(sums, counts, digest("units", metric, phone)),
        )  # fmt: skip
    runs = np.unique(np.concatenate([drop_repeats(own) for own in units]), return_counts=True)[1]
    seconds = frame_seconds * sum(map(len, units))
    yield Score(
        "codes", data, "second", features, method, "bits per second",
        float(runs @ np.log2(runs.sum() / runs) / seconds),
        higher_is_better=False, num_test=round(seconds), setting=setting,
    )  # fmt: skip
