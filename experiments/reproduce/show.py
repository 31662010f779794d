"""How a reproduction's page shows numbers."""

import math
from typing import Any

from cpc.report.engine import show
from cpc.results import Frame
from experiments.reproduce.verdicts import MISSING


def show_estimate(estimate: Any, style: str = ".1f", missing: str = "–") -> str:
    """Return a number and, in brackets, its interval if it has one.

    >>> show_estimate((50.0, 40.0, 60.0)), show_estimate((-1.0, math.nan, math.nan), "+.1f")
    ('50.0 (40.0 to 60.0)', '−1.0')
    """
    if estimate is None:
        return ""
    value, low, high = estimate[:3]
    if not math.isfinite(value):
        return missing
    ends = f" ({show(low, style)} to {show(high, style)})" if math.isfinite(low + high) else ""
    return show(value, style) + ends


def show_measured(estimate: Any) -> str:
    """Return an estimate, or that it is not measured."""
    return show_estimate(estimate, missing=MISSING)


def show_lead(estimate: Any) -> str:
    """Return a difference with its sign."""
    return show_estimate(estimate, "+.1f")


def triples(frame: Frame, *names: str) -> list[tuple[float, ...]]:
    """Return the rows of some columns, such as value, low and high."""
    return list(frame[list(names)].itertuples(index=False, name=None))
