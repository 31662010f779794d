"""The cells of a sweep: what --grid, --cell and --seeds mean, checked before anything starts."""

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from cpc.types import UserError
from experiments.command.config import Config, parse_settings

#: A directory's name may have 255 bytes.
LONGEST_NAME = 180


class Cell(NamedTuple):
    """One run of a sweep."""

    name: str
    """Also its directory's."""
    settings: dict[str, Any]
    """Keys of the config with their values, where they are not those of the base."""


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
    axes = [parse_grid(config, grid) for grid in grids]
    no_key_twice([key for key, _ in axes], "--grid")
    keys, values = [key for key, _ in axes], [values for _, values in axes]
    points = [dict(zip(keys, point, strict=True)) for point in itertools.product(*values)]
    cells = [Cell(name_of(point), point) for point in points] if grids or not singles else []
    cells += [parse_single(config, single) for single in singles]
    if num_seeds is not None:
        if num_seeds < 1:
            raise UserError(f"--seeds is {num_seeds}: it is a number of seeds, 1 or more")
        if any("seed" in cell.settings for cell in cells):
            raise UserError("seed is given beside --seeds: leave one of the two out")
        seeds = range(config.seed, config.seed + num_seeds)
        cells = [
            Cell(f"{cell.name},seed={seed}", {**cell.settings, "seed": seed})
            for cell in cells
            for seed in seeds
        ]
    twice = [name for name, count in Counter(cell.name for cell in cells).items() if count > 1]
    if twice:
        raise UserError(
            f"two cells have the name {twice[0]}: leave one out, or name it as in "
            "--cell 'name: key=value'"
        )
    return cells


def parse_grid(config: Config, text: str) -> tuple[str, list[Any]]:
    """Return a key with its values, of "config.model.width=8,16" or of "model.width=8,16"."""
    key, equals, values = text.strip().removeprefix("--").removeprefix("config.").partition("=")
    if not equals:
        raise UserError(f"--grid {text!r} has no values: write --grid config.key=value,value")
    parsed = [parse_setting(config, f"{key}={value}") for value in split(values, ",")]
    return parsed[0][0], [value for _, value in parsed]


def parse_single(config: Config, text: str) -> Cell:
    """Return a cell beside the base.

    Args:
        text: the settings "--config.key=value --config.key=value", or "key=value key=value"; before
            them a name with a colon, if it shall have one; or nothing at all.
    """
    named = re.fullmatch(r"\s*([^=:]*?)\s*:(?:\s+(.*))?", text, re.DOTALL)
    name, rest = (named[1], named[2] or "") if named else ("", text)
    settings: dict[str, Any] = {}
    for part in filter(None, split(rest, " \t\n")):
        if "=" not in part:
            raise UserError(
                f"--cell {text!r} has {part!r}, which sets nothing: write --config.key=value, and "
                "a name before a colon and a space"
            )
        key, value = parse_setting(config, part)
        no_key_twice([*settings, key], f"--cell {text!r}")
        settings[key] = value
    if not name:
        return Cell(name_of(settings), settings)
    plain = plain_name(name).lstrip(".-")[:LONGEST_NAME]
    if not plain:
        raise UserError(f"--cell {text!r} has no letter or digit in its name: give it one")
    return Cell(plain, settings)


def parse_setting(config: Config, text: str) -> tuple[str, Any]:
    """Return key and value of "--config.key=value", or "key=value", as a command reads it."""
    key, _, value = text.removeprefix("--").removeprefix("config.").partition("=")
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]  # as a shell would
    ((key, parsed),) = parse_settings(config, [f"--config.{key}={value}"]).items()
    return key, parsed


def no_key_twice(keys: list[str], where: str) -> None:
    """Check that each key gets its value once."""
    for key, count in Counter(keys).items():
        if count > 1:
            raise UserError(f"{where} has {key} twice: give all its values once")


def split(text: str, separators: str) -> list[str]:
    """Return the parts between separators that stand outside of brackets and quotes.

    >>> split("2,(1, 2),'a,b'", ",")
    ['2', '(1, 2)', "'a,b'"]
    """
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "([{") - (char in ")]}")
            if char in separators and depth == 0:
                parts.append("")
                continue
        parts[-1] += char
    if quote or depth:
        raise UserError(f"{text!r} has a bracket or a quote without its other half")
    return parts


def name_of(settings: dict[str, Any]) -> str:
    """Return the name of a cell by its settings, fit for a directory.

    >>> name_of({"optim.learning_rate": 1e-3, "model.directions": ("down", "up")})
    'optim.learning_rate=0.001,model.directions=down+up'
    """
    name = ",".join(f"{key}={plain_name(flag_text(value))}" for key, value in settings.items())
    if len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return name or "base"


def plain_name(text: str) -> str:
    """Return a text without what a directory's name or a shell would trip over."""
    text = re.sub(r"['\"()\[\]]", "", text.strip()).rstrip(",").replace(", ", "+")
    return re.sub(r"[^\w.+=,-]+", "_", text) or "empty"


def flag_text(value: Any) -> str:
    """Return a value as a flag of the command line takes it."""
    return value if isinstance(value, str) else repr(value)


def differences(recorded: Iterable[Cell], wanted: Iterable[Cell]) -> list[str]:
    """Return how two lists of cells differ, in words."""
    a, b = {cell.name: cell.settings for cell in recorded}, {c.name: c.settings for c in wanted}
    missing, extra = [name for name in a if name not in b], [name for name in b if name not in a]
    other = [name for name in a if name in b and a[name] != b[name]]
    found = (("only there", missing), ("only here", extra), ("other settings", other))
    return [f"{words}: {', '.join(names)}" for words, names in found if names]
