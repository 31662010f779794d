"""Probes of the features of series: labels of steps and of files."""

import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from cpc.evaluate import embed_utterances, probe_scores
from cpc.models import Model
from cpc.results import Score, print_scores, write_scores
from cpc.train import raise_if_stopped
from cpc.types import UserError
from experiments.command.config import Config
from experiments.labels import check_known, count_labels
from experiments.sequences import name_of
from experiments.series.data import Part, SeriesData, labels_of_frames


def check_options(config: Config) -> None:
    """Check what no data could make work."""
    options = config.probe
    if options.tasks and not options.features:
        raise UserError("probe.features is empty: name one or more, or set probe.tasks to ()")
    if options.tasks and config.model.padding == "valid":
        raise UserError(
            "model.padding is valid, which gives fewer latents than there are labels: probe with "
            "causal or same padding, or set probe.tasks to ()"
        )


def check_data(config: Config, data: SeriesData) -> None:
    """Check that there are labels for each task: two to train on, and some of them to test on."""
    for task in config.probe.tasks:
        names = data.step_names if task == "steps" else data.file_names
        train, test = (count_each(task, data, part) for part in (data.train, data.test))
        for which, counts in (("train", train), ("test", test)):
            if not counts.any():
                key = "data.step_label" if task == "steps" else "data.file_label"
                raise UserError(
                    f"no {task[:-1]} to {which} on has a label, which a probe of {task} needs: set "
                    f"{key}, or take {task} out of probe.tasks"
                )
        if np.count_nonzero(train) < 2:
            raise UserError(
                f"all {task} to train on have the same label: a probe has nothing to tell apart; "
                f"take {task} out of probe.tasks"
            )
        advice = f"give more of each, or another seed, or take {task} out of probe.tasks"
        check_known(train, test, names, task, advice)


def run_tasks(
    config: Config,
    workdir: pathlib.Path,
    data: SeriesData,
    model: Model,
    variables: Any,
    step: int,
) -> list[Score]:
    """Fit the probes of each task, print their scores, and record them in the run directory."""
    stride, scores = model.module.encoder.stride, []
    features = make_features(config, model, variables)
    for task in config.probe.tasks:
        begin = time.perf_counter()
        names = data.step_names if task == "steps" else data.file_names
        labels = [labels_of(task, data, part, stride) for part in (data.train, data.test)]
        found = []
        for name in config.probe.features:
            raise_if_stopped()
            train, test = features(name, data.train), features(name, data.test)
            found += probe_scores(
                {name: train},
                {name: test},
                *labels,
                task=task,
                data=name_of(config),
                num_classes=len(names),
                hidden_widths=(0, *filter(None, [config.probe.hidden_width])),
                units=("frame",) if task == "steps" else ("frame", "file"),
                num_epochs=config.probe.num_epochs,
            )
        found = [score._replace(seed=config.seed, step=step) for score in found]
        write_scores(workdir, found)
        print(f"probe of {task} at step {step:,}, {time.perf_counter() - begin:.0f} s")
        print_scores(found)
        scores += found
    return scores


def count_each(task: str, data: SeriesData, part: Part) -> np.ndarray:
    """Return how many steps, or files, of a part have each label."""
    if task == "steps":
        counts = [count_labels(own, data.step_names) for own in labels_of(task, data, part, 1)]
        return np.sum(counts, axis=0)
    return count_labels(data.file_labels[[file for file, *_ in part.pieces]], data.file_names)


def labels_of(task: str, data: SeriesData, part: Part, stride: int) -> list[np.ndarray]:
    """Return the label of each of a feature's frames, of each piece; -1 where there is none."""
    labels = []
    for file, first, steps in part.pieces:
        num_frames = max(1, steps // stride)
        own = data.step_labels[file] if task == "steps" else None
        if own is not None:
            labels.append(labels_of_frames(own, first, num_frames, stride))
        else:
            label = -1 if task == "steps" else data.file_labels[file]
            labels.append(np.full(num_frames, label, np.int32))
    return labels


def make_features(
    config: Config, model: Model, variables: Any
) -> Callable[[str, Part], list[np.ndarray]]:
    """Return a function of a feature's name and a part of the data: features of each piece."""
    window = np.zeros((1, config.data.window_steps, config.data.channels), np.float32)
    untrained = model.init(jax.random.key(config.seed + 1), {"x": window})
    stride, (_, ahead) = model.module.encoder.stride, model.module.encoder.frames_around

    def raw(x):  # all numbers of a frame, side by side
        return x[:, : x.shape[1] // stride * stride].reshape(len(x), -1, stride * x.shape[2])

    functions = {
        "c": lambda x: model.embed(variables, x)[1],
        "z": lambda x: model.embed(variables, x)[0],
        "random c": lambda x: model.embed(untrained, x)[1],
        "random z": lambda x: model.embed(untrained, x)[0],
        "raw": raw,
    }

    def features(name, part):
        whole = [part.read(number) for number in range(len(part.pieces))]
        return embed_utterances(jax.jit(functions[name]), whole, stride, ahead=ahead)

    return features
