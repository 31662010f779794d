"""Probes that predict labels of steps and of files from series features."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from cpc.evaluate import Updates, bootstrap_interval, embed_pieces, embed_utterances, probe_scores
from cpc.results import Outcomes, Score, digest
from cpc.train import raise_if_stopped
from cpc.types import UserError
from experiments.command.config import Config
from experiments.kinds.series.data import Part, SeriesData, labels_of_frames
from experiments.training.probes import (
    FeatureSet,
    ProbeContext,
    ProbeTask,
    check_known,
    count_labels,
    feature_names,
    lacks,
)
from experiments.training.sequences import embed_frames

#: Maximum number of folds of `probe.leave_one_out`.
MAX_FOLDS = 20


def label_task(task: str, config: Config, data: SeriesData) -> ProbeTask:
    """Return the probe task for step labels or file labels."""
    names = data.step_names if task == "steps" else data.file_names
    train, test = (count_each(task, data, part) for part in (data.train, data.test))
    for which, counts in (("train", train), ("test", test)):
        if not counts.any():
            key = "step_label" if task == "steps" else "file_label"
            problem = f"the {which} data lack labels of {task} (data.{key} is {config.data[key]!r})"
            raise lacks(task, problem, f"set data.{key}")
    if np.count_nonzero(train) < 2:
        raise lacks(task, f"all training {task} have the same label", "add other labels")
    advice = f"add data, change seed, or remove {task} from probe.tasks"
    check_known(train, test, names, task, advice)
    if config.probe.leave_one_out:
        check_groups(task, data)
    return ProbeTask(task, functools.partial(label_scores, task))


def check_groups(task: str, data: SeriesData) -> None:
    """Check that at least two groups and two labels remain if any one fold is held out."""
    counts: Any = Counter()
    for part in (data.train, data.test):
        for piece in part.pieces:
            counts[data.groups[piece[0]]] += count_each(task, data, part._replace(pieces=(piece,)))
    labeled = [group for group, own in counts.items() if own.any()]
    for fold in cut_folds(labeled):
        rest = [counts[group] for group in labeled if group not in fold]
        if len(rest) < 2 or np.count_nonzero(np.sum(rest, axis=0)) < 2:
            needed = f"2 groups with 2 different labels of {task} besides {', '.join(fold[:3])}"
            raise UserError(f"probe.leave_one_out needs {needed} (got {len(rest)}): disable it")


#: Probe tasks by name; each raises a UserError if the data lack the labels it needs.
TASKS = {task: functools.partial(label_task, task) for task in ("steps", "files")}


def probe_tasks(config: Config, data: SeriesData) -> list[ProbeTask]:
    """Return the tasks in `probe.tasks`."""
    return [TASKS[task](config, data) for task in config.probe.tasks]


def feature_sets(context: ProbeContext, tasks: Sequence[ProbeTask]) -> Iterator[FeatureSet]:
    """Yield each feature, computed for the training and test pieces."""
    make, data = make_features(context), context.data
    for name in feature_names(context.config, tasks):
        raise_if_stopped()
        yield FeatureSet(name, (make(name, data.train), make(name, data.test)))


def label_scores(task: str, context: ProbeContext, features: FeatureSet) -> Iterator[Score]:
    """Yield accuracies of probes that predict step or file labels from one feature."""
    options, data, (train, test) = context.config.probe, context.data, features.values
    name, parts = features.name, (data.train, data.test)
    labels = [labels_of(task, data, part, context.model.module.encoder.stride) for part in parts]
    how = {
        "task": task,
        "data": data.name,
        "num_classes": len(data.step_names if task == "steps" else data.file_names),
        "hidden_widths": (0, *filter(None, [options.hidden_width])),
        "updates": Updates(num_epochs=options.num_epochs),
    }
    units = ("frame",) if task == "steps" else ("frame", "file")
    fitted, own = cut_single(train, labels[0])
    yield from probe_scores({name: fitted}, {name: test}, own, labels[1], units=units, **how)
    if options.leave_one_out:
        groups = [data.groups[file] for part in parts for file, *_ in part.pieces]
        yield from leave_one_out_scores(
            name, [*train, *test], [*labels[0], *labels[1]], groups, **how
        )


def cut_single(
    features: list[np.ndarray], labels: list[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Split a single labeled piece into ten, so that some parts can validate a probe.

    >>> [len(part) for part in cut_single([np.zeros((25, 2))], [np.zeros(25, int)])[0]]
    [3, 3, 3, 3, 3, 2, 2, 2, 2, 2]
    """
    labeled = [i for i, own in enumerate(labels) if (own >= 0).any()]
    if len(labeled) != 1:
        return features, labels
    return np.array_split(features[labeled[0]], 10), np.array_split(labels[labeled[0]], 10)


def leave_one_out_scores(
    name: str,
    features: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    groups: Sequence[str],
    **how: Any,
) -> Iterator[Score]:
    """Yield the mean accuracy over groups, each tested by a probe fitted on all other groups.

    The confidence interval resamples groups. If there are more than `MAX_FOLDS` groups, several are
    left out together.
    """
    labeled = [i for i, own in enumerate(labels) if (own >= 0).any()]
    own, methods = np.array(groups, object), {}
    for fold in cut_folds(list(dict.fromkeys(own[labeled]))):
        raise_if_stopped()
        held_out = [i for i in labeled if own[i] in fold]
        rest = [i for i in labeled if own[i] not in fold]
        fits = ({name: [features[i] for i in rest]}, {name: [features[i] for i in held_out]})
        given = [labels[i] for i in rest], [labels[i] for i in held_out]
        for score in probe_scores(*fits, *given, units=("frame",), **how):
            _, index = np.unique(own[held_out].astype(str), return_inverse=True)
            outcomes: Any = score.outcomes
            correct = np.bincount(index, outcomes.sums) / np.bincount(index, outcomes.counts)
            known = methods.setdefault(score.method, (score, [], []))
            known[1].extend(correct)
            known[2].extend([score.chance] * len(correct))
    for score, correct, chance in methods.values():
        values = np.array(correct)
        low, high = bootstrap_interval(values, np.ones(len(values)))
        num_frames = int(sum((labels[i] >= 0).sum() for i in labeled))
        yield score._replace(
            unit="group", value=float(values.mean()), low=low, high=high,
            chance=float(np.mean(chance)), num_train=num_frames, num_test=num_frames,
            setting=f"each of {len(values)} groups held out in turn",
            outcomes=Outcomes(values, None, digest("group", *groups)),
        )  # fmt: skip


def cut_folds(groups: Sequence[str]) -> list[list[str]]:
    """Divide groups into at most `MAX_FOLDS` folds.

    >>> cut_folds(["ann", "bob"])
    [['ann'], ['bob']]
    """
    num_folds = min(len(groups), MAX_FOLDS)
    return [list(groups[number::num_folds]) for number in range(num_folds)]


def count_each(task: str, data: SeriesData, part: Part) -> np.ndarray:
    """Count each label's steps or files in training or test data."""
    if task == "steps":
        counts = [count_labels(own, data.step_names) for own in labels_of(task, data, part, 1)]
        return np.sum(counts, axis=0)
    return count_labels(data.file_labels[[file for file, *_ in part.pieces]], data.file_names)


def labels_of(task: str, data: SeriesData, part: Part, stride: int) -> list[np.ndarray]:
    """Return each piece's frame labels, with -1 for unlabelled frames."""
    labels = []
    for file, first, steps in part.pieces:
        own = data.step_labels[file] if task == "steps" else data.file_labels[[file]]
        labels.append(labels_of_frames(own, first, max(1, steps // stride), stride))
    return labels


def make_features(context: ProbeContext) -> Callable[[str, Part], list[np.ndarray]]:
    """Return features(name, part), a function that computes each piece's features."""
    options, stride = context.config.data, context.model.module.encoder.stride
    untrained = context.untrained(np.zeros((1, options.window_steps, options.channels), np.float32))

    def raw(x):  # concatenates each frame's steps
        return x[:, : x.shape[1] // stride * stride].reshape(len(x), -1, stride * x.shape[2])

    def features(name, part):
        whole = [part.read(number) for number in range(len(part.pieces))]
        if name == "raw":
            long = functools.partial(embed_pieces, raw, stride=stride)
            return embed_utterances(jax.jit(raw), whole, stride, embed_long=long)
        own = untrained if name.startswith("random") else context.variables
        return embed_frames(context.model, own, name[-1], whole)

    return features
