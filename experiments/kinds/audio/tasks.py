"""Probe tasks of audio features: labels of frames, ABX, and boundaries of phones."""

import functools
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from cpc.data import SAMPLE_RATE_HZ, Recordings, make_items, select, write_items
from cpc.data.phones import SILENCES
from cpc.data.sources.voices import GAME_VOICES
from cpc.evaluate import (
    Restricted,
    Updates,
    abx_score,
    answer_scores,
    bootstrap_interval,
    boundaries,
    cut_tokens,
    make_cells,
    probe_scores,
    read_rows,
)
from cpc.results import Outcomes, Score, digest
from cpc.types import Item, UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import (
    LABEL_SAMPLES,
    TRAINED,
    AudioData,
    Phones,
    aligned,
    check_trained,
    first_minutes,
    labelled_sets,
    labels_of_frames,
    num_labels,
)
from experiments.kinds.audio.layers import LAYERS, sum_layers
from experiments.kinds.audio.supervised import train_supervised
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask


class Labels(NamedTuple):
    """What is to be read off the frames of training and test utterances."""

    num_classes: int
    each_10_ms: tuple[list[np.ndarray], list[np.ndarray]]
    units: tuple[str | Restricted, ...] = ("frame",)


#: Metrics that leave out silence, and that compare the two voices of a game alone.
NO_SILENCE, IN_GAME = "non-silence accuracy", "within-game accuracy"


def without_silence(names: Sequence[str]) -> tuple[Restricted, ...]:
    """Return the accuracy over frames that are not silence, if a set labels silence."""
    is_phone = np.array([name not in SILENCES for name in names])
    rivals = np.broadcast_to(is_phone[:, None], (len(names), len(names)))
    return () if is_phone.all() else (Restricted("frame", NO_SILENCE, rivals),)


def within_games(speakers: Sequence[str]) -> tuple[Restricted, ...]:
    """Return the accuracies between the two voices of each game, if both speak.

    >>> [one.rivals.sum(1).tolist() for one in within_games(["a", "fillets-cs-m", "fillets-cs-v"])]
    [[0, 2, 2], [0, 2, 2]]
    """
    game = np.array([name[:-2] if re.fullmatch(GAME_VOICES, name) else "" for name in speakers])
    rivals = (game[:, None] == game) & (game != "")
    rivals &= rivals.sum(axis=1, keepdims=True) == 2
    units = ("frame", "utterance") if rivals.any() else ()
    return tuple(Restricted(unit, IN_GAME, rivals) for unit in units)


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
        units = ("frame", *without_silence(phones.names))
        parts, own = (first, test), Labels(len(phones.names), each_10_ms, units)
        answer = functools.partial(frame_scores, "phones", name, parts, own)
        tasks.append(ProbeTask("phones", answer, parts=parts))
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
    check_trained(config, parts[0], data.name)
    train, test = (
        [
            np.full(num_labels(length), names.index(speaker), np.int32)
            for speaker, length in zip(part.speakers, part.lengths, strict=True)
        ]
        for part in parts
    )
    labels = Labels(len(names), (train, test), ("frame", "utterance", *within_games(names)))
    answer = functools.partial(frame_scores, "speakers", data.name, parts, labels)
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
    if features.name == LAYERS:
        made, note = sum_layers(context, parts, expected[0], labels.num_classes)
    else:
        made, note = [[by_utterance[name] for name in part.names] for part in parts], ""
    train, test = ({features.name: own} for own in made)
    hidden = config.probe.hidden_width
    scores = probe_scores(
        train,
        test,
        *expected,
        hidden_widths=(0, hidden) if hidden else (0,),
        num_classes=labels.num_classes,
        updates=Updates(num_epochs=config.probe.num_epochs),
        **words,
    )
    return (score._replace(setting=score.setting + note) for score in scores)


METHODS = {False: "within speaker", True: "across speakers"}


def abx_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return the tasks of every labelled set's test utterances, and those of item files."""
    lose = config.probe.lose_last_frame
    labelled = [] if data.items and not data.phones else labelled_sets(data, "abx", ("test",))
    tasks = [abx_task(name, test, phones, lose) for name, phones, (test,) in labelled]
    for name, items in data.items.items():  # on all recordings named, for nothing is fitted
        wanted, parts = {item.file for item in items}, (data.train, data.test)
        absent = sorted(wanted.difference(*(part.names for part in parts)))
        if absent:
            raise UserError(
                f"{len(absent):,} of the {len(wanted):,} recordings that {name} names are not "
                f"among these, such as {', '.join(absent[:3])}: give the folder that they lie in, "
                "or leave their items out"
            )
        named = [
            select(part, [i for i, own in enumerate(part.names) if own in wanted]) for part in parts
        ]
        tasks.append(ask(name, tuple(named), list(items), lose))
    return tasks


def abx_task(
    name: str, test: Recordings, phones: Phones, lose_last_frame: bool = False
) -> ProbeTask:
    """Return the task of one labelled set, whose test utterances are given."""
    labels = dict(zip(test.names, aligned(test, phones), strict=True))
    speakers = dict(zip(test.names, test.speakers, strict=True))
    items = list(make_items(labels, phones.names, speakers))
    return ask(name, (test,), items, lose_last_frame)


def ask(
    name: str, parts: tuple[Recordings, ...], items: list[Item], lose_last_frame: bool
) -> ProbeTask:
    """Return the task of items; also across speakers, if there are two of a phone."""
    is_across = comparisons(items)
    if False not in is_across:
        raise UserError(
            f"no speaker of {name} has two phones between the same two others, one of them twice: "
            "label more test utterances, or list more items, or take abx out of probe.tasks"
        )

    def answer(context: ProbeContext, features: FeatureSet) -> list[Score]:
        return abx_scores(name, items, features, is_across, lose_last_frame)

    def record(folder: pathlib.Path) -> None:  # the item file is for ZeroSpeech's own tools
        write_items(folder / file_of(name), items)
        if True not in is_across:
            speakers = ", ".join(sorted({item.speaker for item in items}))
            print(
                f"{name} has no ABX across speakers: no phone in its context is of two of its "
                f"speakers ({speakers})"
            )

    return ProbeTask("abx", answer, parts=parts, record=record)


def comparisons(items: list[Item]) -> tuple[bool, ...]:
    """Return False if tokens can be compared within speakers, and True if across speakers."""
    exists = [True] * len(items)
    ways = (False, True)
    return tuple(way for way in ways if any(True for _ in make_cells(items, exists, across=way)))


def file_of(name: str) -> str:
    """Return the name of the item file with the tokens of a set.

    >>> file_of("festvox_ru"), file_of("dev-clean.item")
    ('festvox_ru.item', 'dev-clean.item')
    """
    return f"{name.removesuffix('.item')}.item"


def abx_scores(
    name: str,
    items: list[Item],
    features: FeatureSet,
    is_across: tuple[bool, ...],
    lose_last_frame: bool,
) -> list[Score]:
    """Return the ABX errors of a feature; none of a network that was trained on labels."""
    by_utterance, stride = features.values
    if not by_utterance:
        return []
    frames = {item.file: read_rows(by_utterance[item.file]) for item in items}
    seconds, source = stride / SAMPLE_RATE_HZ, file_of(name)
    tokens = cut_tokens(items, frames, seconds, lose_last_frame=lose_last_frame, source=source)
    exists = [len(token) > 0 for token in tokens]
    scores = []
    for across in is_across:
        cells = list(make_cells(items, exists, across=across))
        if not cells:
            print(
                f"{name}: no ABX of {features.name} {METHODS[across]}: too few tokens have frames"
            )
            continue
        score = abx_score(
            items, tokens, cells, data=name, features=features.name, method=METHODS[across]
        )
        scores.append(score)
    lost = ", last frame lost" if lose_last_frame else ""
    return [score._replace(setting=f"{score.setting}{lost}") for score in scores]


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
