"""Where the data of a config are, and what scores call them."""

import pathlib
from collections.abc import Sequence

from cpc.types import UserError
from experiments.command.config import Config
from experiments.training.checks import reject

#: Values of `data.source` that read files of one's own, which are known by where they are.
OWN = ("folder", "files")


def data_root(config: Config) -> pathlib.Path:
    """Return the file or folder that `data.path` names."""
    reject(config,
        (not config.data.path, "data.source data.path", "set data.path to its files"),
    )  # fmt: skip
    return pathlib.Path(config.data.path).expanduser()


def group_files(level: int, names: Sequence[str]) -> tuple[str, ...]:
    """Return the group of each file: the name of its folder at a level; the file itself for 0.

    >>> group_files(1, ["ann/a/1", "bob/2"]), group_files(2, ["rest/ann/1", "move/ann/1"])
    (('ann', 'bob'), ('ann', 'ann'))
    """
    if not level:
        return tuple(names)
    for name in names:
        if name.count("/") < level:
            raise UserError(
                f"{name} is below {name.count('/')} folders of data.path, and data.group_level is "
                f"{level}: lower it, or move the file"
            )
    return tuple(name.split("/")[level - 1] for name in names)


def name_of(config: Config) -> str:
    """Return what scores call the data: the name of the folder, of the set, or of the source."""
    options = config.data
    if options.source in OWN:
        return pathlib.Path(options.path).expanduser().resolve().name
    return options.get("name") or options.source


def places_of(config: Config) -> dict[str, tuple[str, ...]]:
    """Return what scores call the data, and where they are."""
    return {name_of(config): (config.data.path if config.data.source in OWN else "",)}
