"""The benchmark of forty tasks, with neural estimates, KSG and CCA on the same samples."""

import functools
import pathlib
from typing import Any

import jax
import numpy as np

from configs.information import TASKS as KEYS
from cpc.estimators import Task, beyond_normal, cca, ksg
from cpc.results.score import read_records
from cpc.types import UserError
from experiments.command.config import Config
from experiments.information.arrays import standardize
from experiments.information.estimators import claims, fit_and_read, make_row
from experiments.information.run import load_data, measure_each

#: Fractions of a sample at which the training half and the early-stopping quarter end.
PARTS = (0.5, 0.75)


def measure(config: Config, folder: pathlib.Path, mesh: jax.sharding.Mesh) -> str:
    """Measure all tasks, and return the signal that stopped the measurement, or ""."""
    train, chosen = (int(share * config.num_samples) for share in PARTS)

    @jax.jit
    @jax.vmap  # over the samples of all seeds
    def fit(x, y, rng):
        def draw(rng):
            rows = jax.random.randint(rng, (config.batch_size,), 0, train)
            return x[rows], y[rows]

        held_out = [(x[train:chosen], y[train:chosen]), (x[chosen:], y[chosen:])]
        return fit_and_read(config, draw, held_out, rng)

    one = functools.partial(measure_task, config, fit)
    return measure_each(folder, choose(config), one, ("task", "truth"))


def check(config: Config) -> None:
    """Validate `tasks`, and `num_samples`, a quarter of which must fill a batch."""
    if config.num_samples // 4 < config.batch_size:
        raise UserError(
            f"num_samples must be at least 4 batches of {config.batch_size} (got "
            f"{config.num_samples})"
        )
    if not choose(config):
        names = ", ".join(task.name for task in beyond_normal())
        raise UserError(f"tasks must be prefixes of {names} (got {config.tasks})")


def choose(config: Config) -> list[Task]:
    """Return the tasks whose names begin with a prefix in `tasks`, or all tasks if it is empty."""
    return [t for t in beyond_normal() if not config.tasks or t.name.startswith(config.tasks)]


def measure_task(config: Config, fit: Any, task: Task) -> dict[str, Any]:
    """Return all estimates on one sample per seed, standardized as in the benchmark suite."""
    rngs = jax.random.split(jax.random.key(config.seed), config.num_seeds)
    pairs = [
        [standardize(z, z) for z in map(np.asarray, task.sample(rng, config.num_samples))]
        for rng in rngs
    ]
    x, y = (np.stack(side) for side in zip(*pairs, strict=True))
    found = {name: np.asarray(value).tolist() for name, value in fit(x, y, rngs).items()}
    found["any/ksg"] = [ksg(*pair, k=config.num_neighbours).value for pair in pairs]
    found["any/cca"] = [cca(*pair).value for pair in pairs]
    return {"task": task.name, "truth": task.mutual_information, "estimates": found}


def make_table(config: Config, folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the mean, bias and spread over seeds of each estimate on each task."""
    rows, claimed = [], claims(config)
    for record in read_records(folder, []):
        for name, values in record["estimates"].items():
            by_seed = np.array(values, float)  # null, written for a diverged value, becomes NaN
            numbers = {"value": by_seed.mean(), "bias": by_seed.mean() - record["truth"]}
            numbers |= {"task": record["task"], "truth": record["truth"], "spread": by_seed.std()}
            rows.append(make_row(name, claimed, **numbers))
    return rows
