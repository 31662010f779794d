"""Critics: every score belongs to its pair."""

import functools

import jax
import numpy as np
from random_variables import noise, random_variables
from scipy.stats import multivariate_normal

from cpc.models import Baseline, GaussianConditional, JointCritic, SeparableCritic

X, Y = noise(5, 3), noise(4, 2, seed=1)


def mlp(p, name, hidden):
    """Return the output of a network's hidden layers and last layer."""
    for layer in (p[f"{name}{n}"] for n in range(2) if f"{name}{n}" in p):
        hidden = np.maximum(hidden @ layer["kernel"] + layer["bias"], 0)
    return hidden @ p[f"{name}_out"]["kernel"] + p[f"{name}_out"]["bias"]


def test_critics_are_their_formulas():
    """A product of two networks, one of both side by side, a density, and a number per row."""
    critics = [SeparableCritic((16, 8), 4), JointCritic((16, 8)), GaussianConditional((16,))]
    given = [*((critic, (X, Y)) for critic in critics), (Baseline((8,)), (X,))]
    drawn = [random_variables(critic, *inputs) for critic, inputs in given]
    pairs = list(zip(given, drawn, strict=True))
    run = jax.jit(lambda: [critic.apply(own, *inputs) for (critic, inputs), own in pairs])
    separable, joint, conditional, baseline = run()
    p, of_pair, of_law, of_row = (own["params"] for own in drawn)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    close(separable, mlp(p, "x", X) @ mlp(p, "y", Y).T)
    both = [np.repeat(X[:, None], 4, axis=1), np.repeat(Y[None], 5, axis=0)]
    first = np.concatenate(both, axis=-1) @ of_pair["kernel"] + of_pair["bias"]
    close(joint, mlp(of_pair, "pair", np.maximum(first, 0))[..., 0])
    mean, log_variance = mlp(of_law, "mean", X), np.tanh(mlp(of_law, "log_variance", X))
    for row in range(5):
        law = multivariate_normal(mean[row], np.diag(np.exp(log_variance[row])))
        close(conditional[row], law.logpdf(np.asarray(Y)))
    close(baseline, mlp(of_row, "x", X)[:, 0])


def test_separable_scores_begin_with_unit_variance():
    x, y, critic = noise(200, 20), noise(200, 20, seed=1), SeparableCritic((64, 64), 256)
    start = jax.jit(jax.vmap(lambda key: critic.init_with_output(key, x, y)[0].std()))
    assert 0.5 < start(jax.random.split(jax.random.key(0), 5)).mean() < 2.0
