"""Samplers and noise that follow a word: what is expected, what is drawn, what log q says."""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.negatives.candidates import expect
from cpc.types import UserError

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "goldens"))
from goldens import load_golden

META, CASES = load_golden("tf_samplers.json")
DRAWN = [name for name, (_, _, out) in CASES.items() if "prob_float64" in out]


@pytest.mark.parametrize("name", DRAWN)
def test_expected_counts_are_tensorflows(name):
    params, _, expected = CASES[name]
    unique = params["unique"] and params["num_tries"] > params["num_sampled"]
    q = jnp.asarray(expected["prob_float64"], jnp.float32)
    got = expect(q, params["num_tries"], unique)
    np.testing.assert_allclose(got, expected["expected_count"], rtol=1e-4)


@pytest.mark.slow
def test_triples_fit_together():
    labels = jnp.array([[0, 3], [1, 1]])
    counts = np.array([5, 3, 1, 1])
    for unique in (False, True):
        sampler = negatives.fixed_sampler(negatives.unigram(counts, 0.5), unique=unique)
        ids, true, sampled = sampler(jax.random.key(1), labels, 3)
        q = negatives.unigram(counts, 0.5)
        table = np.full(4, np.nan)
        table[np.asarray(ids)] = sampled
        known = np.isin(labels, ids)
        np.testing.assert_allclose(np.asarray(true)[known], table[labels][known], rtol=1e-6)
        if not unique:
            np.testing.assert_allclose(true, 3 * q[np.asarray(labels)], rtol=1e-6)
        else:
            assert len(set(np.asarray(ids).tolist())) == 3


@pytest.mark.slow
def test_unique_draws_are_as_often_as_expected():
    """1 - (1 - q)^tries, given the tries, is unbiased for the count (TensorFlow's estimate)."""
    sampler = negatives.log_uniform_sampler(6)
    labels = jnp.arange(6)[:, None]

    def one(key):
        ids, true, _ = sampler(key, labels, 3)
        return jnp.zeros(6).at[ids].add(1.0), true[:, 0]

    found, expected = jax.vmap(one)(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_allclose(found.mean(0), expected.mean(0), atol=0.06)


@pytest.mark.slow
def test_learned_unigram_follows_what_it_has_seen():
    counts = negatives.observe(jnp.ones(4, jnp.int32), jnp.array([[3], [3], [-1], [1]]))
    assert counts.tolist() == [1, 2, 1, 3]
    sampler = negatives.learned_unigram_sampler(counts)
    ids, true, sampled = sampler(jax.random.key(0), jnp.array([[3]]), 20_000)
    np.testing.assert_allclose(np.bincount(ids, minlength=4) / 20_000, counts / 7, atol=0.015)
    assert float(true[0, 0]) == pytest.approx(20_000 * 3 / 7, rel=1e-5)
    np.testing.assert_allclose(sampled, 20_000 * np.asarray(counts)[np.asarray(ids)] / 7, rtol=1e-5)


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


@pytest.mark.slow
def test_bigram_noise_equals_the_naive_one_and_is_drawn_so():
    noise = negatives.bigrams(WORDS, np.array([0.1, 0.2, 0.3, 0.4]), 0.3, STARTS)
    contexts = jnp.array([0, 1, 2, 3, -1])
    words = jnp.tile(jnp.arange(4), (5, 1))
    log_q = negatives.bigram_log_q(noise, contexts, words)
    want = [[naive_bigram(c, w) for w in range(4)] for c in (0, 1, 2, 3, -1)]
    np.testing.assert_allclose(np.exp(log_q), want, rtol=1e-5)
    np.testing.assert_allclose(np.exp(log_q).sum(1), 1, rtol=1e-5)
    drawn = negatives.draw_bigrams(jax.random.key(0), noise, contexts, 20_000)
    for i in range(5):
        found = np.bincount(np.asarray(drawn[i]), minlength=4) / 20_000
        np.testing.assert_allclose(found, want[i], atol=0.015)


@pytest.mark.slow
def test_bigram_noise_takes_weights_of_any_sum():
    noise, scaled = (negatives.bigrams(WORDS, w * np.arange(1.0, 5), 0.3) for w in (0.1, 5.0))
    asked = jnp.arange(4), jnp.tile(jnp.arange(4), (4, 1))
    np.testing.assert_allclose(
        negatives.bigram_log_q(scaled, *asked), negatives.bigram_log_q(noise, *asked), rtol=1e-5
    )


@pytest.mark.slow
def test_bigram_noise_of_sentences_of_one_word_is_that_of_all_words():
    u = np.array([0.25, 0.75])
    noise = negatives.bigrams(np.array([0, 1]), u, 0.5, np.array([True, True]))
    log_q = negatives.bigram_log_q(noise, jnp.array([0, -1]), jnp.array([[0, 1], [0, 1]]))
    np.testing.assert_allclose(np.exp(log_q), [u, u], rtol=1e-6)
    drawn = negatives.draw_bigrams(jax.random.key(0), noise, jnp.array([1]), 5000)
    assert abs(drawn.mean() - 0.75) < 0.03


def test_mistakes_are_said():
    with pytest.raises(UserError, match="3 distinct classes are to be drawn, but only 2"):
        negatives.fixed_sampler(np.array([1.0, 0.0, 1.0]))(
            jax.random.key(0), jnp.zeros((1, 1), int), 3
        )
    with pytest.raises(UserError, match="backoff"):
        negatives.bigrams(WORDS, np.ones(4) / 4, 0.0)
