"""A run of one of the protocols: checked, measured, reported."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from configs.information import KEYS
from configs.keys import Keys
from cpc.types import UserError
from experiments.command.config import Config, check_config
from experiments.information import consistency, methods, staircase, tasks
from experiments.training.problem import Work

NAME, ON_ONE_DEVICE = "mutual_information", False


class Protocol(NamedTuple):
    """What is measured, and how."""

    run: Callable[[Config, pathlib.Path, jax.sharding.Mesh], str]
    """run(config, folder, mesh) measures and writes a table; returns the signal that stopped it."""
    check: Callable[[Config], object] = lambda config: None
    """What only it asks of a config."""


PROTOCOLS = {
    "staircase": Protocol(staircase.run, staircase.check),
    "tasks": Protocol(tasks.run),
    "consistency": Protocol(consistency.run, consistency.check),
}


def keys_of(config: Config) -> Keys:
    """Return every key of a config of this protocol.

    Raises:
        UserError: there is no such protocol.
    """
    if config.get("protocol") not in PROTOCOLS:
        raise UserError(
            f"protocol is {config.get('protocol')!r}: choose one of {', '.join(PROTOCOLS)}, as "
            "configs/mi_staircase.py and its neighbors do"
        )
    return KEYS[config.protocol]


def load_data(config: Config, log: Callable[[str], object]) -> None:
    """Return nothing: a protocol makes its own samples."""


def make_work(
    kind: Any, config: Config, data: None, folder: pathlib.Path, mesh: jax.sharding.Mesh
) -> Work:
    """Return what measures by a protocol."""
    measure = PROTOCOLS[config.protocol].run
    return Work(
        train=lambda: (measure(config, folder, mesh), None),
        finish=lambda trained: print(f"table: {folder / 'table.json'}"),
        write_page=write_page,
    )


def write_page(folder: pathlib.Path) -> pathlib.Path:
    """Write the page of a run."""
    from experiments.information.page import write_information_report

    return write_information_report(folder)


def interpret(kind: Any, config: Config, mesh: Any = None) -> Config:
    """Return the config of a protocol, checked."""
    check_config(config, keys_of(config))
    for key in ("widths", "joint_widths"):
        if not config[key]:
            raise UserError(f"the config's {key} is {config[key]}: name a width or more")
    if "read_every" in config and config.num_steps % config.read_every:
        raise UserError(
            f"the config's read_every is {config.read_every}: it must divide num_steps, "
            f"{config.num_steps}; set --config.read_every={config.num_steps}"
        )
    methods.make_methods(config)
    PROTOCOLS[config.protocol].check(config)
    return config
