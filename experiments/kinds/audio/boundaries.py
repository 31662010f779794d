"""The task "boundaries": do frames change where phones do? One number is fitted, a threshold."""

import functools
from collections.abc import Iterator

import numpy as np

from cpc.data import SAMPLE_RATE_HZ, Recordings
from cpc.evaluate import bootstrap_interval, boundaries
from cpc.evaluate.probe import read_rows
from cpc.results import Outcomes, Score, digest
from cpc.types import UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import (
    LABEL_SAMPLES,
    AudioData,
    aligned,
    first_minutes,
    labelled_sets,
)
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask

#: What counts as the same place, as in all published figures.
TOLERANCE_SECONDS = 0.02
#: Of labelled training utterances, to choose the threshold by.
FIT_MINUTES = 10.0


def boundary_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return the task of where phones begin, for every labelled set."""
    tasks = []
    for name, phones, (train, test) in labelled_sets(data, "boundaries"):
        parts = first_minutes(train, FIT_MINUTES, by_speaker=False), test
        true = [[boundaries_of(labels) for labels in aligned(part, phones)] for part in parts]
        for which, of_part in zip(("training", "test"), true, strict=True):
            if not sum(map(len, of_part)):
                raise UserError(
                    f"no {which} utterance of {name} has two phones, and so no boundary to find: "
                    "take boundaries out of probe.tasks, or label more"
                )
        answer = functools.partial(boundary_scores, name, parts, true)
        tasks.append(ProbeTask("boundaries", answer, parts=parts))
    return tasks


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
    train, test = (
        [boundaries.change(read_rows(frames[one])) for one in part.names] for part in parts
    )
    in_frames = [x / stride for x in true[0]]
    prominence = boundaries.fit_prominence(train, in_frames, tolerance / stride)
    found = [stride * boundaries.peaks(x, prominence) for x in test]
    even = [
        np.linspace(0, int(length), len(one) + 2)[1:-1]
        for one, length in zip(found, parts[1].lengths, strict=True)
    ]
    matches, chance = (boundaries.match_all(one, true[1], tolerance) for one in (found, even))
    hits, of_found, of_true = np.array(matches).T
    counts = of_found + of_true
    items = digest("boundaries", np.concatenate(true[1]), of_true)
    metrics = (
        ("F1", boundaries.f1, bootstrap_interval(2.0 * hits, counts),
         Outcomes(2 * hits, counts, items)),
        ("R-value", boundaries.r_value, boundaries.r_value_interval(matches), None),
    )  # fmt: skip
    for metric, measure, interval, outcomes in metrics:
        value, luck = (float(measure(boundaries.total(one))) for one in (matches, chance))
        yield Score(
            "boundaries", name, "boundary", features.name, "peaks", metric, value, *interval, luck,
            num_train=sum(map(len, true[0])), num_test=sum(map(len, true[1])),
            setting=f"prominence {prominence:.2f}", outcomes=outcomes,
        )  # fmt: skip
