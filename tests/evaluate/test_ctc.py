"""CTC: loss and decoders by summing over all paths, edits by naive search."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.evaluate import beam_decode, collapse, count_edits, ctc_nats, greedy_decode
from cpc.types import UserError

NATS = jax.jit(ctc_nats)


def likelihoods(log_p):
    found = {}
    for path in itertools.product(range(log_p.shape[1]), repeat=len(log_p)):
        labels = tuple(collapse(path, log_p.shape[1] - 1))
        p = np.exp(sum(log_p[t, k] for t, k in enumerate(path)))
        found[labels] = found.get(labels, 0.0) + p
    return found


def random_scores(seed, frames, classes, scale=2.0):
    scores = np.random.default_rng(seed).normal(0, scale, (frames, classes)).astype(np.float32)
    return scores, np.asarray(jax.nn.log_softmax(scores))


def test_nats_equal_the_sum_over_all_paths():
    scores, log_p = random_scores(0, 4, 3)
    every = [(0,), (1, 0), (0, 0), (1, 1), (0, 1, 0), (0, 1, 1)]
    padded = np.array([[*labels, *[-1] * (5 - len(labels))] for labels in every])
    found = [NATS(scores[None], np.array([4]), padded[i : i + 1]) for i in range(6)]
    want = [-np.log(likelihoods(log_p)[labels]) for labels in every]
    np.testing.assert_allclose([nats for nats, _ in found], want, rtol=1e-5)
    assert [int(count) for _, count in found] == [*map(len, every)]


def test_padded_frames_and_labels_have_no_effect():
    scores, _ = random_scores(1, 6, 4)
    rows = np.stack([scores, scores])
    rows[1, 4:] = np.nan
    labels = np.array([[0, 2, -1], [0, 2, -1]])

    def loss(x, num):
        nats, count = NATS(x, np.array([6, num]), labels)
        return nats / count

    both, slopes = jax.value_and_grad(loss)(jnp.asarray(rows), 4)
    alone = [float(NATS(scores[None, :n], np.array([n]), labels[:1])[0]) / 2 for n in (6, 4)]
    np.testing.assert_allclose(both, np.mean(alone), rtol=1e-5)
    assert np.isfinite(slopes).all()
    assert not slopes[1, 4:].any()
    assert slopes[1, :4].any()


def test_labels_longer_than_the_frames_are_ignored():
    scores, _ = random_scores(2, 2, 3)
    rows = np.stack([scores] * 4)
    labels = np.array([[0, 1, 0], [0, 0, -1], [-1, -1, -1], [1, 0, -1]])  # only the last one fits
    nats, count = NATS(rows, np.full(4, 2), labels)
    alone, _ = NATS(scores[None], np.array([2]), labels[3:])
    np.testing.assert_allclose(nats, alone, rtol=1e-6)
    assert count == 2


def test_wide_beam_finds_the_most_likely_labelling():
    """Paths of a prefix such as (0, 1) arrive from (0) and from itself."""
    both = np.log([[0.8, 0.1, 0.1], [0.4, 0.3, 0.3], [0.1, 0.45, 0.45]])
    for log_p in (both, *(random_scores(seed, 5, 3, scale=1.0)[1] for seed in range(8))):
        by_labels, width = likelihoods(log_p), 4 if log_p is both else 100
        assert tuple(beam_decode(log_p, width=width)) == max(by_labels, key=by_labels.__getitem__)


def test_confident_and_empty_frames():
    log_p = np.log(np.eye(4)[[3, 0, 0, 3, 0, 1, 1, 3, 2]] * 0.9 + 0.025)
    assert greedy_decode(log_p) == beam_decode(log_p, width=1) == [0, 0, 1, 2]
    with np.errstate(divide="ignore"):
        log_p = np.log(np.eye(3)[[0, 2, 0]])
    assert beam_decode(log_p, width=5) == [0, 0]
    assert greedy_decode(np.zeros((0, 3))) == beam_decode(np.zeros((0, 3)), width=3) == []
    with pytest.raises(UserError, match="got 0"):
        beam_decode(np.zeros((1, 2)), width=0)


def distance(a, b):
    @functools.cache
    def from_here(i, j):
        if i == len(a) or j == len(b):
            return len(a) - i + len(b) - j
        ways = from_here(i + 1, j + 1) + (a[i] != b[j]), from_here(i + 1, j), from_here(i, j + 1)
        return min(ways[0], ways[1] + 1, ways[2] + 1)

    return from_here(0, 0)


def test_edits_are_minimal():
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = (tuple(rng.integers(3, size=rng.integers(9)).tolist()) for _ in "ab")
        edits = count_edits(a, b)
        assert sum(edits) == distance(a, b)
        assert len(a) - edits.deletions + edits.insertions == len(b)
        assert min(edits) >= 0
    assert count_edits([1, 2], [2, 3]) == (2, 0, 0), "of equal ways, substitutions come first"
    assert count_edits([], [1, 1]) == (0, 0, 2)
    assert count_edits([1, 1], []) == (0, 2, 0)
