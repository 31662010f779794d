"""The training objective: queue, momentum encoder, temperature and gradients.

Other keys of loss and negatives are tested in `test_keys`.
"""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import audio_synthetic
from cpc import negatives
from cpc.losses import cpc_loss
from cpc.types import CPCOutputs, Position
from experiments.command.config import with_settings
from experiments.training import step as training
from experiments.training.objective import (
    BranchOutputs,
    init_objective,
    objective_loss,
    temperature,
)
from tests.experiments.test_keys import outputs_of
from tests.plans import plan_of_offsets

B, T = 3, 6


def plan_with(offsets=(1, 2), **settings):
    named = {key.replace("__", ".") if "__" in key else f"negatives.{key}": value
             for key, value in settings.items()}  # fmt: skip
    return plan_of_offsets(with_settings(audio_synthetic.get_config(), named), offsets)


def train(plan, num_steps, branch=None):
    """Return sums and previous states of repeated steps on the same outputs."""
    branch = outputs_of() if branch is None else branch

    @jax.jit
    def run():
        params, state = init_objective(plan, [branch])

        def step(state, number):
            rng = jax.random.fold_in(jax.random.key(0), number)
            _, sums, new, metrics = objective_loss(plan, params, state, [branch], rng)
            return new, (sums, state, metrics)

        return jax.lax.scan(step, state, jnp.arange(num_steps))[1]

    return run()


def test_queue_holds_earlier_batches():
    """The queue of 36 holds two batches of 3 windows with 6 latents."""
    sums, states, _ = train(plan_with(queue=36, rule="excluding_sequence"), 3)
    n = np.asarray(sums.n / sums.anchors)[:, 0]
    assert n.tolist() == [1 + 12, 1 + 12 + 18, 1 + 12 + 36]
    queue = jax.tree.map(lambda x: np.asarray(x[2]), states["queues"][0])
    assert queue.mask.all()
    assert np.unique(queue.pushed).tolist() == [0, 1]


@pytest.mark.parametrize("sampler", ["hardest", "uniform"])
def test_queue_allows_more_draws_than_a_batch(sampler):
    plan = plan_with(queue=64, choose=sampler, num_sampled=30)
    branch, rng = outputs_of(), jax.random
    sums, _, _ = train(plan, 4)
    assert np.asarray(sums.n / sums.anchors)[-1].tolist() == [31, 31]
    given = *init_objective(plan, [branch]), [branch], rng.key(0)
    sums = jax.jit(lambda: objective_loss(plan, *given, train=False)[1])()
    assert np.asarray(sums.n / sums.anchors).tolist() == [18, 18]


def test_momentum_encoder_follows_without_gradient():
    x, place = jax.random.normal(jax.random.key(1), (B, T, 3)), Position.grid(B, T)

    def apply(variables, batch, train, rng):
        z = batch["x"] @ variables["params"]["z"]
        predictions = jnp.einsum("btd,dke->btke", z, variables["params"]["w"])
        return CPCOutputs(z, z, predictions), {}

    problem = types.SimpleNamespace(
        plan=plan_with(momentum=0.75),
        model=types.SimpleNamespace(apply=apply, linear_maps=lambda params: None),
        preprocess=lambda batch, rng, train: batch,
        split_branches=lambda outputs, batch: [BranchOutputs(outputs, place)],
    )
    fast, slow = (
        {"z": jax.random.normal(key, (3, 4)), "w": jax.random.normal(key, (4, 2, 4))}
        for key in jax.random.split(jax.random.key(0))
    )
    average = jax.tree.map(lambda a, b: 0.25 * a + 0.75 * b, fast, slow)

    @jax.jit
    def compare(fast):
        loss_fn = jax.grad(training.make_loss(problem), has_aux=True)
        params, extra = {"model": fast, "objective": {}}, {"model": {}, "objective": {"slow": slow}}
        found, (after, _) = loss_fn(params, extra, {"x": x}, jax.random.key(0))

        def with_fixed_keys(fast):
            outputs, _ = apply({"params": fast}, {"x": x}, True, None)
            return cpc_loss(outputs._replace(z=x @ average["z"]), place, negatives.batch)[0]

        slopes = jax.grad(with_fixed_keys)(fast)
        return (after["objective"]["slow"], found["model"]), (average, slopes)

    found, expected = compare(fast)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
        assert np.abs(one).max() > 0


@pytest.mark.parametrize(("scale", "given"), [
    (10.0, {}), (1.0, {"queue": 36, "choose": "proposed", "num_sampled": 8}),
])  # fmt: skip
def test_temperature_holds_the_entropy(scale, given):
    """The entropy is over all candidates, including the queue."""
    held = {"target_entropy": 0.6, "temperature_high": 1000.0, "temperature_rule": "entropy"}
    branch = outputs_of(scale)
    _, states, metrics = train(plan_with(**held, **given), 12, branch)
    keys = branch.outputs.z.reshape(-1, 4)
    if given:
        queue = jax.tree.map(lambda x: x[-1], states["queues"][0])
        assert queue.mask.all()
        keys = jnp.concatenate([keys, queue.keys])
    shares = []
    for k in (1, 2):
        anchors = [(i, t) for i in range(B) for t in range(T - k)]
        queries = jnp.stack([branch.outputs.predictions[i, t, k - 1] for i, t in anchors])
        where = np.ones((len(anchors), len(keys)), bool)
        for row, (i, t) in enumerate(anchors):
            where[row, T * i + t + k] = False
        scores = queries @ keys.T / metrics["temperature"][-1]
        shares.append(negatives.entropy(scores, 1.0, jnp.asarray(where)))
    found = float(jnp.concatenate(shares).mean() / np.log(len(keys) - 1))
    assert found == pytest.approx(0.6, abs=2e-3)


def test_bias_and_temperature_are_learned():
    settings = {"loss__name": "sigmoid", "loss__bias": -2.0, "loss__learn_bias": True}
    plan = plan_with(**settings, temperature_rule="learned", temperature=0.5)
    branch = outputs_of()
    params, state = init_objective(plan, [branch])
    assert float(params["bias"]) == -2.0
    assert float(temperature(plan, params, state)) == pytest.approx(0.5)
    loss = lambda params: objective_loss(plan, params, state, [branch], jax.random.key(0))[0]  # noqa: E731
    slopes = jax.jit(jax.grad(loss))(params)
    assert {name for name, slope in slopes.items() if slope} == {"bias", "raw_temperature"}
    plan = plan_with(temperature_low=0.5, temperature_high=2.0, temperature_rule="learned")
    for raw, limit in ((-100.0, 0.5), (100.0, 2.0)):
        params = {"raw_temperature": jnp.float32(raw)}
        assert float(temperature(plan, params, {})) == pytest.approx(limit)


ONE = {"rule": "one_per_sequence"}


@pytest.mark.parametrize(("settings", "is_bound"), [
    (ONE, True), ({**ONE, "num_sampled": 2}, True), ({}, False),
    ({**ONE, "choose": "hardest", "num_sampled": 2}, False), ({**ONE, "queue": 8}, False),
    ({**ONE, "momentum": 0.9}, False), ({**ONE, "loss__name": "decoupled"}, False),
    ({**ONE, "loss__name": "sigmoid"}, False),
])  # fmt: skip
def test_only_independent_draws_give_a_bound(settings, is_bound):
    assert plan_with((1,), **settings).is_bound is is_bound
