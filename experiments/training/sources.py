"""Where the data of a config are, and what scores call them."""

import pathlib

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


def name_of(config: Config) -> str:
    """Return what scores call the data: the name of the folder, of the set, or of the source."""
    options = config.data
    if options.source in OWN:
        return pathlib.Path(options.path).expanduser().resolve().name
    return options.get("name") or options.source


def places_of(config: Config) -> dict[str, tuple[str, ...]]:
    """Return what scores call the data, and where they are."""
    return {name_of(config): (config.data.path if config.data.source in OWN else "",)}
