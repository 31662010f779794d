"""Speaker verification without training, scored by the equal error rate of cosine similarities."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Num

from cpc.evaluate.probe import check_finite
from cpc.results import Score
from cpc.results.compare import TAIL, as_student, draw_items

NUM_RESAMPLES = 500


def equal_error_rate(
    scores: Float[np.ndarray, " n"],
    same: Bool[np.ndarray, " n"],
    weights: Num[np.ndarray, " n"] | None = None,
) -> float:
    """Return the rate at which false acceptances are as frequent as false rejections.

    Pairs are accepted in descending score order, equal scores together. Rates are interpolated
    between thresholds. `same` marks pairs of one speaker. If it is constant, the result is NaN.

    >>> equal_error_rate(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False]))
    0.5
    """
    weights = np.ones(len(scores)) if weights is None else weights
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    right, wrong = (
        np.append(0.0, np.cumsum((weights * kind)[order])[last]) for kind in (same, ~same)
    )
    if not right[-1] * wrong[-1]:
        return float("nan")
    right, wrong = right / right[-1], wrong / wrong[-1]
    return float(np.interp(0.0, wrong - (1 - right), wrong))


def verification_score(
    embeddings: Float[np.ndarray, "u d"], speakers: Sequence[str], *, data: str, features: str
) -> Score:
    """Return the equal error rate of speaker verification by cosines between utterance pairs.

    There must be two speakers or more, and at least one must have two utterances. The interval is a
    percentile bootstrap over utterances, widened by `as_student`. In a resample, a pair's
    weight is the product of its utterances' counts. The interval does not cover a draw of other
    speakers.
    """
    check_finite(embeddings)
    names, speaker = np.unique(speakers, return_inverse=True)
    unit = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
    left, right = np.triu_indices(len(unit), 1)
    cosines = (unit @ unit.T)[left, right]
    order = np.argsort(-cosines)  # speeds up the stable sort of each draw
    left, right, cosines = left[order], right[order], cosines[order]
    same = speaker[left] == speaker[right]
    value, found = equal_error_rate(cosines, same), []
    for drawn in draw_items(NUM_RESAMPLES, len(unit)):
        for one in drawn:
            count = np.bincount(one, minlength=len(unit))
            found.append(equal_error_rate(cosines, same, count[left] * count[right]))
    low, high = np.nanquantile(found, [TAIL, 1 - TAIL])
    low, high = np.clip(as_student(value, low, high, len(unit)), 0, 1).tolist()
    return Score(
        "verification", data, "pair", features, "cosine", "equal error rate", value, low, high, 0.5,
        higher_is_better=False, num_test=len(same),
        setting=f"{len(unit):,} utterances of {len(names):,} speakers",
    )  # fmt: skip
