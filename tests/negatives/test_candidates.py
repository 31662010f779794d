"""Samplers and noise that follow a word: what is expected, what is drawn, what log q says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.negatives.candidates import expect
from cpc.types import UserError
from tests.goldens.goldens import load_golden

META, CASES = load_golden("tf_samplers.json")
DRAWN = [name for name, (_, _, out) in CASES.items() if "prob_float64" in out]


@pytest.mark.parametrize("name", DRAWN)
def test_expected_counts_are_tensorflows(name):
    params, _, expected = CASES[name]
    unique = params["unique"] and params["num_tries"] > params["num_sampled"]
    q = jnp.asarray(expected["prob_float64"], jnp.float32)
    got = expect(q, params["num_tries"], unique)
    np.testing.assert_allclose(got, expected["expected_count"], rtol=1e-4)


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


def test_mistakes_are_said():
    with pytest.raises(UserError, match="3 distinct classes are to be drawn, but only 2"):
        negatives.fixed_sampler(np.array([1.0, 0.0, 1.0]))(
            jax.random.key(0), jnp.zeros((1, 1), int), 3
        )
    with pytest.raises(UserError, match="backoff"):
        negatives.bigrams(WORDS, np.ones(4) / 4, 0.0)
