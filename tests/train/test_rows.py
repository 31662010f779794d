"""Row-wise steps compared with dense steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cpc.train import init_row_state, make_row_step, scan_steps

V, D = 7, 3


def start(rule):
    rng = np.random.default_rng(0)
    params = {
        "tables": {"a": jnp.asarray(rng.normal(size=(V, D)), jnp.float32),
                   "bias": jnp.asarray(rng.normal(size=V), jnp.float32)},
        "dense": {"w": jnp.asarray(rng.normal(size=D), jnp.float32)},
    }  # fmt: skip
    zeros = {"seen": jnp.zeros(())}
    return params, init_row_state(params, {}, rule, jax.random.key(0), zeros)


def choose(params, extra, batch, rng):
    return batch, {"a": batch["ids"], "bias": batch["ids"]}


def value(rows, bias, dense, target):
    return jnp.square(rows @ dense["w"] + bias - target).sum()


def loss_fn(parts, extra, batch, sample):
    rows = parts["tables"]
    loss = value(rows["a"], rows["bias"], parts["dense"], batch["target"])
    return loss, (extra, {"seen": jnp.ones(())})


def dense_step(tx, params, batches):
    opt = tx.init(params)
    for ids, target in zip(batches["ids"], batches["target"], strict=True):

        def loss(p, ids=ids, target=target):
            return value(p["tables"]["a"][ids], p["tables"]["bias"][ids], p["dense"], target)

        updates, opt = tx.update(jax.grad(loss)(params), opt, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize(("rule", "tx", "ids"), [
    ("sgd", optax.sgd(0.05), [[0, 2, 2, 5], [5, 5, 5, 1], [3, 0, 3, 0]]),
    ("adagrad", optax.adagrad(0.05, 0.1, 1e-10), [[0, 2, 4, 5], [5, 3, 2, 1], [3, 0, 1, 6]]),
])  # fmt: skip
def test_equals_a_dense_step(rule, tx, ids):
    params, state = start(rule)
    batches = {"ids": jnp.array(ids), "target": jnp.linspace(-1, 1, 12).reshape(3, 4)}
    step = make_row_step(choose, loss_fn, lambda step: jnp.float32(0.05), rule)
    got = jax.jit(functools.partial(scan_steps, step))(state, batches)
    assert (int(got.step), float(got.metrics["seen"])) == (3, 3.0)
    want = jax.jit(functools.partial(dense_step, tx))(params, batches)
    for a, b in zip(jax.tree.leaves(got.params), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_non_finite_step_changes_nothing_and_is_named():
    _, state = start("sgd")
    batches = {"ids": jnp.zeros((2, 4), int), "target": jnp.ones((2, 4)).at[1].set(jnp.nan)}
    step = make_row_step(choose, loss_fn, lambda step: jnp.float32(0.05))
    run = jax.jit(functools.partial(scan_steps, step))
    good = {**batches, "target": batches["target"].at[1].set(batches["target"][0])}
    first, both = run(state, jax.tree.map(lambda x: x[:1], batches)), run(state, batches)
    assert (run(state, good).params["dense"]["w"] != first.params["dense"]["w"]).any()
    assert both.failure.tolist()[0] == 1
    for a, b in zip(jax.tree.leaves(first.params), jax.tree.leaves(both.params), strict=True):
        np.testing.assert_array_equal(a, b)
