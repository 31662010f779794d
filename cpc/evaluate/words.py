"""Scores of word vectors (similarity, analogies, neighbours), and perplexity of word models."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import rankdata

from cpc.results import Difference, Score
from cpc.results.compare import TAIL, draw_items
from cpc.types import UserError

#: A map from each word to the row of its vector.
Index = Mapping[str, int]
NUM_RESAMPLES = 1000


def similarity_scores(
    vectors: Float[np.ndarray, "v d"],
    index: Index,
    sets: Mapping[str, tuple[Sequence[tuple[str, str]], Float[np.ndarray, " _"]]],
    *,
    features: str,
) -> Iterator[Score]:
    """Yield Spearman's correlation between cosines and human ratings for each set of word pairs.

    Pairs with an unknown word are left out, and the score's `setting` contains their fraction. The
    interval is a percentile bootstrap over pairs. `sets` come from `cpc.data.sources.similarity`.
    """
    for name, (pairs, said) in sets.items():
        cosine, known = pair_cosines(vectors, index, pairs)
        missing = f"{1 - len(known) / max(len(pairs), 1):.0%} of pairs unknown"
        if len(known) < 3:
            continue
        said = said[known]
        draws = np.random.default_rng(0).integers(0, len(known), (NUM_RESAMPLES, len(known)))
        resampled = [spearman(cosine[draw], said[draw]) for draw in draws]
        value = spearman(cosine, said)
        low, high = np.nanpercentile(resampled, [2.5, 97.5])
        if np.isfinite(value):
            yield Score(
                "similarity", name, "pair", features, "cosine", "correlation", float(value),
                float(low), float(high), 0.0, num_test=len(known), setting=missing,
            )  # fmt: skip


def pair_cosines(
    vectors: Float[np.ndarray, "v d"], index: Index, pairs: Sequence[tuple[str, str]]
) -> tuple[Float[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Return the cosine of each pair of known words, and the indices of these pairs."""
    known = [i for i, (a, b) in enumerate(pairs) if a in index and b in index]
    rows = np.array([[index[word] for word in pairs[i]] for i in known], int).reshape(-1, 2)
    left, right = (normalize(vectors[rows[:, side]]) for side in (0, 1))
    return (left * right).sum(1), np.array(known, int)


def mean_difference(
    statistic: Callable[[np.ndarray, np.ndarray], float],
    ours: Float[np.ndarray, "_ n"],
    theirs: Float[np.ndarray, "_ n"],
) -> Difference:
    """Return the difference between two methods in a statistic that is averaged over seeds.

    Each row of `ours`, the first method, and `theirs`, the second, is a seed. The interval is a
    percentile bootstrap over questions, whose draws all rows share. It does not cover other seeds.
    `statistic(row, drawn)` is computed on the questions with indices `drawn`.

    >>> accuracy = lambda row, drawn: row[drawn].mean()
    >>> mean_difference(accuracy, np.ones((2, 5)), np.zeros((3, 5)))[:3]
    (1.0, 1.0, 1.0)
    """

    def difference(drawn):
        a, b = (np.mean([statistic(row, drawn) for row in rows]) for rows in (ours, theirs))
        return float(a - b)

    count = ours.shape[1]
    found = [difference(drawn) for block in draw_items(NUM_RESAMPLES, count) for drawn in block]
    low, high = np.nanquantile(found, [TAIL, 1 - TAIL])
    value = difference(np.arange(count))
    return Difference(value, float(low), float(high), paired="items")


def spearman(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]) -> float:
    """Return Spearman's rank correlation, with average ranks for ties, or NaN for constant input.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 10.0, 9.0]))
    0.5
    """
    a, b = (rankdata(x) - (len(x) + 1) / 2 for x in (a, b))
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else float("nan")


def analogy_score(
    vectors: Float[np.ndarray, "v d"],
    index: Index,
    questions: Sequence[tuple[str, str, str, str]],
    *,
    features: str,
    num_words: int = 30_000,
) -> Score | None:
    """Return the accuracy of 3CosAdd, which answers a : b = c : d by the cosine to b - a + c.

    Words of the question are excluded as answers (Mikolov et al. 2013). Only the first `num_words`
    words, the most frequent ones, are used. The result is None if no question consists of these.
    """
    right = solve_analogies(vectors[:num_words], index, questions)
    if not len(right):
        return None
    value, n = right.mean(), len(right)
    half = 1.96 * np.sqrt(max(value * (1 - value), 1 / n) / n)
    return Score(
        "analogies", "questions-words", "question", features, "3CosAdd", "accuracy", float(value),
        float(max(value - half, 0)), float(min(value + half, 1)),
        1 / len(vectors[:num_words]), num_test=n,
        setting=f"{1 - n / len(questions):.0%} of questions unknown",
    )  # fmt: skip


def solve_analogies(
    vectors: Float[np.ndarray, "v d"], index: Index, questions: Sequence[tuple[str, str, str, str]]
) -> Bool[np.ndarray, " n"]:
    """Return whether 3CosAdd is right for each analogy whose words all have vectors."""
    unit = normalize(vectors)
    rows = [[index.get(word, len(unit)) for word in four] for four in questions]
    asked = np.array([row for row in rows if max(row) < len(unit)], int).reshape(-1, 4)
    right = np.zeros(len(asked), bool)
    for i in range(0, len(asked), 512):
        a, b, c, d = asked[i : i + 512].T
        scores = normalize(unit[b] - unit[a] + unit[c]) @ unit.T
        places = np.arange(len(a))
        for word in (a, b, c):
            scores[places, word] = -np.inf
        right[i : i + 512] = scores.argmax(1) == d
    return right


def nearest(
    vectors: Float[np.ndarray, "v d"], rows: Int[np.ndarray, " q"], num: int
) -> Int[np.ndarray, "q num"]:
    """Return the indices of the `num` other vectors with the highest cosine to each given row.

    >>> nearest(np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), np.array([0]), 1)
    array([[1]])
    """
    unit = normalize(vectors)
    scores = unit[rows] @ unit.T
    scores[np.arange(len(rows)), rows] = -np.inf
    return np.argsort(-scores, axis=1)[:, :num]


def normalize(vectors: Any) -> Any:
    """Scale rows to length 1, and leave rows of zeros unchanged.

    >>> normalize(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1.0)


def perplexity_scores(
    log_p: Float[np.ndarray, " n"],
    log_z: Float[np.ndarray, " n"],
    sentence: Int[np.ndarray, " n"],
    *,
    features: str,
    data: str,
) -> Iterator[Score]:
    """Yield the perplexity, the self-normalised perplexity, and the mean and spread of log Z.

    The perplexity is exp(-mean log p). The self-normalised one is exp(-mean log u), where u = p Z
    is the unnormalised output with normaliser Z; if log Z is not 0, it is not a true perplexity.
    Intervals are percentile bootstraps over sentences.
    """
    if not len(log_p):
        raise UserError("no word of the held-out text can be predicted: hold out more text")
    groups = np.unique(sentence, return_inverse=True)[1]
    counts = np.bincount(groups)
    draws = np.random.default_rng(0).integers(0, len(counts), (500, len(counts)))
    for method, values in (("normalised", -log_p), ("self-normalised", -log_p - log_z)):
        sums = np.bincount(groups, values)
        resampled = np.exp(sums[draws].sum(1) / counts[draws].sum(1))
        low, high = np.percentile(resampled, [2.5, 97.5])
        yield Score(
            "perplexity", data, "word", features, method, "perplexity",
            float(np.exp(values.mean())), float(low), float(high),
            higher_is_better=False, num_test=len(log_p),
        )  # fmt: skip
    for method, value in (("mean", log_z.mean()), ("standard deviation", log_z.std())):
        yield Score(
            "log Z", data, "word", features, method, "nats", float(value),
            higher_is_better=False, num_test=len(log_z),
        )  # fmt: skip
