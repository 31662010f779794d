"""The linear recurrence of the state-space context, against a loop in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import noise

from cpc.models.state_space import RING, apply_state_space, init_state_space

WIDTH, LENGTH = 6, 50


def loop(params, u, start):
    p = {name: np.asarray(value, np.float64) for name, value in params.items()}
    decay = np.exp(-np.exp(p["nu"]) + 1j * np.exp(p["theta"]))
    b, c = (p["B"][:, :WIDTH] + 1j * p["B"][:, WIDTH:], p["C"][:WIDTH] + 1j * p["C"][WIDTH:])
    x, outputs = np.asarray(start, complex), []
    for one in np.asarray(u, np.float64).swapaxes(0, 1):
        x = decay * x + np.sqrt(1 - np.abs(decay) ** 2) * (one @ b)
        outputs.append((x @ c).real + p["D"] * one)
    return np.stack(outputs, axis=1), x


@pytest.mark.parametrize("parallel", [False, True])
def test_recurrence_equals_a_loop_from_any_state(parallel):
    params, u = init_state_space(jax.random.key(0), WIDTH), noise(3, LENGTH, WIDTH)
    start = jax.lax.complex(noise(3, WIDTH, seed=1), noise(3, WIDTH, seed=2))
    y, x = jax.jit(apply_state_space, static_argnums=3)(params, u, start, parallel)
    for found, wanted in zip((y, x), loop(params, u, start), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_gradients_of_both_evaluations_are_equal():
    params, u = init_state_space(jax.random.key(0), WIDTH), noise(3, LENGTH, WIDTH)

    @functools.partial(jax.jit, static_argnums=2)
    def gradients(params, u, parallel):
        return jax.grad(
            lambda p, u: jnp.sum(apply_state_space(p, u, None, parallel)[0] ** 2), (0, 1)
        )(params, u)

    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4),
        gradients(params, u, True), gradients(params, u, False),
    )  # fmt: skip


def test_eigenvalues_start_on_the_ring_and_states_keep_their_variance():
    params = init_state_space(jax.random.key(0), 2000)
    radii = np.exp(-np.exp(params["nu"]))
    assert RING[0] <= radii.min() < 0.905
    assert 0.997 < radii.max() <= RING[1]
    short = init_state_space(jax.random.key(1), 64)
    _, x = jax.jit(apply_state_space)(short, noise(16, 4000, 64))
    by_radius = np.mean(np.abs(x) ** 2, axis=0)
    slow = np.argsort(short["nu"])[:32]
    assert by_radius[slow].mean() == pytest.approx(by_radius.mean(), rel=0.3)
