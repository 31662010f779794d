"""Independent measurements one after the other: each is a line of metrics.jsonl once it is done."""

import contextlib
import itertools
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from cpc.files import read_lines
from cpc.train import JsonlWriter, ProgressWriter, describe_values, stop_on_signals


def measure_each(
    recorded: pathlib.Path,
    units: Sequence[Any],
    measure: Callable[[Any], dict[str, Any]],
    headline: tuple[str, ...],
) -> str:
    """Measure the units that are not recorded yet; return the signal that stopped it, or ""."""
    lines = read_lines(recorded) if recorded.exists() else []
    done = sum(1 for _ in itertools.takewhile(lambda line: line[1], lines))  # sound ones
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
