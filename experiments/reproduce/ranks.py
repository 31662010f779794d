"""Whether two orders agree: Kendall's tau, with its chance and its interval."""

import itertools
import math
from typing import Any

import numpy as np
from scipy import stats

from cpc.results import Difference, Frame

NUM_DRAWS = 4000
#: So many rows have few enough orders to go through.
MOST_PERMUTED = 8


def kendall_tau(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return Kendall's tau-b along the last axis; NaN where all are equal.

    tau = sum sign(x_i - x_j) sign(y_i - y_j) / sqrt(pairs untied in x . pairs untied in y)

    >>> float(kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])).round(4))
    0.3333
    """
    i, j = np.triu_indices(x.shape[-1], 1)
    a, b = np.sign(x[..., i] - x[..., j]), np.sign(y[..., i] - y[..., j])
    untied = np.sqrt((a != 0).sum(-1) * (b != 0).sum(-1))
    return np.asarray((a * b).sum(-1) / np.where(untied > 0, untied, np.nan))


def order_agreement(rows: Frame) -> Difference | None:
    """Return Kendall's tau between paper and value with a 95 % interval, and an exact p.

    The interval is a parametric bootstrap: every row is drawn from a normal distribution as wide
    as its interval over seeds and test items. p: the fraction of all orders of our rows whose tau
    is as high or higher. None for less than three rows; NaN where all are equal.
    """
    both = rows[rows.paper.notna() & rows.value.notna()]
    if len(both) < 3:
        return None
    y, values = both.paper.to_numpy(float), both.value.to_numpy(float)
    spread = (both.high - both.low).to_numpy(float) / (2 * 1.96)
    tau = float(kendall_tau(values, y))
    low = high = p = math.nan
    if np.isfinite(spread).all() and math.isfinite(tau):
        noise = np.random.default_rng(0).standard_normal((NUM_DRAWS, len(values)))
        drawn = kendall_tau(values + spread * noise, y)
        low, high = (float(end) for end in np.nanquantile(drawn, [0.025, 0.975]))
    if len(values) <= MOST_PERMUTED and math.isfinite(tau):
        orders = np.array(list(itertools.permutations(values)))
        p = float((kendall_tau(orders, y) >= tau - 1e-9).mean())
    return Difference(tau, low, high, p)


def independence(x: Any, y: Any) -> tuple[float, float]:
    """Return Kendall's tau and the two-sided p of independence: exact for few untied pairs.

    >>> tau, p = independence([1, 2, 3, 4], [1, 2, 3, 4])
    >>> tau, round(p, 4), round(2 / 24, 4)
    (1.0, 0.0833, 0.0833)
    """
    found: Any = stats.kendalltau(x, y)
    return float(found.statistic), float(found.pvalue)


def rank_correlation(x: Any, y: Any) -> Difference | None:
    """Return Kendall's tau of two columns with a bootstrap interval over their pairs, and p.

    None for less than four pairs, or where all of a column are equal.
    """
    a, b = np.asarray(x, float), np.asarray(y, float)
    if len(a) < 4:
        return None
    tau, p = independence(a, b)
    if not math.isfinite(tau):
        return None
    drawn = np.random.default_rng(0).integers(len(a), size=(NUM_DRAWS, len(a)))
    low, high = np.nanquantile(kendall_tau(a[drawn], b[drawn]), [0.025, 0.975])
    return Difference(tau, float(low), float(high), p)
