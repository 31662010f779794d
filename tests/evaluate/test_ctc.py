"""CTC: the loss and the decoders against the sum over all paths, edits against a naive search."""

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
    """Of each labelling, by all paths there are."""
    found = {}
    for path in itertools.product(range(log_p.shape[1]), repeat=len(log_p)):
        labels = tuple(collapse(path, log_p.shape[1] - 1))
        p = np.exp(sum(log_p[t, k] for t, k in enumerate(path)))
        found[labels] = found.get(labels, 0.0) + p
    return found


def random_scores(seed, frames, classes, scale=2.0):
    scores = np.random.default_rng(seed).normal(0, scale, (frames, classes)).astype(np.float32)
    return scores, np.asarray(jax.nn.log_softmax(scores))


@pytest.mark.parametrize("labels", [(0,), (1, 0), (0, 0), (1, 1), (0, 1, 0), (0, 1, 1)])
def test_nats_are_of_the_sum_over_all_paths(labels):
    scores, log_p = random_scores(0, 4, 3)
    padded = np.full((1, 5), -1)
    padded[0, : len(labels)] = labels
    nats, count = NATS(scores[None], np.array([4]), padded)
    want = -np.log(likelihoods(log_p)[labels])
    np.testing.assert_allclose(nats, want, rtol=1e-5)
    assert count == len(labels)


@pytest.mark.slow
def test_frames_and_labels_that_do_not_exist_change_nothing():
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


def test_labels_that_do_not_fit_count_for_neither():
    scores, _ = random_scores(2, 2, 3)
    rows = np.stack([scores] * 4)
    labels = np.array([[0, 1, 0], [0, 0, -1], [-1, -1, -1], [1, 0, -1]])  # the last one fits
    nats, count = NATS(rows, np.full(4, 2), labels)
    alone, _ = NATS(scores[None], np.array([2]), labels[3:])
    np.testing.assert_allclose(nats, alone, rtol=1e-6)
    assert count == 2


@pytest.mark.parametrize("seed", range(8))
def test_a_wide_beam_finds_the_likeliest_labelling(seed):
    _, log_p = random_scores(seed, 5, 3, scale=1.0)
    by_labels = likelihoods(log_p)
    assert tuple(beam_decode(log_p, width=100)) == max(by_labels, key=by_labels.__getitem__)


def test_a_beam_sums_the_ways_to_a_prefix_that_both_lead_to():
    """The prefix (0, 1) comes from (0) and goes on as itself: without the sum nothing would win."""
    p = np.array([[0.8, 0.1, 0.1], [0.4, 0.3, 0.3], [0.1, 0.45, 0.45]])
    by_labels = likelihoods(np.log(p))
    assert tuple(beam_decode(np.log(p), width=4)) == max(by_labels, key=by_labels.__getitem__)


def test_a_beam_of_one_and_greedy_agree_where_frames_are_sure():
    path = [3, 0, 0, 3, 0, 1, 1, 3, 2]
    log_p = np.log(np.eye(4)[path] * 0.9 + 0.025)
    assert greedy_decode(log_p) == beam_decode(log_p, width=1) == [0, 0, 1, 2]


def test_certain_frames_have_no_other_labelling():
    with np.errstate(divide="ignore"):
        log_p = np.log(np.eye(3)[[0, 2, 0]])
    assert beam_decode(log_p, width=5) == [0, 0]


def test_no_frames_say_nothing():
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


@pytest.mark.parametrize("seed", range(20))
def test_edits_are_as_few_as_can_be_and_make_up_the_lengths(seed):
    rng = np.random.default_rng(seed)
    a, b = (tuple(rng.integers(3, size=rng.integers(9)).tolist()) for _ in "ab")
    edits = count_edits(a, b)
    assert sum(edits) == distance(a, b)
    assert len(a) - edits.deletions + edits.insertions == len(b)
    assert min(edits) >= 0


def test_of_equal_ways_substitutions_come_first():
    assert count_edits([1, 2], [2, 3]) == (2, 0, 0)
    assert count_edits([], [1, 1]) == (0, 0, 2)
    assert count_edits([1, 1], []) == (0, 2, 0)
