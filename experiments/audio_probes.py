"""Probes of audio features: phones and speakers, from z, c, MFCC and a network never trained."""

import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from cpc.data import SAMPLE_RATE_HZ, Recordings, align, read_all, select
from cpc.evaluate import embed_utterances, mfcc, probe_rows
from cpc.models import Model
from cpc.types import UserError
from experiments import launch
from experiments.audio_data import AudioData
from experiments.launch import Config

TASKS = ("phones", "speakers")
FEATURES = ("c", "z", "mfcc", "random c", "random z")
#: Points of the speaker picture: means of c over pieces of this many latents.
PIECE_LATENTS = 128
#: Labels come every 10 ms.
FRAME_SAMPLES = 160
MAX_POINTS = 1500


def check_options(config: Config) -> None:
    """What no data could make work is found before anything is read."""
    options = config.probe
    if options.every and (not config.eval_every or options.every % config.eval_every):
        raise UserError(
            f"probe.every is {options.every}, but probes are fitted at evaluations, every "
            f"{config.eval_every} steps: make it a multiple of eval_every, or 0"
        )
    for name, given, known in (
        ("probe.tasks", options.tasks, TASKS),
        ("probe.features", options.features, FEATURES),
    ):
        for word in given:
            if word not in known:
                raise UserError(f"{name} has {word!r}: choose from {', '.join(known)}")
    if options.tasks and not options.features:
        raise UserError(f"probe.features is empty: choose from {', '.join(FEATURES)}")
    if options.tasks and config.model.padding == "valid":
        raise UserError(
            "model.padding is valid, which gives fewer latents than there are labels: probe with "
            "causal or same padding, or set probe.tasks to ()"
        )


def check_data(config: Config, data: AudioData, tasks: Sequence[str] | None = None) -> None:
    """Probes that these data cannot feed are found before the training, not after it."""
    wanted: Sequence[str] = config.probe.tasks if tasks is None else tasks
    if "speakers" in wanted:
        _speaker_names(data)
    if "phones" not in wanted:
        return
    if not data.phones:
        raise UserError(
            "there are no phone labels for a probe of phones: set data.phones to an alignment "
            "file, or take phones out of probe.tasks"
        )
    for name, phones in data.phones.items():
        for which, recordings in (("training", data.train), ("test", data.test)):
            part = _labelled(recordings, phones.labels)
            if not len(part):
                raise UserError(
                    f"no {which} utterance has labels in {name}: do its utterance ids belong to "
                    "these recordings?"
                )
            for utterance, length in zip(part.names, part.lengths, strict=True):
                align(phones.labels[utterance], max(1, int(length) // FRAME_SAMPLES), utterance)


def run_tasks(
    config: Config,
    workdir: pathlib.Path,
    data: AudioData,
    model: Model,
    variables: Any,
    step: int,
    tasks: Sequence[str] | None = None,
) -> dict[str, float]:
    """Fit the probes of each task, print their table, record it under probes/.

    Returns the accuracies by name, such as "phones/festvox_ru/c/linear/frame".
    """
    folder = workdir / "probes"
    folder.mkdir(exist_ok=True)
    features = make_features(config, model, variables)
    accuracies = {}
    for task in config.probe.tasks if tasks is None else tasks:
        begin = time.perf_counter()
        rows = phone_rows(config, data, features) if task == "phones" else []
        if task == "speakers":
            rows = speaker_rows(config, data, features)
            points, speaker, names = speaker_picture(data, features["c"])
            part = folder / "picture.part.npz"
            np.savez(part, features=points, speaker=speaker, names=names)
            part.replace(folder / "picture.npz")
        launch.write_json(folder / f"{task}.json", {"step": step, "rows": rows})
        print(f"probe of {task} at step {step:,}, {time.perf_counter() - begin:.0f} s")
        print_rows(rows)
        for row in rows:
            name = "/".join(row[key] for key in ("task", "data", "features", "probe", "unit"))
            accuracies[name] = row["accuracy"]
    return accuracies


def make_features(
    config: Config, model: Model, variables: Any
) -> dict[str, Callable[[Recordings], list[np.ndarray]]]:
    """Name -> the features of each recording, (frames, width), one frame each 10 ms."""
    window = np.zeros((1, config.data.window_samples), np.float32)
    untrained = model.init(jax.random.key(config.seed + 1), {"x": window})
    functions = {
        "c": lambda x: model.embed(variables, x)[1],
        "z": lambda x: model.embed(variables, x)[0],
        "mfcc": mfcc,
        "random c": lambda x: model.embed(untrained, x)[1],
        "random z": lambda x: model.embed(untrained, x)[0],
    }

    def of(name):
        embed = jax.jit(functions[name])
        return lambda recordings: embed_utterances(
            embed, [read_all(recordings, i) for i in range(len(recordings))]
        )

    return {name: of(name) for name in dict.fromkeys(("c", *config.probe.features))}


def phone_rows(config: Config, data: AudioData, features: dict) -> list[dict[str, Any]]:
    """Frame-wise phones, on every labelled set."""
    rows = []
    for name, phones in data.phones.items():
        train, test = (
            _labelled(recordings, phones.labels) for recordings in (data.train, data.test)
        )
        train = first_minutes(train, 60 * config.probe.hours, by_speaker=False)
        labels = [
            [
                align(phones.labels[utterance], max(1, int(length) // FRAME_SAMPLES), utterance)
                for utterance, length in zip(part.names, part.lengths, strict=True)
            ]
            for part in (train, test)
        ]
        for feature in config.probe.features:  # one at a time: a feature can fill the memory
            rows += probe_rows(
                {feature: features[feature](train)},
                {feature: features[feature](test)},
                labels[0],
                labels[1],
                task="phones",
                data=name,
                num_classes=len(phones.names),
                hidden_widths=_hidden_widths(config),
                num_epochs=config.probe.num_epochs,
            )
    return rows


def speaker_rows(config: Config, data: AudioData, features: dict) -> list[dict[str, Any]]:
    """Speakers, frame-wise and by utterance."""
    names = _speaker_names(data)
    train = first_minutes(data.train, config.probe.minutes_per_speaker)
    known = [i for i, speaker in enumerate(data.test.speakers) if speaker in names]
    test = first_minutes(select(data.test, known), config.probe.minutes_per_speaker)
    labels = [[names.index(speaker) for speaker in part.speakers] for part in (train, test)]
    rows = []
    for feature in config.probe.features:
        rows += probe_rows(
            {feature: features[feature](train)},
            {feature: features[feature](test)},
            labels[0],
            labels[1],
            task="speakers",
            data=config.data.source,
            num_classes=len(names),
            hidden_widths=_hidden_widths(config),
            num_epochs=config.probe.num_epochs,
            units=("frame", "utterance"),
        )
    return rows


def _speaker_names(data: AudioData) -> list[str]:
    names = sorted(set(data.train.speakers))
    if len(names) < 2:
        raise UserError(
            f"these recordings have one speaker ({', '.join(names)}), which leaves a probe of "
            "speakers nothing to tell apart: take speakers out of probe.tasks, or set "
            "data.speaker_level"
        )
    return names


def first_minutes(recordings: Recordings, minutes: float, by_speaker: bool = True) -> Recordings:
    """Utterances, drawn at random, up to so many minutes of each speaker, or of all; 0: all."""
    if not minutes:
        return recordings
    kept, used = [], dict.fromkeys((*recordings.speakers, ""), 0.0)
    for i in np.random.default_rng(0).permutation(len(recordings)):
        speaker = recordings.speakers[i] if by_speaker else ""
        if used[speaker] < minutes:
            kept.append(int(i))
            used[speaker] += float(recordings.lengths[i]) / SAMPLE_RATE_HZ / 60
    return select(recordings, sorted(kept))


def speaker_picture(
    data: AudioData, features: Callable
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means of c over pieces of test utterances, for a picture like the paper's Figure 2."""
    test = first_minutes(data.test, 5.0)
    names = sorted(set(data.test.speakers))
    points, speakers = [], []
    for speaker, c in zip(test.speakers, features(test), strict=True):
        for start in range(0, max(1, len(c) - PIECE_LATENTS // 2), PIECE_LATENTS):
            points.append(c[start : start + PIECE_LATENTS].mean(0))
            speakers.append(names.index(speaker))
    chosen = np.random.default_rng(0).permutation(len(points))[:MAX_POINTS]
    return np.asarray(points, np.float32)[chosen], np.asarray(speakers)[chosen], np.asarray(names)


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """The table on the console, accuracies in percent."""
    for row in rows:
        print(
            f"  {row['data']:<12} {row['features']:<9} {row['probe']:<7} {row['unit']:<10}"
            f"{100 * row['accuracy']:6.1f} %  [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
            f"  majority {100 * row['majority']:.1f} %"
        )


def _labelled(recordings, labels):
    return select(recordings, [i for i, name in enumerate(recordings.names) if name in labels])


def _hidden_widths(config):
    return (0, config.probe.hidden_width) if config.probe.hidden_width else (0,)
