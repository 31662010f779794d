"""Accuracies with their uncertainty: the unit of chance is the utterance, not the frame."""

import numpy as np
from jaxtyping import Bool, Float, Int

from cpc.results.compare import LEVEL, as_student


def sums_by_utterance(
    values: Float[np.ndarray, "n c"], utterances: Int[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "u c"], Int[np.ndarray, " u"]]:
    """Sums of the rows of each utterance, and how many rows it has, by ascending utterance.

    >>> sums_by_utterance(np.array([[1.0], [2.0], [4.0]]), np.array([7, 3, 7]))
    (array([[2.],
           [5.]]), array([1, 2]))
    """
    _, index, count = np.unique(utterances, return_inverse=True, return_counts=True)
    sums = [np.bincount(index, column, minlength=len(count)) for column in values.T]
    return np.stack(sums, axis=1), count


def frame_correct(
    log_probabilities: Float[np.ndarray, "n c"],
    labels: Int[np.ndarray, " n"],
    utterances: Int[np.ndarray, " n"],
) -> tuple[Float[np.ndarray, " u"], Int[np.ndarray, " u"]]:
    """Correct frames and frames of each utterance; the accuracy is the ratio of the totals."""
    hits = choose_class(log_probabilities) == labels
    correct, count = sums_by_utterance(hits[:, None].astype(np.float64), utterances)
    return correct[:, 0], count


def utterance_correct(
    log_probabilities: Float[np.ndarray, "n c"],
    labels: Int[np.ndarray, " n"],
    utterances: Int[np.ndarray, " n"],
) -> Bool[np.ndarray, " u"]:
    """Whether the highest mean log-probability over an utterance's frames is at its label.

    `labels` are constant within an utterance.
    """
    sums, _ = sums_by_utterance(log_probabilities, utterances)
    return choose_class(sums) == labels_by_utterance(labels, utterances)


def choose_class(scores: Float[np.ndarray, "n c"]) -> Int[np.ndarray, " n"]:
    """The class of the highest score of each row; -1, and so no hit, where one is not a number.

    >>> choose_class(np.array([[0.2, 0.8], [np.nan, np.nan]]))
    array([ 1, -1])
    """
    return np.where(np.isnan(scores).any(axis=1), -1, scores.argmax(axis=1))


def labels_by_utterance(
    labels: Int[np.ndarray, " n"], utterances: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " u"]:
    """The label of each utterance (of its first frame), by ascending utterance."""
    _, first = np.unique(utterances, return_index=True)
    return labels[first]


def in_best(
    scores: Float[np.ndarray, "n c"], labels: Int[np.ndarray, " n"], k: int
) -> Bool[np.ndarray, " n"]:
    """Whether each label is among the k classes of the highest scores; a tie is lost.

    >>> in_best(np.array([[3.0, 2.0, 1.0], [3.0, 1.0, 1.0]]), np.array([1, 1]), k=2)
    array([ True, False])
    """
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    return (~(scores < own)).sum(axis=1) <= k  # so a NaN is no hit


def majority_accuracy(
    train_labels: Int[np.ndarray, " n"], test_labels: Int[np.ndarray, " m"]
) -> float:
    """Accuracy on the test labels of always answering the most frequent training label.

    >>> majority_accuracy(np.array([0, 0, 1]), np.array([0, 1, 1, 1]))
    0.25
    """
    return float(np.mean(test_labels == np.bincount(train_labels).argmax()))


def bootstrap_interval(
    correct: Float[np.ndarray, " u"] | Bool[np.ndarray, " u"],
    count: Int[np.ndarray, " u"] | Float[np.ndarray, " u"],
    *,
    num_resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of sum(correct) / sum(count), resampling whole utterances.

    Frames of one utterance are not independent, so utterances are what is drawn with replacement
    (Efron, 1979, with clusters), and of few the interval is widened `as_student`. One utterance
    says nothing of others, nor do some that happen to be right in the same part: both ends are NaN.
    Where all of several utterances are wholly right, or wrong, no draw differs, and the other end
    is exact for as many independent answers (Clopper and Pearson, 1934).

    >>> low, high = bootstrap_interval(np.ones(16), np.ones(16))
    >>> f"{low:.3f}, {high:.3f}"
    '0.794, 1.000'
    """
    rng = np.random.default_rng(seed)
    correct, count = correct.astype(np.float64), count.astype(np.float64)
    tail, num_counted = (1 - LEVEL) / 2, int((count > 0).sum())
    if num_counted < 2:
        return float("nan"), float("nan")
    if (correct == count).all():
        return tail ** (1 / num_counted), 1.0
    if not correct.any():
        return 0.0, 1 - tail ** (1 / num_counted)
    accuracies = []
    rows = max(1, 2_000_000 // len(count))  # bounds the memory of one block of draws
    for start in range(0, num_resamples, rows):
        size = (min(rows, num_resamples - start), len(count))
        drawn = rng.integers(len(count), size=size)
        sums, counts = (column[drawn].sum(axis=1) for column in (correct, count))
        is_counted = counts > 0  # utterances of silence alone have no frame or phone
        accuracies.append(sums[is_counted] / counts[is_counted])
    low, high = np.quantile(np.concatenate(accuracies), [tail, 1 - tail])
    if high - low < 1e-9:
        return float("nan"), float("nan")
    low, high = as_student(correct.sum() / count.sum(), low, high, num_counted)
    # Errors can outnumber the words.
    return max(0.0, low), min(high, 1.0) if (correct <= count).all() else high
