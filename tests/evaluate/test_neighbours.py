import numpy as np
import pytest

from cpc.evaluate import knn_predict, most_exciting, nearest
from cpc.types import UserError


def features(n, d=6, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def cosines(gallery, queries):
    gallery, queries = gallery.astype(np.float64), queries.astype(np.float64)
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    return (queries / np.linalg.norm(queries, axis=1, keepdims=True)) @ gallery.T


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("cpc.evaluate.neighbours.BLOCK_COSINES", 8 * 50)
    monkeypatch.setattr("cpc.evaluate.neighbours.MIN_QUERIES", 1)


def test_nearest_equals_sorting_all_cosines(small_blocks):
    gallery, queries = features(50), 100 * features(19, seed=1)
    expected = cosines(gallery, queries)
    for k in (1, 20, 50):
        top, order = nearest(gallery, queries, k=k), np.argsort(-expected, axis=1)[:, :k]
        np.testing.assert_array_equal(top.row, order)
        np.testing.assert_allclose(top.score, np.take_along_axis(expected, order, 1), atol=1e-6)
    # All cosines are negative, but zero with padding.
    gallery, queries = -np.abs(features(50)), np.abs(features(19, seed=1))
    top = nearest(gallery, queries, k=20)
    np.testing.assert_array_equal(top.row, np.argsort(-cosines(gallery, queries))[:, :20])
    assert (top.score < 0).all()
    # The first of equals.
    top = nearest(np.tile(features(1), (50, 1)), np.tile(features(1), (19, 1)), k=20)
    np.testing.assert_array_equal(top.row[0, :3], [0, 1, 2])
    zeros = nearest(np.zeros((50, 6), np.float32), features(19), k=20)
    np.testing.assert_array_equal(zeros.score, 0)


def test_votes_are_weighted_by_cosine(small_blocks):
    gallery, queries = features(50), features(19, seed=1)
    labels = np.random.default_rng(2).integers(0, 4, 50)
    expected = np.zeros((19, 5))
    for query, row in enumerate(cosines(gallery, queries)):
        for neighbour in np.argsort(-row)[:7]:
            expected[query, labels[neighbour]] += np.exp(row[neighbour] / 0.1)
    expected /= expected.sum(axis=1, keepdims=True)
    share = knn_predict(gallery, labels, queries, num_classes=5, k=7, temperature=0.1)
    np.testing.assert_allclose(share, expected, rtol=1e-4, atol=1e-6)
    sharp = knn_predict(gallery, labels, queries, num_classes=5, k=7, temperature=1e-4)
    np.testing.assert_allclose(sharp.max(axis=1), 1, atol=1e-3)
    assert knn_predict(gallery, labels, queries[:0], num_classes=5, k=7).shape == (0, 5)


def test_most_exciting_patches_are_found_over_batches():
    activations = features(100, d=4)
    parts = most_exciting(np.split(activations, [3, 40, 90]), k=5)
    order = np.argsort(-activations, axis=0)[:5].T
    np.testing.assert_array_equal(parts.row, order)
    np.testing.assert_array_equal(parts.score, np.take_along_axis(activations.T, order, 1))
    same = most_exciting([np.ones((3, 2)), np.ones((3, 2))], k=4)
    np.testing.assert_array_equal(same.row, [[0, 1, 2, 3]] * 2)


def test_invalid_input_is_rejected():
    x, y = features(9), np.zeros(9, int)
    for call, match in (
        (lambda: nearest(x, x, k=0), r"1\.\.9, .* training rows \(got 0"),
        (lambda: nearest(x, x, k=10), r"1\.\.9, .* training rows \(got 10"),
        (lambda: most_exciting([x], 0), "there are 9 patches"),
        (lambda: most_exciting([x], 10), "there are 9 patches"),
        (lambda: most_exciting([], 3), "0 patches"),
        (lambda: nearest(x, x[:, :4], k=1), "6 wide and the others 4"),
        (lambda: knn_predict(x, y - 1, x, num_classes=2, k=3), r"0\.\.1"),
        (lambda: knn_predict(x, y[:8], x, num_classes=2, k=3), "have 8 labels"),
    ):
        with pytest.raises(UserError, match=match):
            call()
