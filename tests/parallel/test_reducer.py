"""Ring and gather on 2, 4 and 8 devices against one: losses, scores, gradients upstream."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.losses import cpc_loss, decoupled, sup_con
from cpc.losses.blocks import Plan, summed_losses
from cpc.losses.tiles import Latents
from cpc.parallel import gathered_losses, make_reducer, ring_losses, takes_ring
from cpc.train import BATCH_AXIS, batch_sharding, make_mesh, replicate
from cpc.types import CPCOutputs, Position, UserError

B, A, LANES, D, OFFSETS = 8, 10, 2, 5, (1, 3)
RULES = {
    "batch": negatives.batch,
    "own": negatives.own_sequence,
    "group": negatives.same_group & negatives.outside_window(1),
    "shards": negatives.excluding_sequence & negatives.within_shards(4, B),
}


FORMS = {"ring": ring_losses, "gather": gathered_losses}


def make_problem(further=0, scale=1.0):
    """Inputs x (b, a, d), parameters upstream of keys and queries, positions, and a queue."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(B, A, D)) * scale
    params = rng.normal(size=(len(OFFSETS) + 1, D, D))
    time, lane = np.divmod(np.arange(A), LANES)
    speaker = rng.integers(3, size=(B, 1))
    positions = [np.broadcast_to(p, (B, A)) for p in (np.arange(B)[:, None], time, lane, speaker)]
    exists = np.arange(A)[None] < np.where(np.arange(B) == 3, 4, A)[:, None]
    queue = rng.normal(size=(further, D)) * scale
    of_queue = [100 + np.arange(further), *rng.integers(3, size=(3, further))]
    anchors = Latents(
        Position(*(jnp.asarray(p, jnp.int32) for p in positions)), jnp.asarray(exists)
    )
    more = Latents(
        Position(*(jnp.asarray(p, jnp.int32) for p in of_queue)), jnp.asarray(queue[:, 0] > -1)
    )
    arrays = [jnp.asarray(array, jnp.float32) for array in (x, params, queue)]
    return *arrays, anchors, more


@functools.cache
def evaluate(form, devices, rule, further=0, scale=1.0, loss=None, dtype=jnp.float32):
    """Losses, scores, excess weights, and the gradient by parameters of keys and queries."""
    x, params, queue, anchors, more = make_problem(further, scale)
    mesh = make_mesh(devices)
    plan = Plan(RULES[rule], loss, None, OFFSETS, 5, None, num_sequences=B)

    def total(params, x, queue):
        z, queries = (x @ params[0]).astype(dtype), jnp.einsum("bad,kde->kbae", x, params[1:])
        keys = jnp.concatenate([z.reshape(-1, D), queue.astype(dtype)])
        candidates = jax.tree.map(lambda a, m: jnp.concatenate([a.ravel(), m]), anchors, more)
        args = queries.astype(dtype), keys, anchors, candidates
        if form == "one":
            found = summed_losses(*args, jax.random.key(0), plan)
        else:
            found = FORMS[form](*args, plan, mesh, BATCH_AXIS)
        return (found[0] * jnp.array([0.3, 2.0])).sum(), found  # unequal cotangents

    x, anchors = jax.device_put((x, anchors), batch_sharding(mesh))
    params, queue = replicate((params, queue), mesh)
    step = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))
    (_, aux), gradients = step(params, x, queue)
    return jax.device_get((*aux, gradients))


def assert_same(got, want, rtol=2e-5):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max(initial=1e-6))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "rule"),
    [("ring", "batch"), ("ring", "group"), ("ring", "shards"), ("gather", "shards")],
)
def test_four_devices_are_one_under_every_rule(form, rule):
    want = evaluate("one", 1, rule)
    assert want[1].counted.sum() > 0
    assert_same(evaluate(form, 4, rule), want)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "devices"), [("ring", 2), ("ring", 8), ("gather", 8)])
def test_number_of_devices_changes_nothing(form, devices):
    """With a queue whose length does not divide by the devices."""
    want = evaluate("one", 1, "batch", further=5)
    assert want[-1][-1].any(-1).sum() == 4  # of the queue; one of its five rows does not exist
    assert_same(evaluate(form, devices, "batch", further=5), want)
    assert np.abs(want[-1][0]).min() > 0


@pytest.mark.slow
@pytest.mark.parametrize("loss", [decoupled, sup_con])
def test_gather_takes_any_loss(loss):
    want = evaluate("one", 1, "batch", loss=loss)
    assert_same(evaluate("gather", 4, "batch", loss=loss), want)
    assert not np.allclose(want[0], evaluate("one", 1, "batch")[0])


def test_scores_of_ten_thousand():
    got = evaluate("ring", 4, "group", scale=100.0)
    want = evaluate("one", 1, "group", scale=100.0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got))
    # A rounding of the scores is 1e-3 here, and so is that of a probability.
    assert_same(got, want, rtol=3e-3)


@pytest.mark.slow
def test_bfloat16_is_summed_in_float32():
    got = evaluate("ring", 4, "batch", dtype=jnp.bfloat16)
    want = evaluate("one", 1, "batch", dtype=jnp.bfloat16)
    assert got[0].dtype == np.float32
    assert_same(got[:-1], want[:-1])
    assert_same(got[-1], want[-1], rtol=2e-2)  # bfloat16 has 8 bits, and parts are rounded


def outputs_and_positions():
    rng = np.random.default_rng(1)
    z = jnp.asarray(rng.normal(size=(B, A, D)), jnp.float32)
    predictions = jnp.asarray(rng.normal(size=(B, A, 2, D)), jnp.float32)
    place = [np.arange(B)[:, None], np.arange(A)[None], *np.zeros((2, 1, 1), int)]
    return CPCOutputs(z, z, predictions), Position(*(jnp.asarray(p, jnp.int32) for p in place))


@pytest.mark.slow
def test_the_loss_takes_the_reducer_of_a_mesh():
    """And draws of negatives do not depend on the devices."""
    outputs, positions = outputs_and_positions()
    mesh = make_mesh(4)
    reducer = make_reducer(mesh, BATCH_AXIS)
    for choose in (None, negatives.uniform_subset(3)):
        results = [
            jax.jit(functools.partial(cpc_loss, rule=negatives.batch, choose=choose, **more))(
                jax.device_put(outputs, batch_sharding(mesh)), positions
            )
            for more in ({}, {"reducer": reducer})
        ]
        assert_same(*results)


@pytest.mark.slow
def test_an_option_of_the_loss_is_learned_over_devices():
    """Keys are gathered; each device adds its anchors' part."""
    outputs, positions = outputs_and_positions()

    def found(devices):
        mesh = make_mesh(devices)
        reducer = make_reducer(mesh, BATCH_AXIS)

        def loss(outputs, temperature):
            of_anchor = functools.partial(decoupled, temperature=temperature)
            rule = negatives.batch
            return cpc_loss(outputs, positions, rule, loss=of_anchor, reducer=reducer)[0]

        split = jax.device_put(outputs, batch_sharding(mesh))
        option = replicate(jnp.float32(0.7), mesh)
        return jax.device_get(jax.value_and_grad(jax.jit(loss), (0, 1))(split, option))

    assert_same(found(4), found(1))


def test_the_ring_begins_where_gathered_gradients_do_not_fit(monkeypatch):
    assert not takes_ring(12, 8 * 1024, 512)
    assert takes_ring(12, 64 * 1024, 512)
    outputs, positions = outputs_and_positions()
    mesh = make_mesh(2)

    def trace():
        reducer = make_reducer(mesh, BATCH_AXIS)
        loss = functools.partial(cpc_loss, rule=negatives.batch, reducer=reducer)
        return str(jax.make_jaxpr(loss)(outputs, positions))

    text = [trace()]
    monkeypatch.setattr("cpc.parallel.reducer.GATHERED_BYTES", 100)
    monkeypatch.setattr("cpc.losses.tiles.WHOLE_ROWS", 7 * 40)
    text += [trace()]
    assert ["all_gather" in t for t in text] == [True, False]
    assert ["ppermute" in t for t in text] == [False, True]
    # A device's 40 anchors against a shard of 40 keys at a time: as many as fit.
    assert ["f32[7,40] = dot_general" in t for t in text] == [False, True]


def test_what_jax_counts_in_64_bits_stays_in_32(monkeypatch):
    monkeypatch.setattr("cpc.parallel.reducer.GATHERED_BYTES", 100)
    reducer = make_reducer(make_mesh(2), BATCH_AXIS)
    loss = functools.partial(cpc_loss, rule=negatives.batch, reducer=reducer)
    with jax.enable_x64(True):
        found = jax.eval_shape(jax.value_and_grad(loss, has_aux=True), *outputs_and_positions())
    assert {x.dtype for x in jax.tree.leaves(found)} == {np.dtype("f4")}


@pytest.mark.parametrize("form", FORMS)
def test_sequences_that_do_not_divide_are_one_sentence(form):
    x, params, _, anchors, _ = make_problem()
    queries = jnp.einsum("bad,kde->kbae", x, params[1:])
    args = queries, x.reshape(-1, D), anchors, jax.tree.map(jnp.ravel, anchors)
    plan = Plan(negatives.batch, None, None, OFFSETS, 5, None)
    with pytest.raises(UserError, match="8 sequences cannot be split over 3 devices"):
        FORMS[form](*args, plan, make_mesh(3), BATCH_AXIS)


def test_an_axis_that_is_not_of_the_mesh():
    with pytest.raises(UserError, match=f"no axis 'rows': choose one of {BATCH_AXIS}"):
        make_reducer(make_mesh(2), "rows")


@pytest.mark.slow
def test_shares_of_the_batch_stay_on_their_devices():
    """As many shards as devices, or more: no latent travels, and the numbers are one device's."""
    mesh, rng = make_mesh(4), np.random.default_rng(1)
    z, predictions = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((B, A, D), (B, A, 2, D))
    )
    positions = Position(np.arange(B)[:, None], np.arange(A)[None], *np.zeros((2, 1, 1), int))

    def compute(reducer):
        def loss(z, predictions):
            outputs = CPCOutputs(z, z, predictions)
            rule = negatives.within_shards(4, B)
            return cpc_loss(outputs, positions, rule, **reducer)[0]

        return jax.jit(jax.value_and_grad(loss, (0, 1)))

    split = jax.device_put((z, predictions), batch_sharding(mesh))
    many = compute({"reducer": make_reducer(mesh, BATCH_AXIS)})
    text = many.lower(*split).compile().as_text()
    assert not any(word in text for word in ("all-gather", "all-to-all", "collective-permute"))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        many(*split),
        compute({})(z, predictions),
    )


def test_axes_that_are_explicit_are_one_sentence():
    mesh = jax.make_mesh((4,), ("rows",), devices=tuple(jax.devices()[:4]))
    with pytest.raises(UserError, match=r"axis_types=\(AxisType.Auto,\)"):
        make_reducer(mesh, "rows")
