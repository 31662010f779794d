"""Nested cross-validation, word scores and codes: twins and closed forms."""

import itertools

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression

from cpc.evaluate import bag_of_words, code_entropy, code_scores, cross_validate
from cpc.evaluate.cross_validation import fit_dense, fit_sparse
from cpc.evaluate.words import (
    analogy_score,
    mean_difference,
    pair_cosines,
    perplexity_scores,
    similarity_scores,
    solve_analogies,
    spearman,
)
from cpc.types import UserError


def test_dense_fit_reaches_the_best_boundary():
    rng = np.random.default_rng(0)
    labels, x = rng.integers(0, 2, 1000), np.float32(rng.normal(size=(1000, 6)))
    x[:, 0] += 1.5 * labels
    found = cross_validate(fit_dense, x, labels, l2s=(1e-3, 1e-1), num_folds=5)
    assert len(found.items) == len(set(found.items)) == len(found.correct) == 1000
    assert found.correct.mean() == pytest.approx(0.773, abs=0.03)  # Phi(1.5 / 2)
    assert len(found.l2s) == 5


def test_folds_do_not_leak():
    """A leaking fold would memorize these labels."""
    seen, falling = [], itertools.count(100, -1)

    def fit(x, labels, num_classes, l2s):
        def answer(rows):
            seen.append((set(x.ravel().tolist()), set(rows.ravel().tolist())))
            return np.full((len(rows), num_classes), -next(falling))

        return [(l2, answer, True) for l2 in l2s]

    x = np.arange(43.0)[:, None]
    cross_validate(fit, x, np.arange(43) % 2, num_folds=5, l2s=(1.0, 0.1))
    assert len(seen) == 5 * 3
    for fitted, asked in seen:
        assert not fitted & asked
    assert [len(fitted) for fitted, _ in seen[:3]] == [24, 24, 32]
    assert seen[0][1] == seen[1][1] != seen[2][1]


def test_sparse_fit_equals_scikit_learn():
    rng = np.random.default_rng(0)
    x = bag_of_words([rng.integers(0, 30, rng.integers(3, 9)) for _ in range(200)], 30)
    labels = (x[:, [3]].toarray().ravel() + rng.random(200) > 0.8).astype(int)
    l2 = 1e-3
    ((_, answer, converged),) = fit_sparse(x, labels, 2, [l2])
    counts = x.toarray()
    weights = np.log1p(counts) * np.log(201 / (1 + (counts > 0).sum(axis=0)))
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    # Two columns +-w / 2 have half the penalty of one column w.
    theirs = LogisticRegression(C=2 / (l2 * 200), tol=1e-8, max_iter=5000).fit(weights, labels)
    assert converged
    np.testing.assert_allclose(
        np.exp(answer(x))[:, 1], theirs.predict_proba(weights)[:, 1], atol=2e-3
    )


@pytest.mark.parametrize(("labels", "folds"), [([0, 1, 0], 10), ([0] * 30, 10), ([0, 1] * 9, 2)])
def test_labels_without_folds_are_rejected(labels, folds):
    labels = np.array(labels)
    with pytest.raises(UserError, match="folds"):
        cross_validate(fit_dense, np.zeros((len(labels), 2)), labels, num_folds=folds)


def test_spearman_equals_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, 40) * 1.0, rng.normal(size=40)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


def test_similarity_skips_and_reports_missing_words():
    angles = np.array([0.0, 0.1, 0.4, 1.0, 2.0])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1) * np.arange(1, 6)[:, None]
    index = dict(zip("abcde", range(5), strict=True))
    pairs = [("a", "b"), ("a", "c"), ("a", "d"), ("a", "e"), ("a", "zebra")]
    said = np.array([9.0, 8.0, 5.0, 1.0, 0.0])
    (score,) = similarity_scores(vectors, index, {"set": (pairs, said)}, features="x")
    assert (score.value, score.num_test) == (1.0, 4)
    assert score.setting == "20% of pairs unknown"
    assert score.low <= score.value <= score.high


def test_analogies_exclude_the_question_words():
    vectors = np.array([[1.0, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1], [5, 0, 0]])
    index = dict(zip(("man", "king", "woman", "queen", "other"), range(5), strict=True))
    four = ("man", "king", "woman", "queen")
    score = analogy_score(vectors, index, [four, ("man", "king", "no", "queen")], features="x")
    assert (score.value, score.num_test) == (1.0, 1)
    assert analogy_score(vectors, index, [("no",) * 4], features="x") is None
    assert analogy_score(vectors, index, [four], features="x", num_words=3) is None


def test_perplexity_and_log_z():
    log_p, log_z = np.full(60, -np.log(6)), np.full(60, np.log(2.0))
    scores = list(perplexity_scores(log_p, log_z, np.arange(60) // 5, features="x", data="dice"))
    values = {score.method: score.value for score in scores}
    assert values["normalised"] == pytest.approx(6)
    assert values["self-normalised"] == pytest.approx(3)
    assert values["mean"] == pytest.approx(np.log(2))
    assert values["standard deviation"] == pytest.approx(0)
    with pytest.raises(UserError, match="no word of the held-out text"):
        list(perplexity_scores(np.zeros(0), np.zeros(0), np.zeros(0, int), features="", data=""))


def test_bit_rate_is_entropy_times_frame_rate():
    frames = [np.float32([[1], [2]]), np.float32([[3], [4], [1], [2], [3], [4]])]
    rate, perplexity = code_scores(frames, 0.02, data="toy", features="z")
    assert rate.value == pytest.approx(2 * 50)
    assert perplexity.value == pytest.approx(4)
    assert (rate.metric, rate.unit, rate.higher_is_better) == ("bits per second", "second", False)
    assert rate.setting == "4 codes in 8 frames"
    assert code_entropy(np.array([[0.0], [-0.0]], "f")) == (0.0, 1)  # one code


def test_mean_difference_is_paired_by_question():
    rng = np.random.default_rng(0)
    hard, noise = rng.normal(size=400), rng.normal(size=(3, 400))
    found = mean_difference(lambda row, drawn: row[drawn].mean(), hard + 0.1 * noise, hard[None])
    mean = 0.1 * noise.mean(0)
    half = 1.96 * mean.std() / 20
    assert found.value == pytest.approx(mean.mean())
    np.testing.assert_allclose(found[1:3], [mean.mean() - half, mean.mean() + half], atol=half / 8)


def test_cosines_and_answers_equal_loops():
    rng = np.random.default_rng(0)
    vectors, words = rng.normal(size=(9, 4)), "abcdefghi"
    index = dict(zip(words, range(9), strict=True))
    pairs = [("a", "b"), ("a", "?"), ("c", "i")]
    cosine, known = pair_cosines(vectors, index, pairs)
    unit = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    np.testing.assert_allclose(cosine, [unit[0] @ unit[1], unit[2] @ unit[8]])
    assert known.tolist() == [0, 2]
    questions = [tuple(rng.permutation([*words])[:4]) for _ in range(60)]
    right = []
    for four in questions:
        a, b, c, d = (index[word] for word in four)
        others = [i for i in range(9) if i not in (a, b, c)]
        right.append(max(others, key=lambda i: unit[i] @ (unit[b] - unit[a] + unit[c])) == d)
    assert solve_analogies(vectors, index, [*questions, ("?",) * 4]).tolist() == right
    assert 0 < sum(right) < len(right)
