"""Estimates over seeds and test items, and how far two rows lie apart."""

import math

import numpy as np
import pandas as pd

from cpc.results import Difference, Frame, difference, over_seeds, to_scores
from cpc.results.compare import independent_difference


def combine(scores: Frame) -> Difference:
    """Return the mean of accuracies over seeds, with `over_seeds_and_items`, within 0 and 1.

    >>> two = pd.DataFrame({"value": [0.5, 0.5], "low": [0.46, 0.46], "high": [0.54, 0.54]})
    >>> combine(two)[:3], combine(two[:1])[:3] == combine(two)[:3]
    ((0.5, 0.46, 0.54), True)
    """
    return within_0_and_1(over_seeds_and_items(scores))


def lead(ours: Frame, theirs: Frame) -> tuple[Difference, int]:
    """Return by how much the scores of one row lie above another's, and over how many seeds.

    Of each seed that both have, d is the difference on their test items with its bootstrap over
    these (over utterances or images), and the lead is `over_seeds_and_items` of all d: what is
    common to both rows, of an item or of a seed, cancels. "paired" is "items" if it is so for all
    d; otherwise those d are of two intervals taken as independent, as are the rows themselves where
    they share no seed.
    """
    a, b = ({score.seed: score for score in to_scores(rows)} for rows in (ours, theirs))
    found = [difference(a[seed], b[seed]) for seed in a if seed in b]
    if not found:
        return independent_difference(combine(ours), combine(theirs)), min(len(a), len(b))
    paired = "items" if {one.paired for one in found} == {"items"} else ""
    return over_seeds_and_items(pd.DataFrame(found))._replace(paired=paired), len(found)


def over_seeds_and_items(estimates: Frame) -> Difference:
    """Return the mean of estimates, one a seed, with an interval over seeds and test items.

    mean -+ sqrt(s^2 + u^2): s is Student's half-width over seeds, t(0.975, n - 1) sd / sqrt(n) (0
    for one seed), u the mean of the estimates' own over test items. Seeds share their test items,
    so u does not shrink with their number. What lies outside lies outside of both intervals, that
    over seeds and that over items, as the root is no less than either.
    """
    mean, low, *_ = over_seeds(estimates.value.tolist())
    seeds = mean - low if len(estimates) > 1 else 0.0
    down = float((estimates.value - estimates.low).mean(skipna=False))
    up = float((estimates.high - estimates.value).mean(skipna=False))
    low, high = mean - math.hypot(seeds, down), mean + math.hypot(seeds, up)
    return Difference(mean, round(low, 12), round(high, 12))


def within_0_and_1(estimate: Difference) -> Difference:
    """Return the mean of accuracies with an interval of what they can be."""
    low, high = np.clip(estimate[1:3], 0, 1)
    return Difference(estimate.value, float(low), float(high))


def in_percent(estimate: Difference) -> Difference:
    """Return a fraction and its interval in percent."""
    value, low, high = (round(100 * one, 10) for one in estimate[:3])
    return estimate._replace(value=value, low=low, high=high)
