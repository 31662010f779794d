"""Accuracy by the number of labels: nested subsets, and intervals over their draws."""

import numpy as np
from jaxtyping import Bool, Int

from cpc.evaluate.accuracy import bootstrap_interval
from cpc.results import Outcomes, Score, digest
from cpc.results.compare import LEVEL
from cpc.types import UserError

#: Shares of the labels in Figure 1 of CPC v2 (Henaff et al., 2019).
FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def label_subset(
    labels: Int[np.ndarray, " n"], fraction: float | int, seed: int
) -> Int[np.ndarray, " kept"]:
    """Return the rows of a stratified subset: round(fraction n_c) of each class, at least one.

    Subsets of one seed are nested. Rows with -1 are unlabelled. Indices ascend.

    >>> labels = np.array([0, 1, 0, 1, 0, 1, 0, 1, -1])
    >>> kept = label_subset(labels, 0.5, seed=0)
    >>> len(kept), np.bincount(labels[kept]), set(label_subset(labels, 0.25, seed=0)) <= set(kept)
    (4, array([2, 2]), True)
    """
    if not 0 < fraction <= 1:
        raise UserError(f"the fraction of labels must be above 0 and at most 1 (got {fraction})")
    labelled = np.flatnonzero(labels >= 0)
    if not len(labelled):
        raise UserError("no row has a label (all are -1): give labels to take a subset of")
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
    """Return one point of the curve of accuracy against labels.

    Both the choice of the labels and that of the test images are random. So a single subset of a
    part of the labels has no interval, and only scores of all labels are paired by image. `correct`
    says whether each test image is right after training on the subset of each seed; `mode` is
    "frozen" or "fine-tuned".
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
    """Return the interval of the mean accuracy over random subsets and random test images.

    mean +- t sqrt(A + B): A the variance of the mean over seeds, B that of the mean over test
    images, t of Satterthwaite's (1946) degrees of freedom (A + B)^2 / (A^2 / (seeds - 1) +
    B^2 / (m - 1)). For one seed, A is unknown and left out. If A + B = 0, as when all answers are
    right, it is the `bootstrap_interval` over images.

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
    from scipy import stats  # half a second, which a start of training need not wait

    half = float(stats.t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(a + b))
    accuracy = float(correct.mean())
    return max(0.0, accuracy - half), min(1.0, accuracy + half)
