"""The cells of a sweep, made from --grid, --cell and --seeds, and their selection in rounds.

Successive halving trains all cells for few steps and the best of them for more: Jamieson and
Talwalkar (2016), "Non-stochastic best arm identification and hyperparameter optimization". Each
round trains its cells from step 0, since the schedule of the learning rate depends on num_steps.
"""

import hashlib
import itertools
import operator
import pathlib
import re
import runpy
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cpc.results import Score, read_scores, show_value
from cpc.types import UserError
from experiments import status
from experiments.command.config import Config, parse_settings
from experiments.kinds.registry import CONTRASTIVE

#: Maximum length of a cell's name, since file systems limit directory names to 255 bytes.
MAX_NAME = 180


class Cell(NamedTuple):
    """A run of a sweep: its directory name, and config keys with new values."""

    name: str
    settings: dict[str, Any]


def make_cells(
    config: Config, grids: Sequence[str], singles: Sequence[str], num_seeds: int | None
) -> list[Cell]:
    """Return the product of all grids, then the single cells, each with all seeds.

    >>> from ml_collections import ConfigDict
    >>> config = ConfigDict({"seed": 0, "model": {"width": 8, "norm": "none"}})
    >>> cells = make_cells(config, ["model.width=8,16"], ["norm: model.norm=layer"], 2)
    >>> [cell.name for cell in cells[2:]]
    ['model.width=16,seed=0', 'model.width=16,seed=1', 'norm,seed=0', 'norm,seed=1']
    """
    axes, named = [], []
    for text in grids:
        own_axes, own_cells = read_file(text) if text.endswith(".py") else ([parse_grid(text)], [])
        axes += own_axes
        named += own_cells
    named += [parse_single(text) for text in singles]
    no_key_twice([key for key, _ in axes], "--grid")
    points = itertools.product(*([(key, value) for value in values] for key, values in axes))
    given = [("", point) for point in points] if axes or not named else []
    cells = [make_cell(config, name, settings) for name, settings in [*given, *named]]
    if num_seeds is not None:
        if num_seeds < 1:
            raise UserError(f"--seeds must be at least 1 (got {num_seeds})")
        if any("seed" in cell.settings for cell in cells):
            raise UserError("both --seeds and the key seed are set: remove --seeds or the key")
        cells = [
            Cell(f"{cell.name},seed={seed}", {**cell.settings, "seed": seed})
            for cell in cells
            for seed in range(config.seed, config.seed + num_seeds)
        ]
    if twice := [n for n, count in Counter(cell.name for cell in cells).items() if count > 1]:
        raise UserError(f"two cells have the name {twice[0]}: name one with --cell 'name: key=...'")
    return cells


def read_file(path: str) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Return the axes and the named cells of a Python file that defines GRID, CELLS or both."""
    try:
        found = runpy.run_path(str(pathlib.Path(path).expanduser()))
    except Exception as error:
        raise UserError(
            f"--grid {path} fails ({type(error).__name__}: {error}): correct the file"
        ) from error
    grid, cells = (found.get(name, {}) for name in ("GRID", "CELLS"))
    if not (isinstance(grid, dict) and isinstance(cells, dict) and (grid or cells)):
        raise UserError(
            f"--grid {path} defines no cells: set GRID = {{'model.width': [8, 16]}} or "
            "CELLS = {'name': {'model.width': 8}}"
        )
    return [*grid.items()], [(name, [*settings.items()]) for name, settings in cells.items()]


def parse_grid(text: str) -> tuple[str, list[str]]:
    """Parse "config.model.width=8,16" or "model.width=8,16" into a key and its values."""
    key, equals, values = plain_key(text.strip()).partition("=")
    if not equals:
        raise UserError(f"--grid {text!r} has no values: write --grid config.key=value,value")
    return key, [value.strip() for value in values.split(",")]


def parse_single(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Parse "name: key=value key=value" into a name and settings, both possibly empty."""
    name, colon, rest = text.partition(":")
    if not colon or "=" in name:
        name, rest = "", text
    elif not plain_name(name):
        raise UserError(f"--cell {text!r} needs a letter or digit in its name: rename the cell")
    settings = [plain_key(part).partition("=") for part in rest.split()]
    if wrong := [key for key, equals, _ in settings if not equals]:
        raise UserError(
            f"--cell {text!r} contains {wrong[0]!r}, which is not a setting: write key=value, and "
            "a name before a colon"
        )
    return name, [(key, value) for key, _, value in settings]


def plain_key(text: str) -> str:
    """Remove "--" and "config." from the beginning of a setting."""
    return text.removeprefix("--").removeprefix("config.")


def make_cell(config: Config, name: str, given: Sequence[tuple[str, Any]]) -> Cell:
    """Return a cell with values of the config's types, named after its settings by default."""
    no_key_twice([key for key, _ in given], f"the cell {name}")
    settings = parse_settings(config, [f"--config.{key}={flag_text(v)}" for key, v in given])
    return Cell(plain_name(name) or name_of(settings), settings)


def no_key_twice(keys: list[str], where: str) -> None:
    """Raise UserError if a key occurs twice."""
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise UserError(f"{where} has {twice[0]} twice: list all its values once")


def name_of(settings: Mapping[str, Any]) -> str:
    """Return a directory name for a cell with these settings.

    >>> name_of({"optim.learning_rate": 1e-3, "model.directions": ("down", "up")})
    'optim.learning_rate=0.001,model.directions=down+up'
    """
    texts = {key: plain_text(flag_text(value)) or "empty" for key, value in settings.items()}
    name = ",".join(f"{key}={text}" for key, text in texts.items())
    if len(name) > MAX_NAME:
        name = f"{name[: MAX_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return name or "base"


def plain_name(name: str) -> str:
    """Return a directory name for a named cell, or "" if no valid character remains."""
    return plain_text(name).lstrip(".-")[:MAX_NAME]


def plain_text(text: str) -> str:
    """Replace characters that are special in directory names or in a shell."""
    text = re.sub(r"['\"()\[\]]", "", text.strip()).rstrip(",").replace(", ", "+")
    return re.sub(r"[^\w.+=,-]+", "_", text)


def flag_text(value: Any) -> str:
    """Format a value for a command-line flag."""
    return value if isinstance(value, str) else repr(value)


#: Each round has a third of the cells and three times the steps, so all rounds take equal work.
FACTOR = 3
#: Features that rank cells by default, since baselines do not depend on the cell.
LEARNED = ("c", "z")


def check_rank_by(config: Config, rank_by: str | None) -> tuple[str, str]:
    """Parse and validate --rank-by, and return the task and features whose score ranks cells."""
    features, tasks = (), []
    if "probe" in config:
        features, unranked = config.probe.features, CONTRASTIVE[config.kind].PROBES.unranked
        tasks = [task for task in config.probe.tasks if task not in unranked]
    learned = [name for name in features if name in LEARNED]
    if not tasks or not features or not (rank_by or learned):
        raise UserError(
            "--rounds ranks cells by probes, by default of c or z, but the config has none: set "
            "probe.tasks and probe.features, or remove --rounds"
        )
    default = f"{tasks[0]}/{[*learned, *features][0]}"
    task, _, name = (rank_by or default).partition("/")
    if task not in tasks or name not in features:
        raise UserError(
            f"--rank-by must be one of probe.tasks ({', '.join(tasks)}) and one of probe.features "
            f"({', '.join(features)}), such as {default} (got {rank_by})"
        )
    return task, name


def shorten(config: Config, cells: Sequence[Cell], rounds_left: int) -> list[Cell]:
    """Return cells with a round's num_steps, in their settings and in their names.

    >>> from ml_collections import ConfigDict
    >>> shorten(ConfigDict({"num_steps": 900}), [Cell("wide", {"model.width": 8})], 2)
    [Cell(name='wide,num_steps=100', settings={'model.width': 8, 'num_steps': 100})]
    """
    made = []
    for name, settings in cells:
        steps = -(-settings.get("num_steps", config.num_steps) // FACTOR**rounds_left)
        made.append(Cell(f"{name},num_steps={steps}", {**settings, "num_steps": steps}))
    return made


def keep_best(
    cells: Sequence[Cell], found: Sequence[Sequence[Score]], task: str, features: str
) -> tuple[list[Cell], list[str]]:
    """Return the best cells of a round and a line about each ranked cell.

    Cells are ranked by scores with the unit, method and metric of the first linear probe, or else
    of the first score. Cells that differ only in the seed are averaged, as are several data sets
    and numbers of labels. A cell with fewer scores than others is dropped, since it may have failed
    before its worst data sets were scored.
    """
    recorded = [score for scores in found for score in scores]
    if not recorded:
        raise UserError(f"no cell has scores of {task} for {features} to rank: check their logs")
    first = min(recorded, key=lambda score: score.method != "linear")
    compared_by = operator.attrgetter("unit", "method", "metric")
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
            f"no cell has scores of {task} for {features} with every seed: repeat the command"
        )
    ranked = sorted(means, key=means.__getitem__, reverse=first.higher_is_better)
    best = ranked[: -(-len(groups) // FACTOR)]
    lines = [
        f"{'continues' if group in best else 'ends'}: {groups[group][0]}  "
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
    """Return a task's scores at the last step of a run, or [] if the run is unfinished."""
    num_steps = status.read(folder / "config.json").get("num_steps")
    return [
        score
        for score in read_scores(folder)
        if (score.step, score.features) == (num_steps, features)
        and task in (score.task.lower(), score.method)
    ]
