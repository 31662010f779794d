"""Probe tasks for audio features: frame labels, ABX and phone boundaries."""

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
    """The labels of training and test utterances for a frame-wise probe."""

    num_classes: int
    each_10_ms: tuple[list[np.ndarray], list[np.ndarray]]
    units: tuple[str | Restricted, ...] = ("frame",)


#: Metrics that exclude silence, or only compare the two voices of a game.
NO_SILENCE, IN_GAME = "non-silence accuracy", "within-game accuracy"


def without_silence(names: Sequence[str]) -> tuple[Restricted, ...]:
    """Return the restriction to non-silent frames, if any label is silence."""
    is_phone = np.array([name not in SILENCES for name in names])
    rivals = np.broadcast_to(is_phone[:, None], (len(names), len(names)))
    return () if is_phone.all() else (Restricted("frame", NO_SILENCE, rivals),)


def within_games(speakers: Sequence[str]) -> tuple[Restricted, ...]:
    """Return restrictions to the two voices of each game, if both are among the speakers.

    >>> [one.rivals.sum(1).tolist() for one in within_games(["a", "fillets-cs-m", "fillets-cs-v"])]
    [[0, 2, 2], [0, 2, 2]]
    """
    game = np.array([name[:-2] if re.fullmatch(GAME_VOICES, name) else "" for name in speakers])
    rivals = (game[:, None] == game) & (game != "")
    rivals &= rivals.sum(axis=1, keepdims=True) == 2
    units = ("frame", "utterance") if rivals.any() else ()
    return tuple(Restricted(unit, IN_GAME, rivals) for unit in units)


def phone_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return a task of frame-wise phones for each labelled set."""
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
                f"phones and {num_tests:,} test utterances, but a probe needs 2, 2 and 1: label "
                "more, raise probe.hours, or remove phones from probe.tasks"
            )
        units = ("frame", *without_silence(phones.names))
        parts, own = (first, test), Labels(len(phones.names), each_10_ms, units)
        answer = functools.partial(frame_scores, "phones", name, parts, own)
        tasks.append(ProbeTask("phones", answer, parts=parts))
    return tasks


def speaker_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return the task of identifying speakers, by frame and by utterance."""
    names = sorted(set(data.train.speakers))
    if len(names) < 2:
        raise UserError(
            f"the recordings have one speaker ({', '.join(names)}), but a probe of speakers needs "
            "two: remove speakers from probe.tasks, or set data.speaker_level"
        )
    known = [i for i, speaker in enumerate(data.test.speakers) if speaker in names]
    if not known:
        raise UserError(
            f"none of the {len(data.test):,} test utterances is by one of the {len(names):,} "
            "training speakers: remove speakers from probe.tasks, or split each speaker's "
            "utterances"
        )
    limit = config.probe.minutes_per_speaker
    parts = first_minutes(data.train, limit), first_minutes(select(data.test, known), limit)
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
    """Score probes of one feature, or a network trained on the labels."""
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
    """Return ABX tasks for the test utterances of each labelled set and for item files."""
    lose = config.probe.lose_last_frame
    labelled = [] if data.items and not data.phones else labelled_sets(data, "abx", ("test",))
    tasks = [abx_task(name, test, phones, lose) for name, phones, (test,) in labelled]
    for name, items in data.items.items():  # on training recordings also, because nothing is fitted
        wanted, parts = {item.file for item in items}, (data.train, data.test)
        absent = sorted(wanted.difference(*(part.names for part in parts)))
        if absent:
            raise UserError(
                f"{len(absent):,} of the {len(wanted):,} recordings in {name} are missing "
                f"(got {', '.join(absent[:3])}): pass their folder, or remove their items"
            )
        named = [
            select(part, [i for i, own in enumerate(part.names) if own in wanted]) for part in parts
        ]
        tasks.append(ask(name, tuple(named), list(items), lose))
    return tasks


def abx_task(
    name: str, test: Recordings, phones: Phones, lose_last_frame: bool = False
) -> ProbeTask:
    """Return the ABX task for the test utterances of a labelled set."""
    labels = dict(zip(test.names, aligned(test, phones), strict=True))
    speakers = dict(zip(test.names, test.speakers, strict=True))
    items = list(make_items(labels, phones.names, speakers))
    return ask(name, (test,), items, lose_last_frame)


def ask(
    name: str, parts: tuple[Recordings, ...], items: list[Item], lose_last_frame: bool
) -> ProbeTask:
    """Return the ABX task for items, also across speakers if a phone has two speakers."""
    is_across = comparisons(items)
    if False not in is_across:
        raise UserError(
            f"no speaker of {name} has two phones in one context, one of them twice: add test "
            "labels or items, or remove abx from probe.tasks"
        )

    def answer(context: ProbeContext, features: FeatureSet) -> list[Score]:
        return abx_scores(name, items, features, is_across, lose_last_frame)

    def record(folder: pathlib.Path) -> None:  # ZeroSpeech's tools read the item file
        write_items(folder / file_of(name), items)
        if True not in is_across:
            speakers = ", ".join(sorted({item.speaker for item in items}))
            print(
                f"{name} has no ABX across speakers: no two of its speakers ({speakers}) share a "
                "phone in context"
            )

    return ProbeTask("abx", answer, parts=parts, record=record)


def comparisons(items: list[Item]) -> tuple[bool, ...]:
    """Return the possible comparisons: False for within speakers, True for across speakers."""
    exists = [True] * len(items)
    ways = (False, True)
    return tuple(way for way in ways if any(True for _ in make_cells(items, exists, across=way)))


def file_of(name: str) -> str:
    """Return the item file name of a labelled set.

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
    """Return the ABX errors of a feature; empty for networks trained on labels."""
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


#: Tolerance between found and labelled boundaries, as in published results.
TOLERANCE_SECONDS = 0.02
#: Minutes of labelled training utterances that the prominence threshold is fitted to.
FIT_MINUTES = 10.0


def boundary_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return a task of finding phone boundaries for each labelled set."""
    tasks = []
    for name, phones, (train, test) in labelled_sets(data, "boundaries"):
        parts = first_minutes(train, FIT_MINUTES, by_speaker=False), test
        true = [[boundaries_of(labels) for labels in aligned(part, phones)] for part in parts]
        for which, of_part in zip(("training", "test"), true, strict=True):
            if not sum(map(len, of_part)):
                raise UserError(
                    f"no {which} utterance of {name} has two phones and thus a boundary: remove "
                    "boundaries from probe.tasks, or label more"
                )
        answer = functools.partial(boundary_scores, name, parts, true)
        tasks.append(ProbeTask("boundaries", answer, parts=parts))
    return tasks


def boundaries_of(labels: np.ndarray) -> np.ndarray:
    """Return the boundaries between phones in samples, given one label every 10 ms.

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
    """Yield F1 and R-value of boundaries at peaks of a feature's change, on test utterances.

    The chance level is that of equally many boundaries at equal distances.
    """
    if not features.values.by_utterance:  # networks trained on labels have no frames
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
