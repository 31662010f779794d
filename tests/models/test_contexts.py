"""Context networks: their reach, in chunks and at once, and fast and row forms as plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import noise, random_variables

from cpc.models import GRU, LSTM, CausalConv, CausalTransformer, MaskedRowConv, RowGRU, StateSpace
from cpc.models.contexts import gru_scan
from cpc.types import UserError

CONTEXTS = {
    "gru": GRU(6, 2),
    "gru_blocks": GRU(6, blocks=3),
    "lstm": LSTM(6, 2),
    "conv": CausalConv(24, 3),
    "undilated": CausalConv(24, 3, dilated=False),
    "transformer": CausalTransformer(8, 2, num_heads=2, span=4),
    "ssm": StateSpace(6, 2),
}
LENGTH, AT = 20, 16


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_sees_its_reach_in_chunks_and_at_once(name):
    """Row t of the batch differs from the last in latent t; the first chunk is below the reach."""
    context = CONTEXTS[name]
    z = jnp.tile(noise(LENGTH, 8), (LENGTH + 1, 1, 1))
    z = z + jnp.pad(jnp.eye(LENGTH), ((0, 1), (0, 0)))[..., None] * noise(LENGTH, 8, seed=1)
    variables = random_variables(context, z)

    @jax.jit
    def run(z):
        parts, state = [], None
        for start, stop in ((0, 9), (9, 20)):
            c, state = context.apply(variables, z[-1:, start:stop], state, method="advance")
            parts.append(c)
        return context.apply(variables, z), jnp.concatenate(parts, axis=1)

    c, streamed = run(z)
    np.testing.assert_allclose(streamed, c[-1:], rtol=1e-5, atol=1e-5)
    seen = np.flatnonzero(np.asarray(c[:-1, AT] != c[-1, AT]).any(1))
    first = AT - getattr(context, "reach", AT)  # recurrent contexts have no limit
    np.testing.assert_array_equal(seen, np.arange(first, AT + 1))
    half = jax.eval_shape(context.clone(dtype=jnp.bfloat16).apply, variables, z)
    assert half.dtype == jnp.bfloat16


def gru_scan_plain(x, w, bias, start):
    """gru_scan, left to automatic differentiation."""
    width = start.shape[-1]

    def step(h, x):
        p = h @ w
        r = jax.nn.sigmoid(x[:, :width] + p[:, :width])
        u = jax.nn.sigmoid(x[:, width : 2 * width] + p[:, width : 2 * width])
        n = jnp.tanh(x[:, 2 * width :] + r * (p[:, 2 * width :] + bias))
        h = n + u * (h - n)
        return h, h

    return jax.lax.scan(step, start, x)[1]


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("blocks", [(), (3,)])
def test_fast_gru_equals_plain(blocks, backend, monkeypatch):
    """Step by step, and as an accelerator does it: 8 steps in one turn, gates made again."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    shapes = (11, *blocks, 2, 12), (*blocks, 4, 12), (*blocks, 4), (*blocks, 2, 4)
    arrays = [noise(*shape, seed=n) for n, shape in enumerate(shapes)]
    cotangent = noise(11, *blocks, 2, 4, seed=9)
    plain = jax.vmap(gru_scan_plain, (1, 0, 0, 0), 1) if blocks else gru_scan_plain

    def differentiate(scan, arrays):
        value, pull = jax.vjp(scan, *arrays)
        return value, *pull(cotangent)

    def both(*arrays):
        return differentiate(gru_scan, arrays), differentiate(plain, arrays)

    traced = jax.jit(both).trace(*arrays)
    assert str(traced.jaxpr).count("unroll=8") == (2 if backend == "gpu" else 0)
    for a, b in zip(*traced.lower().compile()(*arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_blocks_of_a_gru_are_as_many_grus_of_the_same_latents():
    z, whole = noise(2, 7, 5), GRU(12, blocks=3)
    variables = random_variables(whole, z)
    params = variables["params"]

    def split(i):
        gates = slice(12 * i, 12 * (i + 1))
        return {
            "input0": jax.tree.map(lambda w: w[..., gates], params["input0"]),
            "recurrent0": params["recurrent0"][i],
            "bias0": params["bias0"][4 * i : 4 * (i + 1)],
        }

    @jax.jit
    def both(z):
        parts = [GRU(4).apply({"params": split(i)}, z) for i in range(3)]
        return whole.apply(variables, z), jnp.concatenate(parts, axis=-1)

    np.testing.assert_allclose(*both(z), rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match=r"width 8 .* 3 blocks"):
        GRU(8, blocks=3)
    with pytest.raises(UserError, match=r"width 20 .* multiple of 16"):
        CausalTransformer(20)


def test_a_transformer_sees_in_a_long_sequence_its_span_alone():
    """Windows of 6 latents, at lengths at and between multiples of the span; linear work."""
    context, z = CausalTransformer(8, 1, num_heads=2, span=6), noise(1, 20, 8)
    variables = random_variables(context, z)
    apply = jax.jit(context.apply)
    windows = apply(variables, jnp.stack([z[0, t - 5 : t + 1] for t in range(5, 20)]))
    alone = np.concatenate([windows[0, :5], windows[:, -1]])
    for length in (0, 12, 20):
        found = apply(variables, z[:, :length])
        assert found.shape == (1, length, 8)
        np.testing.assert_allclose(found[0], alone[:length], rtol=1e-4, atol=1e-5)
    longer = (jnp.zeros((1, length, 8)) for length in (60, 600))
    short, long = (apply.lower(variables, z).cost_analysis() for z in longer)
    for key in ("flops", "bytes accessed"):
        assert long[key] < 12 * short[key]


#: Context, and the columns to each side that it sees `rows` rows up, or None for nothing there.
ROW_CONTEXTS = {
    "conv2": (MaskedRowConv(16, 2), lambda rows: 2 if rows <= 2 else None),
    "gru2": (RowGRU(8, 2), lambda rows: rows + 2),
}
ROWS, COLUMNS = 6, 9


@pytest.mark.parametrize("name", ROW_CONTEXTS)
def test_a_context_sees_the_places_it_states_and_no_row_below(name):
    """Row n of the batch differs from the last in place n; eight images, since ReLU is sparse."""
    context, reach = ROW_CONTEXTS[name]
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
