"""What configs of several kinds check, and where their data are."""

import pathlib
from collections.abc import Sequence
from typing import Any

from cpc.files import flatten
from cpc.types import UserError
from experiments.command.config import Config

#: Values of `data.source` that read files of one's own, which are known by where they are.
OWN = ("folder", "files")


def reject(config: Config, *mistakes: tuple[Any, str, str]) -> None:
    """Raise a UserError for the first mistake that a config makes.

    Args:
        config: the config.
        mistakes: for each, whether it is made, its keys, and what is wrong and what to do.

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
    """Check norms, and when supervised networks are trained."""
    probe, is_batch = config.probe, config.model.norm == "batch"
    trained = [f"probe.{key}" for key in ("tasks", "features") if "supervised" in probe[key]]
    reject(config,
        (is_batch and config.optim.name == "schedule_free", "model.norm optim.name",
         "an average of the parameters is evaluated, and the statistics are of others; choose "
         "another model.norm, or another optimizer"),
        (is_batch and config.optim.accumulate > 1, "model.norm optim.accumulate",
         "batch norm would see a part of the batch at a time; choose another model.norm, or set "
         "optim.accumulate to 1"),
        (probe.every and trained, " ".join(["probe.every", *trained]),
         "the supervised network would be trained anew each time, with the same result; set "
         "probe.every to 0, or leave supervised out"),
    )  # fmt: skip


def check_probes(config: Config) -> None:
    """Check that probes have features."""
    reject(config,
        (config.probe.tasks and not config.probe.features, "probe.features",
         "name one or more, or set probe.tasks to ()"),
    )  # fmt: skip


def check_signals(config: Config) -> None:
    """Check the lists of files of signals, and that these have as many frames as labels."""
    data, is_valid = config.data, config.model.padding == "valid"
    reject(config,
        (bool(data.train_list) != bool(data.test_list),
         "data.train_list data.test_list", "set both, or neither"),
        (config.probe.tasks and is_valid, "model.padding",
         "there are fewer latents than labels; probe with causal or same padding, or set "
         "probe.tasks to ()"),
    )  # fmt: skip


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


def name_of(config: Config, name: str = "") -> str:
    """Return what scores call the data: the name of the folder, of the set, or of the source."""
    options = config.data
    if options.source in OWN:
        return pathlib.Path(options.path).expanduser().resolve().name
    return name or options.source


def places_of(config: Config, name: str = "") -> dict[str, tuple[str, ...]]:
    """Return what scores call the data, such as the name of their set, and where they are."""
    return {name_of(config, name): (config.data.path if config.data.source in OWN else "",)}
