"""Aligned CPC against all paths one by one in float64, against `cpc_loss`, and closed forms."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.losses import acpc_loss, cpc_loss, path_cost, path_weights
from cpc.types import CPCOutputs, Position, UserError


def paths(num_frames, num):
    """All ways in which frames go to predictions in order, each of which gets some."""
    for cuts in itertools.combinations(range(1, num_frames), num - 1):
        yield [sum(f >= cut for cut in cuts) for f in range(num_frames)]


def naive_cost(costs, best):
    each = [sum(row[k] for row, k in zip(costs, path, strict=True)) for path in paths(*costs.shape)]
    return min(each) if best else -np.logaddexp.reduce([-one for one in each])


SIZES = [(1, 1), (4, 1), (4, 4), (5, 2), (6, 3), (7, 4)]


@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_the_cost_is_that_of_all_paths(size, best):
    costs = np.random.default_rng(0).normal(size=(3, *size), scale=3.0)
    found = path_cost(jnp.float32(costs), best)
    np.testing.assert_allclose(found, [naive_cost(one, best) for one in costs], rtol=1e-5)


@pytest.mark.parametrize("best", [False, True])
def test_weights_are_the_share_of_paths_and_the_gradient(best):
    costs = np.random.default_rng(1).normal(size=(6, 3))
    every = list(paths(6, 3))
    each = np.array([sum(costs[f, k] for f, k in enumerate(path)) for path in every])
    chance = (each == each.min()) * 1.0 if best else np.exp(-each) / np.exp(-each).sum()
    want = np.zeros((6, 3))
    for path, p in zip(every, chance, strict=True):
        want[range(6), path] += p
    np.testing.assert_allclose(path_weights(jnp.float32(costs), best), want, atol=1e-6)
    slope = jax.grad(lambda x: path_cost(x, best))(jnp.float32(costs))
    np.testing.assert_allclose(slope, want, atol=1e-6)


@pytest.mark.slow
def test_costs_of_any_size_have_finite_gradients():
    costs = jnp.array([[0.0, 1e4], [1e4, 0.0], [3e4, 3e4]])
    for best in (False, True):
        assert float(path_cost(costs, best)) == 3e4
        assert jnp.isfinite(jax.grad(lambda x: path_cost(x, best))(costs)).all()  # noqa: B023


B, T, D, K, F = 4, 9, 5, 2, 4


def sound(num=K, seed=0, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    z, p = rng.normal(size=(B, T, D)), rng.normal(size=(B, T, num, D))
    outputs = CPCOutputs(jnp.asarray(z, dtype), jnp.zeros((B, T, 3)), jnp.asarray(p, dtype))
    row = np.arange(B, dtype=np.int32)[:, None]
    time = np.arange(T, dtype=np.int32)[None]
    return outputs, Position(row, time, np.zeros((1, 1), np.int32), row // 2)


def allowed(rule, positions, exists, anchor, f):
    """Indices of the negatives of an anchor's frame."""
    here = jax.tree.map(lambda x: np.broadcast_to(x, (B, T))[anchor], positions)
    there = jax.tree.map(lambda x: np.broadcast_to(x, (B, T)), positions)
    return np.argwhere(np.asarray(rule(here, there, f)) & exists)


def naive_loss(outputs, positions, rule, num_frames, best, exists, temperature=1.0):
    """Mean over anchors, and the costs of each."""
    z, _, p = (np.asarray(x, np.float64) for x in outputs)
    num, found = p.shape[2], {}
    for i, t in np.ndindex(B, T - num_frames):
        costs = np.zeros((num_frames, num))
        if not exists[i, t] or not exists[i, t + 1 : t + 1 + num_frames].all():
            continue
        for f, k in np.ndindex(num_frames, num):
            target = z[i, t + 1 + f]
            own = allowed(rule, positions, exists, (i, t), f + 1)
            scores = np.array([target, *(z[tuple(j)] for j in own)]) @ p[i, t, k] / temperature
            costs[f, k] = np.logaddexp.reduce(scores) - scores[0]
        found[i, t] = costs
    return num / num_frames * np.mean([naive_cost(one, best) for one in found.values()]), found


RULES = {
    "batch": negatives.batch,
    "others": negatives.excluding_sequence,
    "group": negatives.same_group & negatives.excluding_sequence,
    "window": negatives.batch & negatives.outside_window(1),
    "shards": negatives.within_shards(2, B) & negatives.batch,
    "aligned": negatives.one_per_sequence,
}
PADDED = np.arange(T)[None] < np.array([T, 6, 4, 9])[:, None]


@pytest.mark.slow
@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_the_loss_is_that_of_every_path_of_every_anchor(rule, best):
    outputs, positions = sound()
    want, found = naive_loss(outputs, positions, RULES[rule], F, best, np.ones((B, T), bool), 0.5)
    loss = functools.partial(acpc_loss, num_frames=F, best=best, temperature=0.5)
    value, sums, frames = jax.jit(lambda o: loss(o, positions, RULES[rule]))(outputs)
    assert float(value) == pytest.approx(want, rel=2e-5)
    assert sums.anchors.tolist() == [len(found)] * K
    assert float((sums.loss / sums.anchors).sum()) == pytest.approx(want, rel=2e-5)
    assert (sums.chance >= sums.anchors**2 / sums.n * (1 - 1e-5)).all()  # Jensen
    assert (sums.chance <= sums.anchors / 2).all()
    assert float(frames.sum()) == pytest.approx(F, rel=1e-5)
    assert (frames >= 1 - 1e-5).all()


@pytest.mark.slow
@pytest.mark.parametrize("best", [False, True])
def test_padding_counts_for_nothing(best):
    outputs, positions = sound()
    want, found = naive_loss(outputs, positions, negatives.batch, F, best, PADDED)

    def loss(z, p):
        filled = outputs._replace(
            z=jnp.where(PADDED[..., None], z, jnp.nan),
            predictions=jnp.where(PADDED[..., None, None], p, jnp.nan),
        )
        value, sums, _ = acpc_loss(
            filled, positions, negatives.batch, num_frames=F, best=best, where=jnp.array(PADDED)
        )
        return value, sums

    both = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    (value, sums), (dz, dp) = both(outputs.z, outputs.predictions)
    assert float(value) == pytest.approx(want, rel=2e-5)
    assert sums.anchors.tolist() == [len(found)] * K
    assert jnp.isfinite(dz).all()
    assert (dz[~PADDED] == 0).all()
    assert (dp[~PADDED] == 0).all()
    counted = np.zeros((B, T), bool)
    counted[tuple(np.array(list(found)).T)] = True
    assert (np.asarray(dp != 0).any((2, 3)) == counted).all()


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["others", "shards"])
def test_as_many_frames_as_predictions_is_cpc(rule):
    """Of the anchors that have all latents ahead."""
    outputs, positions = sound(3)
    early = negatives.Rule("early", lambda anchor, candidate, k: anchor.time < T - 3)

    def plain(z, p):
        offsets = [
            cpc_loss(
                CPCOutputs(z, outputs.c, p[:, :, k - 1 : k]),
                positions,
                RULES[rule] & early,
                offsets=(k,),
            )[0]
            for k in (1, 2, 3)
        ]
        return sum(offsets)

    def aligned(z, p):
        return acpc_loss(
            CPCOutputs(z, outputs.c, p), positions, RULES[rule], num_frames=3
        )[0]  # fmt: skip

    found, want = (
        jax.jit(jax.value_and_grad(loss, (0, 1)))(outputs.z, outputs.predictions)
        for loss in (aligned, plain)
    )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


@pytest.mark.slow
def test_equal_scores_cost_log_n_less_the_paths():
    outputs, positions = sound(3)
    outputs = outputs._replace(predictions=jnp.zeros_like(outputs.predictions))
    for best, number in ((False, math.comb(5, 2)), (True, 1)):
        value, sums, _ = acpc_loss(outputs, positions, negatives.batch, num_frames=6, best=best)
        assert float(value) == pytest.approx(3 / 6 * (6 * math.log(B * T) - math.log(number)))
        assert float(sums.n[0] / sums.anchors[0]) == pytest.approx(B * T)
    np.testing.assert_allclose(sums.top1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("best", [False, True])
def test_the_gradient_is_the_difference_quotient(best):
    outputs, positions = sound()
    exists = np.ones((B, T), bool)
    loss = functools.partial(
        acpc_loss, positions=positions, rule=negatives.batch, num_frames=F, best=best, block=8
    )

    def value(z, p):
        return loss(outputs._replace(z=z, predictions=p))[0]

    gradients = jax.jit(jax.grad(value, (0, 1)))(outputs.z, outputs.predictions)
    rng = np.random.default_rng(3)
    for index, name in enumerate(("z", "predictions")):
        x = np.asarray(getattr(outputs, name), np.float64)
        direction = rng.normal(size=x.shape)
        ends = [
            naive_loss(outputs._replace(**{name: x + h * direction}), positions, negatives.batch,
                       F, best, exists)[0]
            for h in (1e-5, -1e-5)
        ]  # fmt: skip
        want = (ends[0] - ends[1]) / 2e-5
        assert float((gradients[index] * direction).sum()) == pytest.approx(want, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["window", "shards"])
def test_blocks_change_nothing(rule):
    outputs, positions = sound()

    def loss(z, p, block):
        value, sums, frames = acpc_loss(
            outputs._replace(z=z, predictions=p), positions, RULES[rule], num_frames=F, block=block
        )
        return value, (sums, frames)

    both = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True), static_argnums=2)
    found = [both(outputs.z, outputs.predictions, block) for block in (8, 512)]
    for other in found[1:]:
        for x, y in zip(jax.tree.leaves(found[0]), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_drawn_negatives_are_as_many_as_asked_for():
    outputs, positions = sound()
    _, sums, _ = acpc_loss(
        outputs,
        positions,
        negatives.batch,
        num_frames=F,
        choose=negatives.uniform_subset(5),
        rng=jax.random.key(0),
    )
    np.testing.assert_allclose(sums.n / sums.anchors, 6, rtol=1e-6)


@pytest.mark.slow
def test_it_does_not_matter_in_which_order_sequences_come():
    outputs, positions = sound()
    order = np.array([2, 0, 3, 1])
    moved = jax.tree.map(lambda x: x[order] if len(x) == B else x, (outputs, positions))
    found = [
        acpc_loss(*each, negatives.batch, num_frames=F) for each in ((outputs, positions), moved)
    ]
    for x, y in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


@pytest.mark.slow
def test_half_precision_adds_up_in_single():
    half, positions = sound(dtype=jnp.bfloat16)
    same = jax.tree.map(lambda x: x.astype(jnp.float32), half)
    values = [acpc_loss(o, positions, negatives.batch, num_frames=F)[0] for o in (half, same)]
    assert values[0].dtype == jnp.float32
    assert float(values[0]) == pytest.approx(float(values[1]), rel=1e-5)


@pytest.mark.parametrize(("options", "words"), [
    ({"num_frames": 1}, "2 predictions are aligned to 1 frames"),
    ({"num_frames": T}, "sequences of 9 latents"),
    ({"num_frames": F, "temperature": 0.0}, "temperature is 0.0"),
    ({"num_frames": F, "block": 0}, "block is 0"),
])  # fmt: skip
def test_a_mistake_is_said(options, words):
    with pytest.raises(UserError, match=words):
        acpc_loss(*sound(), negatives.batch, **options)
