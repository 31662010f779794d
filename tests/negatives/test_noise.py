"""Noise distributions and samplers against other implementations', twins and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.negatives.candidates import expect
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
def test_equals_other_samplers(name):
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
def test_alpha_of_a_mass(name):
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


def test_alpha_zero_is_uniform_over_what_was_seen():
    counts = np.array([7, 0, 1, 100])
    np.testing.assert_allclose(negatives.unigram(counts, 0), [1 / 3, 0, 1 / 3, 1 / 3], rtol=1e-15)
    assert negatives.unigram(counts, -1)[1] == 0
    corpus = negatives.probabilities(counts)
    np.testing.assert_allclose(negatives.unigram(counts, 1), corpus, rtol=1e-14)


@pytest.mark.parametrize("scale", [1e308, 1.0, 1e-320])
def test_scale_of_the_weights_does_not_matter(scale):
    weights = np.array([1.0, 0.5, 1.5, 0.0]) * scale
    expected = [1 / 3, 1 / 6, 1 / 2, 0]
    np.testing.assert_allclose(negatives.probabilities(weights), expected, rtol=1e-3)


@pytest.mark.parametrize(("weights", "match"), [
    ([1.0, -2.0], "class 1 is -2.0"),
    ([np.nan, 1.0], "class 0 is nan"),
    ([0.0, 0.0], "all weights are 0"),
    ([[1.0, 2.0]], "shape"),
])  # fmt: skip
def test_bad_weights_are_named(weights, match):
    by_alpha = lambda weights: negatives.unigram(weights, 1.0)  # noqa: E731
    for make in (negatives.probabilities, by_alpha, negatives.alias_table):
        with pytest.raises(UserError, match=match):
            make(np.array(weights))


def test_bad_numbers_are_named():
    for make in (negatives.uniform, negatives.log_uniform):
        with pytest.raises(UserError, match="one number a class"):
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
        (lambda: negatives.expected_count(0.5, -1, unique=True), "num_draws is -1"),
        (lambda: negatives.solve_alpha(np.array([9, 1]), np.array([1]), 0.6), r"0\.1 to 0\.5"),
        (lambda: negatives.bigrams(WORDS, np.ones(4) / 4, 0.0), "backoff"),
        (
            lambda: TWO_OF_THREE(jax.random.key(0), jnp.zeros((1, 1), int), 3),
            "3 distinct .* only 2",
        ),
    ):
        with pytest.raises(UserError, match=match):
            call()


def test_the_ends_of_the_interval_are_attained_but_for_rounding():
    counts, rare = np.array([70, 11, 5, 3]), np.array([2, 3])
    least, most = (negatives.unigram(counts, alpha)[rare].sum() for alpha in (1, 0))
    assert negatives.solve_alpha(counts, rare, np.nextafter(least, 0)) == pytest.approx(1.0)
    assert negatives.solve_alpha(counts, rare, np.nextafter(most, 1)) == pytest.approx(0, abs=1e-9)


def compile_sampler(sampler, num):
    return jax.jit(lambda rng, labels: sampler(rng, labels, num))


@pytest.mark.parametrize("unique", [False, True])
def test_triples_fit_together(unique):
    labels, counts = np.array([[0, 3], [1, 1]]), np.array([5, 3, 1, 1])
    q = negatives.unigram(counts, 0.5)
    sampler = compile_sampler(negatives.fixed_sampler(q, unique=unique), 3)
    ids, true, sampled = map(np.asarray, sampler(jax.random.key(1), labels))
    table = np.full(4, np.nan)
    table[ids] = sampled
    known = np.isin(labels, ids)
    np.testing.assert_allclose(true[known], table[labels][known], rtol=1e-6)
    if unique:
        assert len(set(ids.tolist())) == 3
    else:
        np.testing.assert_allclose(true, 3 * q[labels], rtol=1e-6)


def test_unique_draws_are_as_often_as_expected():
    """1 - (1 - q)^tries, given the tries, is unbiased for the count (TensorFlow's estimate)."""
    sampler = negatives.log_uniform_sampler(6)
    labels = jnp.arange(6)[:, None]

    def one(key):
        ids, true, _ = sampler(key, labels, 3)
        return jnp.zeros(6).at[ids].add(1.0), true[:, 0]

    found, expected = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_allclose(found.mean(0), expected.mean(0), atol=0.06)


def test_learned_unigram_follows_what_it_has_seen():
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
def test_bigram_noise_equals_the_naive_one_and_is_drawn_so(scale):
    """The weights may have any sum."""
    noise = negatives.bigrams(WORDS, scale * np.arange(1.0, 5), 0.3, STARTS)
    contexts, words = jnp.array([0, 1, 2, 3, -1]), jnp.tile(jnp.arange(4), (5, 1))
    q = np.exp(bigram_log_q(noise, contexts, words))
    want = [[naive_bigram(c, w) for w in range(4)] for c in (0, 1, 2, 3, -1)]
    np.testing.assert_allclose(q, want, rtol=1e-5)
    np.testing.assert_allclose(q.sum(1), 1, rtol=1e-5)
    drawn = np.asarray(draw_bigrams(jax.random.key(0), noise, contexts, 20_000))
    for row, expected in zip(drawn, want, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=4) / 20_000, expected, atol=0.015)


def test_bigram_noise_of_sentences_of_one_word_is_that_of_all_words():
    u = np.array([0.25, 0.75])
    noise = negatives.bigrams(np.array([0, 1]), u, 0.5, np.array([True, True]))
    log_q = bigram_log_q(noise, jnp.array([0, -1]), jnp.array([[0, 1], [0, 1]]))
    np.testing.assert_allclose(np.exp(log_q), [u, u], rtol=1e-6)
    drawn = draw_bigrams(jax.random.key(0), noise, jnp.array([1]), 5000)
    assert abs(np.mean(drawn) - 0.75) < 0.03


TWO_OF_THREE = negatives.fixed_sampler(np.array([1.0, 0.0, 1.0]))
