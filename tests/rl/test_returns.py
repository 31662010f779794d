"""Advantages by closed forms; `test_goldens` compares them with rlax."""

import jax
import jax.numpy as jnp
import numpy as np

from cpc.rl import gae, standardize


def draw(seed=0, t=12, b=3, ends=0.2):
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(2, t, b)).astype(np.float32)
    return rewards, values, rng.random((t, b)) < ends, rng.normal(size=b).astype(np.float32)


def test_advantages_stop_at_resets():
    rewards, values, _, last_value = draw()
    is_last = np.zeros(rewards.shape, bool)
    is_last[4, 1] = True
    before, targets = gae(*map(jnp.asarray, (rewards, values, is_last, last_value)), 0.9, 0.8)
    np.testing.assert_allclose(targets, before + values, rtol=1e-5, atol=1e-5)
    rewards[5:], values[5:] = 7, np.nan
    after, _ = gae(*map(jnp.asarray, (rewards, values, is_last, last_value)), 0.9, 0.8)
    np.testing.assert_array_equal(before[:5, 1], after[:5, 1])
    assert np.isnan(after[:5, 0]).all()
    np.testing.assert_allclose(after[4, 1], rewards[4, 1] - values[4, 1], rtol=1e-6)


def test_advantages_are_float32_constants():
    rewards, values, is_last, last_value = map(jnp.asarray, draw())

    def total(rewards, values, last_value):
        return sum(x.sum() for x in gae(rewards, values, is_last, last_value, 0.9, 0.9))

    for gradient in jax.grad(total, (0, 1, 2))(rewards, values, last_value):
        np.testing.assert_array_equal(gradient, 0)
    half = (x.astype(jnp.bfloat16) for x in (rewards, values, last_value))
    rewards, values, last_value = half
    outputs = gae(rewards, values, is_last, last_value, 0.9, 0.9)
    assert {x.dtype for x in outputs} == {jnp.dtype("float32")}


def test_standard_advantages():
    advantages = standardize(jnp.asarray(draw()[0]))
    np.testing.assert_allclose([advantages.mean(), advantages.std()], [0, 1], atol=1e-6)
    np.testing.assert_array_equal(standardize(jnp.full((3, 2), 4.0)), 0)
