"""A run of one of the protocols: checked, measured, reported."""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

import jax

from configs.information import KEYS
from cpc.types import UserError
from experiments.command import cluster, run_dir
from experiments.command.config import Config, check_config
from experiments.mutual_information import consistency, methods, staircase, tasks


class Protocol(NamedTuple):
    """What is measured, and how."""

    run: Callable[[Config, pathlib.Path, jax.sharding.Mesh], bool]
    """run(config, folder, mesh) measures and writes a table; False if a signal stopped it."""
    check: Callable[[Config], object] = lambda config: None
    """What only it asks of a config."""


PROTOCOLS = {
    "staircase": Protocol(staircase.run, staircase.check),
    "tasks": Protocol(tasks.run),
    "consistency": Protocol(consistency.run, consistency.check),
}


def run(config: Config, workdir: str | None, device: str = "auto") -> None:
    """Check, measure, report."""
    if config is None:
        raise UserError("--config is required, e.g. --config mi_staircase")
    check(config)
    mesh = cluster.start(device, config, workdir)
    with run_dir.open_run(workdir, config, KEYS[config.protocol], mesh) as folder:
        if PROTOCOLS[config.protocol].run(config, folder, mesh):
            from experiments.mutual_information.page import (
                write_information_report,  # matplotlib takes seconds
            )

            print(f"table: {folder / 'table.json'}")
            print(f"report: {write_information_report(folder)}")


def check(config: Config) -> None:
    """Check all of a config that needs neither data nor devices."""
    if config.get("protocol") not in PROTOCOLS:
        raise UserError(
            f"protocol is {config.get('protocol')!r}: choose one of {', '.join(PROTOCOLS)}, as "
            "configs/mi_staircase.py and its neighbors do"
        )
    check_config(config, KEYS[config.protocol])
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
