"""The benchmark of forty tasks: neural estimates beside KSG and CCA, each from one sample."""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.information import TASKS as KEYS
from cpc.estimators import Task, beyond_normal, cca, ksg
from cpc.files import write_json
from cpc.results.scores import read_records
from cpc.types import UserError
from experiments.command.config import Config
from experiments.information.methods import check_readings, claims, fit_and_read, make_methods
from experiments.information.run import interpret, load_data, make_work
from experiments.information.units import measure_each

NAME, ON_ONE_DEVICE = "mi_tasks", False
#: Of the pairs of a sample: half trains, a quarter chooses the step, a quarter is read.
PARTS = (0.5, 0.75)


def run(config: Config, folder: pathlib.Path, mesh: jax.sharding.Mesh) -> str:
    """Measure task after task, then write the table; return the signal that stopped it."""
    tasks, recorded = choose(config), folder / "metrics.jsonl"
    fit = jax.jit(functools.partial(fit_seeds, config))
    reason = measure_each(
        recorded, tasks, functools.partial(measure, config, fit), ("task", "truth")
    )
    if not reason:
        write_json(folder / "table.json", make_table(config, read_records(folder, [])))
    return reason


def check(config: Config) -> None:
    """Refuse readings at no regular step."""
    check_readings(config)


def choose(config: Config) -> list[Task]:
    """Return the tasks whose names begin as one of the config's words; all, if it has none."""
    quarter = config.num_samples // 4
    if quarter < config.batch_size:
        raise UserError(
            f"num_samples is {config.num_samples}: a quarter of it is held out and must fill a "
            f"batch of {config.batch_size}"
        )
    tasks = [t for t in beyond_normal() if not config.tasks or t.name.startswith(config.tasks)]
    if not tasks:
        names = ", ".join(task.name for task in beyond_normal())
        raise UserError(f"tasks is {config.tasks}: no task begins so; there are {names}")
    return tasks


def measure(config: Config, fit: Any, task: Task) -> dict[str, Any]:
    """Return all estimates on a sample of each seed, its sides scaled as in the suite."""
    rngs = jax.random.split(jax.random.key(config.seed), config.num_seeds)
    pairs = [rescale(*task.sample(rng, config.num_samples)) for rng in rngs]
    x, y = (np.stack(side) for side in zip(*pairs, strict=True))
    found = {name: np.asarray(value).tolist() for name, value in fit(x, y, rngs).items()}
    found["any/ksg"] = [ksg(*pair, k=config.num_neighbours).value for pair in pairs]
    found["any/cca"] = [cca(*pair).value for pair in pairs]
    return {"task": task.name, "truth": task.mutual_information, "estimates": found}


def rescale(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return both sides with mean 0 and variance 1: information stays, and training is easier."""
    x, y = np.asarray(x), np.asarray(y)
    return (x - x.mean(0)) / x.std(0), (y - y.mean(0)) / y.std(0)


def fit_seeds(config: Config, x: Any, y: Any, rngs: Any) -> dict[str, Any]:
    """Train on the samples of all seeds at once; return readings (seeds,) by name."""
    train, chosen = (int(share * config.num_samples) for share in PARTS)
    methods = make_methods(config)

    def one(x, y, rng):
        def draw(rng):
            rows = jax.random.randint(rng, (config.batch_size,), 0, train)
            return x[rows], y[rows]

        return fit_and_read(
            methods,
            draw,
            [(x[train:chosen], y[train:chosen]), (x[chosen:], y[chosen:])],
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            num_steps=config.num_steps,
            read_every=config.read_every,
            rng=rng,
        )

    return jax.vmap(one)(jnp.asarray(x), jnp.asarray(y), rngs)


def make_table(config: Config, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean, bias and spread over seeds of each estimate on each task."""
    rows, claimed = [], claims(config)
    for record in records:
        for name, values in record["estimates"].items():
            critic, estimator = name.split("/")
            by_seed = np.array(values, float)  # null, where it diverged, becomes NaN
            rows.append(
                {
                    "task": record["task"],
                    "critic": critic,
                    "estimator": estimator,
                    "truth": record["truth"],
                    "value": by_seed.mean(),
                    "bias": by_seed.mean() - record["truth"],
                    "spread": by_seed.std(),
                    **claimed.get(estimator, {"ceiling": None, "label": "no bound, no critic"}),
                }
            )
    return rows
