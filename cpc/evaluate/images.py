"""Features of images, and their scores."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Int

from cpc.evaluate.accuracy import bootstrap_interval, majority_accuracy
from cpc.results import Outcomes, Score, digest
from cpc.types import PyTree, UserError


def embed_images(
    embed: Callable[[np.ndarray], PyTree], images: Any, batch_size: int = 256
) -> PyTree:
    """Return features of all images on the host, float32, in batches of one shape.

    `embed` maps (b, y, x, channels), as stored, to arrays (b, ...), such as pooled (z, c); images
    are an array (n, y, x, channels) or a source of single ones. The last batch is padded.

    >>> embed_images(lambda x: x.mean((1, 2, 3)), np.ones((3, 2, 2, 1), np.uint8), batch_size=2)
    array([1., 1., 1.], dtype=float32)
    """
    if not len(images):
        raise UserError("there are no images to embed: check the split and the folder")
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
    """Return the accuracy of each of the features under each probe, with outcomes of images.

    Args:
        correct: (features, method), such as ("z", "linear"), to whether each test image is right.
        settings: chosen settings in words, such as "l2 0.001"; may lack entries.
        train_labels: of the training images, for the majority class.
        correct_5: like `correct`, whether the class is among the best five; may lack entries.
    """
    correct_5 = correct_5 or {}
    for name, one in (*correct.items(), *correct_5.items()):
        if len(one) != len(test_labels):
            raise UserError(
                f"{' / '.join(name)} answers for {len(one)} of {len(test_labels)} test images: "
                "give all, in the order of the labels"
            )
    majority, items = majority_accuracy(train_labels, test_labels), digest("image", test_labels)
    scores = []
    for answers, metric, chance in (
        (correct, "accuracy", majority),
        (correct_5, "top-5 accuracy", None),
    ):
        for (features, method), right in answers.items():
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
