"""Probes that classify images from z, c, an untrained network or pixels, also with few labels.

The whole network can also be trained on the classes, as in CPC v2's fine-tuning experiments.
"""

import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc import evaluate
from cpc.data import Images, make_image_batches, select_images
from cpc.evaluate import embed_images
from cpc.models import Model
from cpc.results import Score, digest
from cpc.train import raise_if_stopped
from cpc.types import UserError
from experiments.command.config import Config
from experiments.kinds.image.data import ImageData, grid_of, preprocess
from experiments.kinds.image.sections import save_neighbours, save_units
from experiments.training.checks import reject
from experiments.training.probes import (
    FeatureSet,
    ProbeContext,
    ProbeTask,
    check_known,
    count_labels,
    feature_names,
)
from experiments.training.supervised import Recipe, hold_out, make_own_optimizer, train_on_labels


def train_classifier(
    config: Config,
    labelled: Images,
    model: Model,
    preprocess: Callable,
    start: Any,
    stop_by: Images | None = None,
    folder: pathlib.Path | None = None,
) -> tuple[Callable[[Any], np.ndarray], str]:
    """Train the network with a softmax layer on its pooled z.

    If `start` is given, these variables are fine-tuned with layer-wise decay of the learning rate.
    If `stop_by` is given, these images are used for early stopping before `probe.num_epochs`.
    Checkpoints are written to `folder`. Returns a function from pixels to predicted classes, and a
    text about the training.
    """
    options = config.probe
    batch_size = min(config.data.batch_size, len(labelled))
    draw = make_image_batches(labelled, batch_size=batch_size, seed=config.seed)
    num_steps = max(100, options.num_epochs * len(labelled) // batch_size)
    root = jax.random.key(config.seed + 2)
    batch = preprocess({"x": jnp.asarray(labelled.pixels[:1])}, root, False)

    def pooled_z(params, extra, batch, rng, train):
        variables, x = {"params": params, **extra}, preprocess(batch, rng, train)["x"]
        if train and extra:  # batch norm updates its running statistics
            z, extra = model.module.apply(variables, x, True, method="encode", mutable=list(extra))
        else:
            z, _ = model.embed(variables, x)
        return pool(z, options.regions), extra

    def classes(answer, pixels):
        return embed_images(answer, pixels).argmax(1)

    def accuracy(answer, images: Any = stop_by):
        return (classes(answer, images.pixels) == images.labels).mean()

    decay = 1.0 if start is None else options.layer_decay
    schedule = "constant" if stop_by else "cosine"  # the last step is unknown with early stopping
    tx = make_own_optimizer(config, num_steps, decay, ("encoder",), schedule)
    recipe = Recipe(tx, num_steps, max(10, num_steps // 40), accuracy if stop_by else None)
    network = pooled_z, start or model.init(root, batch)
    saved = {"folder": folder, "settings": {"labels": digest(labelled.labels)}}
    num_classes = len(labelled.class_names)
    answer, words = train_on_labels(
        config, *network, draw, recipe, num_classes=num_classes, rng=root, **saved
    )
    return functools.partial(classes, answer), words


def pool(grid: jax.Array, regions: int) -> jax.Array:
    """Divide a grid (b, i, j, d) into regions x regions parts, and join their means (b, f)."""
    parts = [
        part.mean((1, 2))
        for rows in jnp.array_split(grid, regions, axis=1)
        for part in jnp.array_split(rows, regions, axis=2)
    ]
    return jnp.concatenate(parts, -1)


#: l2 of lbfgs if each class has a single label, which leaves no validation data.
MAX_L2 = 1.0


def check_data(config: Config, data: ImageData) -> None:
    """Check that the probe and test images have the labels that the probes need."""
    if not config.probe.tasks:
        return
    for which, part in (("probe_split", data.probe), ("test_split", data.test)):
        if not (part.labels >= 0).any():
            problem = f"data.{which} ({config.data[which]}) has no labels, which probes need"
            raise UserError(f"{problem}: choose a labelled split, or set probe.tasks to ()")
    if fitted := set(config.probe.tasks) - {"neighbours", "units"}:
        drawn = labelled_images(data.probe, config.probe.num_images, config.seed)
        classes = np.unique(drawn.labels)
        if len(classes) < 2:
            few, advice = "", "add classes"
            if len(drawn) < (data.probe.labels >= 0).sum():
                few = f" drawn by probe.num_images ({config.probe.num_images})"
                advice = "raise probe.num_images, add classes"
            raise UserError(
                f"all labelled images of data.probe_split ({config.data.probe_split}){few} have "
                f"the class {data.probe.class_names[classes[0]]!r}, but "
                f"{', '.join(sorted(fitted))} need two: {advice}, or set probe.tasks to ()"
            )
        names = data.test.class_names
        train, test = (count_labels(part.labels, names) for part in (data.probe, data.test))
        advice = "choose splits with the same classes, or set probe.tasks to ()"
        check_known(train, test, names, "images", advice)
    grid = grid_of(config)
    reject(config,
        (config.probe.regions > min(grid), "probe.regions",
         f"an image has {grid[0]} by {grid[1]} patches; choose at most {min(grid)}"),
    )  # fmt: skip


def labelled_images(images: Images, most: int, seed: int) -> Images:
    """Return at most `most` random labelled images. If `most` is 0, return all of them."""
    rows = np.flatnonzero(images.labels >= 0)
    if most and most < len(rows):
        rows = np.sort(np.random.default_rng(seed).permutation(rows)[:most])
    return images if len(rows) == len(images) else select_images(images, rows)


def make_features(context: ProbeContext, *parts: Images) -> Callable[[str], tuple[np.ndarray, ...]]:
    """Return a cached function from a feature name to pooled features (n, f) per set of images."""
    config = context.config

    def cut(images):
        return preprocess(config, {"x": images}, None, False)["x"]

    @functools.cache
    def embed_parts(is_random: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        first = jnp.asarray(parts[0].pixels[:1])
        own = context.untrained(cut(first)) if is_random else context.variables

        @jax.jit
        def embed(images):
            grids = context.model.embed(own, cut(images))
            return [pool(grid, config.probe.regions) for grid in grids]

        return [evaluate.embed_images(embed, part.pixels) for part in parts]

    @functools.cache
    def features(name: str) -> tuple[np.ndarray, ...]:
        if name == "pixels":
            flat = functools.partial(evaluate.embed_images, lambda x: x.reshape(len(x), -1))
            return tuple(flat(part.pixels) / 255.0 for part in parts)
        *random, which = name.split()
        return tuple(part["zc".index(which)] for part in embed_parts(bool(random)))

    return features


def feature_sets(context: ProbeContext, tasks: Sequence[ProbeTask]) -> Iterator[FeatureSet]:
    """Yield each feature as labelled probe and test images, and a function that embeds them."""
    config, data = context.config, context.data
    labelled = labelled_images(data.probe, config.probe.num_images, config.seed)
    test = labelled_images(data.test, 0, 0)
    features = make_features(context, labelled, test)
    for name in feature_names(config, tasks):
        yield FeatureSet(name, (labelled, test, functools.partial(features, name)))


def class_scores(method: str, context: ProbeContext, features: FeatureSet) -> Iterator[Score]:
    """Yield a feature's classification score by a linear probe or by nearest neighbours."""
    options, (labelled, test, make) = context.config.probe, features.values
    (train, held_out), num_classes = make(), len(test.class_names)
    if method == "linear":
        answer, setting = fit_linear(options.solver, train, labelled.labels, num_classes)
        found = answer(held_out)
    else:
        k = min(options.num_neighbours, len(train))
        found = evaluate.knn_predict(train, labelled.labels, held_out, num_classes=num_classes, k=k)
        setting = f"k {k}"
    case = features.name, method
    correct, labels = {case: found.argmax(1) == test.labels}, (labelled.labels, test.labels)
    best = {case: evaluate.in_best(found, test.labels, 5)} if num_classes > 5 else {}
    about: Any = {"task": "classes", "data": context.data.name, "correct_5": best}
    yield from evaluate.image_scores(correct, {case: setting}, *labels, **about)


def supervised_scores(context: ProbeContext, features: FeatureSet) -> Iterator[Score]:
    """Train the run's network on labels, from random weights, and yield its score."""
    config, (labelled, test, _) = context.config, features.values
    kept, stop_by = (select_images(labelled, own) for own in hold_out(len(labelled), config.seed))
    folder = context.folder_of(f"supervised-{context.data.name}")
    own = functools.partial(preprocess, config)
    answer, words = train_classifier(config, kept, context.model, own, None, stop_by, folder)
    print(f"supervised: {words}, by {len(stop_by):,} held-out images of {len(labelled):,}")
    case, data = ("supervised", "whole network"), context.data.name
    correct, labels = {case: answer(test.pixels) == test.labels}, (labelled.labels, test.labels)
    yield from evaluate.image_scores(correct, {case: words}, *labels, task="classes", data=data)


def fit_linear(
    solver: str, train: np.ndarray, labels: np.ndarray, num_classes: int
) -> tuple[Callable[[Any], np.ndarray], str]:
    """Return a function from features to scores (n, classes), and a text about the fit.

    If each class has a single label, lbfgs uses `MAX_L2`, because it cannot validate l2.
    """
    if solver == "sgd":  # the paper: 85,000 updates of 2048 images
        updates = evaluate.Updates(
            min_updates=85_000, batch_size=2048, learning_rate=0.1, optimizer=evaluate.paper_sgd
        )
        rows = np.arange(len(labels))
        probe = evaluate.fit_probe(train, labels, rows, num_classes=num_classes, updates=updates)
    elif solver == "ridge":
        probe = evaluate.fit_ridge_probe(train, labels, num_classes=num_classes)
    else:
        fit = functools.partial(evaluate.fit_lbfgs_probe, train, labels, num_classes=num_classes)
        probe = fit(l2s=(MAX_L2,)) if np.bincount(labels).max() == 1 else fit()
    return lambda x: evaluate.predict(probe, x), f"{solver}, {evaluate.describe_fit(probe)}"


def few_label_scores(mode: str, context: ProbeContext, features: FeatureSet) -> Iterator[Score]:
    """Yield accuracies of a frozen feature or fine-tuned network, one per fraction of labels."""
    config, (labelled, test, make) = context.config, features.values
    options = config.probe
    # The paper uses 85,000 updates only with all labels.
    solver = "lbfgs" if options.solver == "sgd" else options.solver

    def probe_frozen(subset):
        (train, held_out), labels = make(), labelled.labels[subset]
        score, note = fit_linear(solver, train[subset], labels, len(test.class_names))
        return score(held_out).argmax(1), note

    def fine_tune(subset):
        part, own = select_images(labelled, subset), functools.partial(preprocess, config)
        start = context.variables if features.name == "z" else None
        predict, note = train_classifier(config, part, context.model, own, start)
        return predict(test.pixels), note

    answer = probe_frozen if mode == "frozen" else fine_tune
    for fraction in options.fractions:
        raise_if_stopped()
        num_subsets = options.num_subsets if fraction < 1 else 1
        subsets = [
            evaluate.label_subset(labelled.labels, fraction, seed) for seed in range(num_subsets)
        ]
        predicted, notes = zip(*map(answer, subsets), strict=True)
        correct = np.stack(predicted) == test.labels
        score = evaluate.few_label_score(
            correct, test.labels, data=context.data.name, features=features.name, mode=mode,
            fraction=fraction, num_labels=len(subsets[0]),
        )  # fmt: skip
        is_single = np.bincount(labelled.labels[subsets[0]]).max() == 1
        if mode == "frozen" and solver == "lbfgs" and is_single:
            score = score._replace(setting=f"l2 {MAX_L2:g}, {score.setting}")
        if num := sum(note.endswith("not converged") for note in notes):
            note = f"{num} of {len(subsets)} fits not converged"
            score = score._replace(setting=f"{note}, {score.setting}")
        yield score


#: Probe tasks by name. Some use the features listed here instead of `probe.features`.
TASKS = {
    "linear": ProbeTask("linear", functools.partial(class_scores, "linear")),
    "knn": ProbeTask("knn", functools.partial(class_scores, "knn")),
    "supervised": ProbeTask("supervised", supervised_scores, ("supervised",)),
    "few_labels": ProbeTask("few_labels", functools.partial(few_label_scores, "frozen")),
    "fine_tuned": ProbeTask(
        "fine_tuned", functools.partial(few_label_scores, "fine-tuned"), ("z", "supervised")
    ),
    "neighbours": ProbeTask("neighbours", save_neighbours, ("z",)),
    "units": ProbeTask("units", save_units, ("z",)),
}


def probe_tasks(config: Config, data: ImageData) -> list[ProbeTask]:
    """Return the tasks in `probe.tasks`, after checking that images have the required labels."""
    check_data(config, data)
    return [task for name, task in TASKS.items() if name in config.probe.tasks]
