r"""The study of one's own arrays on samples whose information is known: the forty tasks.

    cpc information.own_arrays.tasks --workdir runs/forty \
        --config.max_rows=2000

Each task of Czyz et al. (2023) hands out `max_rows` rows as a user would have them; what the study
says of it is held against the truth. tasks.md and .json count, for every estimator, in how many
tasks its value and its lower end lie below the truth, and in how many its interval holds it. The
same command again goes on.
"""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import configs.arrays
from cpc.estimators import Task, beyond_normal
from cpc.files import plain
from cpc.report.engine import Section, Table, write_page
from cpc.results.scores import read_records
from experiments.command import cli, cluster
from experiments.command.config import Config
from experiments.command.run_dir import open_run
from experiments.information.own_arrays.__main__ import check
from experiments.information.own_arrays.arrays import Pairs
from experiments.information.own_arrays.findings import DIVERGED, headline, state_of
from experiments.information.own_arrays.fit import measure
from experiments.information.units import measure_each


def measure_task(config: Config, task: Task) -> dict[str, Any]:
    """Return what the study reads of a sample of a task."""
    x, y = task.sample(jax.random.key(config.seed), config.max_rows)
    pairs = Pairs(np.asarray(x, np.float64), np.asarray(y, np.float64), ())
    readings = measure(pairs, config, lambda said: None)
    best = headline(readings)
    return {
        "task": task.name,
        "truth": task.mutual_information,
        "low": best.found.low,
        "state": state_of(best),
        "readings": [plain(one._asdict()) for one in readings],
    }


def count(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each estimator: how its values, ends and limits lie to the truth.

    The critic is the one that was chosen for the task.
    """
    rows: dict[tuple[str, str], list[tuple[float, list[float], list[float]]]] = {}
    for record in records:
        for one in record["readings"]:
            if one["null"] is None or None in one["found"] or abs(one["found"][0]) > DIVERGED:
                continue
            key = one["estimator"], one["label"]
            rows.setdefault(key, []).append((record["truth"], one["found"], one["limit"]))
    table = []
    for (estimator, label), found in rows.items():
        truth = np.array([one[0] for one in found])
        value, low, high = np.array([one[1] for one in found]).T
        limit, limit_low, limit_high = np.array([one[2] for one in found], float).T
        table.append(
            {
                "estimator": estimator,
                "claim": label,
                "tasks": len(found),
                "value not above": int((value <= truth).sum()),
                "lower end not above": int((low <= truth).sum()),
                "interval covers": int(((low <= truth) & (truth <= high)).sum()),
                "mean error": float((value - truth).mean()),
                "mean distance": float(np.abs(value - truth).mean()),
                "limit covers": int(((limit_low <= truth) & (truth <= limit_high)).sum()),
                "distance of limit": float(np.abs(limit - truth).mean()),
            }
        )
    return table


def write_study(folder: pathlib.Path, records: Sequence[dict[str, Any]]) -> pathlib.Path:
    """Write tasks.html, .md and .json of the tasks that are measured."""
    import pandas as pd

    claims = [
        {"task": r["task"], "truth": r["truth"], "at least": r["low"], "state": r["state"]}
        for r in records
    ]
    above = [one["task"] for one in claims if one["at least"] > one["truth"]]
    chance = [one["task"] for one in claims if one["state"] == "chance"]
    said = [
        f"Of {len(claims)} tasks the claim is above the truth in {len(above)}: "
        f"{', '.join(above) or 'none'}.",
        f"No information was found in {len(chance)}: {', '.join(chance) or 'none'}.",
    ]
    formats = {name: ".3f" for name in ("mean error", "mean distance", "distance of limit")}
    tables = [
        Table("Estimators", pd.DataFrame(count(records)), "Nats.", formats),
        Table("Claims", pd.DataFrame(claims), "Nats.", {"truth": ".3f", "at least": ".3f"}),
    ]
    title = "What the study of two arrays says where the truth is known"
    sections = [Section("", said), Section("Numbers", tables=tables)]
    return write_page(folder, "tasks", title, "", sections=sections, also=["md", "json"])


def main(config: Config) -> None:
    """Measure the tasks that are not there, and write the page."""
    check(config)
    mesh = cluster.start(cli.DEVICE.value)
    with open_run(cli.WORKDIR.value, config, configs.arrays.KEYS, mesh) as folder:
        one = functools.partial(measure_task, config)
        if measure_each(folder / "metrics.jsonl", beyond_normal(), one, ("task", "truth", "low")):
            print(f"report: {write_study(folder, read_records(folder, []))}")


if __name__ == "__main__":
    CONFIG = cli.define_config(configs.arrays.__file__)
    cli.run(lambda: main(CONFIG.value))
