"""Probe tasks for audio features.

They are frame labels, ABX, phone boundaries, units (k-means clusters, scored by phone agreement,
bitrate and ABX error) and speaker verification by distances between test utterances.
"""

import functools
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from cpc import evaluate
from cpc.data import SAMPLE_RATE_HZ, Recordings, make_items, select, write_items
from cpc.data.phones import SILENCES
from cpc.data.sources.voices import GAME_VOICES
from cpc.evaluate import boundaries, read_rows
from cpc.files import write_text
from cpc.results import Outcomes, Score, digest
from cpc.types import Item, UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import (
    LABEL_SAMPLES,
    TRAINED,
    AudioData,
    Frames,
    Phones,
    aligned,
    check_trained,
    labelled_sets,
    labels_of_frames,
    num_labels,
    select_named,
    subset_minutes,
)
from experiments.kinds.audio.layers import LAYERS, sum_layers
from experiments.kinds.audio.supervised import train_supervised
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask, lacks

#: Metrics that exclude silence, or that only compare the two voices of a game.
NO_SILENCE, IN_GAME = "non-silence accuracy", "within-game accuracy"


def without_silence(names: Sequence[str]) -> tuple[evaluate.Restricted, ...]:
    """Return the metric that excludes silence, or nothing if no label is silence."""
    is_phone = np.array([name not in SILENCES for name in names])
    rivals = np.broadcast_to(is_phone[:, None], (len(names), len(names)))
    return () if is_phone.all() else (evaluate.Restricted("frame", NO_SILENCE, rivals),)


def within_games(speakers: Sequence[str]) -> tuple[evaluate.Restricted, ...]:
    """Return the metrics that only choose between the two voices of a game.

    The tuple is empty if no game has two voices among the speakers.

    >>> [one.rivals.sum(1).tolist() for one in within_games(["a", "fillets-cs-m", "fillets-cs-v"])]
    [[0, 2, 2], [0, 2, 2]]
    """
    game = np.array([name[:-2] if re.fullmatch(GAME_VOICES, name) else "" for name in speakers])
    rivals = (game[:, None] == game) & (game != "")
    rivals &= rivals.sum(axis=1, keepdims=True) == 2
    units = ("frame", "utterance") if rivals.any() else ()
    return tuple(evaluate.Restricted(unit, IN_GAME, rivals) for unit in units)


def phone_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return a task that classifies each frame's phone, for each set of phone labels."""
    tasks = []
    for name, phones, (train, test) in labelled_sets(data, "phones"):
        labels = dict(zip(train.names, aligned(train, phones), strict=True))
        first = subset_minutes(train, 60 * config.probe.hours, by_speaker=False)
        check_trained(config, first, name)
        each_10_ms = [labels[one] for one in first.names], aligned(test, phones)
        number, num_tests = (sum((own >= 0).any() for own in part) for part in each_10_ms)
        num_phones = len(np.setdiff1d(np.concatenate(each_10_ms[0]), [-1]))
        if number < 2 or num_phones < 2 or not num_tests:
            counts = f"{number:,} training utterances, {num_phones:,} phones and {num_tests:,}"
            problem = f"{name} has labels of {counts} test utterances, but a probe needs 2, 2 and 1"
            raise lacks("phones", problem, "label more utterances, raise probe.hours")
        units = ("frame", *without_silence(phones.names))
        number = len(phones.names)
        tasks.append(frame_task("phones", name, (first, test), each_10_ms, number, units))
    return tasks


def speaker_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return a task that identifies the speaker of each frame and of each utterance."""
    names = sorted(set(data.train.speakers))
    if len(names) < 2:
        problem = f"the recordings have one speaker ({', '.join(names)}), but a probe needs two"
        raise lacks("speakers", problem, "set data.speaker_level")
    known = [i for i, speaker in enumerate(data.test.speakers) if speaker in names]
    if not known:
        number = f"{len(data.test):,} test utterances is by one of the {len(names):,}"
        problem = f"none of the {number} training speakers"
        raise lacks("speakers", problem, "split each speaker's utterances")
    limit = config.probe.minutes_per_speaker
    parts = subset_minutes(data.train, limit), subset_minutes(select(data.test, known), limit)
    check_trained(config, parts[0], data.name)
    labels = [constant_labels(part, part.speakers, names) for part in parts]
    units = ("frame", "utterance", *within_games(names))
    return [frame_task("speakers", data.name, parts, labels, len(names), units)]


def constant_labels(part: Recordings, own: Sequence[str], names: Sequence[str]) -> list[np.ndarray]:
    """Return each utterance's number among `names`, repeated every 10 ms."""
    return [
        np.full(num_labels(length), names.index(name), np.int32)
        for name, length in zip(own, part.lengths, strict=True)
    ]


def file_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return a task that predicts the labels of utterances in `data.file_labels`."""
    if not data.file_labels:
        problem = "the recordings have no labels of files"
        raise lacks("files", problem, "set data.file_labels to a CSV file with lines name,label")
    train = select_named(data.train, data.file_labels)
    names = sorted({data.file_labels[one] for one in train.names})
    known = {one for one, label in data.file_labels.items() if label in names}
    parts = train, select_named(data.test, known)
    if len(names) < 2 or len(train) < 3 or not len(parts[1]):
        counts = f"{len(names):,}, {len(train):,} and {len(parts[1]):,}"
        problem = f"a probe needs 2 labels, 3 training and 1 test recordings (got {counts})"
        raise lacks("files", problem, "label more recordings")
    name = pathlib.Path(config.data.file_labels).name
    check_trained(config, train, name)
    labels = [
        constant_labels(part, [data.file_labels[one] for one in part.names], names)
        for part in parts
    ]
    return [frame_task("files", name, parts, labels, len(names), ("frame", "utterance"))]


def frame_task(
    task: str,
    data: str,
    parts: tuple[Recordings, Recordings],
    labels: Sequence[list[np.ndarray]],
    num_classes: int,
    units: tuple[str | evaluate.Restricted, ...],
) -> ProbeTask:
    """Return a task that predicts frame labels by probes of features or by trained networks.

    `labels` has one label every 10 ms for each training and test utterance.
    """

    def answer(context: ProbeContext, features: FeatureSet) -> Iterable[Score]:
        config, (by_utterance, stride) = context.config, features.values
        expected = [
            labels_of_frames(part, own, stride) for part, own in zip(parts, labels, strict=True)
        ]
        words: Any = {"task": task, "data": data, "units": units}
        if features.name in TRAINED:
            print(
                f"training a network {TRAINED[features.name]} {task} of {data} with early stopping:"
            )
            folder = context.folder_of(f"{features.name}-{task}-{data}")
            start = context.variables if features.name == "tuned" else None
            given = context.model, parts[0], labels[0], num_classes, start
            predict, setting = train_supervised(config, folder, *given)
            words |= {"features": features.name, "setting": setting}
            return evaluate.answer_scores(predict(parts[1]), *expected, **words)
        if features.name == LAYERS:
            made, note = sum_layers(context, parts, expected[0], num_classes)
        else:
            made, note = [[by_utterance[name] for name in part.names] for part in parts], ""
        train, test = ({features.name: own} for own in made)
        words["hidden_widths"] = 0, *filter(None, [config.probe.hidden_width])
        words["updates"] = evaluate.Updates(num_epochs=config.probe.num_epochs)
        scores = evaluate.probe_scores(train, test, *expected, num_classes=num_classes, **words)
        return (score._replace(setting=score.setting + note) for score in scores)

    return ProbeTask(task, answer, parts=parts)


METHODS = {False: "within speaker", True: "across speakers"}


def abx_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return an ABX task for each labelled set's test utterances and for each item file."""
    lose = config.probe.lose_last_frame
    labelled = [] if data.items and not data.phones else labelled_sets(data, "abx", ("test",))
    tasks = [
        abx_task(name, (test,), items_of(test, phones), lose) for name, phones, (test,) in labelled
    ]
    for name, items in data.items.items():  # include training recordings, as nothing is fitted
        wanted, parts = {item.file for item in items}, (data.train, data.test)
        absent = sorted(wanted.difference(*(part.names for part in parts)))
        if absent:
            problem = f"{len(absent):,} of the {len(wanted):,} recordings in {name} are missing"
            raise UserError(f"{problem} (such as {', '.join(absent[:3])}): remove their items")
        named = tuple(select_named(part, wanted) for part in parts)
        tasks.append(abx_task(name, named, list(items), lose))
    return tasks


def items_of(part: Recordings, phones: Phones) -> list[Item]:
    """Return the ABX items of utterances: each labelled phone in the context of its neighbors."""
    labels = dict(zip(part.names, aligned(part, phones), strict=True))
    speakers = dict(zip(part.names, part.speakers, strict=True))
    return list(make_items(labels, phones.names, speakers))


def abx_task(
    name: str, parts: tuple[Recordings, ...], items: list[Item], lose_last_frame: bool
) -> ProbeTask:
    """Return a task that measures the ABX errors of `items`.

    Errors across speakers are included if two speakers share a phone.
    """
    is_across = comparisons(items)
    if False not in is_across:
        problem = f"no speaker of {name} has two phones in one context, one of them twice"
        raise lacks("abx", problem, "add test labels or items")

    def answer(context: ProbeContext, features: FeatureSet) -> list[Score]:
        return abx_scores(name, items, features, is_across, lose_last_frame)

    def record(folder: pathlib.Path) -> None:  # ZeroSpeech's tools read the item file
        write_items(folder / f"{name.removesuffix('.item')}.item", items)
        if True not in is_across:
            speakers = ", ".join(sorted({item.speaker for item in items}))
            print(f"{name} has no ABX across speakers: no two speakers ({speakers}) share a phone")

    return ProbeTask("abx", answer, parts=parts, record=record)


def comparisons(items: list[Item]) -> tuple[bool, ...]:
    """Return the possible ABX comparisons: False for within and True for across speakers."""
    cells = functools.partial(evaluate.make_cells, items, [True] * len(items))
    return tuple(way for way in (False, True) if any(True for _ in cells(across=way)))


def abx_scores(
    name: str,
    items: list[Item],
    features: FeatureSet,
    is_across: tuple[bool, ...],
    lose_last_frame: bool,
) -> list[Score]:
    """Return a feature's ABX errors.

    The list is empty for networks trained on labels, which have no frames.
    """
    by_utterance, stride = features.values
    if not by_utterance:
        return []
    frames = {item.file: read_rows(by_utterance[item.file]) for item in items}
    seconds, source = stride / SAMPLE_RATE_HZ, f"{name.removesuffix('.item')}.item"
    where = {"lose_last_frame": lose_last_frame, "source": source}
    tokens = evaluate.cut_tokens(items, frames, seconds, **where)
    mask = [len(token) > 0 for token in tokens]
    scores = []
    for across in is_across:
        cells = list(evaluate.make_cells(items, mask, across=across))
        about = {"data": name, "features": features.name, "method": METHODS[across]}
        if cells:
            scores.append(evaluate.abx_score(items, tokens, cells, **about))
        else:
            print(
                f"{name}: no ABX of {features.name} {METHODS[across]}: too few tokens have frames"
            )
    lost = ", last frame lost" if lose_last_frame else ""
    return [score._replace(setting=f"{score.setting}{lost}") for score in scores]


#: Tolerance between found and labelled boundaries, as in published results.
TOLERANCE_SECONDS = 0.02
#: Minutes of labelled training utterances that the prominence threshold is fitted to.
FIT_MINUTES = 10.0


def boundary_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return a task that detects phone boundaries, for each set of phone labels."""
    return [boundary_task(*one) for one in labelled_sets(data, "boundaries")]


def boundaries_of(labels: np.ndarray) -> np.ndarray:
    """Return the positions of phone boundaries in samples, given labels that are 10 ms apart.

    >>> boundaries_of(np.array([3, 3, 5, 5, -1, 5, 2]))
    array([320, 960])
    """
    known = (labels[1:] >= 0) & (labels[:-1] >= 0)
    return LABEL_SAMPLES * (1 + np.flatnonzero((labels[1:] != labels[:-1]) & known))


def boundary_task(name: str, phones: Phones, sets: tuple[Recordings, ...]) -> ProbeTask:
    """Return a task that detects phone boundaries where a feature changes most.

    Scores are F1 and R-value. The chance level is the score of equally many equidistant boundaries.
    """
    parts = subset_minutes(sets[0], FIT_MINUTES, by_speaker=False), sets[1]
    true = [[boundaries_of(labels) for labels in aligned(part, phones)] for part in parts]
    num_train, num_test = (sum(map(len, of_part)) for of_part in true)
    if not num_train or not num_test:
        which = "test" if num_train else "training"
        raise lacks("boundaries", f"no {which} utterance of {name} has two phones", "label more")

    def answer(context: ProbeContext, features: FeatureSet) -> Iterator[Score]:
        if not features.values.by_utterance:
            return
        stride, tolerance = features.values.stride, TOLERANCE_SECONDS * SAMPLE_RATE_HZ
        train, test = (map(boundaries.change, features.values.read(part.names)) for part in parts)
        in_frames = [x / stride for x in true[0]]
        prominence = boundaries.fit_prominence([*train], in_frames, tolerance / stride)
        found = [stride * boundaries.peaks(x, prominence) for x in test]
        even = [
            np.linspace(0, int(length), len(one) + 2)[1:-1]
            for one, length in zip(found, parts[1].lengths, strict=True)
        ]
        matches, chance = (boundaries.match_all(one, true[1], tolerance) for one in (found, even))
        hits, of_found, of_true = np.array(matches).T
        counts = of_found + of_true
        items = digest("boundaries", np.concatenate(true[1]), of_true)
        outcomes = Outcomes(2 * hits, counts, items)
        by_r = boundaries.r_value_interval(matches)
        for metric, measure, interval, own in (
            ("F1", boundaries.f1, evaluate.bootstrap_interval(2.0 * hits, counts), outcomes),
            ("R-value", boundaries.r_value, by_r, None),
        ):
            value, luck = (float(measure(boundaries.total(one))) for one in (matches, chance))
            yield Score(
                "boundaries", name, "boundary", features.name, "peaks", metric, value, *interval,
                luck, num_train=num_train, num_test=num_test,
                setting=f"prominence {prominence:.2f}", outcomes=own,
            )  # fmt: skip

    return ProbeTask("boundaries", answer, parts=parts)


#: Minutes of training utterances that units are fitted to, with or without labels.
UNIT_MINUTES = 20.0


def unit_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return a task that fits and scores units, for each set of phone labels."""
    train = subset_minutes(data.train, UNIT_MINUTES, by_speaker=False)
    sets = labelled_sets(data, "units", ("test",))
    return [unit_task(name, phones, train, test) for name, phones, (test,) in sets]


def unit_task(data: str, phones: Phones, train: Recordings, test: Recordings) -> ProbeTask:
    """Return a task that scores a feature's units, and the ABX errors of unit posteriors."""
    labels, items = aligned(test, phones), items_of(test, phones)
    if len(np.setdiff1d(np.concatenate(labels), [-1])) < 2:
        problem = f"the test utterances of {data} have fewer than two phones"
        raise lacks("units", problem, "label more utterances")

    def answer(context: ProbeContext, features: FeatureSet) -> Iterator[Score]:
        options, stride = context.config.probe, features.values.stride
        if not features.values.by_utterance:
            return
        frames = np.concatenate([*features.values.read(train.names)])
        fitted = evaluate.fit_units(frames, options.num_units, context.config.seed)
        each = [evaluate.unit_posteriors(x, fitted) for x in features.values.read(test.names)]
        p = dict(zip(test.names, each, strict=True))
        units = {name: own.argmax(axis=1) for name, own in p.items()}
        name = re.sub(r"[^\w.-]", "_", f"units_{data}_{features.name}_{options.num_units}.txt")
        lines = [f"{one} {' '.join(map(str, own))}\n" for one, own in units.items()]
        (context.workdir / "probes").mkdir(exist_ok=True)
        write_text(context.workdir / "probes" / name, "".join(lines))
        expected, seconds = labels_of_frames(test, labels, stride), stride / SAMPLE_RATE_HZ
        method, setting = f"k-means {options.num_units}", f"fitted to {len(frames):,} frames"
        words = {"data": data, "features": features.name, "method": method, "setting": setting}
        yield from evaluate.unit_scores([*units.values()], expected, seconds, **words)
        posteriors, lose = FeatureSet(features.name, Frames(p, stride)), options.lose_last_frame
        for score in abx_scores(data, items, posteriors, comparisons(items), lose):
            yield score._replace(task="units", method=f"{method}, {score.method}")

    return ProbeTask("units", answer, parts=(train, test))


#: Maximum number of test utterances, which are compared pairwise.
MAX_UTTERANCES = 1000


def verification_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return a task that decides from mean features whether two utterances share a speaker."""
    drawn = np.random.default_rng(0).permutation(len(data.test))[:MAX_UTTERANCES]
    test = select(data.test, sorted(drawn.tolist()))
    if not 1 < len({*test.speakers}) < len(test):
        counts = f"{len(test):,} utterances by {len({*test.speakers}):,}"
        problem = f"verification needs two test speakers, one with two utterances (got {counts})"
        raise UserError(f"{problem}: add test utterances, or set data.speaker_level")

    def answer(context: ProbeContext, features: FeatureSet) -> list[Score]:
        if not features.values.by_utterance:
            return []
        means = np.stack([x.mean(axis=0) for x in features.values.read(test.names)])
        about = {"data": data.name, "features": features.name}
        return [evaluate.verification_score(means, test.speakers, **about)]

    return [ProbeTask("verification", answer, parts=(test,))]
