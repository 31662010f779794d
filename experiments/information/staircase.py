"""The staircase, in which estimators train on Gaussians whose information rises in levels."""

import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.information import STAIRCASE as KEYS
from cpc import train
from cpc.estimators.tasks import correlated_gaussians, gaussian_log_ratio
from cpc.results import read_run
from cpc.types import UserError
from experiments.command.config import Config
from experiments.information import estimators
from experiments.information.run import load_data
from experiments.training.loop import Training, run_training

MAPS = {"gaussian": lambda y: y, "cubic": lambda y: y**3}


def measure(config: Config, folder: pathlib.Path, mesh: jax.sharding.Mesh) -> str:
    """Train over all levels, and return the signal that stopped the training, or ""."""
    num_steps = len(config.levels) * config.steps_per_level
    tx, _ = train.make_optimizer(learning_rate=config.learning_rate, num_steps=num_steps)
    each = estimators.make_networks(config)
    networks = {f"{name}/{key}": pair for name in config.maps for key, pair in each.items()}
    loss_fn = make_loss(config, networks)
    root, pair = jax.random.key(config.seed), jnp.zeros((2, config.batch_size, config.dim))
    # Initializing networks one by one would compile for minutes.
    initialize = jax.jit(
        lambda rng: estimators.init_networks(networks, rng, dict.fromkeys(networks, tuple(pair)))
    )
    params, extra = initialize(root)
    _, (_, metrics) = jax.eval_shape(loss_fn, params, extra, level(config, 0), root)
    state = train.init_state(params, extra, tx, jax.random.fold_in(root, 1), metrics)
    state = train.replicate(state, mesh)
    training = Training(
        state,
        train.jit_step(train.make_train_step(loss_fn, tx), state),
        lambda first: (level(config, i) for i in range(first, num_steps)),
        num_steps=num_steps,
        summarize=make_summary(config),
        cadence=train.Cadence(log_every=config.log_every, save_every=config.save_every),
    )
    console = train.ProgressWriter(num_steps, train.describe_values("truth", "info_nce"))
    return run_training(folder, config, training, console)[1]


def check(config: Config) -> None:
    """Validate `levels`, `maps` and `log_every`."""
    if not config.levels or not config.maps:
        raise UserError("levels or maps is empty: set at least one level and one map")
    for nats in config.levels:
        if not 0 <= nats <= 9 * config.dim:
            raise UserError(
                f"levels must be between 0 and {9 * config.dim} for dim {config.dim} (got {nats})"
            )
    if config.steps_per_level % config.log_every:
        raise UserError(
            f"log_every must divide steps_per_level {config.steps_per_level} (got "
            f"{config.log_every})"
        )


def level(config: Config, step: int) -> np.float32:
    """Return the information at a step, in nats."""
    return np.float32(config.levels[step // config.steps_per_level])


def make_loss(config: Config, networks: estimators.Networks) -> Callable:
    """Return loss_fn(params, extra, batch, rng), where `batch` is the information in nats."""

    def loss_fn(params, extra, batch, rng):
        x, y = correlated_gaussians(rng, config.batch_size, config.dim, batch)
        data = {name: (x, MAPS[name.split("/")[0]](y)) for name in networks}
        loss, (values, extra) = estimators.total_loss(config, networks, params, extra, data)
        values |= read_exactly(config, gaussian_log_ratio(x, y, batch))
        squares = {name: jnp.square(value) for name, value in values.items()}
        return loss, (extra, {"values": values, "squares": squares})

    return loss_fn


def read_exactly(config: Config, log_ratio: Any) -> dict[str, Any]:
    """Return the estimates in nats for the exact log ratio, which maps of x or y do not change."""
    return {
        f"any/exact/{key}": reading.value
        for name in config.estimators
        for key, reading in estimators.estimate(
            name, config, *estimators.exact_outputs(name, log_ratio)
        )[1].items()
    }


def make_summary(config: Config) -> Callable[[Any, int], dict[str, Any]]:
    """Return a function that maps sums over steps to each estimate's mean and spread."""

    def summarize(sums, step):
        record = {"truth": float(level(config, step - 1))}
        for name, total in sums["values"].items():
            mean, square = (float(s) / float(sums["steps"]) for s in (total, sums["squares"][name]))
            record[name] = mean
            # Squares of a diverged estimate may exceed float32.
            record[f"{name}/std"] = math.sqrt(max(square - mean * mean, 0.0))
            if name.endswith("/info_nce"):
                record.setdefault("info_nce", mean)
        return record

    return summarize


def make_table(config: Config, folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the value, bias and spread of each estimate over the last half of each level."""
    train, claimed, rows = read_run(folder).train, estimators.claims(config), []
    for number, truth in enumerate(config.levels, start=1):
        end = number * config.steps_per_level
        last = train[train.step.gt(end - config.steps_per_level / 2) & train.step.le(end)]
        for name in [name for name in train if f"{name}/std" in train]:
            task, _, reading = name.partition("/")
            means, stds = (last[key].to_numpy(float) for key in (name, f"{name}/std"))
            # A single diverged record makes the value of its level NaN.
            value = float(means.mean())
            spread = np.sqrt(np.mean(stds**2) + np.var(means))
            numbers = {"task": task, "truth": float(truth), "value": value, "spread": spread}
            numbers["bias"] = value - truth
            rows.append(estimators.make_row(reading, claimed, **numbers))
    return rows
