"""The task "boundaries": do frames change where phones do? One number is fitted, a threshold."""

import functools
from collections.abc import Iterator

import numpy as np

from cpc.data import SAMPLE_RATE_HZ, Recordings, align
from cpc.evaluate import bootstrap_interval
from cpc.evaluate.boundaries import (
    change,
    f1,
    fit_prominence,
    match_all,
    peaks,
    r_value,
    r_value_interval,
    total,
)
from cpc.evaluate.stacked import read_rows
from cpc.results import Outcomes, Score, digest
from cpc.types import UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import LABEL_SAMPLES, AudioData, Phones, first_minutes, num_labels
from experiments.kinds.audio.tasks import labelled_parts, labelled_sets
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask

#: What counts as the same place, as in all published figures.
TOLERANCE_SECONDS = 0.02
#: Of labelled training utterances, to choose the threshold by.
FIT_MINUTES = 10.0


def boundary_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return the task of where phones begin, for every labelled set.

    Raises:
        UserError: there are no labels, or no utterance has two phones.
    """
    return [
        boundary_task(name, phones, *labelled_parts(data, name))
        for name, phones in labelled_sets(data, "boundaries")
    ]


def boundary_task(name: str, phones: Phones, train: Recordings, test: Recordings) -> ProbeTask:
    """Return the task of one labelled set."""
    parts = first_minutes(train, FIT_MINUTES, by_speaker=False), test
    true = [
        [
            boundaries_of(align(phones.labels[utterance], num_labels(length), utterance))
            for utterance, length in zip(part.names, part.lengths, strict=True)
        ]
        for part in parts
    ]
    for which, of_part in zip(("training", "test"), true, strict=True):
        if not sum(map(len, of_part)):
            raise UserError(
                f"no {which} utterance of {name} has two phones, and so no boundary to find: take "
                "boundaries out of probe.tasks, or label more"
            )

    answer = functools.partial(boundary_scores, name, parts, true)
    return ProbeTask("boundaries", answer, parts=parts)


def boundaries_of(labels: np.ndarray) -> np.ndarray:
    """Return the samples at which one phone ends and another begins, of labels each 10 ms.

    >>> boundaries_of(np.array([3, 3, 5, 5, -1, 5, 2]))
    array([320, 960])
    """
    known = (labels[1:] >= 0) & (labels[:-1] >= 0)
    return LABEL_SAMPLES * (1 + np.flatnonzero((labels[1:] != labels[:-1]) & known))


def boundary_scores(
    name: str,
    parts: tuple[Recordings, Recordings],
    true: list[list[np.ndarray]],
    context: ProbeContext,
    features: FeatureSet,
) -> Iterator[Score]:
    """Yield F1 and R-value of the peaks of a feature's change, on test utterances.

    Chance are boundaries at equal distances, as many as the peaks.
    """
    if not features.values.by_utterance:  # networks trained on the labels have none
        return
    (frames, stride), tolerance = features.values, TOLERANCE_SECONDS * SAMPLE_RATE_HZ
    train, test = ([change(read_rows(frames[one])) for one in part.names] for part in parts)
    in_frames = [x / stride for x in true[0]]
    prominence = fit_prominence(train, in_frames, tolerance / stride)
    found = [stride * peaks(x, prominence) for x in test]
    even = [
        np.linspace(0, int(length), len(one) + 2)[1:-1]
        for one, length in zip(found, parts[1].lengths, strict=True)
    ]
    matches, chance = (match_all(one, true[1], tolerance) for one in (found, even))
    score = functools.partial(
        Score,
        "boundaries",
        name,
        "boundary",
        features.name,
        "peaks",
        num_train=sum(map(len, true[0])),
        num_test=sum(map(len, true[1])),
        setting=f"prominence {prominence:.2f}",
    )
    hits, of_found, of_true = np.array(matches).T
    counts = of_found + of_true
    low, high = bootstrap_interval(2.0 * hits, counts)
    items = digest("boundaries", np.concatenate(true[1]), of_true)
    by_luck = total(chance)
    yield score(
        "F1", float(f1(total(matches))), low, high, float(f1(by_luck)),
        outcomes=Outcomes(2 * hits, counts, items),
    )  # fmt: skip
    low, high = r_value_interval(matches)
    yield score("R-value", float(r_value(total(matches))), low, high, float(r_value(by_luck)))
