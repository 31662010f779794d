"""Samplers: what all of them promise, and the uniform ones against their law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.losses import info_nce
from cpc.negatives.samplers import (
    distinct_bits,
    draw_by_units,
    hardest,
    mixed,
    percentile_ring,
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
    """Six rows: 0, 1 and more allowed of 9; masked scores are NaN."""
    rng = np.random.default_rng(0)
    where = rng.random((6, 9)) < 0.6
    where[0], where[1] = False, np.arange(9) == 5
    scores = np.where(where, scale * rng.normal(size=(6, 9)), np.nan)
    return jnp.asarray(rng.normal(size=6), dtype), jnp.asarray(scores, dtype), jnp.asarray(where)


@jax.jit
def every_sampler(positive, negatives, where):
    """By name: InfoNCE of the choice, the choice, and gradients."""

    def run(choose):
        def loss(positive, negatives):
            chosen = choose(RNG, positive, negatives, where)
            return info_nce(positive, *chosen).sum(), chosen

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(positive, negatives)

    return {name: run(choose) for name, choose in SAMPLERS.items()}


@each_sampler
def test_masked_entries_never_matter(name):
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
def test_rows_depend_on_themselves_alone(name):
    """Other rows' scores may change anything: the same key gives this row the same choice."""
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


def test_impossible_numbers_are_refused():
    for make in (uniform_subset, uniform_draws, hardest, lambda num: mixed(2, num)):
        for num in (0, -3):
            with pytest.raises(UserError, match=f"{num} negatives: ask for 1 or more"):
                make(num)
    for choose in (uniform_subset(10), hardest(10), mixed(10, 1)):
        with pytest.raises(UserError, match="needs 10 negatives, but there are 9"):
            choose(RNG, *rows())
    for choose in SAMPLERS.values():
        with pytest.raises(UserError, match="there are 0 candidates"):
            choose(RNG, jnp.zeros(1), jnp.zeros((1, 0)), jnp.zeros((1, 0), bool))


sample = jax.jit(sample_uniform, static_argnums=2)


def test_subset_is_the_mask_of_sample_uniform():
    where = rows()[2]
    scores, chosen = every_sampler(*rows())["uniform_subset"][0][1]
    np.testing.assert_array_equal(scores, rows()[1])
    np.testing.assert_array_equal(chosen, sample(RNG, where, 4))


def test_sample_uniform_takes_that_many_of_the_allowed():
    rng = np.random.default_rng(0)
    allowed = rng.random((40, 9)) < rng.random((40, 1))
    allowed[0] = False
    for num in (1, 4, 10):
        chosen = np.asarray(sample(RNG, jnp.asarray(allowed), num))
        assert not (chosen & ~allowed).any()
        np.testing.assert_array_equal(chosen.sum(1), np.minimum(allowed.sum(1), num))


def test_sample_uniform_is_uniform_over_subsets():
    """All 10 pairs of 5 allowed negatives equally often: chi-square with 9 degrees of freedom."""
    allowed = jnp.tile(jnp.array([True, True, False, True, True, True]), (20_000, 1))
    chosen = np.asarray(sample(jax.random.PRNGKey(3), allowed, 2))  # the older kind of key
    counts = np.unique(chosen @ (1 << np.arange(6)), return_counts=True)[1]
    assert len(counts) == 10
    assert ((counts - 2000) ** 2 / 2000).sum() < 27.9  # 0.1 % of samples lie above


def test_bits_differ_in_a_row_and_keys_draw_independently():
    """Every entry equally often over keys that count up; what two of them draw is independent."""
    bits = np.asarray(jax.jit(distinct_bits, static_argnums=(1, 2))(RNG, 3, 50_000))
    assert [len(np.unique(row)) for row in bits] == [50_000] * 3
    of_keys = jax.jit(jax.vmap(lambda i: distinct_bits(jax.random.fold_in(RNG, i), 2, 8)))
    counted = np.asarray(of_keys(jnp.arange(20_000))).reshape(-1, 16)
    low = counted < 2**31
    assert abs(low.mean(0) - 0.5).max() < 0.02  # 5.6 standard deviations
    agree = (low[1:] == low[:-1]).mean(0)  # of one key with the next
    assert abs(agree - 0.5).max() < 0.02
    together = np.corrcoef(low.T) - np.eye(16)  # of two entries of one key
    assert abs(together).max() < 0.04
    spread = np.bincount((counted >> 24).ravel(), minlength=256)
    assert ((spread - 1250) ** 2 / 1250).sum() < 330.5  # 255 degrees of freedom, 0.1 %


def test_draws_are_uniform_and_independent():
    """All 16 pairs of draws from 4 allowed of 6: chi-square with 15 degrees of freedom."""
    where = jnp.tile(jnp.array([True, False, True, True, False, True]), (16_000, 1))
    ids = jnp.tile(jnp.arange(6.0), (16_000, 1))
    choose = jax.jit(uniform_draws(2))
    drawn, kept = choose(jax.random.key(5), jnp.zeros(16_000), ids, where)
    assert kept.all()
    pairs, counts = np.unique(np.asarray(drawn), axis=0, return_counts=True)
    assert set(pairs.ravel()) == {0, 2, 3, 5}
    assert len(counts) == 16
    assert ((counts - 1000) ** 2 / 1000).sum() < 37.7  # 0.1 % of samples lie above


def test_draws_count_in_the_gradient():
    positive, negatives, where = rows()

    @jax.jit
    @jax.grad
    def counts_of(x):
        scores, chosen = uniform_draws(7)(RNG, positive, x, where)
        return jnp.where(chosen, scores, 0.0).sum()

    counts = counts_of(negatives)
    np.testing.assert_array_equal(counts.sum(-1), [0, 7, 7, 7, 7, 7])
    assert (np.asarray(counts) == np.round(counts)).all()


def test_units_weigh_the_draws_and_zero_is_never_drawn():
    """Chi-square with 2 degrees of freedom; the zeros lie first, in between and last."""
    units = jnp.array([[0, 1, 0, 2, 7, 0], [0, 0, 0, 0, 0, 0]], jnp.int32)
    ids, drawn = jax.jit(draw_by_units, static_argnums=2)(jax.random.key(2), units, 10_000)
    np.testing.assert_array_equal(drawn.all(-1), [True, False])
    counts = np.bincount(np.asarray(ids[0]), minlength=6)
    np.testing.assert_array_equal(counts[[0, 2, 5]], 0)
    want = 1000 * np.array([1, 2, 7])
    assert ((counts[[1, 3, 4]] - want) ** 2 / want).sum() < 13.8
