"""The tasks "phones" and "speakers": a label of each frame, read off by a fitted probe."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cpc.data import Recordings, align, select
from cpc.evaluate import Updates, answer_scores, probe_scores
from cpc.results import Score
from cpc.types import UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import AudioData, first_minutes, labels_at, name_of, num_labels
from experiments.kinds.audio.question import (
    TRAINED,
    Asked,
    Feature,
    Question,
    check_trained,
    labelled_parts,
    labelled_sets,
)
from experiments.kinds.audio.supervised import train_supervised


class Labels(NamedTuple):
    """What is to be read off the frames of training and test utterances."""

    num_classes: int
    each_10_ms: tuple[list[np.ndarray], list[np.ndarray]]
    units: tuple[str, ...] = ("frame",)


def phone_questions(config: Config, data: AudioData) -> list[Question]:
    """Return the question of frame-wise phones, for every labelled set."""
    questions = []
    for name, phones in labelled_sets(data, "phones"):
        parts = labelled_parts(data, name)
        train, test = (
            [
                align(phones.labels[utterance], num_labels(length), utterance)
                for utterance, length in zip(part.names, part.lengths, strict=True)
            ]
            for part in parts
        )
        first = first_minutes(parts[0], 60 * config.probe.hours, by_speaker=False)
        check_trained(config, first, name)
        of_first = dict(zip(parts[0].names, train, strict=True))
        train = [of_first[one] for one in first.names]
        check_labels_suffice(name, train, test)
        labels = Labels(len(phones.names), (train, test))
        questions.append(ask("phones", name, (first, parts[1]), labels))
    return questions


def speaker_questions(config: Config, data: AudioData) -> list[Question]:
    """Return the question of speakers, by frame and by utterance."""
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
    return [ask("speakers", source, parts, labels)]


def check_labels_suffice(
    name: str, train: Sequence[np.ndarray], test: Sequence[np.ndarray]
) -> None:
    """Check that a probe of phones can be fitted, choose its weight decay, and be judged.

    Raises:
        UserError: it cannot; says what there is.
    """
    number = sum(bool((labels >= 0).any()) for labels in train)
    distinct = {int(label) for labels in train for label in np.unique(labels) if label >= 0}
    tests = sum(bool((labels >= 0).any()) for labels in test)
    if number < 2 or len(distinct) < 2 or not tests:
        raise UserError(
            f"{name} labels {number:,} training utterances with {len(distinct):,} different phones "
            f"and {tests:,} test utterances, and a probe takes at least 2, 2 and 1: label more, "
            "raise probe.hours, or take phones out of probe.tasks"
        )


def ask(task: str, data: str, parts: tuple[Recordings, Recordings], labels: Labels) -> Question:
    """Return the question of labels that are one each 10 ms of the utterances."""

    def answer(asked: Asked, feature: Feature) -> list[Score]:
        return frame_scores(asked, task, data, parts, labels, feature)

    return Question(task, data, parts, answer)


def frame_scores(
    asked: Asked,
    task: str,
    data: str,
    parts: tuple[Recordings, Recordings],
    labels: Labels,
    feature: Feature,
) -> list[Score]:
    """Return the accuracies of probes of one feature, or of a network trained on the labels."""
    config, folder_of, model, variables = asked
    expected = [
        labels_of_frames(part, own, feature.stride)
        for part, own in zip(parts, labels.each_10_ms, strict=True)
    ]
    words = {"task": task, "data": data, "units": labels.units}
    if feature.name in TRAINED:
        print(f"the network {TRAINED[feature.name]} {task} of {data}, until it stops improving:")
        answer, setting = train_supervised(
            config,
            folder_of(f"{feature.name}-{task}-{data}"),
            model,
            parts[0],
            labels.each_10_ms[0],
            labels.num_classes,
            variables if feature.name == "tuned" else None,
        )
        words |= {"features": feature.name, "setting": setting}
        return list(answer_scores(answer(parts[1]), *expected, **words))
    train, test = ({feature.name: [feature.frames[name] for name in part.names]} for part in parts)
    hidden = config.probe.hidden_width
    return list(
        probe_scores(
            train,
            test,
            *expected,
            hidden_widths=(0, hidden) if hidden else (0,),
            num_classes=labels.num_classes,
            updates=Updates(num_epochs=config.probe.num_epochs),
            **words,
        )
    )


def labels_of_frames(
    recordings: Recordings, labels: Sequence[np.ndarray], stride: int
) -> list[np.ndarray]:
    """Return the label of each of a feature's frames, of recordings with a label each 10 ms."""
    return [
        labels_at(own, 0, max(1, int(length) // stride), stride)
        for own, length in zip(labels, recordings.lengths, strict=True)
    ]
