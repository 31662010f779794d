"""Consistency tests of Song and Ermon (2020, section 5.2) on images with unknown information."""

import functools
import itertools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.information import CONSISTENCY as KEYS
from cpc.data.sources.fashion_mnist import load_fashion_mnist
from cpc.results.score import read_records
from cpc.types import UserError
from experiments.command.config import Config
from experiments.information.estimators import claims, fit_and_read, make_row
from experiments.information.run import load_data, measure_each

SIDE = 28
#: Law (consistency test) -> image (0 or 1) in each part of x and y, and rows in each part of y.
LAWS = {
    "rows": lambda rows, less: ((0,), (rows,)),
    "processing": lambda rows, less: ((0, 0), (rows, rows - less)),
    "independence": lambda rows, less: ((0, 1), (rows, rows)),
}


def measure(config: Config, folder: pathlib.Path, mesh: jax.sharding.Mesh) -> str:
    """Measure all settings, and return the signal that stopped the measurement, or ""."""
    images = load_images(config)
    fit = jax.jit(functools.partial(fit_images, config))

    def measure_setting(setting):
        law, rows = setting
        which, kept = map(jnp.array, LAWS[law](rows, config.processing_rows))
        found = fit(*images, which, kept, jax.random.key(config.seed))
        return {"law": law, "rows": rows, "estimates": jax.tree.map(float, found)}

    settings = [*itertools.product(LAWS, config.rows)]
    return measure_each(folder, settings, measure_setting, ("law", "rows"))


def check(config: Config) -> None:
    """Validate `rows`, whose last entry is the reference, and `processing_rows`."""
    rows, less = config.rows, config.processing_rows
    if not rows or [*rows] != sorted({*rows}):
        raise UserError(f"rows must be increasing numbers up to {SIDE} (got {rows})")
    if less >= rows[0]:
        raise UserError(f"processing_rows must be less than {rows[0]} rows (got {less})")


def load_images(config: Config) -> tuple[Any, Any, Any]:
    """Return images (n, 784) in [0, 1] for training, for early stopping, and for evaluation."""
    splits, num_images = load_fashion_mnist(), config.num_images
    train, test = (
        jnp.asarray(splits[name].pixels[:num_images].reshape(-1, SIDE * SIDE) / np.float32(255))
        for name in ("train", "test")
    )
    if len(test) < 4 * config.batch_size:
        raise UserError(
            f"num_images must give 4 batches of {config.batch_size} test images (got {num_images})"
        )
    half = len(test) // 2
    return train, test[:half], test[half:]


def fit_images(
    config: Config, train: Any, choose: Any, read: Any, which: Any, kept: Any, rng: Any
) -> dict[str, Any]:
    """Train and evaluate all methods on one setting, and return estimates in nats by name."""

    def pair_up(images, pairs):  # pairs (n, 2) are indices of two independent images
        parts = images[pairs[:, which]]  # (n, parts, pixels)
        row = jnp.arange(SIDE * SIDE) // SIDE
        top = jnp.where(row < kept[:, None], parts, 0.0)
        return parts.reshape(len(pairs), -1), top.reshape(len(pairs), -1)

    def draw(rng):
        return pair_up(train, jax.random.randint(rng, (config.batch_size, 2), 0, len(train)))

    held_out = [
        pair_up(images, jnp.arange(len(images) // 2 * 2).reshape(2, -1).T)
        for images in (choose, read)
    ]
    return fit_and_read(config, draw, held_out, rng)


def make_table(config: Config, folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return a row for each estimate, with its ratio to the reference of its law."""
    found = {(r["law"], r["rows"]): r["estimates"] for r in read_records(folder, [])}
    claimed, rows = claims(config), []
    for (law, kept), estimates in found.items():
        base = found["rows", max(config.rows) if law == "rows" else kept]
        for name, value in estimates.items():
            ratio = value / base[name] if value is not None and base[name] else None
            numbers = {"law": law, "rows": kept, "value": value, "ratio": ratio}
            rows.append(make_row(name, claimed, **numbers))
    return rows
