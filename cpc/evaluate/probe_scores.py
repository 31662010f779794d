"""Scores of probes and of networks that predict classes themselves, with outcomes per utterance."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from cpc.evaluate.accuracy import (
    bootstrap_interval,
    frame_correct,
    labels_by_utterance,
    majority_accuracy,
    utterance_correct,
)
from cpc.evaluate.fit import fit_probes
from cpc.evaluate.probe import Stacked, as_stacked, describe_fit, join, keep, predict, read_rows
from cpc.results import Outcomes, Score, digest
from cpc.types import UserError


class Restricted(NamedTuple):
    """An additional accuracy of the same predictions, restricted to a subset of the classes."""

    unit: str
    """Unit of the items, "frame" or "utterance"."""
    metric: str
    """Name of the metric, which ends in "accuracy"."""
    rivals: Bool[np.ndarray, "c c"]
    """A mask whose row l marks the candidate classes for items of class l. All these classes have
    the same row. Items of a class with an empty row are not counted."""


def probe_scores(
    train_features: Mapping[str, Sequence[Float[np.ndarray, "_ _"] | Stacked]],
    test_features: Mapping[str, Sequence[Float[np.ndarray, "_ _"] | Stacked]],
    train_labels: Sequence[int | np.integer | Int[np.ndarray, "..."]],
    test_labels: Sequence[int | np.integer | Int[np.ndarray, "..."]],
    *,
    task: str,
    data: str,
    num_classes: int,
    hidden_widths: Sequence[int] = (0,),
    units: Sequence[str | Restricted] = ("frame",),
    **fit_options: Any,
) -> Iterator[Score]:
    """Fit a probe to each kind of features and yield its accuracies on the test utterances.

    Args:
        train_features: maps a name, such as "c", "z", "mfcc" or "random c", to an array or
            `Stacked` frames for each training utterance.
        test_features: like `train_features` and with the same names, for the test utterances.
        train_labels: one class per utterance (such as a speaker), or an array with one label per
            frame (such as phones, with -1 for unlabeled frames).
        test_labels: like `train_labels`, for the test utterances.
        units: scored items: "frame", `Restricted`, or "utterance" if each has a single class.
        fit_options: options for `fit_probes`.
    """
    for name, features in train_features.items():
        train = join_labeled(features, train_labels, f"training features {name!r}")
        test = join_labeled(test_features[name], test_labels, f"test features {name!r}")
        options = {"num_classes": num_classes, "hidden_widths": hidden_widths, **fit_options}
        for hidden_width, probe in zip(hidden_widths, fit_probes(*train, **options), strict=True):
            method = "hidden" if hidden_width else "linear"
            question = task, data, name, method, describe_fit(probe)
            yield from unit_scores(predict(probe, test[0]), train, test, units, question)


def answer_scores(
    log_probabilities: Sequence[Float[np.ndarray, "_ _"]],
    train_labels: Sequence[Int[np.ndarray, " _"]],
    test_labels: Sequence[int | np.integer | Int[np.ndarray, "..."]],
    *,
    task: str,
    data: str,
    features: str,
    units: Sequence[str | Restricted] = ("frame",),
    setting: str = "",
) -> Iterator[Score]:
    """Yield accuracies like `probe_scores`, for a network that predicts the classes itself.

    `log_probabilities` contains an array (frames, num_classes) for each test utterance. The scores'
    method is "linear", like the network's last layer.
    """
    no_features = [np.zeros((len(labels), 0), np.float32) for labels in train_labels]
    train = join_labeled(no_features, train_labels, "training labels")
    test = join_labeled(log_probabilities, test_labels, "answers")
    question = task, data, features, "linear", setting
    yield from unit_scores(read_rows(test[0]), train, test, units, question)


def unit_scores(
    log_probabilities: Float[np.ndarray, "n c"],
    train: tuple,
    test: tuple,
    units: Sequence[str | Restricted],
    question: tuple[str, str, str, str, str],
) -> Iterator[Score]:
    """Yield a score for each of `units` with items; `train` and `test` are from `join_labeled`."""
    task, data, features, method, setting = question
    for one in units:
        unit, metric, rivals = one if isinstance(one, Restricted) else (one, "accuracy", None)
        answers, (_, labels, utterances) = log_probabilities, test
        if rivals is not None:
            counted = rivals[labels].any(axis=1)
            answers, labels, utterances = answers[counted], labels[counted], utterances[counted]
            answers = np.where(rivals[labels], answers, -np.inf)
        if not len(labels):
            continue
        known, true = train[1], labels
        if unit == "frame":
            correct, count = frame_correct(answers, labels, utterances)
        else:
            correct = utterance_correct(answers, labels, utterances)
            count = np.ones(len(correct), np.int64)
            known, true = labels_by_utterance(*train[1:]), labels_by_utterance(labels, utterances)
        majority = majority_accuracy(known, true, rivals)
        low, high = bootstrap_interval(correct, count)
        yield Score(
            task, data, unit, features, method, metric, float(correct.sum() / count.sum()),
            low, high, majority, num_train=len(train[1]), num_test=int(count.sum()),
            setting=setting, outcomes=Outcomes(correct, count, digest(unit, labels, utterances)),
        )  # fmt: skip


def join_labeled(
    features: Sequence[Float[np.ndarray, "_ _"] | Stacked],
    labels: Sequence[int | np.integer | Int[np.ndarray, "..."]],
    what: str,
) -> tuple[Stacked, Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Return the labeled frames of all utterances, with a label and utterance number per frame."""
    if len(features) != len(labels):
        raise UserError(
            f"{what} have {len(features)} utterances but {len(labels)} labels: pass one label each"
        )
    kept, known = [], []
    for index, (own, label) in enumerate(zip(features, labels, strict=True)):
        label, length = np.asarray(label, np.int32), own.shape[0]
        if label.ndim and len(label) != length:
            raise UserError(
                f"utterance {index} of the {what} has {length} frames but {len(label)} labels: "
                "pad the labels with -1"
            )
        label = np.broadcast_to(label, length)
        kept.append(keep(as_stacked(own), np.flatnonzero(label >= 0)))
        known.append(label[label >= 0])
    if not any(map(len, known)):
        raise UserError(f"no frame of the {what} has a label: check the alignment and the split")
    utterances = np.repeat(np.arange(len(known), dtype=np.int32), [len(own) for own in known])
    return join(kept), np.concatenate(known), utterances
