"""The words for what became of a claim, and the intervals that say which."""

import math
from collections.abc import Sequence

from cpc.results import Difference

#: Rows that the paper gives as equal are equal here if their difference surely lies within these.
EQUAL_POINTS = 1.0

HELD, REFUTED, UNTOLD = "held", "did not hold", "cannot be told"
MISSING = "not measured"
VERDICTS = {
    HELD: "Held",
    REFUTED: "Did not hold",
    UNTOLD: "Cannot be told at this size (the interval is too wide)",
    MISSING: "Not measured",
}


def judge_pair(over: Difference, relation: str = "<", equal: float = EQUAL_POINTS) -> str:
    """Return whether one row lies above another, by the interval of their difference in points.

    Equal is what surely differs by less than `equal`.

    >>> judge_pair(Difference(3.0, 1.5, 4.5)), judge_pair(Difference(3.0, -1.5, 7.5))
    ('held', 'cannot be told')
    >>> judge_pair(Difference(0.1, -0.5, 0.7), "="), judge_pair(Difference(3.0, 1.5, 4.5), "=")
    ('held', 'did not hold')
    """
    if not math.isfinite(over.low + over.high):
        return UNTOLD
    if relation == "=":
        if max(-over.low, over.high) < equal:
            return HELD
        return REFUTED if over.low > equal or over.high < -equal else UNTOLD
    return HELD if over.low > 0 else REFUTED if over.high < 0 else UNTOLD


def join(verdicts: Sequence[str]) -> str:
    """Return the verdict on a claim: it holds if all its pairs do, and is refuted if one is."""
    return next((one for one in (REFUTED, MISSING, UNTOLD) if one in verdicts), HELD)
