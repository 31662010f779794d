"""Probes of audio features: phones and speakers, from z, c, MFCC and a network never trained.

And, to compare them with, the same network trained on the labels.
"""

import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from cpc.data import (
    SAMPLE_RATE_HZ,
    UNLABELLED,
    Recordings,
    align,
    make_batches,
    read_all,
    select,
)
from cpc.evaluate import answer_rows, embed_utterances, mfcc, probe_rows
from cpc.models import Model
from cpc.train import ProgressWriter, make_optimizer
from cpc.types import UserError
from experiments import launch
from experiments.audio_data import AudioData
from experiments.launch import Config
from experiments.supervised import train_on_labels

TASKS = ("phones", "speakers")
FEATURES = ("c", "z", "mfcc", "random c", "random z", "supervised")
#: Points of the speaker picture: means of c over pieces of this many latents.
PIECE_LATENTS = 128
#: Labels come every 10 ms.
FRAME_SAMPLES = 160
MAX_POINTS = 1500


def check_options(config: Config) -> None:
    """What no data could make work is found before anything is read."""
    options = config.probe
    launch.check_probe(
        config,
        {
            "probe.tasks": (options.tasks, TASKS),
            "probe.features": (options.features, FEATURES),
        },
    )
    if options.tasks and not options.features:
        raise UserError(f"probe.features is empty: choose from {', '.join(FEATURES)}")
    if options.every and "supervised" in options.features:
        raise UserError(
            f"probe.every is {options.every}, and each time the supervised network would be "
            "trained anew, with the same result: set probe.every to 0, or take supervised out of "
            "probe.features"
        )
    if options.tasks and config.model.padding == "valid":
        raise UserError(
            "model.padding is valid, which gives fewer latents than there are labels: probe with "
            "causal or same padding, or set probe.tasks to ()"
        )


def check_data(config: Config, data: AudioData) -> None:
    """Probes that these data cannot feed are found before the training, not after it."""
    if "speakers" in config.probe.tasks:
        _speaker_names(data)
        _check_windows(config, _of_speakers(config, data.train), config.data.source)
    if "phones" not in config.probe.tasks:
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
                align(phones.labels[utterance], num_frames(length), utterance)
        _check_windows(config, _of_phones(config, data.train, phones), name)


def run_tasks(
    config: Config,
    workdir: pathlib.Path,
    data: AudioData,
    model: Model,
    variables: Any,
    step: int,
) -> dict[str, float]:
    """Fit the probes of each task, print their table, record it under probes/.

    Returns the accuracies by name, such as "phones/festvox_ru/c/linear/frame".
    """
    folder = workdir / "probes"
    folder.mkdir(exist_ok=True)
    features = make_features(config, model, variables)
    accuracies = {}
    for task in config.probe.tasks:
        begin = time.perf_counter()
        rows = phone_rows(config, folder, data, model, features) if task == "phones" else []
        if task == "speakers":
            rows = speaker_rows(config, folder, data, model, features)
            points, speaker, names = speaker_picture(data, features["c"])
            launch.write_arrays(
                folder / "picture.npz", features=points, speaker=speaker, names=names
            )
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
    """Name -> the features of each recording, (frames, width), one frame each 10 ms.

    The supervised network, which answers by itself, is none of them.
    """
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

    wanted = dict.fromkeys(("c", *config.probe.features))
    return {name: of(name) for name in wanted if name in functions}


def phone_rows(
    config: Config, folder: pathlib.Path, data: AudioData, model: Model, features: dict
) -> list[dict[str, Any]]:
    """Frame-wise phones, on every labelled set."""
    rows = []
    for name, phones in data.phones.items():
        parts = _of_phones(config, data.train, phones), _labelled(data.test, phones.labels)
        labels = [
            [
                align(phones.labels[utterance], num_frames(length), utterance)
                for utterance, length in zip(part.names, part.lengths, strict=True)
            ]
            for part in parts
        ]
        row = {"task": "phones", "data": name, "num_classes": len(phones.names)}
        rows += rows_of(config, folder, model, features, parts, labels, **row)
    return rows


def speaker_rows(
    config: Config, folder: pathlib.Path, data: AudioData, model: Model, features: dict
) -> list[dict[str, Any]]:
    """Speakers, frame-wise and by utterance."""
    names = _speaker_names(data)
    known = [i for i, speaker in enumerate(data.test.speakers) if speaker in names]
    parts = [_of_speakers(config, part) for part in (data.train, select(data.test, known))]
    labels = [
        [
            np.full(num_frames(length), names.index(speaker), np.int32)
            for speaker, length in zip(part.speakers, part.lengths, strict=True)
        ]
        for part in parts
    ]
    row = {"task": "speakers", "data": config.data.source, "num_classes": len(names)}
    units = "frame", "utterance"
    return rows_of(config, folder, model, features, parts, labels, **row, units=units)


def rows_of(
    config: Config,
    folder: pathlib.Path,
    model: Model,
    features: dict,
    parts: Sequence[Recordings],
    labels: Sequence[list[np.ndarray]],
    **row: Any,
) -> list[dict[str, Any]]:
    """Rows of each of the features; parts, and labels by frame, to train and to test."""
    rows = []
    for feature in config.probe.features:  # one at a time: a feature can fill the memory
        if feature == "supervised":
            print(f"the network trained on {row['task']} of {row['data']}:")
            own = folder / f"supervised-{row['task']}-{row['data']}"
            answer = train_supervised(config, own, model, parts[0], labels[0], row["num_classes"])
            decay = config.optim.weight_decay
            rows += answer_rows(
                answer(parts[1]), *labels, features=feature, weight_decay=decay, **row
            )
        else:
            rows += probe_rows(
                {feature: features[feature](parts[0])},
                {feature: features[feature](parts[1])},
                *labels,
                hidden_widths=_hidden_widths(config),
                num_epochs=config.probe.num_epochs,
                **row,
            )
    return rows


def train_supervised(
    config: Config,
    folder: pathlib.Path,
    model: Model,
    recordings: Recordings,
    labels: Sequence[np.ndarray],
    num_classes: int,
) -> Callable[[Recordings], list[np.ndarray]]:
    """The run's own network with a softmax on c, trained whole on labels (the paper's Table 1).

    From a new start, as long as the run, on windows of the same length, with the same optimizer;
    `labels` has one a frame of each recording; the folder is for checkpoints. Returns a function
    from recordings to the log-probabilities (frames, num_classes) of each.
    """
    options, rng = config.data, jax.random.key(config.seed + 2)
    draw = make_batches(
        recordings,
        window_samples=options.window_samples,
        batch_size=options.batch_size,
        seed=config.seed,
    )
    length = num_frames(options.window_samples)

    def draw_labelled(step):
        batch = draw(step)
        places = zip(batch["utterance"], batch["start"], strict=True)
        windows = [label_window(labels[i], int(start), length) for i, start in places]
        return {"x": batch["x"], "label": np.stack(windows)}

    def contexts(params, extra, batch, rng, train):
        variables = {"params": params, **extra}
        if not train:
            return model.embed(variables, batch["x"])[1], extra
        outputs, extra = model.apply(variables, batch, True, rng)
        return outputs.c, extra

    own = ("learning_rate", "warmup_steps", "schedule", "clip_norm", "weight_decay")
    tx, _ = make_optimizer(num_steps=config.num_steps, **{name: config.optim[name] for name in own})
    hours = options.batch_size * options.window_samples / SAMPLE_RATE_HZ / 3600
    console = ProgressWriter(config.num_steps, rate=(hours, "h audio"))
    answer = train_on_labels(
        contexts,
        model.init(rng, {"x": np.zeros((1, options.window_samples), np.float32)}),
        draw_labelled,
        tx,
        num_classes=num_classes,
        num_steps=config.num_steps,
        rng=rng,
        log_every=config.log_every,
        writers=(console,),
        num_threads=options.num_threads,
        folder=folder,
        save_every=config.save_every,
        settings={"config": json.loads(config.to_json()), "recordings": list(recordings.names)},
    )
    console.close()
    return lambda part: embed_utterances(answer, [read_all(part, i) for i in range(len(part))])


def num_frames(num_samples: int) -> int:
    """Labelled frames of so many samples."""
    return max(1, int(num_samples) // FRAME_SAMPLES)


def label_window(labels: np.ndarray, start: int, length: int) -> np.ndarray:
    """Labels of the frames of a window that begins at a sample: of the 10 ms that overlap most.

    >>> label_window(np.array([5, 6, 7], np.int32), 90, 3)
    array([ 6,  7, -1], dtype=int32)
    """
    begin = (start + FRAME_SAMPLES // 2) // FRAME_SAMPLES
    found = labels[begin : begin + length]
    return np.pad(found, (0, length - len(found)), constant_values=UNLABELLED)


def _speaker_names(data: AudioData) -> list[str]:
    names = sorted(set(data.train.speakers))
    if len(names) < 2:
        raise UserError(
            f"these recordings have one speaker ({', '.join(names)}), which leaves a probe of "
            "speakers nothing to tell apart: take speakers out of probe.tasks, or set "
            "data.speaker_level"
        )
    return names


def _of_speakers(config, recordings):
    return first_minutes(recordings, config.probe.minutes_per_speaker)


def _of_phones(config, recordings, phones):
    part = _labelled(recordings, phones.labels)
    return first_minutes(part, 60 * config.probe.hours, by_speaker=False)


def _check_windows(config, part, name):
    """The supervised network is trained on windows of the utterances that the probes may use."""
    window, longest = config.data.window_samples, max(part.lengths)
    if "supervised" in config.probe.features and longest < window:
        raise UserError(
            f"none of the labelled training utterances of {name} is as long as a window of "
            f"{window} samples, but the supervised network is trained on windows: take supervised "
            "out of probe.features, or choose a shorter data.window_samples"
        )


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
            f"  {row['data']:<12} {row['features']:<10} {row['probe']:<7} {row['unit']:<10}"
            f"{100 * row['accuracy']:6.1f} %  [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
            f"  majority {100 * row['majority']:.1f} %"
        )


def _labelled(recordings, labels):
    return select(recordings, [i for i, name in enumerate(recordings.names) if name in labels])


def _hidden_widths(config):
    return (0, config.probe.hidden_width) if config.probe.hidden_width else (0,)
