"""SupCon of latents: candidates of the anchor's group are positives, beside what is predicted."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.losses import cpc_loss, info_nce, sup_con
from cpc.types import CPCOutputs, Position
from tests.losses.any_rule import any_rule, contrasts, with_index

B, T, K, D = 6, 5, 2, 5
GROUP = np.array([0, 1, 0, -1, 1, -1])  # below 0: unknown, and no group
POSITIONS = Position.grid(B, T, group=GROUP)
PLAIN = {"blocks": negatives.batch, "other sequences": negatives.excluding_sequence}
RULES = PLAIN | {
    "shards": negatives.batch & negatives.within_shards(2, B),
    "aligned": negatives.one_per_sequence,
}
ANY = any_rule(list(PLAIN.values()))
LENGTHS = np.array([T, T - 2, T, T - 1, T, 3])


def make_arrays(seed=0):
    rng = np.random.default_rng(seed)
    return np.float32(rng.normal(size=(B, T, D))), np.float32(rng.normal(size=(B, T, K, D)))


@functools.partial(jax.jit, static_argnames=("rule", "inside"))
@functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
def run(z, predictions, positions, where, tau, *, rule, inside=False):
    z = jnp.where(where[..., None], z, jnp.nan)  # padding may hold anything
    options = {"temperature": tau, "where": where, "block": 8}
    loss = functools.partial(sup_con, inside=inside)
    return cpc_loss(CPCOutputs(z, z, predictions), positions, rule, loss=loss, **options)


def run_named(name, arrays, tau=0.7, positions=POSITIONS, lengths=LENGTHS, **options):
    index = list(PLAIN).index(name) if name in PLAIN else 0
    where = np.arange(T) < lengths[:, None]
    rule = ANY if name in PLAIN else RULES[name]
    return run(*arrays, with_index(positions, index), where, tau, rule=rule, **options)


def naive_loss(z, predictions, rule, inside, tau=0.7):
    """The sum over offsets of the mean over anchors, in float64."""
    losses, where = [[] for _ in range(K)], np.arange(T) < LENGTHS[:, None]
    args = z, predictions, POSITIONS, rule, range(1, K + 1), where
    for row, i, target, allowed, scores in contrasts(*args, tau=tau):
        is_alike = (GROUP[allowed // T] == GROUP[i // T]) & (GROUP[i // T] >= 0)
        own = scores[[target, *allowed[is_alike]], row]
        if not is_alike.all():
            total = np.logaddexp.reduce([*own, *scores[allowed[~is_alike], row]])
            losses[row].append(total - (np.log(np.exp(own).mean()) if inside else own.mean()))
    return sum(map(np.mean, losses))


@pytest.mark.parametrize(
    ("name", "inside"), [*((name, False) for name in RULES), ("blocks", True), ("aligned", True)]
)
def test_equals_the_naive_twin(name, inside):
    """Values, and gradients along a random direction."""
    arrays, rule = make_arrays(), RULES[name]
    (value, sums), gradients = run_named(name, arrays, inside=inside)
    np.testing.assert_allclose(value, naive_loss(*arrays, rule, inside), rtol=2e-5)
    assert np.isfinite(sums.loss).all()
    rng = np.random.default_rng(2)
    directions = [rng.normal(size=x.shape) for x in arrays]
    slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    low, high = (
        naive_loss(*(x + s * d for x, d in zip(arrays, directions, strict=True)), rule, inside)
        for s in (-1e-4, 1e-4)
    )
    np.testing.assert_allclose(slope, (high - low) / 2e-4, rtol=2e-3)


def test_without_groups_it_is_info_nce():
    z, predictions = make_arrays()
    unknown = POSITIONS._replace(group=np.full((B, 1), -1))
    whole = np.full(B, T)
    (value, _), _ = run_named("blocks", (z, predictions), 1.0, unknown, whole)
    plain = jax.jit(
        lambda z, p: cpc_loss(CPCOutputs(z, z, p), unknown, negatives.batch, loss=info_nce)
    )
    np.testing.assert_allclose(value, plain(z, predictions)[0], rtol=1e-6)


def test_metrics_are_of_the_predicted_latent_among_other_groups():
    """The predicted latent wins against all of other groups, whatever others of its own score."""
    z = jnp.zeros((B, T, D)).at[:, :, 0].set(jnp.where(GROUP[:, None] == 0, 2.0, 0.0))
    predictions = jnp.zeros((B, T, K, D)).at[:, :, :, 0].set(1.0)
    (_, sums), _ = run_named("blocks", (z, predictions), lengths=np.full(B, T))
    num_first = 2 * np.array([T - 1, T - 2])  # anchors of the two sequences of group 0
    np.testing.assert_array_equal(sums.top1, num_first)
    others = 4 * T * num_first  # of a sequence without a group all but the positive count
    assert sums.n[0] == others[0] + num_first[0] + 2 * (T - 1) * (4 * T + 1) + 2 * (T - 1) * B * T
