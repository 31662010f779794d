"""The cells of a sweep: what --grid, --cell and --seeds mean, checked before anything starts."""

import hashlib
import itertools
import pathlib
import re
import runpy
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cpc.types import UserError
from experiments.command.config import Config, parse_settings

#: A directory's name may have 255 bytes.
MAX_NAME = 180


class Cell(NamedTuple):
    """One run of a sweep."""

    name: str
    """Also its directory's."""
    settings: dict[str, Any]
    """Keys of the config with values other than those of the base."""


def make_cells(
    config: Config, grids: Sequence[str], singles: Sequence[str], num_seeds: int | None
) -> list[Cell]:
    """Return the product of all grids, then the single cells; each with every seed.

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
            raise UserError(f"--seeds is {num_seeds}: it is a number of seeds, 1 or more")
        if any("seed" in cell.settings for cell in cells):
            raise UserError("seed is given beside --seeds: leave one of the two out")
        cells = [
            Cell(f"{cell.name},seed={seed}", {**cell.settings, "seed": seed})
            for cell in cells
            for seed in range(config.seed, config.seed + num_seeds)
        ]
    for name, count in Counter(cell.name for cell in cells).items():
        if count > 1:
            raise UserError(
                f"two cells have the name {name}: leave one out, or name it as in "
                "--cell 'name: key=value'"
            )
    return cells


def read_file(path: str) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Return the axes and the named cells of a Python file that defines GRID, CELLS or both."""
    try:
        found = runpy.run_path(str(pathlib.Path(path).expanduser()))
    except Exception as error:
        raise UserError(f"--grid {path} cannot be run ({type(error).__name__}: {error})") from error
    grid, cells = (found.get(name, {}) for name in ("GRID", "CELLS"))
    if not (isinstance(grid, dict) and isinstance(cells, dict) and (grid or cells)):
        raise UserError(
            f"--grid {path} defines no cells: set GRID = {{'model.width': [8, 16]}} or "
            "CELLS = {'name': {'model.width': 8}}"
        )
    return [*grid.items()], [(name, [*settings.items()]) for name, settings in cells.items()]


def parse_grid(text: str) -> tuple[str, list[str]]:
    """Return a key with its values, of "config.model.width=8,16" or of "model.width=8,16"."""
    key, equals, values = plain_key(text.strip()).partition("=")
    if not equals:
        raise UserError(f"--grid {text!r} has no values: write --grid config.key=value,value")
    return key, [value.strip() for value in values.split(",")]


def parse_single(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return name and settings of "name: key=value key=value"; both may be empty."""
    name, colon, rest = text.partition(":")
    if not colon or "=" in name:
        name, rest = "", text
    elif not plain_name(name):
        raise UserError(f"--cell {text!r} has no letter or digit in its name: give it one")
    settings = [plain_key(part).partition("=") for part in rest.split()]
    for key, equals, _ in settings:
        if not equals:
            raise UserError(
                f"--cell {text!r} has {key!r}, which sets nothing: write key=value, and a name "
                "before a colon"
            )
    return name, [(key, value) for key, _, value in settings]


def plain_key(text: str) -> str:
    """Return a setting without the beginning of a flag."""
    return text.removeprefix("--").removeprefix("config.")


def make_cell(config: Config, name: str, given: Sequence[tuple[str, Any]]) -> Cell:
    """Return a cell with values of the config's types, named by its settings if it has no name."""
    no_key_twice([key for key, _ in given], f"the cell {name}")
    settings = parse_settings(config, [f"--config.{key}={flag_text(v)}" for key, v in given])
    return Cell(plain_name(name) or name_of(settings), settings)


def no_key_twice(keys: list[str], where: str) -> None:
    """Check that each key gets its value once."""
    for key, count in Counter(keys).items():
        if count > 1:
            raise UserError(f"{where} has {key} twice: give all its values once")


def name_of(settings: Mapping[str, Any]) -> str:
    """Return the name of a cell by its settings, fit for a directory.

    >>> name_of({"optim.learning_rate": 1e-3, "model.directions": ("down", "up")})
    'optim.learning_rate=0.001,model.directions=down+up'
    """
    texts = {key: plain_text(flag_text(value)) or "empty" for key, value in settings.items()}
    name = ",".join(f"{key}={text}" for key, text in texts.items())
    if len(name) > MAX_NAME:
        name = f"{name[: MAX_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return name or "base"


def plain_name(name: str) -> str:
    """Return the name of a cell as that of its directory, "" if nothing is left."""
    return plain_text(name).lstrip(".-")[:MAX_NAME]


def plain_text(text: str) -> str:
    """Return a text without what is special in a directory's name or to a shell."""
    text = re.sub(r"['\"()\[\]]", "", text.strip()).rstrip(",").replace(", ", "+")
    return re.sub(r"[^\w.+=,-]+", "_", text)


def flag_text(value: Any) -> str:
    """Return a value as a flag of the command line takes it."""
    return value if isinstance(value, str) else repr(value)
