"""What an experiment on theory hands out: a finding, rows of expectation and measurement."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Row: TypeAlias = dict[str, Any]
Finding: TypeAlias = dict[str, Any]


def row(
    what: str,
    measured: Any,
    expected: Any,
    tolerance: Any,
    reason: str,
    relation: str = "=",
) -> Row:
    """One number that theory gives and one that was measured; `reason` is the tolerance's.

    >>> row("log N", 1.385, 1.386, 0.01, "rounding")["agrees"]
    True
    >>> row("log N - L", 1.5, 1.386, 0.01, "rounding", "<=")["agrees"]
    False
    """
    measured, expected, tolerance = float(measured), float(expected), float(tolerance)
    agrees = {
        "=": abs(measured - expected) <= tolerance,
        "<=": measured <= expected + tolerance,
        ">=": measured >= expected - tolerance,
    }[relation]
    return {
        "what": what,
        "relation": relation,
        "expected": expected,
        "measured": measured,
        "tolerance": tolerance,
        "reason": reason,
        "agrees": agrees,
    }


def finding(
    title: str,
    expected: str,
    measured: str,
    rows: Sequence[Row],
    curves: dict[str, Any],
    claim: str = "",
) -> Finding:
    """All that the page shows of an experiment, as json can hold it.

    Args:
      title: of the figure.
      expected, measured: each the rest of a sentence that begins so.
      rows: the numbers behind it.
      curves: what the figure draws.
      claim: what is often said, and what became of it, in whole sentences.
    """
    return {
        "title": title,
        "expected": expected,
        "measured": measured,
        "agrees": all(r["agrees"] for r in rows),
        "rows": list(rows),
        "curves": plain(curves),
        "claim": claim,
    }


def plain(value: Any) -> Any:
    """Arrays as lists, keys as texts.

    >>> plain({2: np.float32([1, 2])})
    {'2': [1.0, 2.0]}
    """
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return np.asarray(value).tolist()
