"""Claims of `cpc information` on samples whose information is known: the forty tasks.

    python -m tests.estimators.forty_tasks

Each task of Czyz et al. (2023) hands out 2,000 rows, as a user would have them. For every estimator
it is counted in how many tasks its value and its lower end are not above the truth, and in how many
its interval covers it. The status is 1 if an "at least" is above the truth. It takes 8 minutes on
two shared cores: one critic, three trainings, half the default steps (docs/results/information.md).
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
    """Return the readings of a sample of a task, and what is claimed of it."""
    x, y = task.sample(jax.random.key(config.seed), config.max_rows)
    pairs = Pairs(np.asarray(x, np.float64), np.asarray(y, np.float64), ())
    readings = measure(pairs, config, lambda said: None)
    best = headline(readings)
    found = {"low": best.found.low, "state": state_of(best)}
    return {"task": task.name, "truth": task.mutual_information, **found, "readings": readings}


def above(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return the tasks in which the claim is above the truth."""
    return [record["task"] for record in records if record["low"] > record["truth"]]


def count(records: Sequence[dict[str, Any]]) -> Frame:
    """Return, by estimator, how values, ends and limits of its intervals lie to the truth."""
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
    """Measure the tasks and print the counts."""
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
