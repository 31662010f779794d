"""The task "units": k-means units of a feature, with phone agreement, bitrate and ABX error."""

import functools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from cpc.data import SAMPLE_RATE_HZ, Recordings, make_items
from cpc.evaluate import fit_units, read_rows, unit_posteriors, unit_scores
from cpc.files import write_text
from cpc.results import Score
from cpc.types import Item, UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import (
    AudioData,
    Frames,
    aligned,
    first_minutes,
    labelled_sets,
    labels_of_frames,
)
from experiments.kinds.audio.tasks import abx_scores, comparisons
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask

#: Minutes of training utterances that units are fitted to.
FIT_MINUTES = 20.0


def unit_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return a task of units for each labelled set; units are fitted to all training speech."""
    train, tasks = first_minutes(data.train, FIT_MINUTES, by_speaker=False), []
    for name, phones, (test,) in labelled_sets(data, "units", ("test",)):
        labels = aligned(test, phones)
        if len(np.setdiff1d(np.concatenate(labels), [-1])) < 2:
            raise UserError(
                f"the test utterances of {name} have fewer than two phones: label more, or remove "
                "units from probe.tasks"
            )
        speakers = dict(zip(test.names, test.speakers, strict=True))
        items = list(make_items(dict(zip(test.names, labels, strict=True)), phones.names, speakers))
        answer = functools.partial(score_units, name, (train, test), labels, items)
        tasks.append(ProbeTask("units", answer, parts=(train, test)))
    return tasks


def score_units(
    data: str,
    parts: tuple[Recordings, Recordings],
    labels: Sequence[np.ndarray],
    items: list[Item],
    context: ProbeContext,
    features: FeatureSet,
) -> Iterator[Score]:
    """Yield the scores of a feature's units and the ABX errors of their posteriors."""
    by_utterance, stride = features.values
    if not by_utterance:  # features fitted to the labels of a task
        return
    options, (train, test) = context.config.probe, parts
    frames = np.concatenate([read_rows(by_utterance[name]) for name in train.names])
    fitted = fit_units(frames, options.num_units, context.config.seed)
    p = {name: unit_posteriors(read_rows(by_utterance[name]), fitted) for name in test.names}
    units = {name: own.argmax(axis=1) for name, own in p.items()}
    method = f"k-means {options.num_units}"
    name = re.sub(r"[^\w.-]", "_", f"units_{data}_{features.name}_{options.num_units}.txt")
    lines = [f"{one} {' '.join(map(str, own))}\n" for one, own in units.items()]
    (context.workdir / "probes").mkdir(exist_ok=True)
    write_text(context.workdir / "probes" / name, "".join(lines))
    yield from unit_scores(
        [*units.values()],
        labels_of_frames(test, labels, stride),
        stride / SAMPLE_RATE_HZ,
        data=data,
        features=features.name,
        method=method,
        setting=f"fitted to {len(frames):,} frames",
    )
    posteriors = FeatureSet(features.name, Frames(p, stride))
    for score in abx_scores(data, items, posteriors, comparisons(items), options.lose_last_frame):
        yield score._replace(task="units", method=f"{method}, {score.method}")
