"""SupCon of latents: candidates of the anchor's group are positives, beside what is predicted."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.losses import cpc_loss, info_nce, sup_con
from cpc.types import CPCOutputs, Position

B, T, K, D = 6, 7, 2, 5
GROUP = np.array([0, 1, 0, -1, 1, -1])  # below 0: unknown, and no group


def make_outputs(seed=0):
    rng = np.random.default_rng(seed)
    z, predictions = rng.normal(size=(B, T, D)), rng.normal(size=(B, T, K, D))
    return CPCOutputs(*(jnp.asarray(x, jnp.float32) for x in (z, z, predictions)))


POSITIONS = Position(
    np.arange(B)[:, None], np.arange(T)[None], np.zeros((1, 1), int), GROUP[:, None]
)


def naive_loss(outputs, rule, tau, inside, lengths):
    """The sum over offsets of the mean over anchors, one candidate after the other, float64."""
    z, predictions = (np.asarray(x, np.float64) for x in (outputs.z, outputs.predictions))
    total = 0.0
    for k in range(1, K + 1):
        losses = []
        for b in range(B):
            for t in range(lengths[b] - k):
                positives, others = [], []
                for i in range(B):
                    for j in range(lengths[i]):
                        s = predictions[b, t, k - 1] @ z[i, j] / tau
                        here, there = (
                            Position(np.int32(p), np.int32(q), np.int32(0), GROUP[p])
                            for p, q in ((b, t), (i, j))
                        )
                        if (i, j) == (b, t + k):
                            positives.append(s)
                        elif rule(here, there, k):
                            is_alike = GROUP[i] == GROUP[b] >= 0
                            (positives if is_alike else others).append(s)
                if not others:
                    continue
                log_total = np.log(np.exp([*positives, *others]).sum())
                if inside:
                    losses.append(log_total - np.log(np.mean(np.exp(positives))))
                else:
                    losses.append(np.mean(log_total - np.array(positives)))
        total += np.mean(losses)
    return total


RULES = {
    "blocks": negatives.batch,
    "other sequences": negatives.excluding_sequence,
    "shards": negatives.batch & negatives.within_shards(2, B),
    "aligned": negatives.one_per_sequence,
}


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_equals_the_naive_twin(name, inside):
    outputs, rule = make_outputs(), RULES[name]
    lengths = [T] * B if name == "aligned" else [T, T - 2, T, T - 1, T, 3]
    where = None if name == "aligned" else jnp.arange(T) < jnp.array(lengths)[:, None]
    if where is not None:  # what does not exist may hold anything
        z = jnp.where(where[..., None], outputs.z, jnp.nan)
        outputs = outputs._replace(z=z, c=z)
    loss = functools.partial(sup_con, inside=inside)
    value, sums = cpc_loss(
        outputs, POSITIONS, rule, loss=loss, temperature=0.7, where=where, block=8
    )
    np.testing.assert_allclose(value, naive_loss(outputs, rule, 0.7, inside, lengths), rtol=2e-5)
    assert np.isfinite(sums.loss).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_gradients_are_those_of_finite_differences(name):
    outputs, rule = make_outputs(1), RULES[name]
    rng = np.random.default_rng(2)
    directions = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), outputs)

    def along(step):
        moved = jax.tree.map(lambda x, d: x + step * d, outputs, directions)
        return cpc_loss(moved, POSITIONS, rule, loss=sup_con, block=8)[0]

    slope = jax.grad(along)(0.0)
    moved = [jax.tree.map(lambda x, d, s=s: x + s * d, outputs, directions) for s in (-1e-4, 1e-4)]
    low, high = (naive_loss(one, rule, 1.0, False, [T] * B) for one in moved)
    np.testing.assert_allclose(slope, (high - low) / 2e-4, rtol=2e-3)


@pytest.mark.slow
def test_without_groups_it_is_info_nce():
    outputs = make_outputs()
    unknown = POSITIONS._replace(group=np.full((B, 1), -1))
    losses = (
        cpc_loss(outputs, unknown, negatives.batch, loss=one)[0] for one in (sup_con, info_nce)
    )
    np.testing.assert_allclose(*losses, rtol=1e-6)


@pytest.mark.slow
def test_metrics_are_of_the_predicted_latent_among_other_groups():
    """The predicted latent wins against all of other groups, whatever others of its own score."""
    z = jnp.zeros((B, T, D)).at[:, :, 0].set(jnp.where(GROUP[:, None] == 0, 2.0, 0.0))
    predictions = jnp.zeros((B, T, K, D)).at[:, :, :, 0].set(1.0)
    _, sums = cpc_loss(CPCOutputs(z, z, predictions), POSITIONS, negatives.batch, loss=sup_con)
    num_first = 2 * np.array([T - 1, T - 2])  # anchors of the two sequences of group 0
    np.testing.assert_array_equal(sums.top1, num_first)
    others = 4 * T * num_first  # of a sequence without a group all but the positive count
    assert sums.n[0] == others[0] + num_first[0] + 2 * (T - 1) * (4 * T + 1) + 2 * (T - 1) * B * T
