"""Probes of every contrastive kind: tasks are asked of features, and scores kept as they come."""

import contextlib
import pathlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cpc.models import Model
from cpc.results import Score, print_scores, write_scores
from cpc.train import raise_if_stopped
from cpc.types import UserError
from experiments.command.config import Config
from experiments.training.checks import places_of

#: Labels that a sentence names of many.
MOST_NAMED = 5
#: folder_of(network) -> where the checkpoints of a network that is trained on labels are
FolderOf: TypeAlias = Callable[[str], pathlib.Path]


class ProbeContext(NamedTuple):
    """A run whose features are probed."""

    config: Config
    data: Any
    model: Model
    variables: Any
    workdir: pathlib.Path
    step: int
    folder_of: FolderOf


class FeatureSet(NamedTuple):
    """The features of one name, made once for all tasks."""

    name: str
    values: Any
    """As the kind makes them: arrays, or a function that makes them when a task reads them."""


class ProbeTask(NamedTuple):
    """One question about features: all or part of a task of `probe.tasks`."""

    name: str
    """The task's, as in `probe.tasks`."""
    answer: Callable[[ProbeContext, FeatureSet], Iterable[Score]]
    """Yields no score if the task only writes a file, or cannot use these features."""
    features: tuple[str, ...] = ()
    """Names of the features that the task uses; () for those of `probe.features`."""
    parts: tuple[Any, ...] = ()
    """Data to make features of, if the kind only makes features that its tasks need."""
    record: Callable[[pathlib.Path], object] = lambda folder: None
    """record(folder) writes what the task compares, and prints what it cannot compare."""


class Probes(NamedTuple):
    """What a kind of data asks of features."""

    tasks: Callable[[Config, Any], list[ProbeTask]]
    """tasks(config, data) -> what `probe.tasks` asks, or a UserError if the data cannot feed it."""
    feature_sets: Callable[[ProbeContext, Sequence[ProbeTask]], Iterator[FeatureSet]]
    """feature_sets(context, tasks) yields the features that tasks use, one after the other."""
    places_of: Callable[[Config], dict[str, tuple[str, ...]]] = places_of
    """What scores call the data, and the paths by which others of the name differ."""
    unranked: tuple[str, ...] = ()
    """Tasks whose scores do not tell which of two networks is better."""


def feature_names(config: Config, tasks: Iterable[ProbeTask]) -> tuple[str, ...]:
    """Return the names of the features that tasks use, each once."""
    names = [name for task in tasks for name in task.features or config.probe.features]
    return tuple(dict.fromkeys(names))


def run_probes(context: ProbeContext, tasks: Sequence[ProbeTask], probes: Probes) -> list[Score]:
    """Ask all tasks of each feature set in turn, and print and return the scores.

    Only one feature set is held at a time, and a score is recorded as soon as it is found.
    """
    begin, config, step = time.perf_counter(), context.config, context.step
    found: dict[str, list[Score]] = {task.name: [] for task in tasks}
    seconds = dict.fromkeys(found, 0.0)
    for task in tasks:
        task.record(context.workdir / "probes")
    for features in probes.feature_sets(context, tasks):
        for task in tasks:
            if features.name not in (task.features or config.probe.features):
                continue
            raise_if_stopped()
            start = time.perf_counter()
            for score in task.answer(context, features):
                found[task.name].append(score._replace(seed=config.seed, step=step))
                write_scores(context.workdir, found[task.name][-1:])
            seconds[task.name] += time.perf_counter() - start
        del features  # before the next ones are made
    order = feature_names(config, tasks)
    for name, scores in found.items():
        if scores:
            print(f"probe of {name} at step {step:,}, {seconds[name]:.0f} s")
            print_scores(sorted(scores, key=lambda one: (one.data, order.index(one.features))))
    print(f"all probes took {time.perf_counter() - begin:.0f} s")
    return [score for scores in found.values() for score in scores]


@contextlib.contextmanager
def kept_until_done(workdir: pathlib.Path, step: int) -> Iterator[FolderOf]:
    """Yield folder_of(network) for what a run trains on labels; deleted when all have answered.

    A stop in one network loses none of those before it. Networks of other commands stay.
    """
    folder, asked = workdir / "probes" / f"networks-{step}", set()

    def folder_of(network: str) -> pathlib.Path:
        asked.add(folder / network)
        return folder / network

    yield folder_of
    for network in asked:
        shutil.rmtree(network, ignore_errors=True)
    with contextlib.suppress(OSError):  # not there, or others are in it
        folder.rmdir()


def count_labels(labels: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return how often each label occurs; those that are missing, -1, do not count.

    >>> count_labels(np.array([1, -1, 1]), ["a", "b", "c"])
    array([0, 2, 0])
    """
    return np.bincount(labels[labels >= 0], minlength=len(names))


def check_known(
    train: np.ndarray, test: np.ndarray, names: Sequence[str], items: str, advice: str
) -> None:
    """Check that test labels, counted, are among those trained on, and print how many are not."""
    unknown = np.where(train > 0, 0, test)
    number, total = int(unknown.sum()), int(test.sum())
    if number == total:
        raise UserError(
            f"no label of the {total:,} test {items} ({name_some(names, test)}) is one of those to "
            f"train on ({name_some(names, train)}): {advice}"
        )
    if number:
        print(
            f"{number:,} of {total:,} test {items} have labels that are not trained on "
            f"({name_some(names, unknown)}): probes cannot know them"
        )


def name_some(names: Sequence[str], counts: np.ndarray) -> str:
    """Return the first names that occur, and how many more there are.

    >>> name_some("abcdefgh", np.array([1, 0, 2, 3, 4, 5, 6, 7]))
    'a, c, d, e, f and 2 more'
    """
    found = [names[i] for i in np.flatnonzero(counts).tolist()]
    more = len(found) - MOST_NAMED
    return ", ".join(found[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
