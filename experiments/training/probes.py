"""Functions that probe features of all contrastive kinds and record each score immediately."""

import contextlib
import pathlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from cpc.models import Model
from cpc.results import Score, print_scores, write_scores
from cpc.train import raise_if_stopped
from cpc.types import UserError
from experiments.command.config import Config
from experiments.training.checks import data_locations

#: Maximum number of labels listed in a message.
MAX_NAMES = 5
#: folder_of(network) -> folder for the checkpoints of a network trained on labels.
FolderOf: TypeAlias = Callable[[str], pathlib.Path]


class ProbeContext(NamedTuple):
    """The config, data, model and variables of a run that is probed at one step."""

    config: Config
    data: Any
    model: Model
    variables: Any
    workdir: pathlib.Path
    step: int
    folder_of: FolderOf

    def untrained(self, x: Any) -> Any:
        """Return the variables of an untrained network for inputs like `x`."""
        return self.model.init(jax.random.key(self.config.seed + 1), {"x": x})


class FeatureSet(NamedTuple):
    """Named features, computed once for all tasks."""

    name: str
    values: Any
    """Arrays, or a function that computes them on demand, depending on the kind."""


class ProbeTask(NamedTuple):
    """A measurement on features: a task in `probe.tasks`, or a part of one."""

    name: str
    """Name of the task in `probe.tasks`."""
    answer: Callable[[ProbeContext, FeatureSet], Iterable[Score]]
    """Yields scores, or nothing if the task only writes a file or cannot use these features."""
    features: tuple[str, ...] = ()
    """Names of the features that the task uses, or () to use all of `probe.features`."""
    parts: tuple[Any, ...] = ()
    """Parts of the data to embed, for kinds that only compute the features that tasks need."""
    record: Callable[[pathlib.Path], object] = lambda folder: None
    """record(folder) writes the items to compare and prints which items are omitted."""


class Probes(NamedTuple):
    """The probes of a kind of data."""

    tasks: Callable[[Config, Any], list[ProbeTask]]
    """tasks(config, data) -> tasks of `probe.tasks`. Raises UserError if labels are missing."""
    feature_sets: Callable[[ProbeContext, Sequence[ProbeTask]], Iterator[FeatureSet]]
    """feature_sets(context, tasks) yields the features that tasks use, one set at a time."""
    data_locations: Callable[[Config], dict[str, tuple[str, ...]]] = data_locations
    """data_locations(config) -> {name of the data in scores: paths that identify them}."""
    unranked: tuple[str, ...] = ()
    """Tasks whose scores do not rank networks."""


def lacks(task: str, problem: str, advice: str) -> UserError:
    """Return the error for data without the labels that a task needs.

    >>> lacks("abx", "no phone occurs twice", "label more")
    UserError('no phone occurs twice: label more, or remove abx from probe.tasks')
    """
    return UserError(f"{problem}: {advice}, or remove {task} from probe.tasks")


def feature_names(config: Config, tasks: Iterable[ProbeTask]) -> tuple[str, ...]:
    """Return the distinct feature names that tasks use, in order of first use."""
    names = [name for task in tasks for name in task.features or config.probe.features]
    return tuple(dict.fromkeys(names))


def run_probes(context: ProbeContext, tasks: Sequence[ProbeTask], probes: Probes) -> list[Score]:
    """Run all tasks on each feature set in turn, then print and return the scores.

    Only one feature set is in memory at a time, and each score is recorded immediately.
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
        del features  # free memory before the next set is computed
    order = feature_names(config, tasks)
    for name, scores in found.items():
        if scores:
            print(f"probe of {name} at step {step:,}, {seconds[name]:.0f} s")
            print_scores(sorted(scores, key=lambda one: (one.data, order.index(one.features))))
    print(f"all probes took {time.perf_counter() - begin:.0f} s")
    return [score for scores in found.values() for score in scores]


@contextlib.contextmanager
def scratch_checkpoints(workdir: pathlib.Path, step: int) -> Iterator[FolderOf]:
    """Yield folder_of(network), and delete the folders that it returned if all probes complete.

    An interruption keeps the checkpoints of all networks. Folders of other commands are kept.
    """
    root, folders = workdir / "probes" / f"networks-{step}", set()

    def folder_of(network: str) -> pathlib.Path:
        folders.add(root / network)
        return root / network

    yield folder_of
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # missing, or in use by another command
        root.rmdir()


def count_labels(labels: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Count the occurrences of each label, ignoring missing labels (-1).

    >>> count_labels(np.array([1, -1, 1]), ["a", "b", "c"])
    array([0, 2, 0])
    """
    return np.bincount(labels[labels >= 0], minlength=len(names))


def check_known(
    train: np.ndarray, test: np.ndarray, names: Sequence[str], items: str, advice: str
) -> None:
    """Check that some test labels occur in training, and print how many do not.

    `train` and `test` come from `count_labels`, `items` is a plural noun for labelled items, and
    `advice` is how to fix the error.
    """
    unknown = np.where(train > 0, 0, test)
    number, total = int(unknown.sum()), int(test.sum())
    if number == total:
        raise UserError(
            f"no label of the {total:,} test {items} occurs in training (got "
            f"{format_names(names, test)}; training has {format_names(names, train)}): {advice}"
        )
    if number:
        print(
            f"{number:,} of {total:,} test {items} have labels that do not occur in training "
            f"({format_names(names, unknown)}): probes cannot predict them"
        )


def format_names(names: Sequence[str], counts: np.ndarray) -> str:
    """List the first names with a nonzero count, and the number of other such names.

    >>> format_names("abcdefgh", np.array([1, 0, 2, 3, 4, 5, 6, 7]))
    'a, c, d, e, f and 2 more'
    """
    found = [names[i] for i in np.flatnonzero(counts).tolist()]
    more = len(found) - MAX_NAMES
    return ", ".join(found[:MAX_NAMES]) + (f" and {more:,} more" if more > 0 else "")
