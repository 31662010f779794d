"""Ring and gather reducers: equal to one device, and as few exchanges and products as expected."""

import functools
import re

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
from tests.losses.any_rule import any_rule, with_index

B, A, LANES, D, OFFSETS = 8, 6, 2, 4, (1, 2)
RULES = {
    "batch": negatives.batch,
    "group": negatives.same_group & negatives.outside_window(1),
    "shards": negatives.excluding_sequence & negatives.within_shards(4, B),
}
ANY = any_rule(list(RULES.values()))
FORMS = {"ring": ring_losses, "gather": gathered_losses}
FURTHER = 5  # queue length, not divisible by the devices


def make_problem(rule="batch", scale=1.0):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(B, A, D)) * scale
    params = rng.normal(size=(len(OFFSETS) + 1, D, D))
    time, lane = np.divmod(np.arange(A), LANES)
    places = np.arange(B)[:, None], time, lane, rng.integers(3, size=(B, 1))
    positions = Position(*(jnp.asarray(np.broadcast_to(p, (B, A)), jnp.int32) for p in places))
    mask = np.arange(A)[None] < np.where(np.arange(B) == 3, 4, A)[:, None]
    queue = rng.normal(size=(FURTHER, D)) * scale
    queue[:, 0] = np.abs(queue[:, 0]) * [1, 1, -9, 1, 1]
    of_queue = [100 + np.arange(FURTHER), *rng.integers(3, size=(3, FURTHER))]
    further = Position(*(jnp.asarray(p, jnp.int32) for p in of_queue))
    index = list(RULES).index(rule)
    anchors = Latents(with_index(positions, index), jnp.asarray(mask))
    more = Latents(with_index(further, index), jnp.asarray(queue[:, 0] > 0))
    arrays = [jnp.asarray(array, jnp.float32) for array in (x, params, queue)]
    return *arrays, anchors, more


@functools.cache
def compile_form(form, devices, loss, dtype):
    mesh = make_mesh(devices)
    plan = Plan(ANY, loss, None, OFFSETS, 5, None, num_sequences=B)

    def total(params, x, queue, anchors, more):
        z, queries = (x @ params[0]).astype(dtype), jnp.einsum("bad,kde->kbae", x, params[1:])
        keys = jnp.concatenate([z.reshape(-1, D), queue.astype(dtype)])
        candidates = jax.tree.map(lambda a, m: jnp.concatenate([a.ravel(), m]), anchors, more)
        args = queries.astype(dtype), keys, anchors, candidates
        if form == "one":
            found = summed_losses(*args, jax.random.key(0), plan)
        else:
            found = FORMS[form](*args, plan, mesh, BATCH_AXIS)
        return (found[0] * jnp.array([0.3, 2.0])).sum(), found  # unequal cotangents

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)), mesh


@functools.cache
def evaluate(form, devices, rule="batch", scale=1.0, loss=None, dtype=jnp.float32):
    x, params, queue, anchors, more = make_problem(rule, scale)
    step, mesh = compile_form(form, devices, loss, dtype)
    x, anchors = jax.device_put((x, anchors), batch_sharding(mesh))
    params, queue, more = replicate((params, queue, more), mesh)
    (_, aux), gradients = step(params, x, queue, anchors, more)
    return jax.device_get((*aux, gradients))


def assert_same(got, want, rtol=2e-5):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max(initial=1e-6))


@pytest.mark.parametrize(("form", "devices"), [("ring", 4), ("gather", 8)])
@pytest.mark.parametrize("rule", RULES)
def test_devices_equal_one_device_under_every_rule(form, devices, rule):
    want = evaluate("one", 1, rule)
    assert want[1].counted.sum() > 0
    # One queue row is masked; group and shard rules allow few negatives or none.
    assert want[-1][-1].any(-1).sum() == 4 or rule != "batch"
    assert_same(evaluate(form, devices, rule), want)
    assert np.abs(want[-1][0]).min() > 0


def test_gather_takes_any_loss():
    want = evaluate("one", 1, loss=sup_con)
    assert_same(evaluate("gather", 4, loss=sup_con), want)
    assert not np.allclose(want[0], evaluate("one", 1)[0])


def test_huge_scores_are_finite():
    got, want = (evaluate(*form, "group", 100.0) for form in (("ring", 4), ("one", 1)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got))
    # Scores, and so probabilities, are rounded to 1e-3 here.
    assert_same(got, want, rtol=3e-3)


def test_bfloat16_is_summed_in_float32():
    got, want = (evaluate(*form, dtype=jnp.bfloat16) for form in (("ring", 4), ("one", 1)))
    assert got[0].dtype == np.float32
    assert_same(got[:-1], want[:-1])
    assert_same(got[-1], want[-1], rtol=2e-2)  # bfloat16 has 8 bits


def outputs_and_positions():
    rng = np.random.default_rng(1)
    z = jnp.asarray(rng.normal(size=(B, A, D)), jnp.float32)
    predictions = jnp.asarray(rng.normal(size=(B, A, 2, D)), jnp.float32)
    return CPCOutputs(z, z, predictions), jax.tree.map(jnp.asarray, Position.grid(B, A))


def test_draws_do_not_depend_on_the_number_of_devices():
    outputs, positions = outputs_and_positions()
    mesh = make_mesh(4)
    outputs = jax.device_put(outputs, batch_sharding(mesh))
    draw = functools.partial(cpc_loss, rule=negatives.batch, sampler=negatives.uniform_subset(3))
    results = [
        jax.jit(functools.partial(draw, **more))(outputs, positions)
        for more in ({}, {"reducer": make_reducer(mesh, BATCH_AXIS)})
    ]
    assert_same(*results)


def test_options_of_the_loss_have_gradients_on_several_devices():
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


def test_ring_is_chosen_when_gathered_gradients_do_not_fit(monkeypatch):
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
    monkeypatch.setattr("cpc.losses.tiles.WHOLE_ROWS", 7 * 24)
    text += [trace()]
    assert ["all_gather" in t for t in text] == [True, False]
    assert ["ppermute" in t for t in text] == [False, True]
    # 24 anchors of a device against 24 keys at a time just fit.
    assert ["f32[7,24] = dot_general" in t for t in text] == [False, True]


def test_no_64_bit_integers(monkeypatch):
    monkeypatch.setattr("cpc.parallel.reducer.GATHERED_BYTES", 100)
    reducer = make_reducer(make_mesh(2), BATCH_AXIS)
    loss = functools.partial(cpc_loss, rule=negatives.batch, reducer=reducer)
    with jax.enable_x64(True):
        found = jax.eval_shape(jax.value_and_grad(loss, has_aux=True), *outputs_and_positions())
    assert {x.dtype for x in jax.tree.leaves(found)} == {np.dtype("f4")}


@pytest.mark.parametrize("form", FORMS)
def test_indivisible_sequences_are_rejected(form):
    x, params, _, anchors, _ = make_problem()
    queries = jnp.einsum("bad,kde->kbae", x, params[1:])
    args = queries, x.reshape(-1, D), anchors, jax.tree.map(jnp.ravel, anchors)
    plan = Plan(negatives.batch, None, None, OFFSETS, 5, None)
    with pytest.raises(UserError, match="8 sequences cannot be split over 3 devices"):
        FORMS[form](*args, plan, make_mesh(3), BATCH_AXIS)


def test_shards_stay_on_their_devices():
    """With at least as many shards as devices no latents are exchanged."""
    mesh = make_mesh(4)
    (z, _, predictions), positions = outputs_and_positions()

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
    assert_same(many(*split), compute({})(z, predictions), 1e-5)


def test_explicit_or_missing_axes_are_rejected():
    mesh = jax.make_mesh((4,), ("rows",), devices=tuple(jax.devices()[:4]))
    for rows, match in ((mesh, r"axis_types=\(AxisType.Auto,\)"), (make_mesh(2), "no axis 'rows'")):
        with pytest.raises(UserError, match=match):
            make_reducer(rows, "rows")


def compile_criterion(criterion, p, length, width, offsets):
    mesh = make_mesh(p)
    positions = jax.tree.map(jnp.asarray, Position.grid(B, length))
    anchors = Latents(positions, jnp.ones((B, length), bool))
    steps = tuple(range(1, offsets + 1))
    plan = Plan(negatives.batch, None, None, steps, B * length, None)

    def loss(predictions, z):
        args = predictions, z.reshape(-1, width), anchors, jax.tree.map(jnp.ravel, anchors)
        return criterion(*args, plan, mesh, BATCH_AXIS)[0].sum()

    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    rows = jax.NamedSharding(mesh, jax.P(None, BATCH_AXIS))
    shapes = (
        shape((offsets, B, length, width), sharding=rows),
        shape((B, length, width), sharding=batch_sharding(mesh)),
    )
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    return step.lower(*shapes).compile()


def collectives(text):
    """Return the sizes of float matrices by the collective that returns them."""
    found = {}
    pattern = r"= f32\[([\d,]+)\]\S* (all-gather|reduce-scatter|collective-permute|all-reduce)\("
    for shape, name in re.findall(pattern, text):
        numbers = [int(size) for size in shape.split(",")]
        if len(numbers) > 1:
            found.setdefault(name, []).append(functools.reduce(int.__mul__, numbers))
    return found


@pytest.mark.parametrize("p", [2, 8, 4])
def test_exchanged_numbers(p):
    """Gather all keys and share gradients once; the ring has three permutes and one back."""
    n = B * 4 * 16
    criterion, want = gathered_losses, {"all-gather": [n], "reduce-scatter": [n // p]}
    if p == 4:
        criterion, want = ring_losses, {"collective-permute": [n // p] * 4}
    assert collectives(compile_criterion(criterion, p, 4, 16, 2).as_text()) == want


@pytest.mark.parametrize(
    ("criterion", "p", "times", "products"), [(gathered_losses, 4, 1, 6), (ring_losses, 4, 4, 8)]
)
def test_flop_equal_the_cost_analysis(criterion, p, times, products):
    """FLOP are 6 or 8 times anchors, keys and width, to 5 %.

    The compiler counts elementwise work and loop bodies once; only the ring loops here.
    """
    counted = compile_criterion(criterion, p, 8, 512, 1).cost_analysis()["flops"]
    flop = products * (B * 8 // p) * (B * 8) * 512
    assert flop < times * counted < 1.05 * flop
