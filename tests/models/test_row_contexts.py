"""Row contexts: what each sees, exactly, and a plain twin of the row GRU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import random_variables

from cpc.models import MaskedRowConv, RowGRU

#: Context, and the columns to each side that it sees `rows` rows up, or None for nothing there.
CONTEXTS = {
    "conv1": (MaskedRowConv(16, 1), lambda rows: 1 if rows <= 1 else None),
    "conv3": (MaskedRowConv(16, 3), lambda rows: 3 if rows <= 3 else None),
    "gru1": (RowGRU(16), lambda rows: rows + 1),
    "gru2": (RowGRU(16, 2), lambda rows: rows + 2),
}


def grid(b, i, j, d=6, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(b, i, j, d)), jnp.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_sees_what_it_states_and_no_row_below(name):
    context, reach = CONTEXTS[name]
    places, z = [(0, 4), (4, 4), (5, 8)], grid(8, 6, 9)  # 8 images, since ReLU is sparse
    variables = random_variables(context, z)

    def values(z):
        c = context.apply(variables, z)
        return jnp.stack([jnp.sin(c[:, i, j]).sum() for i, j in places])

    gradients = jax.jit(jax.jacrev(values))(z)
    for (i, j), gradient in zip(places, gradients, strict=True):
        expected = np.zeros((6, 9), bool)
        for row in range(i + 1):
            columns = reach(i - row)
            if columns is not None:
                expected[row, max(0, j - columns) : j + columns + 1] = True
        np.testing.assert_array_equal(np.asarray(gradient != 0).any((0, 3)), expected)


@pytest.mark.parametrize("name", CONTEXTS)
def test_rows_below_change_no_value(name):
    context, z = CONTEXTS[name][0], grid(2, 5, 4)
    variables, apply = random_variables(context, z), jax.jit(context.apply)
    c = apply(variables, z)
    np.testing.assert_array_equal(apply(variables, z.at[:, 3:].set(7.0))[:, :3], c[:, :3])
    np.testing.assert_allclose(apply(variables, z[:, :3]), c[:, :3], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.parametrize("shape", [(1, 5), (5, 1)])
def test_any_grid_has_contexts(name, shape):
    context, z = CONTEXTS[name][0], grid(2, *shape)
    c = jax.jit(context.apply)(random_variables(context, z), z)
    assert c.shape == (2, *shape, 16)
    assert jnp.isfinite(c).all()


@pytest.mark.parametrize("name", CONTEXTS)
def test_bfloat16_computes_what_float32_does(name):
    context, z = CONTEXTS[name][0], grid(2, 4, 5)
    variables = random_variables(context, z)
    c = jax.jit(context.apply)(variables, z)
    half = jax.jit(context.clone(dtype=jnp.bfloat16).apply)(variables, z)
    assert half.dtype == jnp.bfloat16
    assert float(jnp.linalg.norm(half.astype(jnp.float32) - c) / jnp.linalg.norm(c)) < 0.03


@pytest.mark.slow
def test_row_gru_equals_plain_loops():
    context, z = RowGRU(3), grid(2, 4, 5)
    variables = random_variables(context, z)
    c, params = jax.jit(context.apply)(variables, z), variables["params"]

    across, w, bias = params["input0"]["kernel"][0], params["recurrent0"], params["bias0"]
    expected = np.zeros((2, 4, 5, 3))
    x = np.pad(np.asarray(z, np.float64), ((0, 0), (0, 0), (1, 1), (0, 0)))
    for b, i, j in np.ndindex(2, 4, 5):
        above = np.pad(expected[b, i - 1] if i else np.zeros((5, 3)), ((1, 1), (0, 0)))
        p = np.concatenate([above[j], above[j + 1], above[j + 2]]) @ w
        v = params["input0"]["bias"] + sum(x[b, i, j + a] @ across[a] for a in range(3))
        r, u = (1 / (1 + np.exp(-(v + p)[gate : gate + 3])) for gate in (0, 3))
        new = np.tanh(v[6:] + r * (p[6:] + bias))
        expected[b, i, j] = new + u * (above[j + 1] - new)
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-5)
