"""Scores of word vectors against other implementations and closed forms."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from cpc.evaluate.words import analogy_score, perplexity_scores, similarity_scores, spearman
from cpc.types import UserError


def test_spearman_is_scipys_with_ties():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, 40) * 1.0, rng.normal(size=40)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


def test_similarity_leaves_out_what_has_no_vector_and_says_so():
    angles = np.array([0.0, 0.1, 0.4, 1.0, 2.0])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1) * np.arange(1, 6)[:, None]
    index = dict(zip("abcde", range(5), strict=True))
    pairs = [("a", "b"), ("a", "c"), ("a", "d"), ("a", "e"), ("a", "zebra")]
    said = np.array([9.0, 8.0, 5.0, 1.0, 0.0])
    (score,) = similarity_scores(vectors, index, {"set": (pairs, said)}, features="x")
    assert (score.value, score.num_test) == (1.0, 4)
    assert score.setting == "20% of pairs unknown"
    assert score.low <= score.value <= score.high


def test_analogies_are_answered_by_another_word():
    vectors = np.array([[1.0, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1], [5, 0, 0]])
    index = dict(zip(("man", "king", "woman", "queen", "other"), range(5), strict=True))
    four = ("man", "king", "woman", "queen")
    score = analogy_score(vectors, index, [four, ("man", "king", "no", "queen")], features="x")
    assert (score.value, score.num_test) == (1.0, 1)
    assert analogy_score(vectors, index, [("no",) * 4], features="x") is None
    assert analogy_score(vectors, index, [four], features="x", num_words=3) is None


def test_perplexity_of_a_fair_die_is_six_and_self_normalised_ones_show_log_z():
    log_p, log_z = np.full(60, -np.log(6)), np.full(60, np.log(2.0))
    scores = list(perplexity_scores(log_p, log_z, np.arange(60) // 5, features="x", data="dice"))
    values = {score.method: score.value for score in scores}
    assert values["normalised"] == pytest.approx(6)
    assert values["self-normalised"] == pytest.approx(3)
    assert values["mean"] == pytest.approx(np.log(2))
    assert values["standard deviation"] == pytest.approx(0)
    with pytest.raises(UserError, match="no word of the held-out text"):
        list(perplexity_scores(np.zeros(0), np.zeros(0), np.zeros(0, int), features="", data=""))
