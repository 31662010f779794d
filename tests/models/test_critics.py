"""Critics: every score belongs to its pair, and training finds a known information."""

import jax
import numpy as np
import optax
import pytest
from random_variables import noise, random_variables
from scipy.stats import multivariate_normal

from cpc.estimators import gaussian_task, info_nce
from cpc.models import Baseline, GaussianConditional, JointCritic, SeparableCritic

X, Y = noise(5, 3), noise(4, 2, seed=1)


def test_the_separable_critic_is_a_product_of_two_networks():
    critic = SeparableCritic((16, 8), 4)
    variables = random_variables(critic, X, Y)
    scores, p = jax.jit(critic.apply)(variables, X, Y), variables["params"]
    np.testing.assert_allclose(scores, mlp(p, "x", X) @ mlp(p, "y", Y).T, rtol=1e-4, atol=1e-5)


def mlp(p, name, hidden):
    """Return the output of a network's hidden layers and last layer."""
    for layer in (p[f"{name}{n}"] for n in range(2) if f"{name}{n}" in p):
        hidden = np.maximum(hidden @ layer["kernel"] + layer["bias"], 0)
    return hidden @ p[f"{name}_out"]["kernel"] + p[f"{name}_out"]["bias"]


def test_the_joint_critic_reads_the_two_side_by_side():
    critic = JointCritic((16, 8))
    variables = random_variables(critic, X, Y)
    scores, p = jax.jit(critic.apply)(variables, X, Y), variables["params"]
    pairs = np.concatenate(
        [np.repeat(X[:, None], 4, axis=1), np.repeat(Y[None], 5, axis=0)], axis=-1
    )
    expected = mlp(p, "pair", np.maximum(pairs @ p["kernel"] + p["bias"], 0))[..., 0]
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_the_conditional_is_a_density():
    model = GaussianConditional((16,))
    variables = random_variables(model, X, Y)
    scores, p = jax.jit(model.apply)(variables, X, Y), variables["params"]
    mean, log_variance = mlp(p, "mean", X), np.tanh(mlp(p, "log_variance", X))
    for row in range(5):
        law = multivariate_normal(mean[row], np.diag(np.exp(log_variance[row])))
        np.testing.assert_allclose(scores[row], law.logpdf(np.asarray(Y)), rtol=1e-4)


@pytest.mark.parametrize("embedding", [4, 256])
def test_separable_scores_begin_with_unit_variance(embedding):
    x, y, critic = noise(200, 20), noise(200, 20, seed=1), SeparableCritic((64, 64), embedding)
    start = jax.jit(jax.vmap(lambda key: critic.init_with_output(key, x, y)[0].std()))
    assert 0.5 < start(jax.random.split(jax.random.key(0), 5)).mean() < 2.0


def test_a_baseline_is_one_number_per_row():
    variables = random_variables(Baseline((8,)), X)
    values = jax.jit(Baseline((8,)).apply)(variables, X)
    np.testing.assert_allclose(values, mlp(variables["params"], "x", X)[:, 0], rtol=1e-5, atol=1e-6)


def test_training_finds_the_information():
    """2 nats in 4 dimensions; InfoNCE with 64 pairs and the exact ratio reads about 1.8."""
    critic, task, tx = SeparableCritic((16, 8), 4), gaussian_task(4, 2.0), optax.adam(5e-3)

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
