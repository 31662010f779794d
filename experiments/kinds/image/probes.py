"""Probes of image features: classes from z, c, an untrained network, pixels, and few labels."""

import functools
import itertools
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc.data import Images, select_images
from cpc.evaluate import (
    Updates,
    describe_fit,
    embed_images,
    few_label_score,
    fit_lbfgs_probe,
    fit_probe,
    fit_ridge_probe,
    image_scores,
    in_best,
    knn_predict,
    label_subset,
    paper_sgd,
    predict,
)
from cpc.models import Model, patch_grid
from cpc.results import Score, print_scores, write_scores
from cpc.train import raise_if_stopped
from cpc.types import UserError
from experiments.command.config import Config
from experiments.kinds.image.data import ImageData, name_of
from experiments.kinds.image.prepare import side_of
from experiments.kinds.image.shown import save_neighbours, save_units
from experiments.kinds.image.supervised import pool, train_classifier
from experiments.training.labels import check_known, count_labels
from experiments.training.supervised import FolderOf, hold_out, kept_until_done

#: The strongest l2 that lbfgs tries, for a fit that has no label to choose its l2 by.
MAX_L2 = 1.0
#: Features to scores of the classes.
Predict = Callable[[Any], np.ndarray]
#: Name -> features of the labelled and of the test images.
Features = Callable[[str], tuple[np.ndarray, ...]]


def check_data(config: Config, data: ImageData) -> None:
    """Check, before the training, that these images can feed the probes."""
    if not config.probe.tasks:
        return
    for which, part in (("probe_split", data.probe), ("test_split", data.test)):
        if not (part.labels >= 0).any():
            raise UserError(
                f"no image of data.{which} ({config.data[which]}) has a label, but probes are "
                "asked for: name a labelled split, or set probe.tasks to ()"
            )
    fitted = set(config.probe.tasks) - {"neighbours", "units"}
    drawn = labelled_images(data.probe, config.probe.num_images, config.seed)
    classes = np.unique(drawn.labels)
    if fitted and len(classes) < 2:
        few, advice = "", "give more classes"
        if len(drawn) < (data.probe.labels >= 0).sum():
            few = f" that probe.num_images ({config.probe.num_images}) draws"
            advice = "raise probe.num_images, give more classes"
        raise UserError(
            f"all labelled images of data.probe_split ({config.data.probe_split}){few} are of the "
            f"class {data.probe.class_names[classes[0]]!r}, but {', '.join(sorted(fitted))} tell "
            f"classes apart: {advice}, or set probe.tasks to ()"
        )
    if fitted:
        names = data.test.class_names
        train, test = (count_labels(part.labels, names) for part in (data.probe, data.test))
        advice = "name splits with the same classes, or set probe.tasks to ()"
        check_known(train, test, names, "images", advice)
    side, model = side_of(config), config.model
    grid = patch_grid((side, side), model.patch, model.stride)
    if config.probe.regions > min(grid):
        raise UserError(
            f"probe.regions is {config.probe.regions}, but an image is cut into {grid[0]} by "
            f"{grid[1]} patches: choose at most {min(grid)}"
        )


def run_tasks(
    config: Config,
    workdir: pathlib.Path,
    data: ImageData,
    model: Model,
    prepare: Callable,
    variables: Any,
    step: int,
) -> list[Score]:
    """Fit the probes, record each score as soon as it is found, and print them."""
    folder, tasks, scores = workdir / "probes", config.probe.tasks, []
    begin = time.perf_counter()
    labelled = labelled_images(data.probe, config.probe.num_images, config.seed)
    test = labelled_images(data.test, 0, 0)
    features = make_features(config, model, prepare, variables, labelled, test)
    with kept_until_done(workdir, step) as folder_of:
        for score in itertools.chain(
            class_scores(config, labelled, test, features),
            supervised_scores(config, folder_of, labelled, test, model, prepare),
            few_label_scores(config, labelled, test, features, model, prepare, variables),
        ):
            scores.append(score._replace(seed=config.seed, step=step))
            write_scores(workdir, scores[-1:])
    if scores:
        print(f"probes at step {step:,}, {time.perf_counter() - begin:.0f} s")
        print_scores(sorted(scores, key=lambda score: score.metric))
    if "neighbours" in tasks:
        save_neighbours(folder, step, labelled, test, features)
    if "units" in tasks:
        save_units(folder, step, test, model, prepare, variables)
    return scores


def labelled_images(images: Images, most: int, seed: int) -> Images:
    """Images that have a label; at most so many, drawn at random, unless it is 0."""
    rows = np.flatnonzero(images.labels >= 0)
    if most and most < len(rows):
        rows = np.sort(np.random.default_rng(seed).permutation(rows)[:most])
    return images if len(rows) == len(images) else select_images(images, rows)


def make_features(
    config: Config, model: Model, prepare: Callable, variables: Any, *parts: Images
) -> Features:
    """Name -> the features (n, f) of each part, pooled over regions of the grid, computed once."""
    rng = jax.random.key(config.seed + 1)

    @functools.cache
    def of_network(is_random: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        batch = prepare({"x": jnp.asarray(parts[0].pixels[:1])}, rng, False)
        own = model.init(rng, batch) if is_random else variables

        @jax.jit
        def embed(images):
            patches = prepare({"x": images}, rng, False)["x"]
            return [pool(grid, config.probe.regions) for grid in model.embed(own, patches)]

        return [embed_images(embed, part.pixels) for part in parts]

    @functools.cache
    def features(name: str) -> tuple[np.ndarray, ...]:
        if name == "pixels":
            flat = [embed_images(lambda x: x.reshape(len(x), -1), part.pixels) for part in parts]
            return tuple(part / 255.0 for part in flat)
        *random, which = name.split()
        return tuple(part["zc".index(which)] for part in of_network(bool(random)))

    return features


def class_scores(
    config: Config, labelled: Images, test: Images, features: Features
) -> Iterator[Score]:
    """Scores of each feature under a linear probe and by its nearest neighbours."""
    options, num_classes = config.probe, len(test.class_names)
    methods = [name for name in ("linear", "knn") if name in options.tasks]
    for name, method in itertools.product(options.features, methods):
        raise_if_stopped()
        train, held = features(name)
        if method == "linear":
            answer, setting = fit_linear(options.solver, train, labelled.labels, num_classes)
            found = answer(held)
        else:
            k = min(options.num_neighbours, len(train))
            found = knn_predict(train, labelled.labels, held, num_classes=num_classes, k=k)
            setting = f"k {k}"
        case = name, method
        yield from image_scores(
            {case: found.argmax(1) == test.labels},
            {case: setting},
            labelled.labels,
            test.labels,
            task="classes",
            data=name_of(config),
            correct_5={case: in_best(found, test.labels, 5)} if num_classes > 5 else {},
        )


def supervised_scores(
    config: Config,
    folder_of: FolderOf,
    labelled: Images,
    test: Images,
    model: Model,
    prepare: Callable,
) -> Iterator[Score]:
    """The score of the same network, trained whole on the labels."""
    if "supervised" not in config.probe.tasks:
        return
    numbers = np.arange(len(labelled))
    held = hold_out(numbers, config.seed)
    kept, stop_by = (select_images(labelled, n) for n in (np.setdiff1d(numbers, held), held))
    folder = folder_of(f"supervised-{name_of(config)}")
    answer, words = train_classifier(config, kept, model, prepare, None, stop_by, folder)
    print(f"supervised: {words}, by {len(held):,} held-out images of {len(labelled):,}")
    case = "supervised", "whole network"
    yield from image_scores(
        {case: answer(test.pixels) == test.labels},
        {case: words},
        labelled.labels,
        test.labels,
        task="classes",
        data=name_of(config),
    )


def fit_linear(
    solver: str, train: np.ndarray, labels: np.ndarray, num_classes: int
) -> tuple[Predict, str]:
    """A linear probe's scores (n, classes) of features, and what was chosen for it.

    With one label per class, lbfgs can set none aside to choose its l2 by, and takes the strongest.
    """
    if solver == "sgd":  # of the paper: 85,000 updates of 2048 images
        probe = fit_probe(
            train,
            labels,
            np.arange(len(labels)),
            num_classes=num_classes,
            updates=Updates(
                min_updates=85_000, batch_size=2048, learning_rate=0.1, optimizer=paper_sgd
            ),
        )
    elif solver == "ridge":
        probe = fit_ridge_probe(train, labels, num_classes=num_classes)
    else:
        fit = functools.partial(fit_lbfgs_probe, train, labels, num_classes=num_classes)
        probe = fit(l2s=(MAX_L2,)) if has_single_labels(labels) else fit()
    return lambda x: predict(probe, x), f"{solver}, {describe_fit(probe)}"


def has_single_labels(labels: np.ndarray) -> bool:
    """Return whether no class has a second label."""
    return bool(np.bincount(labels).max() == 1)


def few_label_scores(
    config: Config,
    labelled: Images,
    test: Images,
    features: Features,
    model: Model,
    prepare: Callable,
    variables: Any,
) -> Iterator[Score]:
    """Accuracy against the share of labels: frozen features, and the network fine-tuned."""
    options, num_classes = config.probe, len(test.class_names)
    # The paper's 85,000 updates are meant for all labels.
    solver = "lbfgs" if options.solver == "sgd" else options.solver

    def frozen(name, subset):
        train, held = features(name)
        score, note = fit_linear(solver, train[subset], labelled.labels[subset], num_classes)
        unconverged.append(note.endswith("not converged"))
        return score(held).argmax(1)

    def tuned(start, subset):
        part = select_images(labelled, subset)
        return train_classifier(config, part, model, prepare, start)[0](test.pixels)

    cases, unconverged = [], []
    if "few_labels" in options.tasks:
        cases += [(name, "frozen", functools.partial(frozen, name)) for name in options.features]
    if "fine_tuned" in options.tasks:
        cases.append(("z", "fine-tuned", functools.partial(tuned, variables)))
        cases.append(("supervised", "fine-tuned", functools.partial(tuned, None)))
    for fraction in options.fractions if cases else ():
        num_subsets = options.num_subsets if fraction < 1 else 1
        subsets = [label_subset(labelled.labels, fraction, seed) for seed in range(num_subsets)]
        for name, mode, answer in cases:
            raise_if_stopped()
            unconverged.clear()
            correct = np.stack([answer(subset) == test.labels for subset in subsets])
            score = few_label_score(
                correct,
                test.labels,
                data=name_of(config),
                features=name,
                mode=mode,
                fraction=fraction,
                num_labels=len(subsets[0]),
            )
            is_single = has_single_labels(labelled.labels[subsets[0]])
            if mode == "frozen" and solver == "lbfgs" and is_single:
                score = score._replace(setting=f"l2 {MAX_L2:g}, {score.setting}")
            if any(unconverged):
                note = f"{sum(unconverged)} of {len(subsets)} fits not converged"
                score = score._replace(setting=f"{note}, {score.setting}")
            yield score
