"""Boundaries: matches, scores by their published formulas, thresholds and intervals."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from cpc.evaluate.boundaries import (
    PROMINENCES,
    Matches,
    change,
    f1,
    fit_prominence,
    match_all,
    match_boundaries,
    peaks,
    r_value,
    r_value_interval,
    total,
)
from cpc.types import UserError


def test_matches_equal_the_best_bipartite_matching():
    rng = np.random.default_rng(0)
    for _ in range(200):
        found, true = (rng.integers(0, 40, rng.integers(1, 12)) for _ in range(2))
        near = csr_array(np.abs(found[:, None] - true) <= 2)
        best = (maximum_bipartite_matching(near, perm_type="column") >= 0).sum()
        assert match_boundaries(found, true, 2.0) == (best, len(found), len(true))


def test_scores_equal_their_formulas():
    hits, found, true = 6, 10, 8
    precision, recall = hits / found, hits / true
    matches = Matches(hits, found, true)
    assert f1(matches) == pytest.approx(2 * precision * recall / (precision + recall))
    over = recall / precision - 1  # Rasanen et al. (2009)
    r1 = np.sqrt((1 - recall) ** 2 + over**2)
    r2 = (-over + recall - 1) / np.sqrt(2)
    assert r_value(matches) == pytest.approx(1 - (abs(r1) + abs(r2)) / 2)
    # Random over-segmentation raises F1 but not the R-value.
    assert r_value(Matches(6, 10, 8)) > r_value(Matches(7, 20, 8))


def test_change_measures_angles_within_utterances():
    rng = np.random.default_rng(0)
    frames = rng.normal(size=(30, 4))
    scaled = frames * rng.uniform(1, 9, (30, 1))
    np.testing.assert_allclose(change(frames), change(scaled), atol=1e-12)
    unit = frames / np.linalg.norm(frames, axis=1, keepdims=True)
    apart = np.square(unit[1:] - unit[:-1]).sum(1) / 2  # 1 - cos
    np.testing.assert_allclose(change(frames), (apart - apart.min()) / np.ptp(apart), atol=1e-12)
    assert change(frames[:1]).size == 0
    assert change(np.ones((5, 2))).tolist() == [0] * 4
    assert peaks(change(np.ones((5, 2))), 0.1).size == 0


def steps(seed, noise):
    rng = np.random.default_rng(seed)
    true = np.cumsum(rng.integers(5, 12, 9))
    frames = rng.normal(size=(10, 8))[np.searchsorted(true, np.arange(true[-1] + 8), "right")]
    return change(frames + noise * rng.normal(size=frames.shape)), true


def test_threshold_maximizes_the_r_value():
    utterances = [steps(seed, 0.25) for seed in range(12)]
    changes, true = zip(*utterances, strict=True)
    best = fit_prominence(changes, true, 1.0)
    found = [match_all([peaks(x, one) for x in changes], true, 1.0) for one in PROMINENCES]
    values = [r_value(total(each)) for each in found]
    assert values[list(PROMINENCES).index(best)] == max(values) > 0.95
    assert 0 < best < PROMINENCES[-1]
    assert min(values) < 0.8  # thresholds differ
    with pytest.raises(UserError, match="no utterance has a boundary"):
        fit_prominence(changes, [x[:0] for x in true], 1.0)


def test_interval_resamples_utterances():
    same = [Matches(3, 4, 4)] * 20
    assert r_value_interval(same) == pytest.approx([float(r_value(total(same)))] * 2)
    mixed = [Matches(4, 4, 4), Matches(0, 4, 4)] * 10
    low, high = r_value_interval(mixed)
    assert low < r_value(total(mixed)) < high
    assert r_value_interval([*mixed, *[Matches(0, 0, 0)] * 20]) == (low, high)  # silence
    assert r_value_interval([Matches(10, 10, 10), Matches(8, 10, 10)])[1] == 1  # not 1.7


def test_interval_of_few_utterances_covers_the_truth():
    """Intervals from six utterances contain the R-value of all in 95 % of cases."""
    rng = np.random.default_rng(0)

    def draw(number):
        hits = rng.binomial(20, rng.beta(4, 2, number))
        return [Matches(int(own), 20, 20) for own in hits]

    truth = float(r_value(total(draw(100_000))))
    intervals = [r_value_interval(draw(6)) for _ in range(300)]
    covered = np.mean([low <= truth <= high for low, high in intervals])
    assert 0.92 <= covered <= 0.98
