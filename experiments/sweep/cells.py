"""The cells of a sweep, made from --grid, --cell and --seeds, and their selection in rounds.

Successive halving trains all cells for few steps and the best of them for more: Jamieson and
Talwalkar (2016), "Non-stochastic best arm identification and hyperparameter optimization". Each
round trains its cells from step 0, since the schedule of the learning rate depends on num_steps.
"""

import hashlib
import itertools
import pathlib
import re
import runpy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cpc import results
from cpc.results import show_value
from cpc.types import UserError
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
        if text.endswith(".py"):
            grid, own_cells = read_file(text)
            axes += grid.items()
            named += own_cells.items()
        else:
            key, values = parse_setting(text)
            axes.append((key, [value.strip() for value in values.split(",")]))
    named += [parse_single(text) for text in singles]
    grid = to_dict(axes, "--grid")
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    given = [*(("", point) for point in points if grid or not named), *named]
    cells = [make_cell(config, name, settings) for name, settings in given]
    if num_seeds is not None:
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


def read_file(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
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
    return grid, cells


def parse_single(text: str) -> tuple[str, dict[str, str]]:
    """Parse "name: key=value key=value" into a name and settings, both possibly empty."""
    name, colon, rest = text.partition(":")
    if not colon or "=" in name:
        name, rest = "", text
    return name, to_dict(map(parse_setting, rest.split()), f"--cell {text!r}")


def parse_setting(text: str) -> tuple[str, str]:
    """Split "key=value", "config.key=value" or "--config.key=value"."""
    key, equals, value = text.strip().removeprefix("--").removeprefix("config.").partition("=")
    if not equals:
        raise UserError(
            f"{text!r} in --grid or --cell is not a setting: write key=value,value in --grid, "
            "key=value in --cell, and the name of a cell before a colon"
        )
    return key, value


def to_dict(pairs: Iterable[tuple[str, Any]], where: str) -> dict[str, Any]:
    """Return settings as a dict. Raises UserError if a key occurs twice."""
    settings: dict[str, Any] = {}
    for key, value in pairs:
        if key in settings:
            raise UserError(f"{where} has {key} twice: list all its values once")
        settings[key] = value
    return settings


def make_cell(config: Config, name: str, given: Mapping[str, Any]) -> Cell:
    """Return a cell with values of the config's types, named after its settings by default."""
    flags = [f"--config.{key}={flag_text(value)}" for key, value in given.items()]
    settings = parse_settings(config, flags)
    return Cell(name_of(name, settings), settings)


def name_of(name: str, settings: Mapping[str, Any]) -> str:
    """Return a directory name for a cell: its name or, if it has none, its settings.

    >>> name_of("", {"optim.learning_rate": 1e-3, "model.directions": ("down", "up")})
    'optim.learning_rate=0.001,model.directions=down+up'
    """
    texts = {key: plain_text(flag_text(value)) or "empty" for key, value in settings.items()}
    default = ",".join(f"{key}={text}" for key, text in texts.items()) or "base"
    name = plain_text(name).lstrip(".-") or default
    if len(name) > MAX_NAME:
        name = f"{name[: MAX_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return name


def plain_text(text: str) -> str:
    """Replace characters that are special in directory names or in a shell."""
    text = re.sub(r"['\"()\[\]]", "", text.strip()).rstrip(",").replace(", ", "+")
    return re.sub(r"[^\w.+=,-]+", "_", text)


def flag_text(value: Any) -> str:
    """Format a value for a command-line flag."""
    return value if isinstance(value, str) else repr(value)


#: Each round has a third of the cells and three times the steps, so all rounds take equal work.
FACTOR = 3


def check_rank_by(config: Config, rank_by: str | None) -> tuple[str, str]:
    """Validate --rank-by, and return the task and features whose score ranks cells.

    By default, learned features rank cells, since baselines do not depend on the cell.
    """
    choices = []
    if "probe" in config:
        unranked = CONTRASTIVE[config.kind].PROBES.unranked
        tasks = [task for task in config.probe.tasks if task not in unranked]
        choices = [f"{task}/{name}" for task in tasks for name in config.probe.features]
    learned = (one for one in choices if one.endswith(("/c", "/z")))
    rank_by = rank_by or next(learned, "no probe of c or z")
    if rank_by not in choices:
        raise UserError(
            f"--rounds ranks cells by {rank_by}, but probe.tasks and probe.features have "
            f"{', '.join(choices) or 'no score that ranks'}: set --rank-by or these keys, or "
            "remove --rounds"
        )
    task, _, name = rank_by.partition("/")
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
    cells: Sequence[Cell], folders: Sequence[pathlib.Path], task: str, features: str
) -> tuple[list[Cell], list[str]]:
    """Return the best cells of a round, and a line about each ranked or failed cell.

    Cells are ranked by scores with the unit, method and metric of the first linear probe, or else
    of the first score. Cells that differ only in the seed are averaged, as are several data sets
    and numbers of labels. Cells of which a seed lacks scores are dropped, since it may have failed
    before its worst data sets were scored.
    """
    settings = [repr(sorted({**cell.settings, "seed": 0}.items())) for cell in cells]
    num_seeds = {cell.name: settings.count(own) for cell, own in zip(cells, settings, strict=True)}
    runs = [
        (cell.name, results.read_run(folder))
        for cell, folder in zip(cells, folders, strict=True)
        if (folder / "config.json").exists()
    ]
    groups = results.group_by_seed(runs)
    scores = results.compare(groups)
    is_task = (scores.task.str.lower() == task) | (scores.method == task)
    scores = scores[is_task & (scores.features == features) & scores.at_end.astype(bool)]
    if scores.empty:
        raise UserError(f"no cell has scores of {task} for {features} to rank: check their logs")
    first = scores.loc[(scores.method == "linear").idxmax()]
    kind = ["unit", "method", "metric"]
    found = scores[(scores[kind] == first[kind]).all(axis=1)].groupby("cell", sort=False)
    counts = found.by_seed.agg(lambda values: sum(map(len, values)))
    wanted = {group.name: num_seeds[group.runs[0][0]] * found.size().max() for group in groups}
    means = found.value.mean()[counts == counts.index.map(wanted)]
    if means.empty:
        raise UserError(
            f"no cell has scores of {task} for {features} with every seed: repeat the command"
        )
    ranked = means.sort_values(ascending=not first.higher_is_better, kind="stable")
    best = ranked.index[: -(-len({*settings}) // FACTOR)]
    texts = {
        name: f"{first.metric} {show_value(mean, first.metric)}" for name, mean in ranked.items()
    }
    for name, count in counts.drop(ranked.index).items():
        texts[name] = f"{count} of {wanted[name]} scores: it failed"
    lines = [
        f"{'continues' if name in best else 'ends'}: {name}  {task} of {features}, {text}"
        for name, text in texts.items()
    ]
    kept = {name for group in groups if group.name in best for name, _ in group.runs}
    return [cell for cell in cells if cell.name in kept], lines
