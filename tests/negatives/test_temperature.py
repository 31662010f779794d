"""Entropy and temperature: 50-digit values, a float64 twin, and many steps."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpc.negatives import (
    bounded_temperature,
    entropy,
    hold_entropy,
    negative_weights,
    raw_temperature,
    solve_temperature,
)
from cpc.negatives.temperature import _mean_entropy
from cpc.types import UserError
from tests.goldens.goldens import load_golden

_, GOLDEN = load_golden("temperature_entropy.json")
ROWS = {name: case for name, case in GOLDEN.items() if "scores" in case[1]}
TAU = ROWS["three"][1]["tau"]
WIDTH = max(len(inputs["scores"]) for _, inputs, _ in ROWS.values())


def padded(rows):
    where = np.arange(WIDTH) < np.array([len(row) for row in rows])[:, None]
    scores = np.full(where.shape, np.nan, np.float32)
    for out, row in zip(scores, rows, strict=True):
        out[: len(row)] = row
    return jnp.asarray(scores), jnp.asarray(where)


SCORES, WHERE = padded([inputs["scores"] for _, inputs, _ in ROWS.values()])
entropies = jax.jit(entropy)
weights = jax.jit(negative_weights)


def expected_of(key):
    return np.array([expected[key] for _, _, expected in ROWS.values()])


def test_entropy_and_its_slope_equal_golden():
    """Tolerances are the float32 rounding of log n, and for dH/dtau of H / tau."""
    differentiate = jax.jit(jax.jacfwd(lambda tau: entropy(SCORES, tau, WHERE)))
    for i, tau in enumerate(TAU):
        value = entropies(SCORES, tau, WHERE)
        np.testing.assert_allclose(value, expected_of("H")[:, i], rtol=2e-6, atol=2e-6)
        atol = 2e-6 * math.log(WIDTH) / tau
        np.testing.assert_allclose(differentiate(tau), expected_of("dH")[:, i], 2e-5, atol)


def test_negative_weights_equal_golden():
    names = [name for name in ROWS if name != "single"]
    positives = [ROWS[name][1]["positive_index"] for name in names]
    chosen = jnp.array([list(ROWS).index(name) for name in names])
    where = WHERE[chosen].at[jnp.arange(len(names)), jnp.array(positives)].set(False)
    for i, tau in enumerate(TAU):
        got = np.asarray(weights(SCORES[chosen], tau, where))
        np.testing.assert_array_equal(got[~where], 0.0)
        for row, kept, name in zip(got, np.asarray(where), names, strict=True):
            want = ROWS[name][2]["negative_weights"][i]
            # Scores differ by up to 160, of which float32 keeps 7 digits, divided by tau.
            np.testing.assert_allclose(row[kept], want, rtol=1e-4, atol=1e-6)


def random_scores(seed, spread, clustered):
    """Return rows of different spread; clustered rows have plateaus in their entropy."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(6, 24)) * spread * np.exp(0.3 * rng.normal(size=(6, 1)))
    if clustered:
        scores = np.round(scores / spread) * spread + 1e-2 * scores
    where = rng.random((6, 24)) < 0.8
    return np.where(where, scores, np.nan).astype(np.float32), where


def mean_entropy(scores, tau, where):
    """Return the float64 mean over rows with candidates."""
    values = []
    for row, kept in zip(np.asarray(scores, np.float64), np.asarray(where), strict=True):
        if kept.any():
            x = row[kept] / float(tau)
            p = np.exp(x - np.logaddexp.reduce(x))
            values.append(-(p[p > 0] * np.log(p[p > 0])).sum())
    return np.mean(values)


def test_slope_of_the_mean_entropy():
    scores, where = map(jnp.asarray, random_scores(0, 1.0, False))
    value, slope = jax.jvp(lambda x: _mean_entropy(scores, jnp.exp(x), where), (0.5,), (1.0,))
    assert float(slope[0]) == pytest.approx(float(value[1]), rel=1e-4)


solve = jax.jit(solve_temperature)
hold = jax.jit(functools.partial(hold_entropy, low=1e-8, high=1e6))
FRACTIONS = st.floats(0.1, 0.95)
SPREADS = st.sampled_from([1e-2, 1.0, 100.0])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), FRACTIONS, SPREADS, st.booleans())
def test_solved_temperature_has_the_target_entropy(seed, fraction, spread, clustered):
    scores, where = random_scores(seed, spread, clustered)
    where[seed % 6] &= seed % 2 == 0  # sometimes without candidates
    target = fraction * np.log(where.sum(-1)[where.any(-1)]).mean()
    tau = solve(jnp.asarray(scores), jnp.float32(target), jnp.asarray(where))
    assert mean_entropy(scores, tau, where) == pytest.approx(target, abs=2e-5)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), FRACTIONS, SPREADS, st.booleans(), st.floats(-4, 4))
def test_held_entropy_converges(seed, fraction, spread, clustered, start):
    """From starts within a factor of 10,000 of the spread."""
    scores, where = map(jnp.asarray, random_scores(seed, spread, clustered))
    tau = jnp.float32(spread * 10.0**start)
    values = []
    for _ in range(16):
        tau = hold(tau, scores, where, fraction)
        values.append(mean_entropy(scores, tau, where))
    target = fraction * np.log(np.asarray(where).sum(-1)).mean()
    np.testing.assert_allclose(values[-6:], target, rtol=0, atol=1e-5)


def test_held_temperature_stays_within_bounds():
    scores = jnp.array([[3.0, 1.0, 0.0]])
    tau = jnp.float32(1.0)
    bounded = jax.jit(lambda tau, fraction: hold_entropy(tau, scores, None, fraction, 0.5, 2.0))
    for fraction, end in ((0.999, 2.0), (0.001, 0.5)):
        for _ in range(20):
            tau = bounded(tau, fraction)
            assert 0.5 <= float(tau) <= 2.0
        assert float(tau) == pytest.approx(end, rel=1e-3)
    low = float(np.float32(0.07))  # rounding included
    assert float(hold_entropy(low, scores, None, 1e-9, low, 2.0)) >= low
    inside = bounded(2.0, 0.5)
    assert 0.5 < float(inside) < 2.0
    assert float(bounded(1e9, 0.5)) == float(inside)


@pytest.mark.parametrize("start", [1e4, 1e-4])
def test_held_temperature_changes_gradually(start):
    """Four steps by at most a factor of 2."""
    scores, where = map(jnp.asarray, random_scores(0, 1.0, False))
    factor = float(hold(start, scores, where, 0.5)) / start
    assert max(factor, 1 / factor) == pytest.approx(16, rel=1e-3)


def test_held_temperature_without_candidates_and_gradients():
    nothing = jnp.full((2, 3), jnp.nan), jnp.zeros((2, 3), bool)
    assert float(hold(0.7, *nothing, 0.5)) == pytest.approx(0.7, rel=1e-6)
    scores = jnp.array([[3.0, 1.0, 0.0]])
    for find in (solve, lambda s, target: hold(1.0, s, jnp.ones((1, 3), bool), target)):
        np.testing.assert_array_equal(jax.jit(jax.grad(find))(scores, 0.5), 0.0)


def test_unreachable_target():
    """Concrete values raise; under jit the nearest end of the bracket is returned."""
    scores = jnp.array([[1.0, 1.0, 0.0, -1.0]])  # a tie for the maximum: entropy above log 2
    reach = r"from 1e-06 to 1e\+06 .* above 0\.693147 and below 1\.38629"
    for target, end in ((0.69, 1e-6), (1.39, 1e6)):
        with pytest.raises(UserError, match=reach):
            solve_temperature(scores, target)
        assert float(solve(scores, target)) == pytest.approx(end, rel=1e-5)
    equal = jnp.zeros((1, 4))  # log 4 at any temperature
    with pytest.raises(UserError, match="no temperature"):
        solve_temperature(equal, float(entropy(equal)[0]))


@pytest.mark.parametrize("measure", [
    lambda s, where: entropy(s, 0.5, where).sum(),
    lambda s, where: (negative_weights(s, 0.5, where) * jnp.arange(4.0)).sum(),
])  # fmt: skip
def test_masked_scores_have_no_gradient(measure):
    where = jnp.array([[True, True, False, True], [False] * 4, [False, True, False, False]])
    scores = jnp.where(where, jnp.array([0.3, -0.2, 0.0, 0.9]), jnp.nan)
    value, gradient = jax.jit(jax.value_and_grad(measure))(scores, where)
    assert np.isfinite(value)
    np.testing.assert_array_equal(np.asarray(gradient)[~np.asarray(where)], 0.0)
    assert (np.asarray(gradient)[0, [0, 1, 3]] != 0).all()
    np.testing.assert_array_equal(np.asarray(gradient)[1:], 0.0)  # at most one candidate


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_huge_scores_are_finite(dtype):
    scores = jnp.array([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], dtype)
    value, gradient = jax.jit(jax.value_and_grad(lambda s: entropy(s, 0.01).sum()))(scores)
    assert value.dtype == jnp.float32
    assert float(value) == pytest.approx(math.log(3), rel=1e-6)
    np.testing.assert_array_equal(np.asarray(gradient, np.float32), 0.0)
    share = weights(scores, 0.01)
    np.testing.assert_allclose(share, [[1, 0, 0], [1 / 3] * 3], rtol=1e-6)
    assert float(solve(scores[:1], 0.5)) > 100.0
    assert jnp.isfinite(hold(1.0, scores, jnp.ones((2, 3), bool), 0.5))
    if dtype == jnp.bfloat16:
        scores = jnp.asarray(random_scores(1, 5.0, False)[0], dtype)
        found, want = (entropy(x, 0.3, jnp.isfinite(x)) for x in (scores, jnp.float32(scores)))
        np.testing.assert_array_equal(found, want)


def test_bounded_temperature_is_inverted_and_stays_within_bounds():
    bounded = jax.jit(jax.value_and_grad(lambda raw: bounded_temperature(raw, 0.01, 1.0)))
    for tau in (0.0101, 0.1, 0.999):
        value, slope = bounded(raw_temperature(tau, 0.01, 1.0))
        assert float(value) == pytest.approx(tau, rel=1e-5)
        assert float(slope) > 0.0
    values = [float(bounded(raw)[0]) for raw in (-1e4, 0.0, 1e4)]
    assert values == pytest.approx([0.01, 0.1, 1.0], rel=1e-6)


def test_temperature_may_be_captured_by_jit():
    tau, scores = jnp.float32(0.5), jnp.array([[1.0, 0.0]])
    found = jax.eval_shape(lambda: (entropy(scores, tau), raw_temperature(tau, 0.1, 1.0)))
    assert [x.shape for x in found] == [(1,), ()]


def test_numbers_out_of_range_are_rejected():
    scores = jnp.zeros((2, 2))
    for measure in (entropy, negative_weights):
        for temperature in (0, float("nan"), jnp.array([1.0, 0.0])):
            with pytest.raises(UserError, match="temperature is"):
                measure(scores, temperature)
    hold_scores = functools.partial(hold_entropy, 1.0, scores, None)
    halves = [
        functools.partial(f, 0.5) for f in (hold_scores, bounded_temperature, raw_temperature)
    ]
    for low, high in ((0.0, 1.0), (1.0, 1.0), (0.1, math.inf)):
        for call in halves:
            with pytest.raises(UserError, match="0 < low < high"):
                call(low, high)
    with pytest.raises(UserError, match=r"tau .*got 2"):
        raw_temperature(2.0, 0.1, 1.0)
    for fraction in (0.0, 1.0, jnp.float32(1.5)):
        with pytest.raises(UserError, match=r"target_fraction .*got"):
            hold_scores(fraction, 0.1, 1.0)
