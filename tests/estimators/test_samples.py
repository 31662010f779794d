"""Nearest-neighbour and canonical-correlation estimates: twins, known information, input checks."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import digamma

from cpc.estimators import cca, ksg
from cpc.types import UserError


def naive_ksg(x, y, k):
    n = len(x)
    dx = np.array([[np.abs(a - b).max() for b in x] for a in x])
    dy = np.array([[np.abs(a - b).max() for b in y] for a in y])
    total = 0.0
    for i in range(n):
        others = [j for j in range(n) if j != i]
        radius = sorted(max(dx[i, j], dy[i, j]) for j in others)[k - 1]
        total += digamma(1 + sum(dx[i, j] < radius for j in others))
        total += digamma(1 + sum(dy[i, j] < radius for j in others))
    return digamma(k) + digamma(n) - total / n


@settings(max_examples=30, deadline=None, derandomize=True)
@given(*(st.integers(low, high) for low, high in ((5, 25), (1, 3), (1, 3), (1, 4), (0, 9999))))
def test_ksg_equals_naive_twin(n, dx, dy, k, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, dx)), rng.normal(size=(n, dy))
    y[:, 0] += x[:, 0]
    estimate = ksg(x, y, k)
    assert estimate.value == pytest.approx(naive_ksg(x, y, k), abs=1e-12)
    assert estimate.value <= estimate.ceiling == pytest.approx(digamma(n) - digamma(k))
    assert (estimate.is_bound, estimate.side) == (False, "")


def test_cca_equals_the_sample_covariance():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50, 2))
    y = np.concatenate([x[:, :1] + rng.normal(size=(50, 1)), rng.normal(size=(50, 2))], axis=1)
    covariance = np.cov(np.concatenate([x, y], axis=1).T)
    logdet = [np.linalg.slogdet(c)[1] for c in (covariance[:2, :2], covariance[2:, 2:], covariance)]
    expected = 0.5 * (logdet[0] + logdet[1] - logdet[2])
    found = cca(x, y)
    assert found.value == pytest.approx(expected, abs=1e-10)
    assert (found.is_bound, found.side, found.ceiling) == (False, "", math.inf)
    doubled = np.concatenate([y, y[:, :1] * 2], axis=1)  # a redundant column
    assert cca(x, doubled).value == pytest.approx(expected, abs=1e-8)
    assert cca(x, np.ones((50, 1))).value == 0.0
    assert cca(x, x @ np.ones((2, 1))).value == math.inf


X = np.random.default_rng(0).normal(size=(6, 1))
BAD = np.where(np.arange(6)[:, None] == 2, np.nan, X)


@pytest.mark.parametrize(
    ("estimator", "x", "y", "words"),
    [
        (lambda x, y: ksg(x, y, 6), X, X, "k .*got 6.* below 6"),
        (lambda x, y: ksg(x, y, 0), X, X, "k .*got 0"),
        (ksg, np.zeros((6, 1)), np.zeros((6, 1)), "more than k = 3 pairs are equal"),
        (ksg, X, BAD, "not finite"),
        (cca, BAD, X, "not finite"),
        (ksg, X, X[:5], r"x is \(6, 1\) and y is \(5, 1\)"),
        (cca, X[:, 0], X, r"x is \(6,\)"),
        (cca, X[:2], X[:2], "more pairs than"),
        *((estimator, "a", "b", "two arrays") for estimator in (ksg, cca)),
    ],
)
def test_invalid_input_is_rejected(estimator, x, y, words, unchecked):
    with pytest.raises(UserError, match=words):
        estimator(x, y)
