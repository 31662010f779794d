"""Mining against loops over rows, and against the miners of pytorch-metric-learning."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.negatives.samplers import (
    hardest,
    mix_keys,
    mixed,
    nth_lowest,
    percentile_ring,
    semi_hard,
)
from cpc.types import UserError
from tests.goldens.goldens import load_golden

RNG = jax.random.key(0)
M, N = 150, 12


def many_rows():
    """Scores of few values, so that some are equal; rows 0 and 1 are allowed none and one."""
    rng = np.random.default_rng(7)
    where = rng.random((M, N)) < rng.random((M, 1))
    where[0], where[1] = False, np.arange(N) == 3
    return rng.integers(-8, 8, M) / 4, rng.integers(-12, 12, (M, N)) / 4, where


def run(choose, positive, negatives, where):
    poisoned = jnp.asarray(np.where(where, negatives, np.nan), jnp.float32)
    result = jax.jit(choose)(RNG, jnp.asarray(positive, jnp.float32), poisoned, jnp.asarray(where))
    return tuple(np.asarray(x) for x in result)


compiled_mix = jax.jit(mix_keys, static_argnums=2)


def test_hardest_is_the_head_of_the_sorted_row():
    positive, negatives, where = many_rows()
    scores, chosen = run(hardest(5), positive, negatives, where)
    assert scores.shape == (M, 5)
    for i in range(M):
        want = sorted(negatives[i][where[i]], reverse=True)[:5]
        np.testing.assert_array_equal(scores[i][chosen[i]], want)
        np.testing.assert_array_equal(chosen[i], np.arange(5) < len(want))


def test_hardest_sends_the_gradient_where_the_scores_came_from():
    negatives = jnp.array([[1.0, 5.0, 3.0, 9.0]])
    where = jnp.array([[True, True, True, False]])

    def weighted(x):
        scores, chosen = hardest(3)(RNG, jnp.zeros(1), x, where)
        return (jnp.where(chosen, scores, 0.0) * jnp.array([10.0, 20.0, 30.0])).sum()

    slopes = jax.jit(jax.grad(weighted))(negatives)
    np.testing.assert_array_equal(slopes, [[30.0, 10.0, 20.0, 0.0]])


def semi_hard_of(positive, scores, margin):
    band = [s for s in scores if positive - margin < s < positive]
    if band:
        return sorted(band)
    below = [s for s in scores if s < positive]
    return [max(below)] if below else [min(scores)] if scores else []


@pytest.mark.parametrize("margin", [0.25, 1])
def test_semi_hard_by_loops(margin):
    positive, negatives, where = many_rows()
    _, chosen = run(semi_hard(margin), positive, negatives, where)
    assert not (chosen & ~where).any()
    for i in range(M):
        want = semi_hard_of(positive[i], list(negatives[i][where[i]]), margin)
        assert sorted(negatives[i][chosen[i]]) == want


@pytest.mark.parametrize("case", ["two_views", "classes", "classes_raw_dist", "singletons"])
def test_miners_of_metric_learning(case):
    """A row for each (anchor, positive); scores are minus the distances."""
    _, cases = load_golden("metric_learning.npz")
    params, given, out = cases[case]
    labels, distance = given["labels"], out["distance"]
    num = len(labels)
    pairs = [(a, p) for a in range(num) for p in range(num) if a != p and labels[a] == labels[p]]
    anchor, partner = np.array(pairs).T
    where = labels[anchor][:, None] != labels[None]
    positive, negatives = -distance[anchor, partner], -distance[anchor]

    def triplets(chosen, rows):
        return {(*pairs[i], int(j)) for i in rows for j in np.flatnonzero(chosen[i])}

    everything = range(len(pairs))
    _, chosen = run(semi_hard(params["margin"]), positive, negatives, where)
    inside = [
        i
        for i in everything
        if (where[i] & (negatives[i] < positive[i]))[
            negatives[i] > positive[i] - params["margin"]
        ].any()
    ]
    assert triplets(chosen, inside) == {tuple(map(int, x)) for x in out["miner_semihard_t_idx"]}

    farthest = {(int(a), int(p)) for a, p, _ in out["miner_batch_semihard_idx"]}
    _, chosen = run(semi_hard(1e-7), positive, negatives, where)
    rows = [i for i in everything if pairs[i] in farthest]
    assert triplets(chosen, rows) == {tuple(map(int, x)) for x in out["miner_batch_semihard_idx"]}

    rows = [
        i for i in everything if pairs[i] in {(int(a), int(p)) for a, p, _ in out["miner_hard_idx"]}
    ]
    scores, _ = run(hardest(1), positive, negatives, where)
    nearest = {(int(a), int(p)): distance[a, n] for a, p, n in out["miner_hard_idx"]}
    want = [nearest[pairs[i]] for i in rows]
    np.testing.assert_allclose(-scores[rows, 0], want, rtol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(0, 100), (30, 70), (99, 100)])
def test_ring_by_exact_fractions(low, high):
    """Row i is allowed i of 100 different scores."""
    rng = np.random.default_rng(3)
    negatives = rng.permuted(np.tile(np.arange(100.0), (101, 1)), axis=1)
    where = rng.permuted(np.arange(100) < np.arange(101)[:, None], axis=1)
    _, chosen = run(percentile_ring(low, high), np.zeros(101), negatives, where)
    for i in range(101):
        rising = sorted(negatives[i][where[i]])
        first, last = math.floor(Fraction(i * low, 100)), math.ceil(Fraction(i * high, 100))
        assert sorted(negatives[i][chosen[i]]) == rising[first:last]
        assert chosen[i].any() == (i > 0)


def test_ring_takes_all_that_tie_with_its_ends():
    _, chosen = run(
        percentile_ring(25, 50),
        np.zeros(1),
        np.array([[2.0, 1.0, 2.0, 0.0, 2.0, 1.0, 3.0, 1.0]]),
        np.ones((1, 8), bool),
    )
    assert chosen[0].tolist() == [False, True, False, False, False, True, False, True]


def test_numbers_out_of_range_are_named():
    for margin in (0, -1.0, float("nan")):
        with pytest.raises(UserError, match="margin of semi_hard"):
            semi_hard(margin)
    for ends in ((-1, 50), (50, 50), (60, 50), (0, 101)):
        with pytest.raises(UserError, match="percentiles rise between 0 and 100"):
            percentile_ring(*ends)
    with pytest.raises(UserError, match="mix_keys got no keys"):
        mix_keys(RNG, jnp.zeros((2, 0, 3)), 1)
    with pytest.raises(UserError, match="mix_keys is asked for 0"):
        mix_keys(RNG, jnp.zeros((2, 1, 3)), 0)


def test_mixtures_are_convex_pairs_of_the_hardest():
    _, negatives, where = many_rows()
    negatives = negatives + np.arange(N) / 100  # no two equal

    @jax.jit
    def mixtures(x):
        def total(x):
            scores, chosen = mixed(4, 6)(RNG, jnp.zeros(M), x, jnp.asarray(where))
            return jnp.where(chosen, scores, 0.0).sum(0), (scores, chosen)

        jacobian, found = jax.jacrev(total, has_aux=True)(jnp.where(where, x, jnp.nan))
        return jacobian, *found

    jacobian, scores, chosen = map(np.asarray, mixtures(jnp.asarray(negatives, jnp.float32)))
    np.testing.assert_array_equal(chosen[:, :N], where)
    np.testing.assert_array_equal(chosen[:, N:], np.repeat(where.any(-1)[:, None], 6, 1))
    np.testing.assert_allclose(scores[:, :N][where], negatives[where], rtol=1e-6)
    weights = np.moveaxis(np.asarray(jacobian), 0, 1)[:, N:]  # (m, 6, n)
    mixtures = (weights @ negatives[..., None])[..., 0]
    some = where.any(-1)
    np.testing.assert_allclose(mixtures[some], scores[some, N:], atol=1e-5)
    np.testing.assert_allclose(weights.sum(-1), chosen[:, N:], atol=1e-6)
    assert (weights >= 0).all()
    for i in range(M):
        best = np.argsort(np.where(where[i], -negatives[i], np.inf))[: min(4, where[i].sum())]
        used = weights[i] > 0
        assert not used[:, np.setdiff1d(np.arange(N), best)].any()
        if len(best) > 1:
            assert (used.sum(-1) == 2).all()


def test_pairs_and_shares_are_uniform():
    """The scores 0, 1, 10 tell the pair of each mixture: 6 ordered pairs, 5 degrees of freedom."""
    negatives = np.array([[0.0, 1.0, 10.0]])
    keys = jnp.eye(3)[None]
    weights = np.asarray(compiled_mix(RNG, keys, 12_000))[0]
    shares = weights / weights.sum(-1, keepdims=True)
    pairs = (shares > 0) @ [1, 2, 4]
    counts = np.bincount(pairs, minlength=7)[[3, 5, 6]]
    assert counts.sum() == 12_000
    assert ((counts - 4000) ** 2 / 4000).sum() < 13.8  # 2 degrees of freedom
    first = shares[pairs == 3][:, 0]
    bins = np.histogram(first, 10, (0, 1))[0]
    assert ((bins - len(first) / 10) ** 2 / (len(first) / 10)).sum() < 27.9  # 9 degrees
    scores, _ = run(mixed(2, 500), np.zeros(1), negatives, np.ones((1, 3), bool))
    assert scores[0, 3:].min() >= 1
    assert scores[0, 3:].max() <= 10


def test_mixture_of_scores_is_the_score_of_the_mixture_before_its_length():
    """Same key, same pairs: s = q . y, and the paper's key is y / |y|."""
    keys = np.random.default_rng(5).normal(size=(1, 4, 8))
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    keys = np.float32(keys[:, np.argsort(-keys[0].sum(-1))])
    mixtures = np.asarray(compiled_mix(RNG, keys, 50))
    np.testing.assert_allclose(np.linalg.norm(mixtures, axis=-1), 1.0, rtol=1e-5)
    got, _ = run(mixed(4, 50), np.zeros(1), keys.sum(-1), np.ones((1, 4), bool))
    lengths = got[:, 4:] / mixtures.sum(-1)
    assert (lengths > 0).all()
    assert (lengths <= 1 + 1e-5).all()


def test_keys_that_cancel_are_not_nan():
    keys = jnp.array([[[1.0, 0.0], [-1.0, 0.0]]])
    mix = jax.jit(jax.value_and_grad(lambda keys: mix_keys(RNG, keys, 3).sum()))
    assert np.isfinite(mix(0 * keys)[1]).all()
    assert np.isfinite(mix(keys)[0])


def test_nth_lowest_is_that_of_a_sort():
    """Of both signs and zeros, with ties, infinities and NaN, which sorts behind all."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(60, 40)).astype(np.float32) * 10.0 ** rng.integers(-30, 30, (60, 40))
    x = np.where(rng.random((60, 40)) < 0.2, np.float32(2.5), x).astype(np.float32)
    for row, value in enumerate((np.inf, -np.inf, 0.0, -0.0, np.nan, -np.nan, 1e-42)):
        x[row, :: 2 + row] = value
    ranks = np.stack([rng.integers(0, 40, 60), np.zeros(60, int), np.full(60, 39)])
    want = np.take_along_axis(np.sort(x, -1), ranks.T, -1).T
    np.testing.assert_array_equal(jax.jit(nth_lowest)(jnp.asarray(x), jnp.asarray(ranks)), want)
