"""The norm's own gradient against automatic differentiation of the plain form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.models.encoders import EPSILON, channel_norm


def channel_norm_plain(x, scale, bias, num_groups, unbiased):
    """The formula, left to automatic differentiation."""
    groups = x.reshape(*x.shape[:2], num_groups, -1)
    n = groups - groups.mean(-1, keepdims=True)
    variance = jnp.square(n).sum(-1, keepdims=True) / (groups.shape[-1] - unbiased)
    return (n / jnp.sqrt(variance + EPSILON)).reshape(x.shape) * scale + bias


@pytest.mark.parametrize(("num_groups", "unbiased"), [(1, True), (3, False)])
def test_values_and_gradients_are_those_of_the_plain_form(num_groups, unbiased):
    rng = np.random.default_rng(0)
    x, weight = (jnp.asarray(3 * rng.normal(size=(2, 5, 12)) + 1, jnp.float32) for _ in range(2))
    scale, bias = (jnp.asarray(rng.normal(size=12), jnp.float32) for _ in range(2))

    def both(norm):
        def weighted(x, scale, bias):
            return (weight * norm(x, scale, bias, num_groups, unbiased)).sum()

        value = norm(x, scale, bias, num_groups, unbiased)
        return value, jax.grad(weighted, (0, 1, 2))(x, scale, bias)

    own, plain = jax.jit(lambda: (both(channel_norm), both(channel_norm_plain)))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), own, plain)


def test_statistics_are_taken_in_float32():
    """In bfloat16 a mean of 300 would leave nothing of differences of 1; equal channels are 0."""
    x = jnp.asarray([[[300.0, 302.0, 304.0, 306.0], [1.0] * 4]], jnp.bfloat16)

    def norm(x):
        return channel_norm(x, jnp.ones(4), jnp.zeros(4), 1, False)

    y, gradient = jax.jit(lambda x: (norm(x), jax.grad(lambda x: norm(x)[0, :, 0].sum())(x)))(x)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y[0, 0], (np.arange(4) - 1.5) / np.sqrt(1.25), rtol=1e-4)
    np.testing.assert_array_equal(y[0, 1], 0)
    assert gradient.dtype == jnp.bfloat16
    assert np.isfinite(gradient.astype("f")).all()
