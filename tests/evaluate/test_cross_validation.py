"""Nested cross-validation of logistic regression; bags of words; the linear map of words."""

import itertools

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from cpc.evaluate import bag_of_words, cross_validate, expand_vocabulary, fit_dense, fit_sparse
from cpc.types import UserError


def clusters(n=300, d=6, gap=1.5, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    x = rng.normal(size=(n, d)).astype(np.float32)
    x[:, 0] += gap * labels
    return x, labels


def test_accuracy_is_that_of_the_best_boundary():
    x, labels = clusters(1000)
    found = cross_validate(fit_dense, x, labels, l2s=(1e-3, 1e-1), num_folds=5)
    assert len(found.items) == len(set(found.items)) == len(found.correct) == 1000
    assert found.correct.mean() == pytest.approx(0.773, abs=0.03)  # Phi(gap / 2)
    assert len(found.l2s) == 5


def test_a_fold_has_no_part_in_its_own_answer():
    """An answer that looked at its own fold would know these labels by heart."""
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


def test_sparse_fit_is_sklearns():
    rng = np.random.default_rng(0)
    x = bag_of_words([rng.integers(0, 30, rng.integers(3, 9)) for _ in range(200)], 30)
    labels = (x[:, [3]].toarray().ravel() + rng.random(200) > 0.8).astype(int)
    l2 = 1e-3
    ((_, answer, converged),) = fit_sparse(x, labels, 2, [l2])
    counts = x.toarray()
    weights = np.log1p(counts) * np.log(201 / (1 + (counts > 0).sum(axis=0)))
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    # Two columns of weights, each +-w / 2, cost half of what one column w does.
    theirs = LogisticRegression(C=2 / (l2 * 200), tol=1e-8, max_iter=5000).fit(weights, labels)
    assert converged
    np.testing.assert_allclose(
        np.exp(answer(x))[:, 1], theirs.predict_proba(weights)[:, 1], atol=2e-3
    )


@pytest.mark.parametrize(("labels", "folds"), [([0, 1, 0], 10), ([0] * 30, 10), ([0, 1] * 9, 2)])
def test_what_makes_no_folds_is_refused(labels, folds):
    labels = np.array(labels)
    with pytest.raises(UserError, match="folds"):
        cross_validate(fit_dense, np.zeros((len(labels), 2)), labels, num_folds=folds)


def test_new_words_lie_where_the_map_puts_them():
    rng = np.random.default_rng(0)
    vectors, hidden = rng.normal(size=(50, 8)), rng.normal(size=(8, 5))
    new = rng.normal(size=(7, 8))
    found = expand_vocabulary(vectors, vectors @ hidden, new)
    np.testing.assert_allclose(found, new @ hidden, rtol=1e-8)
    noisy = vectors @ hidden + rng.normal(size=(50, 5))
    normal = np.linalg.inv(vectors.T @ vectors) @ vectors.T @ noisy
    np.testing.assert_allclose(expand_vocabulary(vectors, noisy, new), new @ normal, rtol=1e-8)
