"""A run directory of images with plausible numbers and without training."""

import pathlib

import numpy as np

from cpc.files import write_arrays, write_sealed
from cpc.results import Outcomes, Score, write_scores
from tests.fake_run import fake_record, write_records

DIRECTIONS = ("down", "up")
OFFSETS = [2, 3, 4]
CLASSES = ("stripes", "checks", "disc", "ring")


def cut(pictures):
    """Return patches of 8 pixels every 4, (n, i, j, 8, 8, 1)."""
    windows = np.lib.stride_tricks.sliding_window_view(pictures, (8, 8), axis=(1, 2))
    return windows[:, ::4, ::4].transpose(0, 1, 2, 4, 5, 3)


def image_record(step, rule, is_bound, rng):
    full = fake_record(step, rule, is_bound, 128, 3.0, rng)
    record = {
        key: value[: len(OFFSETS)] * len(DIRECTIONS) if isinstance(value, list) else value
        for key, value in full.items()
    }
    record["offsets"] = OFFSETS * len(DIRECTIONS)
    record["directions"] = [name for name in DIRECTIONS for _ in OFFSETS]
    record["bound"] = [value + 0.1 * n for n, value in enumerate(record["bound"])]
    record["bound_high"] = [value + 0.1 for value in record["bound"]]
    return record


def write_metrics(workdir, rng):
    records = []
    for step in range(100, 501, 100):
        record = image_record(step, "batch", False, rng) | {"split": "train"}
        record |= {"per_step": 128, "per_step_unit": "images", "steps_per_second": 3.5}
        record |= {"seconds": step / 3.5, "num_steps": 500}
        records.append(record | {"learning_rate": 1e-3, "gradient_norm": 1})
    for step in (0, 250, 500):
        records.append(image_record(step, "batch", False, rng))
        records.append(image_record(step, "one_per_sequence", True, rng))
    write_records(workdir, records)


def class_scores(rng):
    accuracies = {
        ("random z", "linear"): 0.741, ("random c", "linear"): 0.752, ("pixels", "linear"): 0.823,
        ("c", "linear"): 0.846, ("z", "linear"): 0.855, ("random z", "knn"): 0.70,
        ("z", "knn"): 0.81, ("supervised", "whole network"): 0.912,
    }  # fmt: skip
    score = Score("classes", "shapes", "image", "", "linear", "accuracy", 0.0)
    for step in (0, 250):
        yield score._replace(features="z", value=0.6 + step / 2000, step=step)
        yield score._replace(features="pixels", value=0.7, step=step)
    for (features, method), accuracy in accuracies.items():
        right = Outcomes(rng.permutation(10_000) < round(10_000 * accuracy), items="shapes")
        yield score._replace(
            features=features, method=method, value=accuracy, low=accuracy - 0.007,
            high=accuracy + 0.007, chance=0.25, step=500, num_train=60_000, num_test=10_000,
            setting="lbfgs, l2 0.001" if method == "linear" else "", outcomes=right,
        )  # fmt: skip


def few_label_scores():
    curves = {
        ("z", "frozen"): (0.72, 0.85), ("z", "fine-tuned"): (0.74, 0.915),
        ("pixels", "frozen"): (0.66, 0.82), ("random z", "frozen"): (0.58, 0.74),
        ("supervised", "fine-tuned"): (0.62, 0.912),
    }  # fmt: skip
    for (features, mode), (first, last) in curves.items():
        for fraction in (0.01, 0.1, 1.0):
            accuracy = first + (last - first) * (1 + np.log10(fraction) / 2)
            reach = 0.006 + 0.02 * (fraction < 0.03)
            yield Score(
                "few_labels", "shapes", "image", features, mode, "accuracy", accuracy, step=500,
                low=accuracy - reach, high=accuracy + reach, num_train=round(60_000 * fraction),
                num_test=10_000, setting=f"{100 * fraction:g} % of the labels",
            )  # fmt: skip


def write_images(folder, rng):
    labels = rng.integers(0, len(CLASSES), 8)
    found = np.where(rng.uniform(size=(8, 8)) < 0.8, labels[:, None], (labels[:, None] + 1) % 4)
    queries, pictures = (rng.integers(0, 256, (n, 28, 28, 1), np.uint8) for n in (8, 64))
    write_arrays(
        folder / "neighbours.npz", queries=queries, neighbours=pictures.reshape(8, 8, 28, 28, 1),
        query_labels=labels, neighbour_labels=found, class_names=np.asarray(CLASSES),
    )  # fmt: skip
    parts = cut(pictures)[:, 0, :2].reshape(8, 16, 8, 8, 1)[:, :12]
    write_arrays(folder / "units.npz", units=np.arange(3, 11), patches=parts)
    plain = cut(queries)
    write_arrays(folder / "augmented.npz", plain=plain, augmented=plain // 2)


def write_fake_image_run(workdir: pathlib.Path) -> pathlib.Path:
    rng = np.random.default_rng(0)
    folder = workdir / "probes"
    folder.mkdir(parents=True, exist_ok=True)
    write_sealed(workdir / "config.json", {"data": {"source": "shapes"}, "seed": 0})
    write_sealed(workdir / "environment.json", {"devices": ["TFRT_CPU_0"]})
    write_metrics(workdir, rng)
    write_scores(workdir, [*class_scores(rng), *few_label_scores()])
    write_sealed(folder / "done.json", {"step": 500})
    write_images(folder, rng)
    mean = {"name": "negatives_mean", "value": 127.0, "unit": "negatives"}
    false = {"name": "false_negatives_by_class", "value": None, "unit": "share"}
    audit = [mean | {"meaning": "of an anchor, on average"}, false | {"meaning": "same <class>"}]
    content = {"rule": "batch", "title": "batch, 2 batches", "rows": audit}
    write_sealed(workdir / "audit.json", content)
    return workdir
