"""What closed forms ask for, measured: against a pair-by-pair twin and simulated draws."""

import numpy as np
import pytest

from cpc import negatives
from cpc.types import UserError


def test_pairs_are_counted_by_lag():
    labels = np.random.default_rng(0).integers(-1, 3, (4, 9))
    pairs, same = np.zeros(9, int), np.zeros(9, int)
    for row in labels:
        for i, a in enumerate(row):
            for lag, b in enumerate(row[i:]):
                pairs[lag] += a >= 0 and b >= 0
                same[lag] += a >= 0 and a == b
    counted = negatives.count_same(labels)
    np.testing.assert_array_equal(counted.pairs, pairs)
    np.testing.assert_array_equal(counted.same, same)


def test_hard_ones_are_counted_among_those_allowed():
    positive, scores = np.array([0.0, 1.0, 2.0]), np.array([[0.5, -2.0, 9.0]] * 3)
    allowed = np.array([[True, True, False], [True, True, True], [False] * 3])
    np.testing.assert_array_equal(
        negatives.hard_fractions(positive, scores, allowed), [1 / 2, 1 / 3, np.nan]
    )
    np.testing.assert_array_equal(
        negatives.hard_fractions(positive, scores, allowed, margin=1.0), [1 / 2, 2 / 3, np.nan]
    )


def test_the_hit_rate_is_that_of_draws():
    rng = np.random.default_rng(0)
    fractions, k = rng.beta(0.3, 3, 200), 7
    hits = (rng.random((2000, 200, k)) < fractions[:, None]).any(-1).mean()
    assert abs(negatives.mean_hit_rate(fractions, k) - hits) < 0.005
    assert negatives.mean_hit_rate(fractions, k) < 1 - (1 - fractions.mean()) ** k - 0.05


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.95])
def test_the_number_needed_is_the_smallest(rate):
    fractions = np.random.default_rng(1).beta(0.5, 3, 100) + 1e-3
    k = negatives.min_negatives_for(fractions, rate)
    assert negatives.mean_hit_rate(fractions, k) >= rate > negatives.mean_hit_rate(fractions, k - 1)
    seven = negatives.min_negatives_for(np.full(3, 0.2), negatives.hit_rate(0.2, 7))
    assert seven == negatives.min_negatives(0.2, negatives.hit_rate(0.2, 7)) == 7
    alike = np.full(5, 0.03)
    assert negatives.min_negatives_for(alike, rate) == negatives.min_negatives(0.03, rate)


def test_anchors_without_a_hard_one_cap_the_rate():
    with pytest.raises(UserError, match=r"50\.0% of the anchors have no hard negative"):
        negatives.min_negatives_for(np.array([0.5, 0.0]), 0.6)
    with pytest.raises(UserError, match="must be between 0 and 1"):
        negatives.min_negatives_for(np.array([0.5, 0.5]), 1.0)


def test_anchors_without_negatives_are_left_out():
    """Their fraction is NaN, as `hard_fractions` gives it."""
    fractions = np.array([0.05, np.nan, 0.05])
    assert negatives.mean_hit_rate(fractions, 3) == negatives.mean_hit_rate(fractions[::2], 3)
    assert negatives.min_negatives_for(fractions, 0.6) == 18
    for ask in (negatives.mean_hit_rate, negatives.min_negatives_for):
        with pytest.raises(UserError, match="of 1 anchors none has negatives"):
            ask(fractions[1:2], 1 if ask is negatives.mean_hit_rate else 0.5)
