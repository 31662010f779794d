"""Features of images, scores of image probes, and accuracy as a function of the label fraction."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Int

from cpc.evaluate.accuracy import bootstrap_interval, majority_accuracy
from cpc.results import Outcomes, Score, digest
from cpc.results.compare import LEVEL
from cpc.types import PyTree, UserError


def embed_images(
    embed: Callable[[np.ndarray], PyTree], images: Any, batch_size: int = 256
) -> PyTree:
    """Return the features of all images as float32 NumPy arrays.

    `embed` maps images (b, y, x, channels) as they are stored to arrays (b, ...), such as pooled
    (z, c). `images` is an array (n, y, x, channels) or a sequence of single images. The last batch
    is padded, so that all batches have the same shape.

    >>> embed_images(lambda x: x.mean((1, 2, 3)), np.ones((3, 2, 2, 1), np.uint8), batch_size=2)
    array([1., 1., 1.], dtype=float32)
    """
    if not len(images):
        raise UserError("no images to embed: check the split and the folder")
    batches = []
    for start in range(0, len(images), batch_size):
        numbers = range(start, min(start + batch_size, len(images)))
        batch = np.stack([images[i] for i in numbers])
        padding = min(batch_size, len(images)) - len(batch)
        full = np.concatenate([batch, np.repeat(batch[-1:], padding, axis=0)])
        part = jax.tree.map(lambda x, n=len(batch): np.asarray(x, np.float32)[:n], embed(full))
        batches.append(part)
    return jax.tree.map(lambda *parts: np.concatenate(parts), *batches)


def image_scores(
    correct: Mapping[tuple[str, str], Bool[np.ndarray, " _"]],
    settings: Mapping[tuple[str, str], str],
    train_labels: Int[np.ndarray, " n"],
    test_labels: Int[np.ndarray, " m"],
    *,
    task: str,
    data: str,
    correct_5: Mapping[tuple[str, str], Bool[np.ndarray, " _"]] | None = None,
) -> list[Score]:
    """Return the accuracy for each combination of features and probe, with each image's outcome.

    Args:
        correct: maps (features, method), such as ("z", "linear"), to whether each test image is
            classified correctly.
        settings: optionally maps (features, method) to a chosen setting, such as "l2 0.001".
        train_labels: labels of the training images, which determine the majority class.
        correct_5: like `correct`, but for whether the label is among the five best classes. Entries
            are optional.
    """
    majority, items = majority_accuracy(train_labels, test_labels), digest("image", test_labels)
    metrics = ("accuracy", correct, majority), ("top-5 accuracy", correct_5 or {}, None)
    scores = []
    for metric, answers, chance in metrics:
        for (features, method), right in answers.items():
            if len(right) != len(test_labels):
                raise UserError(
                    f"{features} / {method} has answers for {len(right)} of {len(test_labels)} "
                    "test images: pass one answer per image, in the order of the labels"
                )
            low, high = bootstrap_interval(right, np.ones(len(right), np.int64))
            scores.append(
                Score(
                    task, data, "image", features, method, metric, float(right.mean()), low, high,
                    chance, num_train=len(train_labels), num_test=len(test_labels),
                    setting=settings.get((features, method), ""),
                    outcomes=Outcomes(right, items=items),
                )
            )  # fmt: skip
    return scores


#: Label fractions in Figure 1 of CPC v2 (Henaff et al., 2019).
FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def label_subset(
    labels: Int[np.ndarray, " n"], fraction: float | int, seed: int
) -> Int[np.ndarray, " kept"]:
    """Return a stratified random subset of the labelled rows, as sorted row indices.

    For a class with n rows, the subset has round(fraction n) rows, but at least one. Subsets with
    the same seed are nested. Rows with the label -1 are unlabelled.

    >>> labels = np.array([0, 1, 0, 1, 0, 1, 0, 1, -1])
    >>> kept = label_subset(labels, 0.5, seed=0)
    >>> len(kept), np.bincount(labels[kept]), set(label_subset(labels, 0.25, seed=0)) <= set(kept)
    (4, array([2, 2]), True)
    """
    if not 0 < fraction <= 1:
        raise UserError(f"the fraction of labels must be above 0 and at most 1 (got {fraction})")
    labelled = np.flatnonzero(labels >= 0)
    if not len(labelled):
        raise UserError("no row has a label (all are -1): pass labels of 0 or more")
    order = np.random.default_rng(seed).permutation(labelled)
    kept = []
    for name in np.unique(labels[labelled]):
        members = order[labels[order] == name]
        kept.append(members[: max(1, round(fraction * len(members)))])
    return np.sort(np.concatenate(kept))


def few_label_score(
    correct: Bool[np.ndarray, "seeds m"],
    test_labels: Int[np.ndarray, " m"],
    *,
    data: str,
    features: str,
    mode: str,
    fraction: float | int,
    num_labels: int,
) -> Score:
    """Return the mean accuracy over random label subsets of one size.

    `correct` marks the test images classified correctly after training on each seed's subset.
    `mode` is "frozen" or "fine-tuned". Subsets are random, so a score from a single subset has no
    interval unless this contains all labels. Only scores with all labels are paired by image.
    """
    has_all = fraction == 1
    low, high = seeds_interval(correct) if has_all or len(correct) > 1 else (None, None)
    items = digest("image", test_labels) if has_all else ""
    return Score(
        "few_labels", data, "image", features, mode, "accuracy", float(correct.mean()), low, high,
        num_train=num_labels, num_test=correct.shape[1],
        setting=f"{100 * fraction:g} % of the labels",
        outcomes=Outcomes(correct.mean(axis=0), items=items),
    )  # fmt: skip


def seeds_interval(correct: Bool[np.ndarray, "seeds m"]) -> tuple[float, float]:
    """Return a confidence interval of the mean accuracy over random subsets and test images.

    The interval is mean +- t sqrt(A + B), where A is the variance of the mean due to seeds, B the
    variance due to test images, and t has Satterthwaite's (1946) degrees of freedom (A + B)^2 /
    (A^2 / (seeds - 1) + B^2 / (m - 1)). With one seed, A is unknown and left out. If A + B = 0, for
    example because all answers are right, the result is the `bootstrap_interval` over images.

    >>> low, high = seeds_interval(np.array([[True] * 50 + [False] * 50] * 2))
    >>> round(low, 2), round(high, 2)
    (0.4, 0.6)
    """
    num_seeds, num_images = correct.shape
    by_seed, by_image = correct.mean(axis=1), correct.mean(axis=0)
    a = by_seed.var(ddof=1) / num_seeds if num_seeds > 1 else 0.0
    b = by_image.var(ddof=1) / num_images if num_images > 1 else 0.0
    if a + b == 0:
        return bootstrap_interval(by_image, np.ones(num_images))
    freedom = (a + b) ** 2 / (a**2 / max(1, num_seeds - 1) + b**2 / max(1, num_images - 1))
    from scipy import stats  # takes half a second to import

    half = float(stats.t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(a + b))
    accuracy = float(correct.mean())
    return max(0.0, accuracy - half), min(1.0, accuracy + half)
