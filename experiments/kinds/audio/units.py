"""The task "units", which scores k-means clusters by phone agreement, bitrate and ABX error."""

import re
from collections.abc import Iterator

import numpy as np

from cpc.data import SAMPLE_RATE_HZ, Recordings
from cpc.evaluate import fit_units, read_rows, unit_posteriors, unit_scores
from cpc.files import write_text
from cpc.results import Score
from experiments.command.config import Config
from experiments.kinds.audio.data import (
    AudioData,
    Frames,
    Phones,
    aligned,
    labelled_sets,
    labels_of_frames,
    subset_minutes,
)
from experiments.kinds.audio.tasks import abx_scores, comparisons, items_of
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask, lacks

#: Minutes of training utterances that units are fitted to, with or without labels.
FIT_MINUTES = 20.0


def unit_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return a task that fits and scores units, for each set of phone labels."""
    train = subset_minutes(data.train, FIT_MINUTES, by_speaker=False)
    sets = labelled_sets(data, "units", ("test",))
    return [unit_task(name, phones, train, test) for name, phones, (test,) in sets]


def unit_task(data: str, phones: Phones, train: Recordings, test: Recordings) -> ProbeTask:
    """Return a task that scores a feature's units, and the ABX errors of unit posteriors."""
    labels, items = aligned(test, phones), items_of(test, phones)
    if len(np.setdiff1d(np.concatenate(labels), [-1])) < 2:
        problem = f"the test utterances of {data} have fewer than two phones"
        raise lacks("units", problem, "label more utterances")

    def answer(context: ProbeContext, features: FeatureSet) -> Iterator[Score]:
        options, (by_utterance, stride) = context.config.probe, features.values
        if not by_utterance:
            return
        frames = np.concatenate([read_rows(by_utterance[name]) for name in train.names])
        fitted = fit_units(frames, options.num_units, context.config.seed)
        p = {name: unit_posteriors(read_rows(by_utterance[name]), fitted) for name in test.names}
        units = {name: own.argmax(axis=1) for name, own in p.items()}
        name = re.sub(r"[^\w.-]", "_", f"units_{data}_{features.name}_{options.num_units}.txt")
        lines = [f"{one} {' '.join(map(str, own))}\n" for one, own in units.items()]
        (context.workdir / "probes").mkdir(exist_ok=True)
        write_text(context.workdir / "probes" / name, "".join(lines))
        expected, seconds = labels_of_frames(test, labels, stride), stride / SAMPLE_RATE_HZ
        method, setting = f"k-means {options.num_units}", f"fitted to {len(frames):,} frames"
        words = {"data": data, "features": features.name, "method": method, "setting": setting}
        yield from unit_scores([*units.values()], expected, seconds, **words)
        posteriors, lose = FeatureSet(features.name, Frames(p, stride)), options.lose_last_frame
        for score in abx_scores(data, items, posteriors, comparisons(items), lose):
            yield score._replace(task="units", method=f"{method}, {score.method}")

    return ProbeTask("units", answer, parts=(train, test))
