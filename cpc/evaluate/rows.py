"""Probes of several features on one task, one row of the report's table each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from cpc.evaluate.probe import fit_probe, predict
from cpc.evaluate.scores import (
    bootstrap_interval,
    frame_correct,
    labels_by_utterance,
    majority_accuracy,
    utterance_correct,
)
from cpc.types import UserError


def probe_rows(
    train_features: Mapping[str, Sequence[Float[np.ndarray, "_ _"]]],
    test_features: Mapping[str, Sequence[Float[np.ndarray, "_ _"]]],
    train_labels: Sequence[int | np.integer | Int[np.ndarray, "..."]],
    test_labels: Sequence[int | np.integer | Int[np.ndarray, "..."]],
    *,
    task: str,
    data: str,
    num_classes: int,
    hidden_widths: Sequence[int] = (0,),
    units: Sequence[str] = ("frame",),
    **fit_options: Any,
) -> Iterator[dict[str, Any]]:
    """Fit a probe to each of the features and yield its scores on the test utterances.

    Args:
        train_features: name such as "c", "z", "mfcc" or "random c" to one array a training
            utterance; test_features likewise, with the same names.
        train_labels: one entry an utterance: its class (speakers), or one label a frame
            (phones, -1 where unlabelled); test_labels likewise.
        task: "phones" or "speakers", for the row; data: the name of the data, for the row.
        hidden_widths: 0 is the linear probe; other widths have one hidden layer.
        units: "frame", and "utterance" where an utterance has one class.
        fit_options: passed to `fit_probe`.

    Yields:
        One dict for each of features x hidden width x unit, ready for json: task, data, features,
        probe, unit, accuracy, low, high (95 %), majority, num_classes, num_train, num_test,
        num_test_utterances, weight_decay. Counts are labelled frames, accuracies in 0..1.

    Raises:
        UserError: label and feature lengths differ (naming the utterance), or a single class.
    """
    for name, features in train_features.items():
        train = flatten(features, train_labels, f"training features {name!r}")
        test = flatten(test_features[name], test_labels, f"test features {name!r}")
        for hidden_width in hidden_widths:
            probe = fit_probe(
                *train, num_classes=num_classes, hidden_width=hidden_width, **fit_options
            )
            yield from score_rows(
                predict(probe, test[0]),
                train,
                test,
                units,
                task=task,
                data=data,
                features=name,
                probe="hidden" if hidden_width else "linear",
                num_classes=num_classes,
                weight_decay=probe.weight_decay,
            )


def answer_rows(
    log_probabilities: Sequence[Float[np.ndarray, "_ _"]],
    train_labels: Sequence[Int[np.ndarray, " _"]],
    test_labels: Sequence[int | np.integer | Int[np.ndarray, "..."]],
    *,
    task: str,
    data: str,
    features: str,
    num_classes: int,
    units: Sequence[str] = ("frame",),
    weight_decay: float | int = 0.0,
) -> Iterator[dict[str, Any]]:
    """Rows like those of `probe_rows`, of a network that answers by itself.

    Args:
        log_probabilities: of the classes, (frames, num_classes) of each test utterance.
        train_labels: one label a frame of each utterance that the network was trained on.
        test_labels, task, data, num_classes, units: as in `probe_rows`.
        features, weight_decay: for the row; its probe is "linear", the network's last layer.

    Raises:
        UserError: lengths of answers and labels differ (naming the utterance), or no label.
    """
    no_features = [np.zeros((len(labels), 0), np.float32) for labels in train_labels]
    train = flatten(no_features, train_labels, "training labels")
    test = flatten(log_probabilities, test_labels, "answers")
    yield from score_rows(
        test[0],
        train,
        test,
        units,
        task=task,
        data=data,
        features=features,
        probe="linear",
        num_classes=num_classes,
        weight_decay=weight_decay,
    )


def score_rows(
    log_probabilities: Float[np.ndarray, "n c"],
    train: tuple,
    test: tuple,
    units: Sequence[str],
    **row: Any,
) -> Iterator[dict[str, Any]]:
    """A row for each unit, from the answers for the test frames; train and test are flattened."""
    for unit in units:
        yield {
            **row,
            "unit": unit,
            **score_unit(unit, log_probabilities, train, test),
            "num_train": len(train[1]),
            "num_test": len(test[1]),
            "num_test_utterances": len(np.unique(test[2])),
        }


def flatten(
    features: Sequence[Float[np.ndarray, "_ _"]],
    labels: Sequence[int | np.integer | Int[np.ndarray, "..."]],
    what: str,
) -> tuple[Float[np.ndarray, "n d"], Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Labelled frames of all utterances in one array, with their labels and utterance numbers."""
    if len(features) != len(labels):
        raise UserError(
            f"{what} hold {len(features)} utterances but there are labels for {len(labels)}; "
            "give one entry of labels to each utterance"
        )
    spread = []
    for index, (frames, label) in enumerate(zip(features, labels, strict=True)):
        if np.ndim(label) and len(np.asarray(label)) != len(frames):
            raise UserError(
                f"utterance {index} of the {what} has {len(frames)} frames but "
                f"{len(np.asarray(label))} labels; cut or pad its labels (-1 is unlabelled)"
            )
        spread.append(np.broadcast_to(np.asarray(label, np.int32), len(frames)))
    all_labels = np.concatenate(spread) if spread else np.zeros(0, np.int32)
    labelled = all_labels >= 0
    if not labelled.any():
        raise UserError(f"no frame of the {what} has a label; check the alignment and the split")
    utterances = np.repeat(np.arange(len(features), dtype=np.int32), [len(f) for f in features])
    return np.concatenate(features)[labelled], all_labels[labelled], utterances[labelled]


def score_unit(
    unit: str, log_probabilities: np.ndarray, train: tuple, test: tuple
) -> dict[str, float]:
    """Accuracy, its interval and the majority baseline, by frame or by utterance."""
    _, labels, utterances = test
    if unit == "frame":
        correct, count = frame_correct(log_probabilities, labels, utterances)
        majority = majority_accuracy(train[1], labels)
    else:
        correct = utterance_correct(log_probabilities, labels, utterances).astype(np.float64)
        count = np.ones(len(correct), np.int64)
        majority = majority_accuracy(
            labels_by_utterance(train[1], train[2]), labels_by_utterance(labels, utterances)
        )
    low, high = bootstrap_interval(correct, count)
    accuracy = float(correct.sum() / count.sum())
    return {"accuracy": accuracy, "low": low, "high": high, "majority": majority}
