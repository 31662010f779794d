"""Alias tables: exact by rebuilding, draws by chi-square."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpc.negatives import (
    AliasTable,
    alias_table,
    draw,
    draw_unique,
    expected_count,
    log_uniform,
    probabilities,
)
from cpc.negatives.noise import _high_product
from cpc.types import UserError
from tests.goldens.goldens import load_golden

META, CASES = load_golden("alias_tables.json")


def rebuild(table):
    """q of a table, in exact arithmetic, rounded at the end."""
    size = len(table.threshold)
    mass = [Fraction(0)] * size
    for i, (threshold, alias) in enumerate(zip(*map(np.ndarray.tolist, table), strict=True)):
        mass[i] += Fraction(threshold)
        mass[alias] += 1 - Fraction(threshold)
    return np.array([float(m / size) for m in mass])


def check(table, weights, atol):
    q = probabilities(weights)
    assert table.threshold.dtype == np.float64
    assert ((table.threshold >= 0) & (table.threshold <= 1)).all()
    rebuilt = rebuild(table)
    np.testing.assert_allclose(rebuilt, q, rtol=0, atol=atol)
    np.testing.assert_array_equal(rebuilt[q == 0], 0.0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12).filter(any))
def test_rebuilds_ties_and_zeros(weights):
    """Small integers: columns that fill up exactly, and rounding on either side of it."""
    check(alias_table(np.array(weights)), np.array(weights), atol=1e-15)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 300), st.integers(0, 10**6), st.floats(0, 30))
def test_rebuilds_any_spread(size, seed, spread):
    weights = np.exp(spread * np.random.default_rng(seed).normal(size=size))
    check(alias_table(weights), weights, atol=1e-15)


def test_equal_classes_need_no_alias():
    """49 / 49 is below 1 in floating point."""
    for size in (1, 2, 49, 98):
        table = alias_table(np.full(size, 0.1))
        np.testing.assert_array_equal(table.alias, np.arange(size))
        np.testing.assert_array_equal(table.threshold, 1.0)


def test_many_classes():
    spread = np.random.default_rng(3).exponential(size=10**5) ** 4
    for weights in (spread, log_uniform(10**5), np.r_[1e6, np.full(998, 1e-3), 1e6]):
        table, size = alias_table(weights), len(weights)
        rest = np.bincount(table.alias, 1 - table.threshold, size)
        found = (table.threshold + rest) / size
        np.testing.assert_allclose(found, probabilities(weights), atol=1e-15)


draw_many = jax.jit(functools.partial(draw, shape=(100_000,)))


def statistic(counts, q, num_bins):
    """Pearson's, with rare classes pooled until each bin expects 5 draws, rarest first."""
    bins, observed, expected = [], 0, 0.0
    for i in np.argsort(q, kind="stable"):
        if q[i] == 0:
            assert counts[i] == 0, "drawn although impossible"
            continue
        observed, expected = observed + counts[i], expected + q[i] * counts.sum()
        if expected >= 5:
            bins.append((observed, expected))
            observed, expected = 0, 0.0
    bins[-1] = bins[-1][0] + observed, bins[-1][1] + expected
    assert len(bins) == num_bins
    return sum((o - e) ** 2 / e for o, e in bins)


@pytest.mark.parametrize("name", CASES)
def test_tables_and_draws_have_the_distribution(name):
    _, inputs, expected = CASES[name]
    q, table = np.array(expected["q"]), alias_table(np.array(inputs["weights"]))
    atol = META["tolerance"]["reconstruction_atol"]
    np.testing.assert_allclose(rebuild(table), q, rtol=0, atol=atol)
    classes = draw_many(jax.random.key(7), table)
    assert classes.dtype == jnp.int32
    assert classes.min() >= 0
    counts = np.bincount(np.asarray(classes), minlength=len(q))
    assert len(counts) == len(q)
    # One bin fits whatever is possible.
    assert statistic(counts, q, expected["chi2_bins"]) <= expected.get("chi2_999999", 1e-9)


def test_draws_are_independent():
    """Pairs of neighbours, too, have the distribution."""
    q = np.array([0.1, 0.2, 0.7])
    classes = np.asarray(draw_many(jax.random.key(8), alias_table(q))).reshape(-1, 2)
    counts = np.bincount(classes @ [3, 1], minlength=9)
    assert statistic(counts, np.outer(q, q).ravel(), 9) < 42.70  # chi-square, 8 degrees, 1 - 1e-6


@pytest.mark.parametrize("shape", [(), (0,), (2, 3, 4)])
def test_shapes(shape):
    table = alias_table(np.array([1.0, 2.0, 3.0]))
    assert jax.eval_shape(lambda: draw(jax.random.key(0), table, shape)).shape == shape


def test_keys_matter():
    table = alias_table(np.ones(1000))
    one, same, two = (draw_many(jax.random.key(seed), table) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert float((one == two).mean()) < 0.01


def test_a_threshold_next_to_one_does_not_overflow():
    """It is 1 in float32, and 2^32 is no 32-bit integer."""
    table = AliasTable(np.array([1 - 1e-12, 1.0]), np.array([1, 1], np.int32))
    classes = np.asarray(draw_many(jax.random.key(9), table))
    assert classes.mean() == pytest.approx(0.5, abs=0.01)


def test_rare_classes_are_not_rounded_up():
    """A threshold below the steps of float32 random numbers, 2^-23, must not become one step."""
    table = AliasTable(np.array([2.0**-30]), np.array([1], np.int32))
    classes = jax.jit(functools.partial(draw, shape=(2**24,)))(jax.random.key(12), table)
    assert int((classes == 0).sum()) == 0, "0.016 are expected of this table, 2 of a rounded one"


def test_the_upper_half_of_a_product_is_exact():
    random = np.random.default_rng(0).integers(2**32, size=9)
    x = np.r_[0, 1, 2**16 - 1, 2**16, 2**31, 2**32 - 1, random]
    factors = (1, 3, 65_535, 65_536, 10**6, 2**31 - 1)
    found = jax.jit(lambda x: [_high_product(x, factor) for factor in factors])(np.uint32(x))
    for product, factor in zip(found, factors, strict=True):
        assert product.tolist() == [int(value) * factor >> 32 for value in x]


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_all_columns_are_as_likely(impl):
    """Also where their number is no power of two, and of keys of any kind."""
    table = alias_table(np.ones(7))
    classes = draw_many(jax.random.key(3, impl=impl), table)
    counts = np.bincount(np.asarray(classes), minlength=7)
    assert statistic(counts, np.full(7, 1 / 7), 7) < 38.26  # chi-square, 6 degrees, 1 - 1e-6


draw_some = jax.jit(draw, static_argnums=2)


def until_distinct(rng, table, num):
    """Draw by draw, from the same stream of turns."""
    seen, num_draws = [], 0
    while True:
        turn = jax.random.fold_in(rng, num_draws)
        for class_ in np.asarray(draw_some(turn, table, (num,))).tolist():
            num_draws += 1
            seen += [class_] * (class_ not in seen)
            if len(seen) == num:
                return seen, num_draws


@pytest.mark.parametrize(("size", "num"), [(50, 7), (50, 50)])
def test_unique_draws_are_the_first_distinct_ones(size, num):
    table = alias_table(log_uniform(size))
    for seed in range(3):
        rng = jax.random.key(seed)
        ids, num_draws = jax.jit(draw_unique, static_argnums=2)(rng, table, num)
        assert (ids.tolist(), int(num_draws)) == until_distinct(rng, table, num)


def test_unique_draws_have_the_expected_count():
    """Of so many draws as it took, a class is in the sample with probability 1 - (1 - q)^draws."""
    q = log_uniform(40)
    keys = jax.random.split(jax.random.key(1), 4000)
    table = jax.device_put(alias_table(q))
    ids, num_draws = jax.jit(jax.vmap(lambda rng: draw_unique(rng, table, 12)))(keys)
    found = np.bincount(np.asarray(ids).ravel(), minlength=40) / len(keys)
    assert found.sum() == pytest.approx(12)
    expected = np.mean([expected_count(q, int(k), unique=True) for k in num_draws], 0)
    np.testing.assert_allclose(found, expected, atol=0.03)
    assert np.abs(12 * q - found).max() > 0.2, "with repeats it would be another number"


def test_more_distinct_classes_than_there_are():
    """A traced table ends with classes that are none."""
    for weights in ([1.0, 1.0], [0.0, 1.0, 2.0]):
        table = alias_table(np.array(weights))
        with pytest.raises(UserError, match="only 2 can be drawn"):
            draw_unique(jax.random.key(0), table, 3)
    ids, _ = jax.jit(draw_unique, static_argnums=2)(jax.random.key(0), table, 3)
    assert sorted(ids.tolist()) == [-1, 1, 2]


def test_bad_weights_are_named():
    """By the function that `test_noise` covers."""
    with pytest.raises(UserError, match="class 1 is -1"):
        alias_table(np.array([1.0, -1.0]))
