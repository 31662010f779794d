"""Successive halving: all cells for few steps, the best of them for more.

Jamieson and Talwalkar (2016), "Non-stochastic best arm identification and hyperparameter
optimization". A round trains its cells from their first step, because a schedule of the learning
rate that is cut short has not come to its end.
"""

import pathlib
from collections.abc import Sequence

import numpy as np

from cpc.results import Score, read_scores, show_value
from cpc.types import UserError
from experiments import status
from experiments.command.config import Config
from experiments.sweep.cells import Cell

#: A round has a third of the cells of the one before, for three times the steps: as much work.
FACTOR = 3
#: Tasks without a score of each of the features, and one whose score, the bitrate of codes, is
#: least if all collapse into one.
UNRANKED = ("fine_tuned", "supervised", "neighbours", "units", "codes")
#: Learned features; on baselines all cells tie.
LEARNED = ("c", "z")


def check_rank_by(config: Config, rank_by: str | None) -> tuple[str, str]:
    """Return the task and the features whose score ranks cells."""
    probe = config.get("probe", {})
    features = probe.get("features", ())
    tasks = [task for task in probe.get("tasks", ()) if task not in UNRANKED]
    learned = [name for name in features if name in LEARNED]
    if not tasks or not features or not (rank_by or learned):
        raise UserError(
            "--rounds ranks cells by the scores of their probes, of c or z unless --rank-by names "
            "others, and this config has none: set probe.tasks and probe.features, or leave "
            "--rounds out"
        )
    usual = f"{tasks[0]}/{[*learned, *features][0]}"
    task, _, name = (rank_by or usual).partition("/")
    if task not in tasks or name not in features:
        raise UserError(
            f"--rank-by is {rank_by}: name one of probe.tasks ({', '.join(tasks)}) and one of "
            f"probe.features ({', '.join(features)}), such as {usual}"
        )
    return task, name


def shorten(config: Config, cells: Sequence[Cell], rounds_left: int) -> list[Cell]:
    """Return the cells with the steps, and under the names, that they have in a round.

    >>> from ml_collections import ConfigDict
    >>> shorten(ConfigDict({"num_steps": 900}), [Cell("wide", {"model.width": 8})], 2)
    [Cell(name='wide,num_steps=100', settings={'model.width': 8, 'num_steps': 100})]
    """
    made = []
    for cell in cells:
        steps = -(-cell.settings.get("num_steps", config.num_steps) // FACTOR**rounds_left)
        made.append(Cell(f"{cell.name},num_steps={steps}", {**cell.settings, "num_steps": steps}))
    return made


def keep_best(
    cells: Sequence[Cell], found: Sequence[Sequence[Score]], task: str, features: str
) -> tuple[list[Cell], list[str]]:
    """Return the cells that go on, by the scores of each, and a line about each that was ranked.

    All are ranked by one unit, method and metric: the first recorded, a linear probe before others.
    Cells that differ in nothing but the seed are one, with the mean of their scores; so are several
    data sets and numbers of labels. A cell without all scores that others have does not go on: it
    failed before the sets on which it would be worst.
    """
    recorded = [score for scores in found for score in scores]
    if not recorded:
        raise UserError(f"no cell has a score of {task} for {features}, so none can go on")
    first = min(recorded, key=lambda score: score.method != "linear")
    values = {
        cell.name: [score.value for score in scores if compared_by(score) == compared_by(first)]
        for cell, scores in zip(cells, found, strict=True)
    }
    groups: dict[str, list[str]] = {}
    for cell in cells:
        own = {key: value for key, value in cell.settings.items() if key != "seed"}
        groups.setdefault(repr(sorted(own.items())), []).append(cell.name)
    most = max(map(len, values.values()))
    means = {
        group: float(np.mean([np.mean(values[name]) for name in names]))
        for group, names in groups.items()
        if all(len(values[name]) == most for name in names)
    }
    if not means:
        raise UserError(
            f"no cell has all scores of {task} for {features} with each of its seeds, so none can "
            "go on: give the same command again, which tries again what failed"
        )
    ranked = sorted(means, key=means.__getitem__, reverse=first.higher_is_better)
    best = ranked[: -(-len(groups) // FACTOR)]
    lines = [
        f"{'goes on' if group in best else 'ends'}: {groups[group][0]}  "
        f"{task} of {features}, {first.metric} {show_value(means[group], first.metric)}"
        for group in ranked
    ]
    lines += [
        f"ends: {name}  {task} of {features}, {len(own)} of {most} scores: it failed"
        for name, own in values.items()
        if 0 < len(own) < most
    ]
    kept = {name for group in best for name in groups[group]}
    return [cell for cell in cells if cell.name in kept], lines


def last_scores(folder: pathlib.Path, task: str, features: str) -> list[Score]:
    """Return a run's scores of a task at its last step; none before that step."""
    num_steps = status.read(folder / "config.json").get("num_steps")
    return [
        score
        for score in read_scores(folder)
        if (score.step, score.features) == (num_steps, features)
        and task in (score.task.lower(), score.method)
    ]


def compared_by(score: Score) -> tuple[str, str, str]:
    """Return the properties that two scores share if they can be compared."""
    return score.unit, score.method, score.metric
