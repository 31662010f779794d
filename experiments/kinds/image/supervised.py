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
    """The same network with a softmax on its pooled z, trained whole on labels, and how long.

    From the variables `start`, whose layers learn less by `probe.layer_decay` the further they lie
    below the softmax, or from the beginning if None; `probe.num_epochs` over the images, the
    learning rate falling as a cosine. With images to stop by until it stops improving on them,
    `probe.num_epochs` at most; as the end is not known, the rate is constant after its warm-up
    and falls once that has come.
    The folder is for checkpoints, from which the training goes on where it was stopped.
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

    decay = 1.0 if start is None else options.layer_decay
    schedule = "constant" if stop_by else "cosine"
    recipe = Recipe(
        make_own_optimizer(config, num_steps, decay, ("encoder",), schedule),
        num_steps,
        evaluate_every=max(10, num_steps // 40),
        accuracy=(lambda one: (classes(one, stop_by.pixels) == stop_by.labels).mean())
        if stop_by
        else None,
    )
    answer, words = train_on_labels(
        config,
        pooled_z,
        start or model.init(root, batch),
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
