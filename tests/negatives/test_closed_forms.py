"""Closed forms and their inverses: exact arithmetic, brute force and loops."""

import functools
import math
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.negatives import accidental_hits, hit_rate
from cpc.types import UserError
from tests.goldens.goldens import load_golden

_, K_MIN = load_golden("k_min.json")
MARGIN_META, MARGINS = load_golden("m_eff.json")
WINDOW_META, WINDOWS = load_golden("exclusion_window.json")


@pytest.mark.parametrize("name", K_MIN)
def test_min_negatives_equals_golden(name):
    params, inputs, expected = K_MIN[name]
    if params["kind"] == "with_replacement":
        solve = functools.partial(negatives.min_negatives, inputs["rho"], inputs["q"])
    else:
        args = inputs["relevant"], inputs["pool"], inputs["q"]
        solve = functools.partial(negatives.min_negatives_without_replacement, *args)
    if expected["k_min"] is None:
        with pytest.raises(UserError, match="no number of negatives"):
            solve()
    else:
        assert solve() in (expected["k_min"], expected.get("k_min_binary", expected["k_min"]))


@pytest.mark.parametrize("name", MARGINS)
def test_margin_equals_golden(name):
    _, inputs, expected = MARGINS[name]
    beta, tau, k = inputs["beta"], inputs["tau"], inputs["K"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        margin = negatives.effective_margin(beta, tau, k)
    assert bool(caught) == expected["unreachable_for_cosine"]
    assert margin == pytest.approx(expected["m_eff"], rel=MARGIN_META["tolerance"]["rtol"])
    assert negatives.effective_margin(beta, tau, k, highest=math.inf) == margin
    if caught:
        at_most = math.floor(expected["K_max_for_cosine"])
        assert f"at most {at_most} negatives" in str(caught[0].message)


@pytest.mark.parametrize("name", WINDOWS)
def test_window_equals_golden(name):
    _, inputs, expected = WINDOWS[name]
    same = np.exp(-np.arange(inputs["T"]) / inputs["ell"])
    for i, width in enumerate(inputs["D"]):
        window = negatives.exclude_window(same, inputs["target"], width, inputs["K"])
        assert window.width == width
        assert window.candidates == expected["candidates"][i]
        found = window.rate, window.expected, window.at_least_one
        want = [np.float64(expected[key][i]) for key in ("P_fn", "expected_false", "prob_any")]
        assert found == pytest.approx(want, rel=WINDOW_META["tolerance"]["rtol"], nan_ok=True)


@pytest.mark.parametrize(("target", "budget"), [(0, 1.39), (10, 0.5), (64, 1.39), (127, 0.13)])
def test_smallest_window_equals_counting(target, budget):
    """Count pairs: no narrower window meets the budget."""
    same = np.exp(-np.arange(128) / 6)
    found = negatives.exclusion_window(same, target, 16, budget)
    for width in range(found.width + 1):
        lags = [abs(u - target) for u in range(128) if abs(u - target) > width]
        expected = 16 * sum(math.exp(-lag / 6) for lag in lags) / len(lags)
        assert (expected <= budget) == (width == found.width)
    assert expected == pytest.approx(found.expected, rel=1e-12)


def test_unattainable_budget_is_reported():
    same = np.exp(-np.arange(128) / 6)
    with pytest.raises(UserError, match=r"0\.5427.* window of 18"):
        negatives.exclusion_window(same, 64, 90, 0.01)
    assert negatives.exclusion_window(same, 64, 90, 0.544).width == 18
    with pytest.raises(UserError, match="128 candidates"):
        negatives.exclusion_window(same, 64, 128, 0.01)


def test_pools_of_batch_and_sequence():
    batch, queue = negatives.compare_pool(64, 1000, 512, 0.01)
    assert batch == negatives.Pool(
        63, pytest.approx(1 - 0.99**63), 64 * 512, 64 * 64 * 512, 0, True
    )
    assert queue == negatives.Pool(
        1000, pytest.approx(1 - 0.99**1000), 1000 * 512, 64 * 1000 * 512, 16, False
    )


ONES = np.ones(4)
NOTHING = np.array([np.nan])


@pytest.mark.parametrize(("call", "match"), [
    (lambda: negatives.min_negatives(-0.1, 0.5), "density .*got -0.1"),
    (lambda: negatives.min_negatives(0.1, 1.5), "required_rate .*got 1.5"),
    (lambda: negatives.min_negatives_without_replacement(11, 10, 0.5), "num_hard .*got 11"),
    (lambda: negatives.min_negatives_without_replacement(3, 10, -0.5), "required_rate .*got -0.5"),
    (lambda: negatives.effective_margin(0.2, 0, 10), "temperature .*got 0"),
    (lambda: negatives.effective_margin(0.2, 0.1, 0), "num_negatives .*got 0"),
    (lambda: negatives.exclude_window(ONES, 4, 0, 1), "target .*got 4"),
    (lambda: negatives.exclude_window(ONES, 0, -1, 1), "width .*got -1"),
    (lambda: negatives.exclude_window(1.5 * ONES, 0, 0, 1), "^same must be .*got"),
    (lambda: negatives.mean_hit_rate(NOTHING, 1), "none of the 1 anchors"),
    (lambda: negatives.min_negatives_for(NOTHING, 0.5), "none of the 1 anchors"),
    (lambda: negatives.min_negatives_for(ONES / 2, 1.0), "required_rate .*got 1.0"),
    (lambda: negatives.min_negatives_for(np.array([0.5, 0.0]), 0.6), "50.0% of the anchors"),
    (lambda: negatives.compare_pool(0, 8, 4, 0.1), "batch_size .*got 0"),
    (lambda: negatives.compare_pool(8, 8, 0, 0.1), "width .*got 0"),
    (lambda: hit_rate(np.array([0.5, 2.0]), 3), "in one draw is"),
    (lambda: hit_rate(-0.1, 3), "in one draw is"),
    (lambda: hit_rate(0.1, -1), "num_draws .*got -1"),
    (lambda: accidental_hits(np.zeros(3, int), np.zeros((2, 4), int)), "do not fit"),
    (lambda: accidental_hits(np.zeros((3, 2, 1), int), np.zeros(4, int)), "do not fit"),
    (lambda: accidental_hits(np.zeros(3, int), np.zeros((3, 4, 1), int)), "do not fit"),
])  # fmt: skip
def test_numbers_out_of_range_are_rejected(call, match):
    with pytest.raises(UserError, match=match):
        call()


def test_pair_counts_by_lag():
    labels = np.random.default_rng(0).integers(-1, 3, (4, 9))
    for lag, (pairs, same) in enumerate(zip(*negatives.count_same(labels), strict=True)):
        both = [(row[i], row[i + lag]) for row in labels for i in range(9 - lag)]
        assert pairs == sum(min(pair) >= 0 for pair in both)
        assert same == sum(a == b >= 0 for a, b in both)


def test_hard_fractions_count_allowed_negatives():
    positive, scores = np.array([0.0, 1.0, 2.0]), np.array([[0.5, -2.0, 9.0]] * 3)
    allowed = np.array([[True, True, False], [True, True, True], [False] * 3])
    for margin, second in ((0.0, 1 / 3), (1.0, 2 / 3)):
        found = negatives.hard_fractions(positive, scores, allowed, margin=margin)
        np.testing.assert_array_equal(found, [1 / 2, second, np.nan])


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.95])
def test_min_negatives_is_minimal(rate):
    assert negatives.mean_hit_rate(np.array([0.0, 0.5]), 2) == 0.375
    fractions = np.random.default_rng(1).beta(0.5, 3, 100) + 1e-3
    k = negatives.min_negatives_for(fractions, rate)
    assert negatives.mean_hit_rate(fractions, k) >= rate > negatives.mean_hit_rate(fractions, k - 1)
    assert negatives.min_negatives_for(np.append(fractions, np.nan), rate) == k  # no negatives
    seven = negatives.min_negatives_for(np.full(3, 0.2), negatives.hit_rate(0.2, 7))
    assert seven == negatives.min_negatives(0.2, negatives.hit_rate(0.2, 7)) == 7
    alike = np.full(5, 0.03)
    assert negatives.min_negatives_for(alike, rate) == negatives.min_negatives(0.03, rate)


@pytest.mark.parametrize(("several", "own"), [(False, False), (True, True)])
def test_equals_naive_twin(several, own):
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 5, (4, 2) if several else 4)
    candidates = rng.integers(0, 5, (4, 7) if own else 7)
    hits = np.asarray(accidental_hits(targets, jnp.asarray(candidates)))
    assert hits.dtype == bool
    assert hits.shape == (4, 7)
    for i, j in np.ndindex(4, 7):
        candidate = candidates[i, j] if own else candidates[j]
        assert hits[i, j] == (candidate in np.atleast_1d(targets[i]))


def test_hit_rate_at_its_ends():
    densities = np.array([0.0, 1e-300, 1e-12, 0.5, 1.0])
    np.testing.assert_array_equal(hit_rate(densities, 0), 0.0)
    np.testing.assert_allclose(hit_rate(densities, 1), densities, rtol=1e-15)
    np.testing.assert_allclose(hit_rate(densities, 2), [0, 2e-300, 2e-12, 0.75, 1], rtol=1e-11)
    assert hit_rate(1, 3) == 1.0
