"""Claims of `cpc information` on the forty tasks of Czyz et al. (2023).

    python -m tests.estimators.forty_tasks

Each task has 2,000 rows. For every estimator, counts the tasks in which its value and lower end are
at most the truth, and in which its interval contains the truth. The exit status is 1 if an "at
least" exceeds the truth. Takes 8 minutes on two shared cores with one critic, three trainings and
half the default steps (docs/results/information.md).
"""

import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd

import configs.arrays
from cpc.estimators import Task, beyond_normal
from cpc.results import Frame
from experiments.command.config import Config, with_settings
from experiments.information.arrays import Pairs
from experiments.information.page import DIVERGED, headline, state_of
from experiments.information.rotations import measure

SETTINGS = {
    "max_rows": 2000,
    "num_steps": 400,
    "critics": ("separable",),
    "joint_widths": (16, 16),
    "estimators": ("info_nce", "js", "donsker_varadhan"),
}


def measure_task(config: Config, task: Task) -> dict[str, Any]:
    """Return readings and claim of a sample of a task."""
    x, y = task.sample(jax.random.key(config.seed), config.max_rows)
    pairs = Pairs(np.asarray(x, np.float64), np.asarray(y, np.float64), ())
    readings = measure(pairs, config, lambda said: None)
    best = headline(readings)
    found = {"low": best.found.low, "state": state_of(best)}
    return {"task": task.name, "truth": task.mutual_information, **found, "readings": readings}


def count(records: Sequence[dict[str, Any]]) -> Frame:
    """Return counts of values, ends and limits relative to the truth, by estimator."""
    rows = []
    for record in records:
        for one in record["readings"]:
            if one.null and abs(one.found.value) <= DIVERGED:
                truth, (value, low, high), limit = record["truth"], one.found, one.limit
                rows.append({
                    "estimator": one.estimator,
                    "tasks": 1,
                    "value not above": value <= truth,
                    "lower end not above": low <= truth,
                    "interval covers": low <= truth <= high,
                    "limit covers": limit.low <= truth <= limit.high,
                    "mean error": value - truth,
                    "mean distance": abs(value - truth),
                    "distance of limit": abs(limit.value - truth),
                })  # fmt: skip
    columns = [*rows[0]][1:]
    how = dict.fromkeys(columns[:5], "sum") | dict.fromkeys(columns[5:], "mean")
    return pd.DataFrame(rows).groupby("estimator", sort=False).agg(how)


def main() -> int:
    config, records = with_settings(configs.arrays.get_config(), SETTINGS), []
    for task in beyond_normal():
        records.append(measure_task(config, task))
        said = "{task}: at least {low:.3f} of {truth:.3f} nats, {state}".format(**records[-1])
        sys.stdout.write(f"{said}\n")
    sys.stdout.write(f"{count(records).round(3).to_string()}\n")
    wrong = [record["task"] for record in records if record["low"] > record["truth"]]
    sys.stdout.write(f"above the truth: {', '.join(wrong) or 'none'}\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
