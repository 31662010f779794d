"""Critics: every score belongs to its pair, and training finds a known information."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import multivariate_normal

from cpc.estimators import gaussian_task, info_nce
from cpc.models import Baseline, GaussianConditional, JointCritic, SeparableCritic

CRITICS = [SeparableCritic((16, 8), 4), JointCritic((16, 8)), GaussianConditional((16,))]


@pytest.fixture(scope="module")
def data():
    x, y = (
        jax.random.normal(jax.random.key(0), (5, 3)),
        jax.random.normal(jax.random.key(1), (4, 2)),
    )
    return x, y


@pytest.mark.slow
@pytest.mark.parametrize("critic", CRITICS, ids=lambda critic: type(critic).__name__)
def test_rows_are_x_and_columns_are_y(critic, data):
    x, y = data
    scores, variables = critic.init_with_output(jax.random.key(2), x, y)
    assert scores.shape == (5, 4)
    assert float(jnp.std(scores)) > 0
    one = critic.apply(variables, x[2:3], y[1:2])
    np.testing.assert_allclose(one[0, 0], scores[2, 1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_joint_critic_reads_the_two_side_by_side(data):
    x, y = data
    critic = JointCritic((16, 8))
    start = critic.init(jax.random.key(2), x, y)
    variables = jax.tree.map(lambda leaf: leaf + 0.1, start)  # biases begin at 0
    scores, p = critic.apply(variables, x, y), variables["params"]
    pair = jnp.concatenate([x[3], y[2]])
    hidden = jax.nn.relu(pair @ p["kernel"] + p["bias"])
    hidden = jax.nn.relu(hidden @ p["pair0"]["kernel"] + p["pair0"]["bias"])
    expected = hidden @ p["pair_out"]["kernel"] + p["pair_out"]["bias"]
    assert float(scores[3, 2]) == pytest.approx(float(expected[0]), rel=1e-4)


@pytest.mark.slow
def test_the_conditional_is_a_density(data):
    x, y = data
    model = GaussianConditional((16,))
    variables = jax.tree.map(lambda leaf: leaf + 0.1, model.init(jax.random.key(2), x, y))
    scores, p = model.apply(variables, x, y), variables["params"]
    hidden = {
        name: jax.nn.relu(x @ p[f"{name}0"]["kernel"] + p[f"{name}0"]["bias"])
        @ p[f"{name}_out"]["kernel"] + p[f"{name}_out"]["bias"]
        for name in ("mean", "log_variance")
    }  # fmt: skip
    law = multivariate_normal(
        np.asarray(hidden["mean"][1]), np.diag(np.exp(np.tanh(hidden["log_variance"][1])))
    )
    np.testing.assert_allclose(scores[1], law.logpdf(np.asarray(y)), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("embedding", [4, 256])
def test_separable_scores_begin_with_unit_variance(embedding):
    x, y = jax.random.normal(jax.random.key(0), (2, 200, 20))
    critic = SeparableCritic((64, 64), embedding)
    stds = [float(critic.init_with_output(jax.random.key(i), x, y)[0].std()) for i in range(5)]
    assert 0.5 < np.mean(stds) < 2.0


def test_a_baseline_is_one_number_a_row(data):
    x, _ = data
    values, variables = Baseline((8,)).init_with_output(jax.random.key(3), x)
    assert values.shape == (5,)
    np.testing.assert_allclose(Baseline((8,)).apply(variables, x[1:2])[0], values[1], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("critic", CRITICS[:2], ids=lambda critic: type(critic).__name__)
def test_training_finds_the_information(critic):
    """2 nats in 4 dimensions; InfoNCE with 64 pairs and the exact ratio reads about 1.8."""
    task, tx = gaussian_task(4, 2.0), optax.adam(5e-3)

    def loss(params, rng):
        return -info_nce(critic.apply({"params": params}, *task.sample(rng, 64))).value

    @jax.jit
    def train(params):
        def step(carry, rng):
            params, state = carry
            value, gradient = jax.value_and_grad(loss)(params, rng)
            updates, state = tx.update(gradient, state)
            return (optax.apply_updates(params, updates), state), -value

        return jax.lax.scan(
            step, (params, tx.init(params)), jax.random.split(jax.random.key(4), 400)
        )[1]

    x, y = task.sample(jax.random.key(5), 64)
    values = train(critic.init(jax.random.key(6), x, y)["params"])
    assert 1.3 < float(values[-100:].mean()) < 2.05
