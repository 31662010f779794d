import jax
import jax.numpy as jnp
import linear_run
import numpy as np
import optax
import pytest

from cpc import train
from cpc.train.step import describe_failure, named_leaves

TX = optax.adam(0.1)


def make(loss_fn=linear_run.loss_fn, ema_decay=0.0, state=None, tx=TX):
    state = linear_run.new_state(tx) if state is None else state
    return state, train.jit_step(train.make_train_step(loss_fn, tx, ema_decay=ema_decay), state)


def test_step_equals_plain_optax_with_folded_keys():
    state, step = make(ema_decay=0.75)
    batch = linear_run.batch_of_step(0)
    params, opt_state, extra = state.params, state.opt_state, state.extra
    expected, ema = [], np.asarray(params["layer"]["kernel"])

    @jax.jit
    def plain_step(params, opt_state, extra, rng):
        (loss, (extra, _)), gradients = jax.value_and_grad(linear_run.loss_fn, has_aux=True)(
            params, extra, batch, rng
        )
        updates, opt_state = TX.update(gradients, opt_state, params)
        params = optax.apply_updates(params, updates)
        return params, opt_state, extra, (loss, optax.tree.norm(gradients))

    for i in range(3):
        rng = jax.random.fold_in(jax.random.key(0), i)
        params, opt_state, extra, numbers = plain_step(params, opt_state, extra, rng)
        expected.append(numbers)
        ema = 0.75 * ema + 0.25 * np.asarray(params["layer"]["kernel"])
    for _ in range(3):
        state = step(state, batch)
    np.testing.assert_allclose(state.ema["layer"]["kernel"], ema, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    losses, norms = np.sum(expected, axis=0)
    wanted = {"loss": losses, "gradient_norm": norms, "per_k": [losses, 2 * losses]}
    for name, value in wanted.items():
        np.testing.assert_allclose(state.metrics[name], value, rtol=1e-5)
    assert [float(state.metrics[n]) for n in ("steps", "nonfinite", "seen")] == [3, 0, 48]
    np.testing.assert_allclose(state.extra["mean"], extra["mean"], rtol=1e-5)
    assert int(state.step) == 3


def test_schedule_free_average_is_the_ema():
    tx, _ = train.make_optimizer(
        learning_rate=0.1, num_steps=5, name="schedule_free", clip_norm=1.0
    )
    state, step = make(tx=tx)
    for i in range(5):
        state = step(state, linear_run.batch_of_step(i))
    expected = train.schedule_free_average(state.opt_state, state.params)["layer"]["kernel"]
    np.testing.assert_allclose(state.ema["layer"]["kernel"], expected, rtol=1e-6)
    assert np.abs(expected - state.params["layer"]["kernel"]).min() > 1e-3


def test_state_is_donated_and_caller_arrays_survive():
    params = {"w": jnp.ones(1000)}
    state = train.init_state(params, {}, TX, jax.random.key(0), {}, ema=True)
    state, step = make(lambda p, e, b, r: (jnp.sum(p["w"] * b), (e, {})), 0.5, state)
    after = step(state, jnp.ones(1000))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((state.params, state.opt_state)))
    assert not params["w"].is_deleted()
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))


def test_nothing_is_updated_after_a_non_finite_step():
    state, step = make(ema_decay=0.9)
    for i in range(2):
        state = step(state, linear_run.batch_of_step(i))
    before = linear_run.host(state)
    bad = linear_run.batch_of_step(2)
    bad["x"][0, 0] = np.inf
    state = step(state, bad)
    state = step(state, linear_run.batch_of_step(3))
    worse = linear_run.batch_of_step(4)
    worse["y"][0] = np.nan
    state = step(state, worse)
    after = linear_run.host(state)
    for name, value in before.items():
        if name not in (".step", ".failure", ".metrics['nonfinite']"):
            np.testing.assert_array_equal(value, after[name], err_msg=name)
    assert state.failure.tolist()[0] == 2
    assert float(state.metrics["nonfinite"]) == 2
    assert describe_failure(state.failure, state.params).startswith("step 3 (batch 2): ")


def first_failure(loss_fn):
    state, step = make(loss_fn)
    state = step(state, linear_run.batch_of_step(0))
    return describe_failure(state.failure, state.params)


def test_first_non_finite_leaf_is_named():
    def gradient_only(params, extra, batch, rng):  # sqrt at 0 has an infinite slope
        layer = params["layer"]
        loss = jnp.sqrt(jnp.abs(layer["kernel"][0] - 0.5)) + layer["bias"]
        return loss, (extra, {"per_k": jnp.zeros(2), "seen": 0})

    def loss_only(params, extra, batch, rng):
        loss = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params)) + jnp.inf
        return loss, (extra, {"per_k": jnp.zeros(2), "seen": 0})

    names = [name for name, _ in named_leaves(linear_run.new_state(TX).params)]
    assert names == ["layer/bias", "layer/kernel"]
    assert first_failure(gradient_only) == "step 1 (batch 0): the gradient of layer/kernel"
    assert first_failure(loss_only) == "step 1 (batch 0): the loss"
    assert first_failure(linear_run.loss_fn) is None


def test_reserved_metric_names_are_rejected():
    state = train.init_state({"w": jnp.ones(2)}, {}, TX, jax.random.key(0), {})
    step = train.make_train_step(lambda p, e, b, r: (p["w"].sum(), (e, {"steps": 1.0})), TX)
    with pytest.raises(ValueError, match="'steps'"):
        step(state, None)


def test_weak_types_and_dtypes_do_not_retrace():
    traces = []

    def loss_fn(params, extra, batch, rng):
        traces.append(1)
        wide = {"mean": extra["mean"].astype(jnp.float32) + params["w"]}
        return params["w"] ** 2 * batch, (wide, {"count": 3})

    params = {"w": jnp.asarray(2.0)}
    assert params["w"].weak_type
    extra = {"mean": jnp.ones((), jnp.bfloat16)}
    state = train.init_state(params, extra, TX, jax.random.key(0), {"count": 0.0})
    assert not any(getattr(leaf, "weak_type", False) for leaf in jax.tree.leaves(state.params))
    state, step = make(loss_fn, state=state)
    for _ in range(3):
        state = step(state, jnp.ones(()))
    assert len(traces) == 1
    assert state.extra["mean"].dtype == jnp.bfloat16
    assert float(state.metrics["count"]) == 9
