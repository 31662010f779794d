"""Samplers: masks, uniform draws, mining by loops, mixtures and proposals."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.losses import info_nce
from cpc.negatives.samplers import (
    distinct_bits,
    hardest,
    mix_keys,
    mixed,
    percentile_ring,
    propose,
    proposed,
    sample_uniform,
    semi_hard,
    uniform_draws,
    uniform_subset,
)
from cpc.types import UserError

SAMPLERS = {
    "uniform_subset": uniform_subset(4),
    "uniform_draws": uniform_draws(4),
    "hardest": hardest(4),
    "semi_hard": semi_hard(0.7),
    "percentile_ring": percentile_ring(30, 80),
    "mixed": mixed(3, 5),
    "proposed, stopped": proposed(4, "stopped"),
    "proposed, through": proposed(4, "through", sharpness=0.5),
}
each_sampler = pytest.mark.parametrize("name", SAMPLERS)
RNG = jax.random.key(1)


def rows(dtype=jnp.float32, scale=1.0):
    """Return six rows with 0, 1 and more allowed of 9; masked scores are NaN."""
    rng = np.random.default_rng(0)
    where = rng.random((6, 9)) < 0.6
    where[0], where[1] = False, np.arange(9) == 5
    scores = np.where(where, scale * rng.normal(size=(6, 9)), np.nan)
    return jnp.asarray(rng.normal(size=6), dtype), jnp.asarray(scores, dtype), jnp.asarray(where)


@jax.jit
def every_sampler(positive, negatives, where):
    """Return InfoNCE, choice and gradients by sampler name."""

    def run(sampler):
        def loss(positive, negatives):
            chosen = sampler(RNG, positive, negatives, where)
            return info_nce(positive, *chosen).sum(), chosen

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(positive, negatives)

    return {name: run(sampler) for name, sampler in SAMPLERS.items()}


@each_sampler
def test_masked_entries_have_no_effect(name):
    positive, poisoned, where = rows()
    clean = jnp.where(where, poisoned, 1e4)
    (value, (scores, chosen)), slopes = every_sampler(positive, poisoned, where)[name]
    to_positive, to_negatives = map(np.asarray, slopes)
    picked = np.asarray(scores)[np.asarray(chosen)]
    assert np.isfinite(picked).all()
    np.testing.assert_array_equal(np.asarray(chosen).any(-1), np.asarray(where).any(-1))
    np.testing.assert_array_equal(to_negatives[~np.asarray(where)], 0.0)
    assert np.isfinite(to_negatives).all()
    assert float(to_positive[0]) == 0.0
    assert float(every_sampler(positive, clean, where)[name][0][0]) == float(value)


@each_sampler
def test_rows_are_independent(name):
    positive, negatives, where = rows()
    other = positive.at[:3].set(7.0), negatives.at[:3].mul(-3.0), where.at[:3].set(True)
    both = [every_sampler(*given)[name][0][1] for given in (other, rows())]
    jax.tree.map(lambda got, want: np.testing.assert_array_equal(got[3:], want[3:]), *both)


@each_sampler
@pytest.mark.parametrize(("dtype", "scale"), [(jnp.bfloat16, 1.0), (jnp.float32, 1e4)])
def test_finite_in_half_precision_and_with_huge_scores(name, dtype, scale):
    (value, _), gradients = every_sampler(*rows(dtype, scale))[name]
    assert value.dtype == jnp.float32
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in (value, *gradients))


def test_invalid_numbers_are_rejected():
    nothing = jnp.zeros(1), jnp.zeros((1, 0)), jnp.zeros((1, 0), bool)
    of_num = (uniform_subset, uniform_draws, hardest, lambda num: mixed(2, num))
    for call, match in (
        *((lambda make=make: make(0), "num.* out of range .*got 0") for make in of_num),
        *((lambda sampler=sampler: sampler(RNG, *rows()), "needs 10 negatives but got 9")
          for sampler in (uniform_subset(10), hardest(10), mixed(10, 1))),
        *((lambda sampler=sampler: sampler(RNG, *nothing), "got 0 candidates")
          for sampler in SAMPLERS.values()),
        (lambda: semi_hard(0), "margin .*got 0"),
        *((lambda ends=ends: percentile_ring(*ends), "percentiles are")
          for ends in ((-1, 50), (50, 50), (0, 101))),
        (lambda: mix_keys(RNG, jnp.zeros((2, 0, 3)), 1), "mix_keys got no keys"),
        (lambda: mix_keys(RNG, jnp.zeros((2, 1, 3)), 0), "num_mixed .*got 0"),
        (lambda: propose(RNG, jnp.zeros(3), 0, "stopped"), "num .*got 0"),
        (lambda: propose(RNG, jnp.zeros(0), 1, "stopped"), "no classes"),
        (lambda: proposed(3, "fixed"), 'cannot be "fixed"'),
        (lambda: proposed(0, "stopped"), "num .*got 0"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=match):
            call()


sample = jax.jit(sample_uniform, static_argnums=2)


def test_sample_uniform_size():
    scores, chosen = every_sampler(*rows())["uniform_subset"][0][1]
    np.testing.assert_array_equal(scores, rows()[1])
    np.testing.assert_array_equal(chosen, sample(RNG, rows()[2], 4))
    rng = np.random.default_rng(0)
    allowed = rng.random((40, 9)) < rng.random((40, 1))
    allowed[0] = False
    for num in (1, 4, 10):
        chosen = np.asarray(sample(RNG, jnp.asarray(allowed), num))
        assert not (chosen & ~allowed).any()
        np.testing.assert_array_equal(chosen.sum(1), np.minimum(allowed.sum(1), num))


def test_sample_uniform_is_uniform_over_subsets():
    """Chi-square over the 10 pairs of 5 allowed entries: 9 degrees of freedom."""
    allowed = jnp.tile(jnp.array([True, True, False, True, True, True]), (20_000, 1))
    chosen = np.asarray(sample(jax.random.PRNGKey(3), allowed, 2))  # a key of the older type
    counts = np.unique(chosen @ (1 << np.arange(6)), return_counts=True)[1]
    assert len(counts) == 10
    assert ((counts - 2000) ** 2 / 2000).sum() < 27.9  # 0.1 % of samples exceed it


def test_bits_are_distinct_per_row_and_independent_over_keys():
    bits = np.asarray(jax.jit(distinct_bits, static_argnums=(1, 2))(RNG, 3, 50_000))
    assert [len(np.unique(row)) for row in bits] == [50_000] * 3
    of_keys = jax.jit(jax.vmap(lambda i: distinct_bits(jax.random.fold_in(RNG, i), 2, 8)))
    counted = np.asarray(of_keys(jnp.arange(20_000))).reshape(-1, 16)
    low = counted < 2**31
    assert abs(low.mean(0) - 0.5).max() < 0.02  # 5.6 standard deviations
    agree = (low[1:] == low[:-1]).mean(0)  # consecutive keys
    assert abs(agree - 0.5).max() < 0.02
    together = np.corrcoef(low.T) - np.eye(16)  # entries of one key
    assert abs(together).max() < 0.04
    spread = np.bincount((counted >> 24).ravel(), minlength=256)
    assert ((spread - 1250) ** 2 / 1250).sum() < 330.5  # 255 degrees of freedom, 0.1 %


def test_draws_are_uniform_and_independent():
    """Chi-square over the 16 pairs of draws from 4 allowed: 15 degrees of freedom."""
    where = jnp.tile(jnp.array([True, False, True, True, False, True]), (16_000, 1))
    ids = jnp.tile(jnp.arange(6.0), (16_000, 1))
    sampler = jax.jit(uniform_draws(2))
    drawn, kept = sampler(jax.random.key(5), jnp.zeros(16_000), ids, where)
    assert kept.all()
    pairs, counts = np.unique(np.asarray(drawn), axis=0, return_counts=True)
    assert set(pairs.ravel()) == {0, 2, 3, 5}
    assert len(counts) == 16
    assert ((counts - 1000) ** 2 / 1000).sum() < 37.7  # 0.1 % of samples exceed it


M, N = 150, 12


def many_rows():
    """Return scores with ties; rows 0 and 1 allow none and one."""
    rng = np.random.default_rng(7)
    where = rng.random((M, N)) < rng.random((M, 1))
    where[0], where[1] = False, np.arange(N) == 3
    return rng.integers(-8, 8, M) / 4, rng.integers(-12, 12, (M, N)) / 4, where


def run(sampler, positive, negatives, where):
    poisoned = jnp.asarray(np.where(where, negatives, np.nan), jnp.float32)
    result = jax.jit(sampler)(RNG, jnp.asarray(positive, jnp.float32), poisoned, jnp.asarray(where))
    return tuple(np.asarray(x) for x in result)


def test_hardest_equals_sorting():
    positive, negatives, where = many_rows()
    scores, chosen = run(hardest(5), positive, negatives, where)
    assert scores.shape == (M, 5)
    for i in range(M):
        want = sorted(negatives[i][where[i]], reverse=True)[:5]
        np.testing.assert_array_equal(scores[i][chosen[i]], want)
        np.testing.assert_array_equal(chosen[i], np.arange(5) < len(want))


def semi_hard_of(positive, scores, margin):
    band = [s for s in scores if positive - margin < s < positive]
    if band:
        return sorted(band)
    below = [s for s in scores if s < positive]
    return [max(below)] if below else [min(scores)] if scores else []


@pytest.mark.parametrize("margin", [0.25, 1])
def test_semi_hard_equals_loops(margin):
    positive, negatives, where = many_rows()
    _, chosen = run(semi_hard(margin), positive, negatives, where)
    assert not (chosen & ~where).any()
    for i in range(M):
        want = semi_hard_of(positive[i], list(negatives[i][where[i]]), margin)
        assert sorted(negatives[i][chosen[i]]) == want


@pytest.mark.parametrize(("low", "high"), [(0, 100), (30, 70), (99, 100)])
def test_ring_equals_exact_fractions(low, high):
    rng = np.random.default_rng(3)
    twice = np.repeat(rng.normal(size=48) * 10.0 ** rng.integers(-30, 30, 48), 2)
    values = np.r_[twice, 0.0, np.inf, -np.inf, 1e-42].astype(np.float32)
    negatives = rng.permuted(np.tile(values, (101, 1)), axis=1)
    where = rng.permuted(np.arange(100) < np.arange(101)[:, None], axis=1)
    _, chosen = run(percentile_ring(low, high), np.zeros(101), negatives, where)
    for i in range(101):
        rising = sorted(negatives[i][where[i]])
        first, last = math.floor(Fraction(i * low, 100)), math.ceil(Fraction(i * high, 100))
        ranks = rising[first:last]
        with_ties = [s for s in rising if ranks[0] <= s <= ranks[-1]]
        assert sorted(negatives[i][chosen[i]]) == with_ties


def test_mixtures_are_convex_pairs_of_the_hardest_negatives():
    _, negatives, where = many_rows()
    negatives = negatives + np.arange(N) / 100  # all different

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


def test_mixture_pairs_and_shares_are_uniform():
    """Orthogonal keys reveal the pair and the share of each mixture."""
    negatives = np.array([[0.0, 1.0, 10.0]])
    keys = jnp.eye(3)[None]
    weights = np.asarray(jax.jit(mix_keys, static_argnums=2)(RNG, keys, 12_000))[0]
    np.testing.assert_allclose(np.linalg.norm(weights, axis=-1), 1.0, rtol=1e-5)
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


def test_cancelling_keys_are_finite():
    keys = jnp.array([[[1.0, 0.0], [-1.0, 0.0]]])
    mix = jax.jit(jax.value_and_grad(lambda keys: mix_keys(RNG, keys, 3).sum()))
    assert np.isfinite(mix(0 * keys)[1]).all()
    assert np.isfinite(mix(keys)[0])


def test_fixed_proposal_rejects_trained_logits():
    def loss(theta):
        return propose(RNG, 2 * theta, 3, "fixed").log_q.sum()

    mapped = jax.jit(lambda x: jax.lax.map(loss, x[None])[0])
    for transformed in (loss, jax.jit(loss), mapped):
        jax.eval_shape(transformed, jnp.zeros(4))
        with pytest.raises(UserError, match='choose "stopped"'):
            jax.eval_shape(jax.grad(transformed), jnp.zeros(4))


def test_proposal_draws_follow_q():
    """Chi-square with 4 degrees of freedom."""
    logits = jnp.array([-jnp.inf, 0.0, 1.0, jnp.nan, 2.0, -1.0, 0.5, -jnp.inf])
    draw = jax.jit(lambda rng: propose(rng, logits, 50_000, "stopped", jnp.arange(8) != 3))
    proposal = draw(jax.random.key(4))
    q = np.exp(np.asarray(proposal.table, np.float64))
    np.testing.assert_array_equal(q[[0, 3, 7]], 0.0)
    assert q.sum() == pytest.approx(1.0, abs=1e-6)
    counts, want = np.bincount(proposal.ids, minlength=8), 50_000 * q
    assert counts[q == 0].sum() == 0
    assert ((counts - want)[q > 0] ** 2 / want[q > 0]).sum() < 18.5  # 0.1 % of samples exceed it
    np.testing.assert_array_equal(proposal.log_q, np.asarray(proposal.table)[proposal.ids])
    fixed = propose(RNG, logits, 1, "fixed", jnp.arange(8) != 3)
    np.testing.assert_allclose(fixed.table, proposal.table, rtol=1e-6)


def test_proposal_per_anchor():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(3, 6)), jnp.float32)
    where = jnp.array([[True] * 6, [False] * 6, [False] * 5 + [True]])
    targets, columns = jnp.array([2, 0, 5]), jnp.array([[2, 1], [0, 0], [5, 4]])

    @jax.jit
    def draw(rng):
        proposal = propose(rng, logits, 4, "through", where)
        of_targets = [proposal.log_q_of(x) for x in (targets, columns)]
        return proposal.ids, proposal.log_q, proposal.table, of_targets

    ids, log_q, table, (of_targets, of_columns) = jax.device_get(draw(RNG))
    assert ids.shape == log_q.shape == (3, 4)
    np.testing.assert_allclose(table[0], jax.nn.log_softmax(logits[0]), rtol=1e-6)
    assert np.isneginf(table[1]).all()
    np.testing.assert_array_equal(ids[2], 5)
    np.testing.assert_array_equal(log_q[2], 0.0)
    np.testing.assert_array_equal(of_targets, table[np.arange(3), targets])
    np.testing.assert_array_equal(of_columns[:, 0], of_targets)


def test_only_mode_through_has_a_gradient():
    logits, where = jnp.array([0.0, jnp.nan, 1.0]), jnp.array([True, False, True])

    @jax.jit
    def slopes(logits):
        def total(logits, mode):
            return propose(RNG, logits, 8, mode, where).log_q.sum()

        return [jax.grad(total)(logits, mode) for mode in ("stopped", "through")]

    stopped, gradient = map(np.asarray, slopes(logits))
    np.testing.assert_array_equal(stopped, 0.0)
    assert gradient[1] == 0.0
    assert gradient[0] == pytest.approx(-gradient[2], abs=1e-5)
    assert abs(gradient[0]) > 0.1


def scored_rows():
    rng = np.random.default_rng(2)
    where = jnp.asarray(rng.random((5, 8)) < 0.7).at[0].set(False)
    return jnp.float32(rng.normal(size=5)), jnp.float32(2 * rng.normal(size=(5, 8))), where


def full_loss(positive, negatives, where, num):
    """Return InfoNCE with `num` times the mean exponential of all allowed negatives."""
    r = jnp.maximum(where.sum(-1, keepdims=True), 1)
    return info_nce(positive, negatives - jnp.log(r) + jnp.log(num), where)


def test_proposal_with_exact_scores_has_no_variance():
    positive, negatives, where = scored_rows()

    @jax.jit
    def both(negatives):
        def of_mode(mode):
            def total(negatives):
                losses = info_nce(positive, *proposed(3, mode)(RNG, positive, negatives, where))
                return losses.sum(), losses

            return jax.grad(total, has_aux=True)(negatives)

        full = jax.grad(lambda x: full_loss(positive, x, where, 3).sum())(negatives)
        return [*map(of_mode, ("stopped", "through")), (full, full_loss(*scored_rows(), 3))]

    (_, stopped), (slope, through), (want, losses) = both(negatives)
    for found in (stopped, through):
        np.testing.assert_allclose(found, losses, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slope, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sharpness", [0, 1.5])
def test_corrected_draws_estimate_the_mean_exponential(sharpness):
    positive, negatives, where = scored_rows()
    sampler = jax.jit(proposed(40_000, "stopped", sharpness))
    scores, _ = sampler(RNG, positive, negatives, where)
    want = np.where(where, np.exp(negatives), 0.0).sum(-1)[1:] / np.asarray(where).sum(-1)[1:]
    np.testing.assert_allclose(np.exp(scores[1:]).mean(-1), want, rtol=0.05)
