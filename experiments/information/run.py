"""A run of one of the experiments on estimators: checked, measured, reported."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax

from cpc.types import UserError
from experiments.command.config import Config, check_config
from experiments.information import methods
from experiments.training.problem import Work


def interpret(kind: Any, config: Config, mesh: Any = None) -> Config:
    """Return the config of an experiment, checked."""
    check_config(config, kind.KEYS)
    for key in ("widths", "joint_widths"):
        if not config[key]:
            raise UserError(f"the config's {key} is {config[key]}: name a width or more")
    methods.make_methods(config)
    kind.check(config)
    return config


def load_data(config: Config, log: Callable[[str], object]) -> None:
    """Return nothing: an experiment makes its own samples."""


def make_work(
    kind: Any, config: Config, data: None, folder: pathlib.Path, mesh: jax.sharding.Mesh
) -> Work:
    """Return what measures, by the kind's own run(config, folder, mesh)."""
    return Work(
        train=lambda: (kind.run(config, folder, mesh), None),
        finish=lambda trained: print(f"table: {folder / 'table.json'}"),
        write_page=write_page,
    )


def write_page(folder: pathlib.Path) -> pathlib.Path:
    """Write the page of a run."""
    from experiments.information.page import write_information_report  # matplotlib takes seconds

    return write_information_report(folder)
