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


def above(records: Sequence[dict[str, Any]]) -> list[str]:
    return [record["task"] for record in records if record["low"] > record["truth"]]


def count(records: Sequence[dict[str, Any]]) -> Frame:
    """Return counts of values, ends and limits relative to the truth, by estimator."""
    rows = [
        {"estimator": one.estimator, "truth": record["truth"], **one.found._asdict()}
        | {f"limit {end}": nats for end, nats in one.limit._asdict().items()}
        for record in records
        for one in record["readings"]
        if one.null and abs(one.found.value) <= DIVERGED
    ]
    frame = pd.DataFrame(rows)
    truth, error = frame.truth, frame.value - frame.truth
    counted = pd.DataFrame({
        "estimator": frame.estimator,
        "tasks": 1,
        "value not above": error <= 0,
        "lower end not above": frame.low <= truth,
        "interval covers": (frame.low <= truth) & (truth <= frame.high),
        "limit covers": (frame["limit low"] <= truth) & (truth <= frame["limit high"]),
    }).groupby("estimator", sort=False).sum()  # fmt: skip
    distances = {
        "mean error": error,
        "mean distance": error.abs(),
        "distance of limit": (frame["limit value"] - truth).abs(),
    }
    means = pd.DataFrame(distances).groupby(frame.estimator, sort=False).mean()
    return counted.join(means)


def main() -> int:
    config, records = with_settings(configs.arrays.get_config(), SETTINGS), []
    for task in beyond_normal():
        records.append(measure_task(config, task))
        said = "{task}: at least {low:.3f} of {truth:.3f} nats, {state}".format(**records[-1])
        sys.stdout.write(f"{said}\n")
    sys.stdout.write(f"{count(records).round(3).to_string()}\n")
    wrong = above(records)
    sys.stdout.write(f"above the truth: {', '.join(wrong) or 'none'}\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
