"""Config checks shared by several kinds, and the names and locations of their data."""

import pathlib
from collections.abc import Sequence
from typing import Any

from cpc.files import flatten
from cpc.types import UserError
from experiments.command.config import Config

#: Values of `data.source` that read a user's own files, which are identified by their path.
OWN = ("folder", "files")


def reject(config: Config, *mistakes: tuple[Any, str, str]) -> None:
    """Raise a UserError for the first mistake found in a config.

    Args:
        config: the config.
        mistakes: tuples of a condition, the keys that it concerns, separated by spaces, and the
            problem with its fix.

    >>> from configs.series import get_config
    >>> reject(get_config(), (True, "log_every eval_every", "set eval_every to a multiple"))
    Traceback (most recent call last):
    cpc.types.UserError: log_every is 50 and eval_every is 250: set eval_every to a multiple
    """
    for is_made, keys, advice in mistakes:
        if is_made:
            values = flatten(config)
            given = " and ".join(f"{key} is {values[key]!r}" for key in keys.split())
            raise UserError(f"{given}: {advice}")


def check_shared(config: Config) -> None:
    """Validate `model.norm` and the features and tasks that train a supervised network."""
    probe, is_batch = config.probe, config.model.norm == "batch"
    trained = [f"probe.{key}" for key in ("tasks", "features") if "supervised" in probe[key]]
    reject(config,
        (is_batch and config.optim.name == "schedule_free", "model.norm optim.name",
         "batch statistics do not match the averaged parameters that are evaluated; choose "
         "another model.norm or optim.name"),
        (is_batch and config.optim.accumulate > 1, "model.norm optim.accumulate",
         "batch norm would see one part of the batch at a time; choose another model.norm or set "
         "optim.accumulate to 1"),
        (probe.every and trained, " ".join(["probe.every", *trained]),
         "each evaluation would train the supervised network again, with the same result; set "
         "probe.every to 0 or remove supervised from the list"),
    )  # fmt: skip


def check_probes(config: Config) -> None:
    """Check that a config with probe tasks also has features to probe."""
    reject(config,
        (config.probe.tasks and not config.probe.features, "probe.features",
         "add at least one feature, or set probe.tasks to ()"),
    )  # fmt: skip


def check_signals(config: Config) -> None:
    """Check the file lists, and that `model.padding` gives probes one latent per label."""
    data, is_valid = config.data, config.model.padding == "valid"
    reject(config,
        (bool(data.train_list) != bool(data.test_list),
         "data.train_list data.test_list", "set both or neither"),
        (config.probe.tasks and is_valid, "model.padding",
         "a sequence has fewer latents than labels; set model.padding to causal or same, or set "
         "probe.tasks to ()"),
    )  # fmt: skip


def data_root(config: Config) -> pathlib.Path:
    """Return `data.path` as a path, with ~ expanded."""
    reject(config,
        (not config.data.path, "data.source data.path", "set data.path to your files"),
    )  # fmt: skip
    return pathlib.Path(config.data.path).expanduser()


def group_files(level: int, names: Sequence[str]) -> tuple[str, ...]:
    """Return each file's group, the name of its folder at directory level `level`.

    Level 1 is directly below data.path. At level 0, each file is a group of its own.

    >>> group_files(1, ["ann/a/1", "bob/2"]), group_files(2, ["rest/ann/1", "move/ann/1"])
    (('ann', 'bob'), ('ann', 'ann'))
    """
    if not level:
        return tuple(names)
    for name in names:
        if name.count("/") < level:
            depth = f"{name} is {name.count('/')} folders below data.path"
            raise UserError(f"data.group_level is {level}, but {depth}: lower it or move the file")
    return tuple(name.split("/")[level - 1] for name in names)


def name_of(config: Config) -> str:
    """Return the data's name in score records: a folder, a data set or a source."""
    options = config.data
    source = options.get("source", config.kind)  # a kind may generate its data
    if source in OWN:
        return pathlib.Path(options.path).expanduser().resolve().name
    return options.get("name") or source


def data_locations(config: Config) -> dict[str, tuple[str, ...]]:
    """Return the paths of the data, or the path "" if downloaded, by name in score records."""
    return {name_of(config): (config.data.path if config.data.get("source") in OWN else "",)}
