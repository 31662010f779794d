"""Rows of a table as estimates over seeds and test items, and how far two of them lie apart."""

import numpy as np

from cpc.results import Difference, Frame
from cpc.results.compare import lead as lead_by_seed
from cpc.results.compare import mean_over_seeds


def combine(scores: Frame) -> Difference:
    """Return the mean of accuracies over seeds, with `cpc.results.compare.over_seeds_and_items`."""
    return mean_over_seeds(list(scores.itertuples()))


def lead(ours: Frame, theirs: Frame) -> tuple[Difference, int]:
    """Return `cpc.results.compare.lead` of two rows, and over how many seeds it is."""
    a, b = ({score.seed: score for score in rows.itertuples()} for rows in (ours, theirs))
    over = lead_by_seed(a, b)
    assert over is not None, "both rows have a score"
    return over, len(a.keys() & b.keys()) or min(len(a), len(b))


def within_0_and_1(estimate: Difference) -> Difference:
    """Return the mean of accuracies with an interval of what they can be."""
    low, high = np.clip(estimate[1:3], 0, 1)
    return Difference(estimate.value, float(low), float(high))


def in_percent(estimate: Difference) -> Difference:
    """Return a fraction and its interval in percent."""
    value, low, high = (round(100 * one, 10) for one in estimate[:3])
    return estimate._replace(value=value, low=low, high=high)
