"""Speaker verification without a fit: the equal error rate of cosines between utterances."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, Num

from cpc.evaluate.probe import check_finite
from cpc.results import Score
from cpc.results.compare import TAIL, as_student
from cpc.types import UserError

#: Pairs of utterances that are compared at most; of more, this many are drawn.
MAX_PAIRS = 250_000
NUM_RESAMPLES = 500


def equal_error_rate(
    scores: Float[np.ndarray, " n"],
    same: Bool[np.ndarray, " n"],
    weights: Num[np.ndarray, " n"] | None = None,
) -> float:
    """Return the rate at which false acceptances are as frequent as false rejections.

    Pairs are accepted from the highest score down, equal scores together; between two thresholds
    both rates are interpolated. NaN without pairs of both kinds.

    >>> equal_error_rate(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False]))
    0.5
    """
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.diff(scores[order]) != 0, True)[: len(scores)]
    weights = np.ones(len(scores)) if weights is None else weights
    return sorted_error_rate(same[order], weights[order], ends)


def sorted_error_rate(
    same: Bool[np.ndarray, " n"], weights: Num[np.ndarray, " n"], ends: Bool[np.ndarray, " n"]
) -> float:
    """Return the equal error rate of pairs by falling score; `ends` marks the last of a tie."""
    accepted = [np.cumsum(weights * kind)[ends] for kind in (same, ~same)]
    if not all(len(kind) and kind[-1] > 0 for kind in accepted):
        return float("nan")
    right, wrong = (np.append(0.0, kind / kind[-1]) for kind in accepted)
    gap = wrong - (1 - right)  # from -1 up to 1
    i = int(np.argmax(gap >= 0))
    part = gap[i - 1] / (gap[i - 1] - gap[i])
    return float(wrong[i - 1] + part * (wrong[i] - wrong[i - 1]))


def draw_pairs(
    num_items: int, max_pairs: int = MAX_PAIRS, seed: int = 0
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Return both items of all pairs, or of `max_pairs` drawn ones, without an item and itself.

    >>> [side.tolist() for side in draw_pairs(3)]
    [[0, 0, 1], [1, 2, 2]]
    """
    left, right = np.triu_indices(num_items, 1)
    if len(left) <= max_pairs:
        return left, right
    drawn = np.sort(np.random.default_rng(seed).choice(len(left), max_pairs, replace=False))
    return left[drawn], right[drawn]


def verification_score(
    embeddings: Float[np.ndarray, "u d"],
    speakers: Sequence[str],
    *,
    data: str,
    features: str,
    max_pairs: int = MAX_PAIRS,
    seed: int = 0,
) -> Score:
    """Return the equal error rate of cosines between embeddings, one per test utterance.

    The interval is the percentile bootstrap over utterances, widened `as_student`: a pair counts as
    often as both of its utterances are drawn. It does not cover a draw of other speakers.
    """
    check_finite(embeddings)
    _, speaker = np.unique(speakers, return_inverse=True)
    left, right = draw_pairs(len(speaker), max_pairs, seed)
    same = speaker[left] == speaker[right]
    if same.all() or not same.any():
        raise UserError(
            f"verification needs pairs of one speaker and of two (got {same.sum():,} of one among "
            f"{len(same):,}): give two utterances of one speaker, and another speaker"
        )
    unit = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
    cosines = np.concatenate(
        [
            (unit[left[i : i + 4096]] * unit[right[i : i + 4096]]).sum(1)
            for i in range(0, len(left), 4096)
        ]
    )
    value = equal_error_rate(cosines, same)
    order = np.argsort(-cosines, kind="stable")
    ends = np.append(np.diff(cosines[order]) != 0, True)
    left, right, ordered = left[order], right[order], same[order]
    draws = np.random.default_rng(seed).multinomial(
        len(speaker), np.full(len(speaker), 1 / len(speaker)), NUM_RESAMPLES
    )
    found = [sorted_error_rate(ordered, draw[left] * draw[right], ends) for draw in draws]
    low, high = np.nanquantile(found, [TAIL, 1 - TAIL])
    low, high = as_student(value, low, high, len(speaker))
    return Score(
        "verification", data, "pair", features, "cosine", "equal error rate", value,
        max(low, 0.0), min(high, 1.0), 0.5, higher_is_better=False, num_test=len(left),
        setting=f"{len(speaker):,} utterances of {len(np.unique(speaker)):,} speakers",
    )  # fmt: skip
