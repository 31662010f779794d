"""What an experiment on theory hands out: a finding, with checks of expectation and measurement."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from cpc.files import plain
from cpc.results import Frame

#: A number that theory gives and one that was measured, as JSON holds them.
Check: TypeAlias = dict[str, Any]
#: All that the page shows of an experiment, as JSON holds it.
Finding: TypeAlias = dict[str, Any]


def check(
    what: str, measured: Any, expected: Any, tolerance: Any, reason: str, relation: str = "="
) -> Check:
    """Return whether a measured number agrees with theory; `reason` explains the tolerance.

    >>> check("log N", 1.385, 1.386, 0.01, "rounding")["agrees"]
    True
    >>> check("log N - L", 1.5, 1.386, 0.01, "rounding", "<=")["agrees"]
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
    checks: Sequence[Check],
    curves: dict[str, Any],
    claim: str = "",
) -> Finding:
    """Return an experiment's finding.

    Args:
        title: of the figure.
        expected: what theory says: the rest of a sentence that begins so.
        measured: what came out: the rest of a sentence that begins so.
        checks: the numbers behind both.
        curves: what the figure draws.
        claim: what is often said, and what became of it, in whole sentences.
    """
    return {
        "title": title,
        "expected": expected,
        "measured": measured,
        "agrees": all(one["agrees"] for one in checks),
        "rows": list(checks),  # so named in files that are resumed
        "curves": plain(curves),
        "claim": claim,
    }


def disagreeing(finding: Finding) -> list[str]:
    """Return the names of the checks that do not agree."""
    return [one["what"] for one in finding["rows"] if not one["agrees"]]


def checks_frame(finding: Finding) -> Frame:
    """Return the checks of a finding, one a row; what has no value is NaN."""
    import pandas as pd

    names = ("what", "relation", "expected", "measured", "tolerance", "reason", "agrees")
    numbers = dict.fromkeys(("expected", "measured", "tolerance"), float)
    return pd.DataFrame(finding["rows"], columns=list(names)).astype(numbers)
