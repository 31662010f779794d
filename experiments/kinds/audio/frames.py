"""The tasks "phones" and "speakers": a label of each frame, read off by a fitted probe."""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from cpc.data import Recordings, select
from cpc.evaluate import Updates, answer_scores, probe_scores
from cpc.results import Score
from cpc.types import UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import (
    TRAINED,
    AudioData,
    aligned,
    check_trained,
    first_minutes,
    labelled_sets,
    labels_of_frames,
    num_labels,
)
from experiments.kinds.audio.supervised import train_supervised
from experiments.training.checks import name_of
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask


class Labels(NamedTuple):
    """What is to be read off the frames of training and test utterances."""

    num_classes: int
    each_10_ms: tuple[list[np.ndarray], list[np.ndarray]]
    units: tuple[str, ...] = ("frame",)


def phone_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return the task of frame-wise phones, for every labelled set."""
    tasks = []
    for name, phones, (train, test) in labelled_sets(data, "phones"):
        labels = dict(zip(train.names, aligned(train, phones), strict=True))
        first = first_minutes(train, 60 * config.probe.hours, by_speaker=False)
        check_trained(config, first, name)
        each_10_ms = [labels[one] for one in first.names], aligned(test, phones)
        number, num_tests = (sum((own >= 0).any() for own in part) for part in each_10_ms)
        num_phones = len(np.setdiff1d(np.concatenate(each_10_ms[0]), [-1]))
        if number < 2 or num_phones < 2 or not num_tests:
            raise UserError(
                f"{name} labels {number:,} training utterances with {num_phones:,} different "
                f"phones and {num_tests:,} test utterances, and a probe takes at least 2, 2 and 1: "
                "label more, raise probe.hours, or take phones out of probe.tasks"
            )
        own = (first, test), Labels(len(phones.names), each_10_ms)
        answer = functools.partial(frame_scores, "phones", name, *own)
        tasks.append(ProbeTask("phones", answer, parts=own[0]))
    return tasks


def speaker_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return the task of speakers, by frame and by utterance."""
    names = sorted(set(data.train.speakers))
    if len(names) < 2:
        raise UserError(
            f"these recordings have one speaker ({', '.join(names)}), which leaves a probe of "
            "speakers nothing to tell apart: take speakers out of probe.tasks, or set "
            "data.speaker_level"
        )
    known = [i for i, speaker in enumerate(data.test.speakers) if speaker in names]
    if not known:
        raise UserError(
            f"none of the {len(data.test):,} test utterances is by one of the {len(names):,} "
            "speakers that train, so nothing tells whether a probe knows them: take speakers out "
            "of probe.tasks, or split each speaker's utterances"
        )
    most = config.probe.minutes_per_speaker
    parts = first_minutes(data.train, most), first_minutes(select(data.test, known), most)
    source = name_of(config)
    check_trained(config, parts[0], source)
    train, test = (
        [
            np.full(num_labels(length), names.index(speaker), np.int32)
            for speaker, length in zip(part.speakers, part.lengths, strict=True)
        ]
        for part in parts
    )
    labels = Labels(len(names), (train, test), ("frame", "utterance"))
    answer = functools.partial(frame_scores, "speakers", source, parts, labels)
    return [ProbeTask("speakers", answer, parts=parts)]


def frame_scores(
    task: str,
    data: str,
    parts: tuple[Recordings, Recordings],
    labels: Labels,
    context: ProbeContext,
    features: FeatureSet,
) -> Iterable[Score]:
    """Return the accuracies of probes of one feature, or of a network trained on the labels."""
    config, (by_utterance, stride) = context.config, features.values
    expected = [
        labels_of_frames(part, own, stride)
        for part, own in zip(parts, labels.each_10_ms, strict=True)
    ]
    words: Any = {"task": task, "data": data, "units": labels.units}
    if features.name in TRAINED:
        print(f"the network {TRAINED[features.name]} {task} of {data}, until it stops improving:")
        answer, setting = train_supervised(
            config,
            context.folder_of(f"{features.name}-{task}-{data}"),
            context.model,
            parts[0],
            labels.each_10_ms[0],
            labels.num_classes,
            context.variables if features.name == "tuned" else None,
        )
        words |= {"features": features.name, "setting": setting}
        return answer_scores(answer(parts[1]), *expected, **words)
    train, test = ({features.name: [by_utterance[name] for name in part.names]} for part in parts)
    hidden = config.probe.hidden_width
    return probe_scores(
        train,
        test,
        *expected,
        hidden_widths=(0, hidden) if hidden else (0,),
        num_classes=labels.num_classes,
        updates=Updates(num_epochs=config.probe.num_epochs),
        **words,
    )
