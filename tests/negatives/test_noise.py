"""Noise distributions, samplers and alias tables: goldens, twins, closed forms, chi-square."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpc import negatives
from cpc.negatives import AliasTable, alias_table, draw, draw_unique
from cpc.negatives.candidates import expect
from cpc.negatives.noise import _high_product
from cpc.types import UserError
from tests.goldens.goldens import load_golden

SAMPLER_META, SAMPLERS = load_golden("tf_samplers.json")
DRAWN = [name for name, (_, _, out) in SAMPLERS.items() if "prob_float64" in out]
assert len(DRAWN) == 20, "all but the sampler of every class and the masks of hits"
ALPHA_META, ALPHAS = load_golden("alpha_smoothing.json")


def noise(params, inputs):
    if params["sampler"] == "fixed_unigram":
        reserved = np.zeros(params["num_reserved_ids"])
        return negatives.unigram(
            np.concatenate([reserved, inputs["unigrams"]]), params["distortion"]
        )
    return getattr(negatives, params["sampler"])(params["range_max"])


@pytest.mark.parametrize("name", DRAWN)
def test_equals_tensorflow_samplers(name):
    params, inputs, expected = SAMPLERS[name]
    tolerance = SAMPLER_META["tolerance"]
    q = noise(params, inputs)
    assert q.sum() == pytest.approx(1.0, abs=1e-14)
    q = q[inputs["class_ids"]]
    np.testing.assert_allclose(q, expected["prob_float64"], rtol=tolerance["prob_float64_rtol"])
    tries = params["num_tries"]
    rejected, want = params["unique"] and tries > params["num_sampled"], expected["expected_count"]
    found = negatives.expected_count(q, tries, unique=rejected)
    np.testing.assert_allclose(found, want, rtol=tolerance["vs_float32_source_rtol"])
    np.testing.assert_allclose(expect(jnp.float32(q), tries, rejected), want, rtol=1e-4)


@pytest.mark.parametrize("name", ALPHAS)
def test_solve_alpha_equals_golden(name):
    _, inputs, expected = ALPHAS[name]
    counts, minority = np.array(inputs["freq"]), np.array(inputs["minority"])
    mask = np.isin(np.arange(len(counts)), minority)
    close = {"abs": ALPHA_META["tolerance"]["alpha_atol"], "rel": 0}
    for alpha, mass in zip(inputs["alpha_grid"], expected["mass_grid"], strict=True):
        found = negatives.unigram(counts, alpha)[minority].sum()
        assert found == pytest.approx(mass, rel=ALPHA_META["tolerance"]["mass_rtol"])
    refused = 0
    for i, target in enumerate(inputs["t"]):
        free = negatives.solve_alpha(counts, mask, target, low=-2, high=3)
        assert free == pytest.approx(expected["alpha_unbounded"][i], **close)
        if expected["alpha"][i] is None:
            with pytest.raises(UserError, match="out of reach: alpha from 0"):
                negatives.solve_alpha(counts, minority, target)
            refused += 1
        else:
            alpha = negatives.solve_alpha(counts, minority, target)
            assert alpha == pytest.approx(expected["alpha"][i], **close)
    assert refused > 0


def test_alpha_zero_is_uniform_over_seen_classes():
    counts = np.array([7, 0, 1, 100])
    np.testing.assert_allclose(negatives.unigram(counts, 0), [1 / 3, 0, 1 / 3, 1 / 3], rtol=1e-15)
    assert negatives.unigram(counts, -1)[1] == 0
    corpus = negatives.probabilities(counts)
    np.testing.assert_allclose(negatives.unigram(counts, 1), corpus, rtol=1e-14)


def test_weights_may_have_any_scale():
    for scale in (1e308, 1.0, 1e-320):
        found = negatives.probabilities(np.array([1.0, 0.5, 1.5, 0.0]) * scale)
        np.testing.assert_allclose(found, [1 / 3, 1 / 6, 1 / 2, 0], rtol=1e-3)


@pytest.mark.parametrize(("weights", "match"), [
    ([1.0, -2.0], "class 1 is -2.0"),
    ([np.nan, 1.0], "class 0 is nan"),
    ([0.0, 0.0], "all weights are 0"),
    ([[1.0, 2.0]], "shape"),
])  # fmt: skip
def test_invalid_weights_are_named(weights, match):
    by_alpha = lambda weights: negatives.unigram(weights, 1.0)  # noqa: E731
    for make in (negatives.probabilities, by_alpha, negatives.alias_table):
        with pytest.raises(UserError, match=match):
            make(np.array(weights))


def test_invalid_numbers_are_named():
    for make in (negatives.uniform, negatives.log_uniform):
        with pytest.raises(UserError, match=r"weights have shape \(0,\)"):
            make(0)
    for minority, match in (
        (np.array([], int), "0 of 3 classes"),
        (np.array([0, 1, 2]), "3 of 3 classes"),
        (np.array([0]), "count 4 and another class only 1"),
    ):
        with pytest.raises(UserError, match=match):
            negatives.solve_alpha(np.array([4, 2, 1]), minority, 0.3)
    for call, match in (
        (lambda: negatives.unigram(np.array([1, 2]), float("nan")), "alpha is nan"),
        (lambda: negatives.expected_count(1.5, 3, unique=False), "one draw is 1"),
        (lambda: negatives.expected_count(0.5, -1, unique=True), "num_draws .*got -1"),
        (lambda: negatives.solve_alpha(np.array([9, 1]), np.array([1]), 0.6), r"0\.1 to 0\.5"),
        (lambda: negatives.bigrams(WORDS, np.ones(4) / 4, 0.0), "backoff"),
        (lambda: TWO_OF_THREE(RNG, jnp.zeros((1, 1), int), 3), "3 distinct .* only 2"),
    ):
        with pytest.raises(UserError, match=match):
            call()


def test_solve_alpha_reaches_the_ends_of_its_interval():
    counts, rare = np.array([70, 11, 5, 3]), np.array([2, 3])
    least, most = (negatives.unigram(counts, alpha)[rare].sum() for alpha in (1, 0))
    assert negatives.solve_alpha(counts, rare, np.nextafter(least, 0)) == pytest.approx(1.0)
    assert negatives.solve_alpha(counts, rare, np.nextafter(most, 1)) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("unique", [False, True])
def test_sampler_outputs_are_consistent(unique):
    labels, counts = np.array([[0, 3], [1, 1]]), np.array([5, 3, 1, 1])
    q = negatives.unigram(counts, 0.5)
    sampler = jax.jit(negatives.fixed_sampler(q, unique=unique), static_argnums=2)
    ids, true, sampled = map(np.asarray, sampler(jax.random.key(1), labels, 3))
    table = np.full(4, np.nan)
    table[ids] = sampled
    known = np.isin(labels, ids)
    np.testing.assert_allclose(true[known], table[labels][known], rtol=1e-6)
    if unique:
        assert len(set(ids.tolist())) == 3
    else:
        np.testing.assert_allclose(true, 3 * q[labels], rtol=1e-6)


def test_unique_draws_have_the_expected_count():
    """TensorFlow's estimate 1 - (1 - q)^tries is unbiased for the count."""
    sampler = negatives.log_uniform_sampler(6)
    labels = jnp.arange(6)[:, None]

    def one(key):
        ids, true, _ = sampler(key, labels, 3)
        return jnp.zeros(6).at[ids].add(1.0), true[:, 0]

    found, expected = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_allclose(found.mean(0), expected.mean(0), atol=0.06)


def test_learned_unigram_follows_observed_counts():
    @jax.jit
    def draw(rng):
        counts = negatives.observe(jnp.ones(4, jnp.int32), jnp.array([[3], [3], [-1], [1]]))
        return counts, negatives.learned_unigram_sampler(counts)(rng, jnp.array([[3]]), 20_000)

    counts, (ids, true, sampled) = jax.device_get(draw(jax.random.key(0)))
    assert counts.tolist() == [1, 2, 1, 3]
    np.testing.assert_allclose(np.bincount(ids, minlength=4) / 20_000, counts / 7, atol=0.015)
    assert float(true[0, 0]) == pytest.approx(20_000 * 3 / 7, rel=1e-5)
    np.testing.assert_allclose(sampled, 20_000 * counts[ids] / 7, rtol=1e-5)


WORDS = np.array([1, 2, 1, 3, 1, 2, 0, 3, 3])
STARTS = np.isin(np.arange(9), [0, 6])


def naive_bigram(context, word, backoff=0.3):
    u = np.array([0.1, 0.2, 0.3, 0.4])
    follows = [
        b for a, b, s in zip(WORDS[:-1], WORDS[1:], STARTS[1:], strict=True)
        if a == context and not s
    ]  # fmt: skip
    if not follows:
        return u[word]
    return (1 - backoff) * follows.count(word) / len(follows) + backoff * u[word]


bigram_log_q = jax.jit(negatives.bigram_log_q)
draw_bigrams = jax.jit(negatives.draw_bigrams, static_argnums=3)


@pytest.mark.parametrize("scale", [0.1, 5.0])
def test_bigram_noise_equals_the_naive_twin(scale):
    noise = negatives.bigrams(WORDS, scale * np.arange(1.0, 5), 0.3, STARTS)
    contexts, words = jnp.array([0, 1, 2, 3, -1]), jnp.tile(jnp.arange(4), (5, 1))
    q = np.exp(bigram_log_q(noise, contexts, words))
    want = [[naive_bigram(c, w) for w in range(4)] for c in (0, 1, 2, 3, -1)]
    np.testing.assert_allclose(q, want, rtol=1e-5)
    np.testing.assert_allclose(q.sum(1), 1, rtol=1e-5)
    drawn = np.asarray(draw_bigrams(jax.random.key(0), noise, contexts, 20_000))
    for row, expected in zip(drawn, want, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=4) / 20_000, expected, atol=0.015)


def test_bigram_noise_of_one_word_sentences_is_unigram():
    u = np.array([0.25, 0.75])
    noise = negatives.bigrams(np.array([0, 1]), u, 0.5, np.array([True, True]))
    log_q = bigram_log_q(noise, jnp.array([0, -1]), jnp.array([[0, 1], [0, 1]]))
    np.testing.assert_allclose(np.exp(log_q), [u, u], rtol=1e-6)
    drawn = draw_bigrams(jax.random.key(0), noise, jnp.array([1]), 5000)
    assert abs(np.mean(drawn) - 0.75) < 0.03


RNG, TWO_OF_THREE = jax.random.key(0), negatives.fixed_sampler(np.array([1.0, 0.0, 1.0]))
ALIAS_META, TABLES = load_golden("alias_tables.json")


def rebuild(table):
    """Return the q of a table in exact arithmetic, rounded at the end."""
    size = len(table.threshold)
    mass = [Fraction(0)] * size
    for i, (threshold, alias) in enumerate(zip(*map(np.ndarray.tolist, table), strict=True)):
        mass[i] += Fraction(threshold)
        mass[alias] += 1 - Fraction(threshold)
    return np.array([float(m / size) for m in mass])


def check(table, weights, atol):
    q = negatives.probabilities(weights)
    assert table.threshold.dtype == np.float64
    assert ((table.threshold >= 0) & (table.threshold <= 1)).all()
    rebuilt = rebuild(table)
    np.testing.assert_allclose(rebuilt, q, rtol=0, atol=atol)
    np.testing.assert_array_equal(rebuilt[q == 0], 0.0)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 300), st.integers(0, 10**6), st.floats(0, 30))
def test_alias_table_is_exact(size, seed, spread):
    rng = np.random.default_rng(seed)
    ties = np.r_[1, rng.integers(0, 7, size % 12)]
    for weights in (np.exp(spread * rng.normal(size=size)), ties):
        check(alias_table(weights), weights, atol=1e-15)


def test_alias_table_of_equal_and_of_many_classes():
    """49 / 49 is below 1 in floating point."""
    for size in (1, 2, 49, 98):
        table = alias_table(np.full(size, 0.1))
        np.testing.assert_array_equal(table.alias, np.arange(size))
        np.testing.assert_array_equal(table.threshold, 1.0)
    spread = np.random.default_rng(3).exponential(size=10**5) ** 4
    for weights in (spread, negatives.log_uniform(10**5), np.r_[1e6, np.full(998, 1e-3), 1e6]):
        table, size = alias_table(weights), len(weights)
        rest = np.bincount(table.alias, 1 - table.threshold, size)
        found = (table.threshold + rest) / size
        np.testing.assert_allclose(found, negatives.probabilities(weights), atol=1e-15)


draw_many = jax.jit(functools.partial(draw, shape=(100_000,)))


def statistic(counts, q, num_bins):
    """Return Pearson's statistic, pooling the rarest classes to 5 expected draws per bin."""
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


@pytest.mark.parametrize("name", TABLES)
def test_alias_draws_follow_the_distribution(name):
    _, inputs, expected = TABLES[name]
    q, table = np.array(expected["q"]), alias_table(np.array(inputs["weights"]))
    atol = ALIAS_META["tolerance"]["reconstruction_atol"]
    np.testing.assert_allclose(rebuild(table), q, rtol=0, atol=atol)
    classes = draw_many(jax.random.key(7), table)
    assert classes.dtype == jnp.int32
    counts = np.bincount(np.asarray(classes), minlength=len(q))
    assert len(counts) == len(q)
    # A single bin always fits.
    assert statistic(counts, q, expected["chi2_bins"]) <= expected.get("chi2_999999", 1e-9)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_consecutive_draws_are_independent(impl):
    for q in (np.array([0.1, 0.2, 0.7]), np.full(3, 1 / 3)):
        classes = draw_many(jax.random.key(8, impl=impl), alias_table(q))
        counts = np.bincount(np.asarray(classes).reshape(-1, 2) @ [3, 1], minlength=9)
        assert statistic(counts, np.outer(q, q).ravel(), 9) < 42.70  # 8 degrees, 1 - 1e-6


def test_draws_have_any_shape():
    table, shapes = alias_table(np.ones(1000)), ((), (0,), (2, 3, 4))
    found = jax.eval_shape(lambda: [draw(jax.random.key(0), table, shape) for shape in shapes])
    assert tuple(x.shape for x in found) == shapes


def test_thresholds_next_to_zero_and_one():
    """One rounds to 1 in float32, and 2^32 overflows; the other is below its resolution, 2^-23."""
    table = AliasTable(np.array([1 - 1e-12, 1.0]), np.array([1, 1], np.int32))
    classes = np.asarray(draw_many(jax.random.key(9), table))
    assert classes.mean() == pytest.approx(0.5, abs=0.01)
    table = AliasTable(np.array([2.0**-30]), np.array([1], np.int32))
    classes = jax.jit(functools.partial(draw, shape=(2**24,)))(jax.random.key(12), table)
    assert int((classes == 0).sum()) == 0, "0.016 are expected, 2 after rounding up"


def test_high_product_is_exact():
    random = np.random.default_rng(0).integers(2**32, size=9)
    x = np.r_[0, 1, 2**16 - 1, 2**16, 2**31, 2**32 - 1, random]
    factors = (1, 3, 65_535, 65_536, 10**6, 2**31 - 1)
    found = jax.jit(lambda x: [_high_product(x, factor) for factor in factors])(np.uint32(x))
    for product, factor in zip(found, factors, strict=True):
        assert product.tolist() == [int(value) * factor >> 32 for value in x]


draw_some = jax.jit(draw, static_argnums=2)


def until_distinct(rng, table, num):
    """Draw one by one from the same stream until all are distinct."""
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
    table = alias_table(negatives.log_uniform(size))
    for seed in range(3):
        rng = jax.random.key(seed)
        ids, num_draws = jax.jit(draw_unique, static_argnums=2)(rng, table, num)
        assert (ids.tolist(), int(num_draws)) == until_distinct(rng, table, num)


def test_too_many_unique_draws_are_rejected():
    """A traced table fills up with -1."""
    for weights in ([1.0, 1.0], [0.0, 1.0, 2.0]):
        table = alias_table(np.array(weights))
        with pytest.raises(UserError, match="only 2 can be drawn"):
            draw_unique(jax.random.key(0), table, 3)
    ids, _ = jax.jit(draw_unique, static_argnums=2)(jax.random.key(0), table, 3)
    assert sorted(ids.tolist()) == [-1, 1, 2]
