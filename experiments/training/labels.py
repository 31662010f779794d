"""Which labels probes are fitted on, and which they are asked for."""

from collections.abc import Sequence

import numpy as np

from cpc.types import UserError

#: Labels that a sentence names of many.
MOST_NAMED = 5


def count_labels(labels: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return how often each label occurs; those that are missing, -1, do not count.

    >>> count_labels(np.array([1, -1, 1]), ["a", "b", "c"])
    array([0, 2, 0])
    """
    return np.bincount(labels[labels >= 0], minlength=len(names))


def check_known(
    train: np.ndarray, test: np.ndarray, names: Sequence[str], items: str, advice: str
) -> None:
    """Check that labels of test items are among those trained on, and print how many are not.

    `train` and `test` are how many items have each label; `items` is what these are called.
    """
    unknown = np.where(train > 0, 0, test)
    number, total = int(unknown.sum()), int(test.sum())
    if number == total:
        raise UserError(
            f"no label of the {total:,} test {items} ({name_some(names, test)}) is one of those to "
            f"train on ({name_some(names, train)}): {advice}"
        )
    if number:
        print(
            f"{number:,} of {total:,} test {items} have labels that are not trained on "
            f"({name_some(names, unknown)}): probes cannot know them"
        )


def name_some(names: Sequence[str], counts: np.ndarray) -> str:
    """Return the first names that occur, and how many more there are.

    >>> name_some("abcdefgh", np.array([1, 0, 2, 3, 4, 5, 6, 7]))
    'a, c, d, e, f and 2 more'
    """
    found = [names[i] for i in np.flatnonzero(counts).tolist()]
    more = len(found) - MOST_NAMED
    return ", ".join(found[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
