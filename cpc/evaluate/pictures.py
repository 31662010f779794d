"""Features of pictures, and the rows of the report's tables about them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Bool, Int

from cpc.evaluate.scores import bootstrap_interval, majority_accuracy
from cpc.types import PyTree, UserError


class Difference(NamedTuple):
    """How much more accurate one is than another on the same pictures."""

    value: float
    low: float
    high: float
    """95 % interval over pictures."""
    p_value: float
    """Of McNemar's exact test that both are equally accurate."""


@runtime_checkable
class Pictures(Protocol):
    """Anything that has a length and gives slices or single pictures by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> np.ndarray: ...


def embed_pictures(
    embed: Callable[[np.ndarray], PyTree], pictures: Pictures, batch_size: int = 256
) -> PyTree:
    """Features of all pictures on the host, float32, in batches of one shape.

    Args:
        embed: (b, y, x, channels), as stored, to arrays (b, ...), such as pooled (z, c); best
            jitted by the caller.
        pictures: an array (n, y, x, channels) or a source of single pictures.
        batch_size: the last batch is filled up with its last picture.

    Raises:
        UserError: there are no pictures.

    >>> embed_pictures(lambda x: x.mean((1, 2, 3)), np.ones((3, 2, 2, 1), np.uint8), batch_size=2)
    array([1., 1., 1.], dtype=float32)
    """
    if not len(pictures):
        raise UserError("there are no pictures to embed: check the split and the folder")
    batches = []
    for start in range(0, len(pictures), batch_size):
        numbers = range(start, min(start + batch_size, len(pictures)))
        batch = np.stack([pictures[i] for i in numbers])
        padding = min(batch_size, len(pictures)) - len(batch)
        full = np.concatenate([batch, np.repeat(batch[-1:], padding, axis=0)])
        part = jax.tree.map(lambda x, n=len(batch): np.asarray(x, np.float32)[:n], embed(full))
        batches.append(part)
    return jax.tree.map(lambda *parts: np.concatenate(parts), *batches)


def picture_rows(
    correct: Mapping[tuple[str, str], Bool[np.ndarray, " _"]],
    settings: Mapping[tuple[str, str], str],
    train_labels: Int[np.ndarray, " n"],
    test_labels: Int[np.ndarray, " m"],
    *,
    task: str,
    data: str,
    num_classes: int,
    correct_5: Mapping[tuple[str, str], Bool[np.ndarray, " _"]] | None = None,
) -> list[dict[str, Any]]:
    """A row of the report's table for each of the features under each probe.

    Args:
        correct: (features, probe), such as ("z", "linear"), to whether each test picture is right.
            Features: "c", "z", "random c", "random z", "pixels", "supervised"; probes: "linear",
            "hidden", "sgd", "ridge", "knn", "whole network".
        settings: what was chosen, in words, such as "l2 0.001"; may lack entries.
        train_labels: of the training pictures used, for the majority class.
        test_labels: of the test pictures, all labelled.
        task: what the classes are, such as "classes"; data: the name of the data.
        correct_5: like `correct`, whether the class is among the five best; may lack entries.

    Returns:
        Dicts, ready for probes/<task>.json: task, data, features, probe, unit ("picture"),
        accuracy, low, high (95 %), majority, num_classes, num_train, num_test, setting, and
        versus: for each other features with the same probe [difference, low, high, p_value].
        Where `correct_5` has an entry also top_5: {accuracy, low, high}.

    Raises:
        UserError: some test pictures were left out.
    """
    correct_5 = correct_5 or {}
    for name, one in (*correct.items(), *correct_5.items()):
        if len(one) != len(test_labels):
            raise UserError(
                f"{' / '.join(name)} answers for {len(one)} of {len(test_labels)} test pictures: "
                "give all, in the order of the labels, or comparisons are not of like with like"
            )
    rows = []
    for (features, probe), ours in correct.items():
        five = correct_5.get((features, probe))
        others = [name for name, other in correct if other == probe and name != features]
        rows.append(
            {
                "task": task,
                "data": data,
                "features": features,
                "probe": probe,
                "unit": "picture",
                **accuracy_of(ours),
                **({} if five is None else {"top_5": accuracy_of(five)}),
                "majority": majority_accuracy(train_labels, test_labels),
                "num_classes": num_classes,
                "num_train": len(train_labels),
                "num_test": len(test_labels),
                "setting": settings.get((features, probe), ""),
                "versus": {
                    name: list(paired_difference(ours, correct[name, probe])) for name in others
                },
            }
        )
    return rows


def accuracy_of(correct: Bool[np.ndarray, " m"]) -> dict[str, float]:
    """Share of pictures that are right, with a 95 % interval: accuracy, low and high."""
    low, high = bootstrap_interval(correct, np.ones(len(correct), np.int64))
    return {"accuracy": float(correct.mean()), "low": low, "high": high}


def paired_difference(
    ours: Bool[np.ndarray, " m"],
    theirs: Bool[np.ndarray, " _"],
    *,
    num_resamples: int = 10_000,
    level: float | int = 0.95,
    seed: int = 0,
) -> Difference:
    """Difference of two accuracies on the same test pictures, ours minus theirs.

    Pictures on which both agree cancel, which makes the interval narrower than those of the two
    accuracies suggest. The interval is the percentile bootstrap over pictures: a picture gives
    -1, 0 or 1, so resampling pictures is a draw from a multinomial. The p-value is McNemar's
    (1947), exact: among pictures on which they differ, either is right equally often.

    Raises:
        UserError: the numbers of pictures differ.

    >>> ours, theirs = np.array([True] * 8 + [False] * 2), np.array([True] * 3 + [False] * 7)
    >>> difference = paired_difference(ours, theirs)
    >>> difference.value, difference.p_value  # 5 of 5 in our favour: 2 / 2^5
    (0.5, 0.0625)
    """
    if len(ours) != len(theirs) or not len(ours):
        raise UserError(
            f"a paired difference of {len(ours)} and {len(theirs)} pictures: take the same, at "
            "least one, for both"
        )
    count = len(ours)
    wins, losses = int(np.sum(ours & ~theirs)), int(np.sum(theirs & ~ours))
    shares = np.array([wins, losses, count - wins - losses]) / count
    drawn = np.random.default_rng(seed).multinomial(count, shares, size=num_resamples)
    tail = (1 - level) / 2
    low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / count, [tail, 1 - tail])
    from scipy import stats  # half a second, which a start of training need not wait

    p_value = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    return Difference((wins - losses) / count, float(low), float(high), float(p_value))
