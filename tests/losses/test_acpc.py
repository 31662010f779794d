"""Aligned CPC: all paths one by one in float64, `cpc_loss` and closed forms."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.losses import acpc_loss, path_cost, path_weights
from cpc.types import CPCOutputs, Position
from tests.losses.any_rule import any_rule, assert_same, contrasts, with_index

both_forms = pytest.mark.parametrize("best", [False, True])


def paths(num_frames, num):
    """Return all monotonic assignments of frames to predictions, each with a frame or more."""
    for cuts in itertools.combinations(range(1, num_frames), num - 1):
        yield [sum(f >= cut for cut in cuts) for f in range(num_frames)]


def naive_cost(costs, best):
    each = [sum(row[k] for row, k in zip(costs, path, strict=True)) for path in paths(*costs.shape)]
    return min(each) if best else -np.logaddexp.reduce([-one for one in each])


def naive_weights(costs, best):
    """Return the share of paths in which each frame belongs to each prediction."""
    every = list(paths(*costs.shape))
    each = np.array([sum(costs[f, k] for f, k in enumerate(path)) for path in every])
    chance = (each == each.min()) * 1.0 if best else np.exp(each.min() - each)
    want = np.zeros(costs.shape)
    for path, p in zip(every, chance / chance.sum(), strict=True):
        want[range(len(costs)), path] += p
    return want


@functools.partial(jax.jit, static_argnums=1)
def align(costs, best):
    cost, slope = jax.value_and_grad(lambda x: path_cost(x, best).sum())(costs)
    return path_cost(costs, best), cost, slope, path_weights(costs, best)


@both_forms
def test_cost_and_weights_equal_all_paths(best):
    for size in [(1, 1), (4, 4), (7, 3)]:
        costs = np.random.default_rng(0).normal(size=(3, *size), scale=3.0)
        found, total, slope, weights = align(jnp.float32(costs), best)
        want = [naive_cost(one, best) for one in costs]
        np.testing.assert_allclose(found, want, rtol=1e-5)
        assert float(total) == pytest.approx(sum(want), rel=1e-5)
        want = [naive_weights(one, best) for one in costs]
        np.testing.assert_allclose(weights, want, atol=1e-5)
        np.testing.assert_allclose(slope, want, atol=1e-5)
    huge = jnp.array([[0.0, 1e4], [1e4, 0.0], [3e4, 3e4]])
    found, _, slope, _ = align(huge, best)
    assert float(found) == 3e4
    assert jnp.isfinite(slope).all()


B, T, D, K, F, TAU = 4, 6, 5, 2, 3, 0.5
POSITIONS = Position.grid(B, T, group=np.arange(B) // 2)
PLAIN = {
    "batch": negatives.batch,
    "others": negatives.excluding_sequence,
    "group": negatives.same_group & negatives.excluding_sequence,
    "window": negatives.batch & negatives.outside_window(1),
}
ANY = any_rule(list(PLAIN.values()))
RULES = PLAIN | {
    "shards": negatives.within_shards(2, B) & negatives.batch,
    "aligned": negatives.one_per_sequence,
}
ALL, PADDED = np.ones((B, T), bool), np.arange(T)[None] < np.array([T, 5, 3, 6])[:, None]


def make_outputs():
    rng = np.random.default_rng(0)
    return tuple(np.float32(rng.normal(size=s)) for s in ((B, T, D), (B, T, K, D)))


def place(name):
    if name in PLAIN:
        return ANY, with_index(POSITIONS, list(PLAIN).index(name))
    return RULES[name], jax.tree.map(jnp.asarray, POSITIONS)


@functools.partial(jax.jit, static_argnames=("rule", "best", "options"))
def run(z, p, positions, where, *, rule, best=False, options=(("block", 8),)):
    """Return value, sums and frames, and gradients; masked latents are NaN."""

    def loss(z, p):
        z = jnp.where(where[..., None], z, jnp.nan)
        p = jnp.where(where[..., None, None], p, jnp.nan)
        value, sums, frames = acpc_loss(
            CPCOutputs(z, z, p), positions, rule, num_frames=F, best=best, temperature=TAU,
            where=where, **dict(options),
        )  # fmt: skip
        return value, (sums, frames)

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(z, p)


def naive_loss(z, p, rule, best, mask):
    found, frames = {}, range(1, F + 1)
    for _, i, *ids, others, scores in contrasts(z, p, POSITIONS, rule, frames, mask, tau=TAU):
        costs = np.logaddexp.reduce(scores[[*ids, *others]]) - scores[ids[0]]
        found.setdefault((i // T, i % T), []).append(costs)
    found = {i: np.array(costs) for i, costs in found.items() if len(costs) == F}
    return K / F * np.mean([naive_cost(one, best) for one in found.values()]), found


@pytest.mark.parametrize(
    ("name", "best"),
    [*itertools.product(PLAIN, [False, True]), ("shards", False), ("aligned", False)],
)
def test_loss_equals_all_paths_of_all_anchors(name, best):
    z, p = make_outputs()
    rule, positions = place(name)
    for where in (ALL, PADDED):
        want, found = naive_loss(z, p, RULES[name], best, where)
        (value, (sums, frames)), (dz, dp) = run(z, p, positions, where, rule=rule, best=best)
        assert float(value) == pytest.approx(want, rel=2e-5)
        assert sums.anchors.tolist() == [len(found)] * K
        assert float((sums.loss / sums.anchors).sum()) == pytest.approx(want, rel=2e-5)
        assert (sums.chance >= sums.anchors**2 / sums.n * (1 - 1e-5)).all()  # Jensen's inequality
        assert (sums.chance <= sums.anchors / 2).all()
        assert float(frames.sum()) == pytest.approx(F, rel=1e-5)
        assert (frames >= 1 - 1e-5).all()
        assert jnp.isfinite(dz).all()
        assert not dz[~where].any()
        counted = np.zeros((B, T), bool)
        counted[tuple(np.array(list(found)).T)] = True
        assert (np.asarray(dp != 0).any((2, 3)) == counted).all()


@both_forms
def test_gradient_equals_difference_quotient(best):
    arrays = make_outputs()
    rule, positions = place("batch")
    _, gradients = run(*arrays, positions, PADDED, rule=rule, best=best)
    rng = np.random.default_rng(3)
    for index in (0, 1):
        direction = rng.normal(size=arrays[index].shape)
        ends = []
        for h in (1e-5, -1e-5):
            moved = [np.float64(x) for x in arrays]
            moved[index] += h * direction
            ends.append(naive_loss(*moved, negatives.batch, best, PADDED)[0])
        want = (ends[0] - ends[1]) / 2e-5
        assert float((gradients[index] * direction).sum()) == pytest.approx(want, rel=1e-3)


@both_forms
def test_equal_scores_of_five_draws_cost_log_six_minus_log_paths(best):
    z, p = make_outputs()
    rule, positions = place("batch")
    options = (("sampler", negatives.uniform_subset(5)),)
    (value, (sums, _)), _ = run(z, 0 * p, positions, ALL, rule=rule, best=best, options=options)
    number = 1 if best else math.comb(F - 1, K - 1)
    assert float(value) == pytest.approx(K / F * (F * math.log(6) - math.log(number)))
    np.testing.assert_allclose(sums.n / sums.anchors, 6, rtol=1e-6)
    np.testing.assert_allclose(sums.top1, 0)


def test_blocks_have_no_effect():
    rule, positions = place("shards")
    found, want = (
        run(*make_outputs(), positions, PADDED, rule=rule, options=options)
        for options in ((), (("block", 8),))
    )
    assert_same(found, want)


def test_half_precision_is_summed_in_float32():
    half = [jnp.asarray(x, jnp.bfloat16) for x in make_outputs()]
    rule, positions = place("batch")
    (value, _), _ = run(*half, positions, ALL, rule=rule)
    (want, _), _ = run(*(x.astype(jnp.float32) for x in half), positions, ALL, rule=rule)
    assert value.dtype == jnp.float32
    assert float(value) == pytest.approx(float(want), rel=1e-5)
