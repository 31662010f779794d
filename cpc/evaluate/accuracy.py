"""Accuracies of frames and utterances, with intervals that resample whole utterances."""

import numpy as np
from jaxtyping import Bool, Float, Int

from cpc.results.compare import TAIL, as_student, draw_items


def sums_by_utterance(
    values: Float[np.ndarray, "n c"], utterances: Int[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "u c"], Int[np.ndarray, " u"]]:
    """Sum and count each utterance's rows, in ascending order of utterance numbers."""
    _, index, count = np.unique(utterances, return_inverse=True, return_counts=True)
    sums = [np.bincount(index, column, minlength=len(count)) for column in values.T]
    return np.stack(sums, axis=1), count


def frame_correct(
    log_probabilities: Float[np.ndarray, "n c"],
    labels: Int[np.ndarray, " n"],
    utterances: Int[np.ndarray, " n"],
) -> tuple[Float[np.ndarray, " u"], Int[np.ndarray, " u"]]:
    """Return the number of correct frames and of all frames for each utterance."""
    hits = choose_class(log_probabilities) == labels
    correct, count = sums_by_utterance(hits[:, None].astype(np.float64), utterances)
    return correct[:, 0], count


def utterance_correct(
    log_probabilities: Float[np.ndarray, "n c"],
    labels: Int[np.ndarray, " n"],
    utterances: Int[np.ndarray, " n"],
) -> Bool[np.ndarray, " u"]:
    """Return whether the class with the highest mean log-probability is right for each utterance.

    All frames of an utterance must have the same label.
    """
    sums, _ = sums_by_utterance(log_probabilities, utterances)
    return choose_class(sums) == labels_by_utterance(labels, utterances)


def choose_class(scores: Float[np.ndarray, "n c"]) -> Int[np.ndarray, " n"]:
    """Return the class with the highest score in each row, or -1 if the row contains NaN."""
    return np.where(np.isnan(scores).any(axis=1), -1, scores.argmax(axis=1))


def labels_by_utterance(
    labels: Int[np.ndarray, " n"], utterances: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " u"]:
    """Return each utterance's label, that of its first frame, in ascending utterance order."""
    _, first = np.unique(utterances, return_index=True)
    return labels[first]


def in_best(
    scores: Float[np.ndarray, "n c"], labels: Int[np.ndarray, " n"], k: int
) -> Bool[np.ndarray, " n"]:
    """Return whether each label is among the k classes with the highest scores.

    A class that ties with the label counts as higher.

    >>> in_best(np.array([[3.0, 2.0, 1.0], [3.0, 1.0, 1.0]]), np.array([1, 1]), k=2)
    array([ True, False])
    """
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    return (~(scores < own)).sum(axis=1) <= k  # NaN counts as a miss


def majority_accuracy(
    train_labels: Int[np.ndarray, " n"],
    test_labels: Int[np.ndarray, " m"],
    rivals: Bool[np.ndarray, "c c"] | None = None,
) -> float:
    """Return the test accuracy of always predicting the most frequent training label.

    If `rivals` is given, the prediction is the most frequent class that is marked in the test
    label's row. Classes with an empty row are excluded.

    >>> majority_accuracy(np.array([0, 0, 1]), np.array([0, 1, 1, 1]))
    0.25
    """
    if rivals is None:
        return float(np.mean(test_labels == np.bincount(train_labels).argmax()))
    counts = np.bincount(train_labels, minlength=len(rivals))
    answers = np.where(rivals & rivals.any(axis=1), counts, -1).argmax(axis=1)
    return float(np.mean(test_labels == answers[test_labels]))


def bootstrap_interval(
    correct: Float[np.ndarray, " u"] | Bool[np.ndarray, " u"],
    count: Int[np.ndarray, " u"] | Float[np.ndarray, " u"],
    *,
    num_resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile interval of sum(correct) / sum(count), resampling whole utterances.

    The frames of an utterance are not independent, so utterances are resampled as clusters (Efron,
    1979). The interval is widened by `as_student`. Both ends are NaN if fewer than two utterances
    have a positive count, or if all have the same accuracy strictly between 0 and 1. If all answers
    are right or all are wrong, every draw is the same. The interval is then the exact one for as
    many independent answers as there are utterances (Clopper and Pearson, 1934).

    >>> low, high = bootstrap_interval(np.ones(16), np.ones(16))
    >>> f"{low:.3f}, {high:.3f}"
    '0.794, 1.000'
    """
    correct, count = correct.astype(np.float64), count.astype(np.float64)
    num_counted = int((count > 0).sum())
    if num_counted < 2:
        return float("nan"), float("nan")
    if (correct == count).all():
        return TAIL ** (1 / num_counted), 1.0
    if not correct.any():
        return 0.0, 1 - TAIL ** (1 / num_counted)
    accuracies = []
    for drawn in draw_items(num_resamples, len(count), seed):
        sums, counts = (column[drawn].sum(axis=1) for column in (correct, count))
        is_counted = counts > 0  # silent utterances have no frames or phones
        accuracies.append(sums[is_counted] / counts[is_counted])
    low, high = np.quantile(np.concatenate(accuracies), [TAIL, 1 - TAIL])
    if high - low < 1e-9:
        return float("nan"), float("nan")
    low, high = as_student(correct.sum() / count.sum(), low, high, num_counted)
    # The upper end can exceed 1 for word errors, which can outnumber the words.
    return max(0.0, low), min(high, 1.0) if (correct <= count).all() else high
