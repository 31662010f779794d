"""The task "units": k-means of a feature, its agreement with phones, bit rate and ABX error."""

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cpc.data import SAMPLE_RATE_HZ, Recordings
from cpc.evaluate import assign_units, fit_units, read_rows, unit_scores
from cpc.evaluate.probe import join
from cpc.files import write_text
from cpc.results import Score
from cpc.types import UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import (
    LABEL_SAMPLES,
    AudioData,
    Frames,
    aligned,
    first_minutes,
    labelled_sets,
    labels_of_frames,
)
from experiments.kinds.audio.model import build_encoder
from experiments.kinds.audio.tasks import abx_task
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask

#: Minutes of training utterances that centers are fitted on, and frames drawn from them.
FIT_MINUTES, MAX_FRAMES = 30.0, 100_000


class LabelledSet(NamedTuple):
    """Utterances that units are fitted on and judged by."""

    name: str
    train: Recordings
    test: Recordings
    phones: list[np.ndarray]
    """Phones of the test utterances, one every 10 ms."""
    num_phones: int
    abx: ProbeTask | None
    """None if no three tokens of the test utterances can be compared."""


def unit_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return the task of units for every labelled set."""
    tasks, number = [], config.probe.num_units
    stride = max(LABEL_SAMPLES, build_encoder(config).stride)
    for name, phones, (train, test) in labelled_sets(data, "units"):
        labels, train = aligned(test, phones), first_minutes(train, FIT_MINUTES, by_speaker=False)
        if len(np.setdiff1d(np.concatenate(labels), [-1])) < 2:
            raise UserError(
                f"the test utterances of {name} have fewer than two phones: label more, or take "
                "units out of probe.tasks"
            )
        num_frames = int(np.maximum(1, train.lengths // stride).sum())
        if num_frames < number:
            raise UserError(
                f"{name} has fewer training frames than units (got {num_frames:,} and {number:,}): "
                "lower probe.num_units, or label more"
            )
        try:
            abx = abx_task(name, test, phones, config.probe.lose_last_frame)
        except UserError:  # the other scores need no tokens to compare
            print(f"{name} has no ABX of units: too few of its phones are in the same context")
            abx = None
        own = LabelledSet(name, train, test, labels, len(phones.names), abx)
        answer = functools.partial(score_units, own)
        tasks.append(ProbeTask("units", answer, parts=(train, test)))
    return tasks


def score_units(own: LabelledSet, context: ProbeContext, features: FeatureSet) -> Iterator[Score]:
    """Yield the scores of a feature's units; none of a network that was trained on labels."""
    by_utterance, stride = features.values
    if not by_utterance:
        return
    config, number = context.config, context.config.probe.num_units
    rows = join([by_utterance[name] for name in own.train.names])
    if len(rows.first) > MAX_FRAMES:
        rng = np.random.default_rng(config.seed)
        rows = rows._replace(first=rng.choice(rows.first, MAX_FRAMES, replace=False))
    centers = fit_units(read_rows(rows), number, config.seed)
    units = {name: assign_units(read_rows(by_utterance[name]), centers) for name in own.test.names}
    lines = [f"{name}\t{' '.join(map(str, one))}\n" for name, one in units.items()]
    path = context.workdir / "probes" / file_of(own.name, features.name, number)
    path.parent.mkdir(exist_ok=True)
    write_text(path, "".join(lines))
    yield from unit_scores(
        [*units.values()],
        labels_of_frames(own.test, own.phones, stride),
        stride / SAMPLE_RATE_HZ,
        num_units=number,
        num_phones=own.num_phones,
        data=own.name,
        features=features.name,
        setting=f"fitted on {len(rows.first):,} frames",
    )
    if own.abx is not None:
        one_hot = {name: np.eye(number, dtype=np.float32)[one] for name, one in units.items()}
        for score in own.abx.answer(context, FeatureSet(features.name, Frames(one_hot, stride))):
            yield score._replace(task="units", method=f"k-means {number}, {score.method}")


def file_of(data: str, features: str, number: int) -> str:
    """Return the name of the file with the units of a set's test utterances.

    >>> file_of("festvox_ru", "random c", 100)
    'units_festvox_ru_random_c_100.txt'
    """
    return re.sub(r"[^\w.-]", "_", f"units_{data}_{features}_{number}.txt")
