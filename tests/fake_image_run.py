"""A run on pictures as the experiments write it, with plausible numbers and no training."""

import json
import pathlib

import numpy as np

from tests.fake_run import fake_record

DIRECTIONS = ("down", "up")
OFFSETS = [2, 3, 4]
CLASSES = ("stripes", "checks", "disc", "ring")


def draw_images(labels, rng, size=28):
    """Shapes in grey, (n, size, size, 1) uint8."""
    y, x = np.mgrid[:size, :size] / (size - 1) - 0.5
    shift = rng.uniform(-0.15, 0.15, (2, len(labels), 1, 1))
    wide = rng.uniform(5, 9, (len(labels), 1, 1))
    radius = np.hypot(y + shift[0], x + shift[1])
    shapes = np.stack(
        [
            np.sin(wide * 4 * (x + shift[0])) > 0,
            np.sin(wide * 3 * (x + shift[0])) * np.sin(wide * 3 * (y + shift[1])) > 0,
            radius < 0.3,
            np.abs(radius - 0.28) < 0.07,
        ]
    )
    pixels = 200 * shapes[labels, np.arange(len(labels))] + rng.uniform(0, 55, (1, size, size))
    return pixels[..., None].astype(np.uint8)


def cut(pictures, patch=8, stride=4):
    """(n, i, j, patch, patch, 1)."""
    windows = np.lib.stride_tricks.sliding_window_view(pictures, (patch, patch), axis=(1, 2))
    return windows[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)


def image_record(step, rule, is_bound, rng):
    """Two directions, offsets from two upwards, one direction after the other."""
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
        record |= {"per_step": 128, "per_step_unit": "pictures", "steps_per_second": 3.5}
        records.append(record | {"seconds": step / 3.5, "learning_rate": 1e-3, "gradient_norm": 1})
    for step in (0, 250, 500):
        records.append(image_record(step, "batch", False, rng))
        records.append(image_record(step, "one_per_sequence", True, rng))
        accuracies = {"classes/z/linear": 0.6 + step / 2000, "classes/pixels/linear": 0.7}
        records.append({"step": step, "split": "test", "series": "probes", **accuracies})
    lines = [json.dumps(record) for record in records]
    (workdir / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def class_rows():
    """As `cpc.evaluate.picture_rows` makes them."""
    accuracies = {
        ("random z", "linear"): 0.741,
        ("random c", "linear"): 0.752,
        ("pixels", "linear"): 0.823,
        ("c", "linear"): 0.846,
        ("z", "linear"): 0.855,
        ("random z", "knn"): 0.70,
        ("z", "knn"): 0.81,
        ("supervised", "whole network"): 0.912,
    }
    rows = []
    for (features, probe), accuracy in accuracies.items():
        others = {
            name: [accuracy - other, accuracy - other - 0.008, accuracy - other + 0.008, 1e-9]
            for (name, with_probe), other in accuracies.items()
            if with_probe == probe and name != features
        }
        rows.append(
            {
                "task": "classes",
                "data": "shapes",
                "features": features,
                "probe": probe,
                "unit": "picture",
                "accuracy": accuracy,
                "low": accuracy - 0.007,
                "high": accuracy + 0.007,
                "majority": 0.25,
                "num_classes": 4,
                "num_train": 60_000,
                "num_test": 10_000,
                "setting": "lbfgs, l2 0.001" if probe == "linear" else "",
                "versus": others,
            }
        )
    return rows


def few_label_rows():
    """As `cpc.evaluate.few_label_row` makes them."""
    curves = {
        ("z", "frozen"): (0.72, 0.85),
        ("z", "fine-tuned"): (0.74, 0.915),
        ("pixels", "frozen"): (0.66, 0.82),
        ("random z", "frozen"): (0.58, 0.74),
        ("supervised", "fine-tuned"): (0.62, 0.912),
    }
    rows = []
    for (features, mode), (first, last) in curves.items():
        for fraction in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
            accuracy = first + (last - first) * (1 + np.log10(fraction) / 2)
            reach = 0.006 + 0.02 * (fraction < 0.03)
            rows.append(
                {
                    "features": features,
                    "mode": mode,
                    "fraction": fraction,
                    "num_labels": round(60_000 * fraction),
                    "accuracy": accuracy,
                    "low": accuracy - reach,
                    "high": accuracy + reach,
                    "by_seed": [accuracy] * 3,
                    "num_test": 10_000,
                }
            )
    return rows


def write_arrays(folder, rng):
    labels = rng.integers(0, len(CLASSES), 8)
    found = np.where(rng.uniform(size=(8, 8)) < 0.8, labels[:, None], (labels[:, None] + 1) % 4)
    queries, pictures = draw_images(labels, rng), draw_images(found.ravel(), rng)
    np.savez(
        folder / "neighbours.npz",
        queries=queries,
        neighbours=pictures.reshape(8, 8, 28, 28, 1),
        query_labels=labels,
        neighbour_labels=found,
        class_names=np.asarray(CLASSES),
    )
    patches = cut(pictures).reshape(-1, 8, 8, 1)
    brightest = np.argsort(-patches.reshape(len(patches), -1).mean(1))[: 8 * 12]
    np.savez(
        folder / "units.npz",
        units=np.arange(3, 11),
        patches=patches[brightest].reshape(8, 12, 8, 8, 1),
    )
    plain = cut(queries)
    augmented = np.clip(plain * rng.uniform(0.4, 1.3, (*plain.shape[:3], 1, 1, 1)), 0, 255)
    np.savez(folder / "augmented.npz", plain=plain, augmented=augmented.astype(np.uint8))


def write_fake_image_run(workdir: pathlib.Path) -> pathlib.Path:
    """A finished run on pictures."""
    rng = np.random.default_rng(0)
    folder = workdir / "probes"
    folder.mkdir(parents=True, exist_ok=True)
    (workdir / "config.json").write_text(json.dumps({"data": {"source": "shapes"}, "seed": 0}))
    (workdir / "environment.json").write_text(json.dumps({"devices": ["TFRT_CPU_0"]}))
    write_metrics(workdir, rng)
    (folder / "classes.json").write_text(json.dumps({"step": 500, "rows": class_rows()}))
    (folder / "few_labels.json").write_text(json.dumps({"step": 500, "rows": few_label_rows()}))
    (folder / "done.json").write_text(json.dumps({"step": 500}))
    write_arrays(folder, rng)
    audit = [
        {
            "name": "negatives_mean",
            "value": 127.0,
            "unit": "negatives",
            "meaning": "of an anchor, on average",
        },
        {
            "name": "false_negatives_by_class",
            "value": None,
            "unit": "share",
            "meaning": "same <class>",
        },
    ]
    content = {"rule": "batch", "title": "batch, 2 batches", "rows": audit}
    (workdir / "audit.json").write_text(json.dumps(content))
    return workdir
