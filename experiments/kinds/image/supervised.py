"""The network of an image run, trained whole on the classes of images (CPC v2's fine-tuning)."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc.data import Images, make_image_batches
from cpc.evaluate import embed_images
from cpc.models import Model
from cpc.results import digest
from experiments.command.config import Config
from experiments.training.supervised import Recipe, make_own_optimizer, train_on_labels

#: Images to classes.
Classify = Callable[[Any], np.ndarray]


def train_classifier(
    config: Config,
    labelled: Images,
    model: Model,
    prepare: Callable,
    start: Any,
    stop_by: Images | None = None,
    folder: pathlib.Path | None = None,
) -> tuple[Classify, str]:
    """Train the network with a softmax on its pooled z on labels; return it, and how long it took.

    It begins at `start`, if that is given, whose lower layers then learn less, and may end before
    `probe.num_epochs` if images to stop by improve no more. The folder is for checkpoints.
    """
    options = config.probe
    batch_size = min(config.data.batch_size, len(labelled))
    draw = make_image_batches(labelled, batch_size=batch_size, seed=config.seed)
    num_steps = max(100, options.num_epochs * len(labelled) // batch_size)
    root = jax.random.key(config.seed + 2)
    batch = prepare({"x": jnp.asarray(labelled.pixels[:1])}, root, False)

    def pooled_z(params, extra, batch, rng, train):
        variables, x = {"params": params, **extra}, prepare(batch, rng, train)["x"]
        if train and extra:  # batch norm sees the batch
            z, extra = model.module.apply(variables, x, True, method="encode", mutable=list(extra))
        else:
            z, _ = model.embed(variables, x)
        return pool(z, options.regions), extra

    def classes(answer, pixels):
        return embed_images(answer, pixels).argmax(1)

    def accuracy(answer, held: Any = stop_by):
        return (classes(answer, held.pixels) == held.labels).mean()

    decay = 1.0 if start is None else options.layer_decay
    schedule = "constant" if stop_by else "cosine"  # the end is not known, or known
    tx = make_own_optimizer(config, num_steps, decay, ("encoder",), schedule)
    recipe = Recipe(tx, num_steps, max(10, num_steps // 40), accuracy if stop_by else None)
    start = start or model.init(root, batch)
    answer, words = train_on_labels(
        config,
        pooled_z,
        start,
        draw,
        recipe,
        num_classes=len(labelled.class_names),
        rng=root,
        folder=folder,
        settings={"labels": digest(labelled.labels)},
    )
    return functools.partial(classes, answer), words


def pool(grid: jax.Array, regions: int) -> jax.Array:
    """Means of (b, i, j, d) over regions x regions parts of the grid, side by side: (b, f)."""
    parts = [
        part.mean((1, 2))
        for rows in jnp.array_split(grid, regions, axis=1)
        for part in jnp.array_split(rows, regions, axis=2)
    ]
    return jnp.concatenate(parts, -1)
