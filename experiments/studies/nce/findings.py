"""Findings of experiments on theory: expectation beside measurement, each measured once."""

import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from cpc.files import plain, read_object, seal, unseal, write_json
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


def measure_all(
    path: pathlib.Path, todo: Mapping[str, Callable[[], Finding]], width: int
) -> dict[str, Finding]:
    """Return the findings at `path`, after measuring those of `todo` that are not there whole.

    Each is written as soon as it is measured, and has a line, its name `width` wide.
    """
    recorded = read_object(path, []) or {}
    findings = {name: one for name, one in recorded.items() if is_whole(one)}
    began = time.monotonic()
    for number, (name, measure) in enumerate(todo.items(), 1):
        if name not in findings:
            findings[name] = seal(measure())
            write_json(path, findings)
        seconds = time.monotonic() - began
        left = "" if number == len(todo) else f", {len(todo) - number} left"
        said = f"{name:{width}}  {verdict(findings[name])}"
        print(f"{number}/{len(todo)}  {said}  {seconds:.0f} s{left}")
    return findings


def is_whole(recorded: Any) -> bool:
    """Return whether a recorded finding is as it was written: else it is measured again."""
    try:
        return isinstance(recorded, dict) and bool(unseal(recorded))
    except ValueError:
        return False


def verdict(finding: Finding) -> str:
    """Return one word, or which checks do not agree."""
    wrong = disagreeing(finding)
    return f"DISAGREES ({'; '.join(wrong)})" if wrong else "agrees"


def format_table(findings: dict[str, Finding]) -> str:
    """Return a line for every check, aligned."""
    lines = [("", "", "expected", "measured", "tolerance", "agrees")]
    for name, one in findings.items():
        for row in checks_frame(one).itertuples():
            sign = "" if row.relation == "=" else f"{row.relation} "
            numbers = f"{sign}{row.expected:.5g}", f"{row.measured:.5g}", f"{row.tolerance:.5g}"
            lines.append((name, row.what, *numbers, "yes" if row.agrees else "NO"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
