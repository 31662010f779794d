"""Closed forms against exact arithmetic, brute force and the loss itself."""

import functools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpc import negatives
from cpc.losses import info_nce
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
        solve = functools.partial(
            negatives.min_negatives_without_replacement,
            inputs["relevant"],
            inputs["pool"],
            inputs["q"],
        )
    if expected["k_min"] is None:
        with pytest.raises(UserError, match="no number of negatives"):
            solve()
    else:
        assert solve() in (expected["k_min"], expected.get("k_min_binary", expected["k_min"]))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.floats(1e-9, 1 - 1e-9), st.floats(1e-9, 1 - 1e-9))
def test_one_negative_less_is_too_few(density, required):
    k = negatives.min_negatives(density, required)
    assert negatives.hit_rate(density, k) >= required * (1 - 1e-9)
    assert k == 1 or negatives.hit_rate(density, k - 1) < required * (1 + 1e-9)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.01, 1.0))
def test_one_different_negative_less_is_too_few(num_hard, others, required):
    pool = num_hard + others

    def rate(k):
        return 1 - math.comb(others, k) / math.comb(pool, k)

    k = negatives.min_negatives_without_replacement(num_hard, pool, required)
    assert 1 <= k <= others + 1
    assert rate(k) >= required - 1e-9
    assert rate(k - 1) < required + 1e-9
    if required < 1 - 1e-9:  # repeats waste draws
        assert k <= negatives.min_negatives(num_hard / pool, required)


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
        assert f"take at most {at_most} negatives" in str(caught[0].message)


turning_loss = jax.jit(info_nce)


@pytest.mark.parametrize("name", MARGINS)
def test_margin_is_where_the_loss_turns(name):
    _, inputs, expected = MARGINS[name]
    alpha, n = np.float32(inputs["alpha"]), max(case[1]["K"] for case in MARGINS.values())
    where = jnp.broadcast_to(jnp.arange(n) < inputs["K"], (len(alpha), n))
    scores = jnp.full(where.shape, inputs["beta"], jnp.float32)
    loss = np.asarray(turning_loss(alpha, scores, where, temperature=inputs["tau"]))
    atol = 2e-6 * max(expected["loss"])
    np.testing.assert_allclose(loss, expected["loss"], rtol=2e-6, atol=atol)
    margin = negatives.effective_margin(
        inputs["beta"], inputs["tau"], inputs["K"], highest=math.inf
    )
    gap = loss - np.maximum(margin - np.array(inputs["alpha"]), 0) / inputs["tau"]
    assert (gap > -atol).all()
    assert (gap < math.log(2) + atol).all()


@pytest.mark.parametrize("name", WINDOWS)
def test_window_equals_golden(name):
    _, inputs, expected = WINDOWS[name]
    same = np.exp(-np.arange(inputs["T"]) / inputs["ell"])
    for i, width in enumerate(inputs["D"]):
        window = negatives.exclude_window(same, inputs["target"], width, inputs["K"])
        assert window.width == width
        assert window.candidates == expected["candidates"][i]
        for key, value in (
            ("P_fn", window.rate),
            ("expected_false", window.expected),
            ("prob_any", window.at_least_one),
        ):
            want = expected[key][i]
            want = float("nan") if want is None else want
            rel = WINDOW_META["tolerance"]["rtol"]
            assert value == pytest.approx(want, rel=rel, nan_ok=True)


@pytest.mark.parametrize(("target", "budget"), [(0, 1.39), (10, 0.5), (64, 1.39), (127, 0.13)])
def test_smallest_window(target, budget):
    """Against counting: no narrower window meets the budget."""
    same = np.exp(-np.arange(128) / 6)
    found = negatives.exclusion_window(same, target, 16, budget)
    for width in range(found.width + 1):
        lags = [abs(u - target) for u in range(128) if abs(u - target) > width]
        expected = 16 * sum(math.exp(-lag / 6) for lag in lags) / len(lags)
        assert (expected <= budget) == (width == found.width)
    assert expected == pytest.approx(found.expected, rel=1e-12)


def test_attainable_budget_is_named():
    same = np.exp(-np.arange(128) / 6)
    with pytest.raises(UserError, match=r"0\.543 is attainable, with a window of 18"):
        negatives.exclusion_window(same, 64, 90, 0.01)
    assert negatives.exclusion_window(same, 64, 90, 0.544).width == 18
    with pytest.raises(UserError, match="no 128 candidates besides the target"):
        negatives.exclusion_window(same, 64, 128, 0.01)


def test_pools_compared():
    batch, queue = negatives.compare_pool(64, 1000, 512, 0.01)
    assert batch == negatives.Pool(
        63, pytest.approx(1 - 0.99**63), 64 * 512, 64 * 64 * 512, 0, True
    )
    assert queue == negatives.Pool(
        1000, pytest.approx(1 - 0.99**1000), 1000 * 512, 64 * 1000 * 512, 16, False
    )


ONES = np.ones(4)


@pytest.mark.parametrize(("call", "match"), [
    (lambda: negatives.min_negatives(-0.1, 0.5), "density is -0.1"),
    (lambda: negatives.min_negatives(0.1, 1.5), "required_rate is 1.5"),
    (lambda: negatives.min_negatives(float("nan"), 0.5), "density is nan"),
    (lambda: negatives.min_negatives_without_replacement(11, 10, 0.5), "must be from 0 to"),
    (lambda: negatives.min_negatives_without_replacement(-1, 10, 0.5), "must be from 0 to"),
    (lambda: negatives.min_negatives_without_replacement(3, 10, -0.5), "must be from 0 to"),
    (lambda: negatives.effective_margin(0.2, 0, 10), "temperature is 0"),
    (lambda: negatives.effective_margin(0.2, 0.1, 0), "num_negatives is 0"),
    (lambda: negatives.exclude_window(ONES, 4, 0, 1), "target is 4"),
    (lambda: negatives.exclude_window(ONES, -1, 0, 1), "target is -1"),
    (lambda: negatives.exclude_window(ONES, 0, -1, 1), "width is -1"),
    (lambda: negatives.exclude_window(1.5 * ONES, 0, 0, 1), "same must hold probabilities"),
    (lambda: negatives.exclude_window(np.nan * ONES, 0, 0, 1), "same must hold probabilities"),
    (lambda: negatives.compare_pool(0, 8, 4, 0.1), "give 1 or more"),
    (lambda: negatives.compare_pool(8, 8, 0, 0.1), "give 1 or more"),
])  # fmt: skip
def test_numbers_out_of_range_are_named(call, match):
    with pytest.raises(UserError, match=match):
        call()
