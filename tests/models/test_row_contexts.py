"""Row contexts: the places that each sees, and a plain twin of the row GRU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import noise, random_variables

from cpc.models import MaskedRowConv, RowGRU

#: Context, and the columns to each side that it sees `rows` rows up, or None for nothing there.
CONTEXTS = {
    "conv2": (MaskedRowConv(16, 2), lambda rows: 2 if rows <= 2 else None),
    "gru2": (RowGRU(8, 2), lambda rows: rows + 2),
}
ROWS, COLUMNS = 6, 9


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_sees_the_places_it_states_and_no_row_below(name):
    """Row n of the batch differs from the last in place n; eight images, since ReLU is sparse."""
    context, reach = CONTEXTS[name]
    places = np.eye(ROWS * COLUMNS + 1)[:, :-1].reshape(-1, 1, ROWS, COLUMNS, 1)
    z = jnp.float32(noise(8, ROWS, COLUMNS, 6) + 3 * places * noise(8, ROWS, COLUMNS, 6, seed=1))
    variables = random_variables(context, z[0])

    @jax.jit
    def run(z):
        c = context.apply(variables, z.reshape(-1, *z.shape[2:])).reshape(*z.shape[:4], -1)
        return c, context.clone(dtype=jnp.bfloat16).apply(variables, z[-1])

    c, half = run(z)
    for i, j in [(0, 4), (4, 4), (5, 8)]:
        seen = np.asarray(c[:-1, :, i, j] != c[-1, :, i, j]).any((1, 2)).reshape(ROWS, COLUMNS)
        expected = np.zeros((ROWS, COLUMNS), bool)
        for row in range(i + 1):
            columns = reach(i - row)
            if columns is not None:
                expected[row, max(0, j - columns) : j + columns + 1] = True
        np.testing.assert_array_equal(seen, expected)
    assert half.dtype == jnp.bfloat16
    assert float(jnp.linalg.norm(half.astype("f") - c[-1]) / jnp.linalg.norm(c[-1])) < 0.03
    for shape in ((2, 1, 5), (2, 5, 1)):
        found = jax.eval_shape(lambda z: context.apply(variables, z), jnp.zeros((*shape, 6)))
        assert found.shape == (*shape, context.width)


def test_row_gru_equals_plain_loops():
    context, z = RowGRU(3), noise(2, 4, 5, 6)
    variables = random_variables(context, z)
    c, params = jax.jit(context.apply)(variables, z), variables["params"]
    across, w, bias = params["input0"]["kernel"][0], params["recurrent0"], params["bias0"]
    across, w, bias, own = (
        np.asarray(a, np.float64) for a in (across, w, bias, params["input0"]["bias"])
    )
    expected = np.zeros((2, 4, 5, 3))
    x = np.pad(np.asarray(z, np.float64), ((0, 0), (0, 0), (1, 1), (0, 0)))
    for b, i, j in np.ndindex(2, 4, 5):
        above = np.pad(expected[b, i - 1] if i else np.zeros((5, 3)), ((1, 1), (0, 0)))
        p = np.concatenate([above[j], above[j + 1], above[j + 2]]) @ w
        v = own + sum(x[b, i, j + a] @ across[a] for a in range(3))
        r, u = (1 / (1 + np.exp(-(v + p)[gate : gate + 3])) for gate in (0, 3))
        new = np.tanh(v[6:] + r * (p[6:] + bias))
        expected[b, i, j] = new + u * (above[j + 1] - new)
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-5)
