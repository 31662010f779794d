"""Pipeline of the experiments on estimators, from validation to measurement, table and page."""

import contextlib
import itertools
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from cpc.files import read_lines, write_json
from cpc.train import JsonlWriter, ProgressWriter, describe_values, stop_on_signals
from experiments.command.config import Config
from experiments.information.estimators import check_estimation
from experiments.training.problem import Work

ON_ONE_DEVICE = False


def interpret(kind: Any, config: Config, mesh: Any = None, workdir: Any = None) -> Config:
    """Validate and return a config."""
    check_estimation(config, kind.KEYS)
    kind.check(config)
    return config


def load_data(config: Config, log: Callable[[str], object]) -> None:
    """Return None, since experiments generate their samples."""


def make_work(
    kind: Any, config: Config, data: None, folder: pathlib.Path, mesh: jax.sharding.Mesh
) -> Work:
    """Return the functions that measure an experiment, tabulate it, and write its page."""

    def train():
        reason = kind.measure(config, folder, mesh)
        if not reason:
            write_json(folder / "table.json", kind.make_table(config, folder))
        return reason, None

    def finish(trained):
        print(f"table: {folder / 'table.json'}")

    def write_page(folder: pathlib.Path) -> pathlib.Path:
        from experiments.information.page import write_information_report  # slow: matplotlib

        return write_information_report(folder)

    return Work(train, finish, write_page)


def measure_each(
    folder: pathlib.Path,
    units: Sequence[Any],
    measure: Callable[[Any], dict[str, Any]],
    headline: tuple[str, ...],
) -> str:
    """Measure units, such as tasks, missing in metrics.jsonl, and return a stop signal or ""."""
    recorded = folder / "metrics.jsonl"
    lines = read_lines(recorded) if recorded.exists() else []
    done = sum(1 for _ in itertools.takewhile(lambda line: line[1], lines))  # undamaged lines
    console = ProgressWriter(len(units), describe_values(*headline), seconds_between=0.0)
    if done:
        console.say(f"resuming after {done} of {len(units)}")
    begin = time.perf_counter()
    with (
        stop_on_signals() as stop,
        contextlib.closing(JsonlWriter(recorded, done)) as jsonl,
        contextlib.closing(console),
    ):
        for number, unit in enumerate(units[done:], start=1):
            if reason := stop():
                return reason
            record = {"step": done + number, "split": "train", **measure(unit)}
            record["steps_per_second"] = number / (time.perf_counter() - begin)
            for writer in (jsonl, console):
                writer.write(record)
    return ""
