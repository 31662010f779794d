"""The CPC loss against goldens, a naive float64 twin, closed forms and invariances."""

import dataclasses
import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.estimators import Tracker, bound_over_sequences
from cpc.losses import (
    MemoryBank,
    acpc_loss,
    cpc_loss,
    debiased,
    hard_weighted,
    info_nce,
    nce,
    sigmoid,
    sup_con,
)
from cpc.types import CPCOutputs, Position, UserError

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "goldens"))
from goldens import load_golden

META, CASES = load_golden("cpc_loss.npz")
RULES = {
    "all": negatives.batch,
    "exclude_own": negatives.excluding_sequence,
    "own_only": negatives.own_sequence,
    "same_speaker": negatives.same_group,
    "same_speaker_exclude_own": negatives.same_group & negatives.excluding_sequence,
}
TARGETS_ONLY = negatives.Rule("targets", lambda anchor, candidate, k: candidate.time >= k)
COVERED = [
    name
    for name, (params, _, expected) in CASES.items()
    if params["rule"] in RULES
    and params["anchors"] == "per_step"
    and (expected["n_anchors"] > expected["n_without_negatives"]).any()
]


def positions_of(batch, length, speaker=None):
    return Position.grid(batch, length, group=np.zeros(batch) if speaker is None else speaker)


def golden_rule(params):
    rule = RULES[params["rule"]] & negatives.outside_window(params["window"])
    return rule & TARGETS_ONLY if params["pool"] == "targets" else rule


def golden_loss(arrays, params, inputs, block=512, with_maps=False):
    z, c, w = arrays
    maps = jnp.swapaxes(w, 1, 2) if with_maps and not params["cosine"] else None
    predictions = jnp.einsum("bth,kdh->btkd", c, w)
    if params["cosine"]:
        z, predictions = (
            x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
            for x in (z, predictions)
        )
    batch, length = z.shape[:2]
    lengths = inputs.get("lengths")
    where = None if lengths is None else jnp.arange(length)[None] < jnp.asarray(lengths)[:, None]
    return cpc_loss(
        CPCOutputs(z, c, predictions),
        positions_of(batch, length, inputs.get("speaker")),
        golden_rule(params),
        maps=maps,
        temperature=1 / params["scale"],
        where=where,
        block=block,
    )


def test_goldens_are_covered():
    assert len(COVERED) >= 25, "only explicit negatives and common anchors are out of scope"


@pytest.mark.parametrize(
    ("name", "with_maps"),
    [*((name, False) for name in COVERED), *((name, True) for name in COVERED[::4])],
)
def test_equals_golden(name, with_maps):
    params, inputs, expected = CASES[name]
    arrays = [jnp.asarray(inputs[key], jnp.float32) for key in ("z", "c", "W")]
    loss = functools.partial(golden_loss, params=params, inputs=inputs, with_maps=with_maps)
    (_, sums), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays)
    rtol, atol = META["tolerance"]["f32_rtol"], META["tolerance"]["f32_atol"]
    close = functools.partial(np.testing.assert_allclose, rtol=rtol)

    def scale(value):
        finite = np.abs(value[np.isfinite(value)])
        return atol + rtol * finite.max(initial=0.0)

    track = Tracker(False)(sums)
    close(track.loss, expected["loss"], atol=scale(expected["loss"]))
    close(track.value, expected["bound"], atol=scale(expected["loss"]))
    counted = expected["n_anchors"] - expected["n_without_negatives"]
    np.testing.assert_array_equal(np.asarray(sums.anchors), counted)
    close(track.n, expected["mean_candidates"], atol=1e-6)
    if not name.startswith(("chance", "tied")):  # ties there are broken by rounding
        close(track.acc_top1, expected["top1_strict"], atol=1e-6)
        close(track.acc_pairwise, expected["pairwise_win"], atol=1e-6)
    num_counted = np.sum(counted > 0)  # the goldens' gradient is of the mean over offsets
    for key, gradient in zip(("z", "c", "W"), gradients, strict=True):
        if f"grad_{key}" in expected:
            want = expected[f"grad_{key}"] * num_counted
            close(gradient, want, atol=scale(want))


def linear_loss(arrays, with_maps, **options):
    z, c, maps, *memory = arrays
    if memory:
        positions = Position(*(jnp.full(len(memory[0]), -7) for _ in range(4)))
        options["memory"] = MemoryBank(memory[0], positions, jnp.ones(len(memory[0]), bool))
    outputs = CPCOutputs(z, c, jnp.einsum("bth,khd->btkd", c, maps))
    rule = options.pop("rule", negatives.batch)
    positions = positions_of(*z.shape[:2])
    return cpc_loss(outputs, positions, rule, maps=maps if with_maps else None, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block": 8, "columns": 5},
        {"rule": negatives.within_shards(2, 4)},
        {"rule": negatives.one_per_sequence},
        {"loss": sigmoid, "bias": -1.0, "temperature": 0.5},
        {"choose": negatives.uniform_subset(5), "rng": jax.random.key(7)},
        {"where": jnp.arange(9)[None] < jnp.array([9, 4, 7, 9])[:, None]},
        {"offsets": (2, 5)},
        {"memory": 6},
    ],
    ids=lambda options: ",".join(options) or "plain",
)
def test_projected_candidates_give_the_same(options):
    keys = jax.random.split(jax.random.key(0), 4)
    num_memory = options.get("memory", 0)
    shapes = (4, 9, 7), (4, 9, 3), (2, 3, 7), *([(num_memory, 7)] if num_memory else [])
    arrays = [jax.random.normal(*pair) for pair in zip(keys, shapes, strict=False)]
    rest = {name: value for name, value in options.items() if name != "memory"}

    def both(with_maps):
        loss = functools.partial(linear_loss, with_maps=with_maps, **rest)
        return jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays)

    for found, expected in zip(*map(jax.tree.leaves, (both(True), both(False))), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def product_flop(with_maps, shapes):
    arrays = [jnp.zeros(shape) for shape in shapes]

    def gradient(arrays):
        return jax.grad(linear_loss, has_aux=True)(arrays, with_maps, block=10_000)

    return jax.jit(gradient).lower(arrays).compile().cost_analysis()["flops"]


@pytest.mark.slow
def test_candidates_are_projected_where_contexts_are_narrower():
    narrow, wide = (
        [(4, 64, 128), (4, 64, 16), (1, 16, 128)],
        [(4, 64, 16), (4, 64, 16), (1, 16, 16)],
    )
    assert product_flop(True, narrow) < 0.5 * product_flop(False, narrow)
    assert product_flop(True, wide) == product_flop(False, wide)


@pytest.mark.slow
@pytest.mark.parametrize("block", [1, 7, 16, 10_000])
def test_blocks_change_nothing(block):
    params, inputs, _ = CASES["steps12_same_speaker_w4"]
    arrays = [jnp.asarray(inputs[key], jnp.float32) for key in ("z", "c", "W")]
    results = [
        jax.value_and_grad(golden_loss, has_aux=True)(arrays, params, inputs, size)
        for size in (block, 512)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5), *results)


def random_outputs(batch=3, length=7, width=4, num_offsets=2, seed=0, lanes=()):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(batch, length, *lanes, width))
    predictions = rng.normal(size=(batch, length, *lanes, num_offsets, width))
    z, predictions = jnp.asarray(z, jnp.float32), jnp.asarray(predictions, jnp.float32)
    return CPCOutputs(z, z, predictions)


def naive(outputs, allows):
    """Loops over anchors and candidates of an (b, t, lane) grid, in float64."""
    z, predictions = np.asarray(outputs.z, np.float64), np.asarray(outputs.predictions, np.float64)
    b, t, lanes, num_offsets = predictions.shape[:4]
    total = 0.0
    for k in range(1, num_offsets + 1):
        losses = []
        for i, s, a in np.ndindex(b, t - k, lanes):
            query = predictions[i, s, a, k - 1]
            positive = query @ z[i, s + k, a]
            scores = [
                query @ z[j, u, lane]
                for j, u, lane in np.ndindex(b, t, lanes)
                if (j, u, lane) != (i, s + k, a) and allows((i, s, a), (j, u, lane))
            ]
            if scores:
                losses.append(np.logaddexp.reduce([positive, *scores]) - positive)
        total += np.mean(losses)
    return total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "allows"),
    [
        (negatives.batch, lambda a, c: True),
        (negatives.excluding_sequence, lambda a, c: a[0] != c[0]),
        (negatives.own_sequence, lambda a, c: a[0] == c[0]),
        (negatives.same_group, lambda a, c: a[0] % 2 == c[0] % 2),
        (negatives.within_shards(2, 4), lambda a, c: a[0] // 2 == c[0] // 2),
    ],
)
def test_images_have_lanes(rule, allows):
    """Rows for time, columns for lanes: the loss of images is the same function."""
    outputs = random_outputs(4, 4, 3, 2, lanes=(3,))
    positions = Position(
        np.arange(4)[:, None, None],
        np.arange(4)[None, :, None],
        np.arange(3)[None, None],
        (np.arange(4) % 2)[:, None, None],
    )
    loss, _ = cpc_loss(outputs, positions, rule, block=5)
    assert float(loss) == pytest.approx(naive(outputs, allows), rel=1e-5)


@pytest.mark.slow
def test_equal_scores_give_log_n():
    outputs = jax.tree.map(jnp.zeros_like, random_outputs(3, 8, 4, 2))
    loss, sums = cpc_loss(outputs, positions_of(3, 8), negatives.batch)
    assert float(loss) == pytest.approx(2 * np.log(24), rel=1e-6)
    np.testing.assert_array_equal(sums.n / sums.anchors, 24.0)
    np.testing.assert_array_equal(sums.top1, 0.0)  # ties are lost
    np.testing.assert_allclose(sums.pairwise / sums.anchors, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("gap", [100.0, -100.0, 1e4, -1e4])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_huge_scores_keep_their_gradient(gap, dtype):
    """A positive 100 below must still pull with full strength (log(softmax + eps) would not)."""
    z = jnp.zeros((2, 2, 1), dtype).at[0, 1].set(gap)
    predictions = jnp.zeros((2, 2, 1, 1), dtype).at[0, 0].set(1.0)

    def loss(z):
        return cpc_loss(
            CPCOutputs(z, z, predictions), positions_of(2, 2), negatives.excluding_sequence
        )[0]

    value, gradient = jax.value_and_grad(loss)(z)
    expected = max(-gap, 0.0) + (np.log(2) if gap < 0 else 0.0)
    assert float(value) == pytest.approx((expected + np.log(3)) / 2, rel=1e-2)
    assert float(gradient[0, 1, 0]) == pytest.approx(-0.5 if gap < 0 else 0.0, abs=1e-3)
    assert gradient.dtype == dtype


@pytest.mark.slow
def test_padding_has_no_part_and_no_gradient():
    outputs = random_outputs(3, 9, 4, 3)
    where = jnp.arange(9)[None] < jnp.array([9, 6, 4])[:, None]
    poison = jnp.where(where[..., None], outputs.z, jnp.nan)
    predictions = jnp.where(where[..., None, None], outputs.predictions, jnp.nan)
    poisoned = CPCOutputs(poison, poison, predictions)

    def loss(outputs):
        return cpc_loss(outputs, positions_of(3, 9), negatives.batch, where=where)[0]

    assert float(loss(outputs)) == float(loss(poisoned))
    gradients = jax.grad(loss)(poisoned)
    for gradient in (gradients.z, gradients.predictions):
        assert jnp.isfinite(gradient).all()
        np.testing.assert_array_equal(np.asarray(gradient)[~np.asarray(where)], 0.0)


@pytest.mark.slow
def test_order_of_sequences_does_not_matter():
    outputs, order = random_outputs(5, 8, 4, 3, seed=3), jnp.array([3, 1, 4, 0, 2])
    speaker = np.array([0, 0, 1, 1, 1])
    rule = negatives.same_group & negatives.outside_window(1)
    loss, _ = cpc_loss(outputs, positions_of(5, 8, speaker), rule)
    mixed, _ = cpc_loss(
        jax.tree.map(lambda x: x[order], outputs), positions_of(5, 8, speaker[order]), rule
    )
    assert float(loss) == pytest.approx(float(mixed), rel=1e-6)


@pytest.mark.slow
def test_loss_and_accuracy_read_the_same_axis():
    """Asymmetric scores: candidates compete for a fixed context, never the reverse."""
    predictions = jnp.array([[[[1.0, 0.0]], [[0.0, 0.0]]], [[[4.0, 0.1]], [[0.0, 0.0]]]])
    z = jnp.array([[[0.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]])
    loss, sums = cpc_loss(
        CPCOutputs(z, z, predictions), positions_of(2, 2), negatives.one_per_sequence
    )
    # Anchor 0 scores (1, 0), its own first; anchor 1 scores (4, 0.1), its own second.
    expected = (np.log1p(np.exp(-1.0)) + np.log1p(np.exp(3.9))) / 2
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    assert float(sums.top1[0]) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [2, 4, 8])
@pytest.mark.parametrize("shards", [1, 8])
def test_devices_change_nothing(num_devices, shards):
    outputs = random_outputs(8, 10, 6, 3)
    rule = negatives.batch & negatives.within_shards(shards, 8)

    def loss(outputs):
        return cpc_loss(outputs, positions_of(8, 10), rule, block=24)

    one = jax.jit(jax.value_and_grad(loss, has_aux=True))(outputs)
    mesh = jax.make_mesh(
        (num_devices,),
        ("batch",),
        axis_types=(jax.sharding.AxisType.Auto,),
        devices=jax.devices()[:num_devices],
    )
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    many = jax.jit(jax.value_and_grad(loss, has_aux=True))(jax.device_put(outputs, sharding))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, many)
    np.testing.assert_array_equal(one[0][1].n, many[0][1].n)


def test_shards_are_scored_by_themselves():
    """The numbers of the rule alone, in a quarter of the work."""
    outputs, rule = random_outputs(8, 10, 6, 3), negatives.within_shards(4, 8)

    def compile_loss(rule):
        def loss(outputs):
            return cpc_loss(outputs, positions_of(8, 10), rule, block=80)

        return jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(outputs).compile()

    marked, plain = compile_loss(rule), compile_loss(dataclasses.replace(rule, shard_size=None))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        marked(outputs),
        plain(outputs),
    )
    assert marked.cost_analysis()["flops"] < 0.5 * plain.cost_analysis()["flops"]


def thin(num_negatives):
    def choose(rng, positive, scores, where):
        return scores, negatives.sample_uniform(rng, where, num_negatives)

    return choose


@pytest.mark.slow
def test_chance_is_that_of_each_anchor():
    """Of clips of 6, 8 and 10 latents: at late times there are few to guess among."""
    outputs, exists = random_outputs(8, 10, 4, 1), np.arange(10) < np.r_[[6] * 6, 8, 10][:, None]
    rule = negatives.one_per_sequence
    sums = cpc_loss(outputs, positions_of(8, 10), rule, where=jnp.array(exists))[1]
    among = np.array([exists[:, t].sum() for t in range(1, 10) for there in exists if there[t]])
    among = among[among > 1]
    assert float(sums.n[0]) == among.sum()
    assert float(sums.chance[0]) == pytest.approx((1 / among).sum())
    track = Tracker(True)(sums)
    assert track.chance[0] == pytest.approx((1 / among).mean())
    assert track.chance[0] > 1.1 / track.n[0]


@pytest.mark.slow
def test_sampled_negatives_are_a_number():
    outputs = random_outputs(4, 10, 5, 3)
    loss, sums = cpc_loss(
        outputs,
        positions_of(4, 10),
        negatives.excluding_sequence,
        choose=thin(6),
        rng=jax.random.key(1),
    )
    np.testing.assert_array_equal(sums.n / sums.anchors, 7.0)
    everything, _ = cpc_loss(outputs, positions_of(4, 10), negatives.excluding_sequence)
    assert float(loss) < float(everything)


def margin_loss(positive, negatives, where):
    """A loss of no closed form here, which NaN would poison if masks came too late."""
    hinge = jnp.square(jnp.maximum(0.0, 1.0 + negatives - positive[:, None]))
    return jnp.where(where, hinge, 0.0).sum(-1)


def wrapped_info_nce(positive, negatives, where):
    return info_nce(positive, negatives, where)


def shrink(rng, positive, scores, where):
    """Scores below the positive, shrunk and moved with it."""
    return 0.5 * scores + 0.1 * positive[:, None], where & (scores < positive[:, None])


@pytest.mark.parametrize("choose", [None, shrink])
@pytest.mark.parametrize("loss", [info_nce, wrapped_info_nce, margin_loss])
def test_any_loss_and_choice_by_blocks_equal_the_whole_matrix(loss, choose):
    outputs, positions, rule = random_outputs(3, 7, 5, 2), positions_of(3, 7), negatives.batch

    def whole(z, predictions):
        total = 0.0
        flat = Position(*(np.broadcast_to(p, (3, 7)).reshape(-1) for p in positions))
        for k in (1, 2):
            queries = predictions[:, :, k - 1].reshape(-1, 5)
            scores = queries @ z.reshape(-1, 5).T
            anchors = Position(*(p[:, None] for p in flat))
            here = np.flatnonzero(np.asarray(flat.time) + k < 7)
            positive = scores[here, here + k]
            allowed = jnp.asarray(rule(anchors, flat, k)[here])
            chosen, where = scores[here], allowed
            if choose is not None:
                chosen, where = choose(None, positive, chosen, allowed)
            total += loss(positive, chosen, where).sum() / where.any(-1).sum()
        return total

    def blocks(z, predictions):
        outputs = CPCOutputs(z, z, predictions)
        return cpc_loss(outputs, positions, rule, loss=loss, choose=choose, block=6)[0]

    args = (outputs.z, outputs.predictions)
    expected = jax.jit(jax.value_and_grad(whole, (0, 1)))(*args)
    got = jax.jit(jax.value_and_grad(blocks, (0, 1)))(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), expected, got)


of_losses_with_a_floor = pytest.mark.parametrize(
    "loss",
    [
        functools.partial(debiased, prior=0.3),
        functools.partial(hard_weighted, prior=0.3, concentration=0.5),
    ],
    ids=["debiased", "hard_weighted"],
)


@pytest.mark.slow
@pytest.mark.parametrize("tau", [1.0, 0.1])
@of_losses_with_a_floor
def test_the_floor_of_cosines_is_that_of_the_temperature(loss, tau):
    """Of e^(-1 / tau); half of the anchors are of a prior that takes all of their noise away."""
    outputs, positions, rule = random_outputs(3, 7, 5, 1), positions_of(3, 7), negatives.batch
    unit = jax.tree.map(lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True), outputs)
    moved = 2 * jnp.roll(unit.z, -1, axis=1)[:2, :, None]  # towards their positives
    predictions = unit.predictions.at[:2].add(moved)
    predictions = predictions / jnp.linalg.norm(predictions, axis=-1, keepdims=True)

    def whole(z, predictions):
        scores = predictions[:, :-1, 0].reshape(-1, 5) @ z.reshape(-1, 5).T
        place = jnp.arange(21).reshape(3, 7)[:, 1:].ravel()  # of the positives
        positive, where = scores[jnp.arange(18), place], jnp.arange(21) != place[:, None]
        return loss(positive, scores, where, temperature=tau).mean()

    def blocks(z, predictions):
        outputs = CPCOutputs(z, z, predictions)
        return cpc_loss(outputs, positions, rule, loss=loss, temperature=tau, block=6)[0]

    args = (unit.z, predictions)
    expected = jax.jit(jax.value_and_grad(whole, (0, 1)))(*args)
    got = jax.jit(jax.value_and_grad(blocks, (0, 1)))(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), expected, got)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [negatives.batch, negatives.one_per_sequence])
@of_losses_with_a_floor
def test_a_learned_temperature_moves_the_floor_too(loss, rule):
    outputs, positions = random_outputs(3, 7, 5, 2), positions_of(3, 7)
    moved = outputs.predictions + 3 * jnp.roll(outputs.z, -1, axis=1)[:, :, None]
    unit = jax.tree.map(
        lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True),
        outputs._replace(predictions=moved),
    )

    @jax.jit
    def of(tau):
        return cpc_loss(unit, positions, rule, loss=loss, temperature=tau)[0]

    tau, step = jnp.float32(0.5), 0.001  # no anchor reaches its floor in between
    slope = (of(tau + step) - of(tau - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(of)(tau), slope, rtol=1e-2)


GENERAL = dataclasses.replace(negatives.one_per_sequence, aligned=False)


@pytest.mark.slow
def test_strict_bound_equals_the_rule():
    outputs = random_outputs(6, 9, 5, 4)
    _, sums = jax.jit(lambda outputs: cpc_loss(outputs, positions_of(6, 9), GENERAL))(outputs)
    strict = jax.jit(bound_over_sequences)(outputs.z, outputs.predictions)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5), strict, sums)


@pytest.mark.slow
@pytest.mark.parametrize("choose", [None, shrink])
@pytest.mark.parametrize("loss", [info_nce, margin_loss, functools.partial(debiased, prior=0.5)])
def test_aligned_equals_the_blocks(loss, choose):
    """Rows and columns, padding, offsets that skip: values and gradients."""
    outputs = random_outputs(4, 15, 5, 2)
    grid = jax.tree.map(lambda x: x.reshape(4, 5, 3, *x.shape[2:]), outputs)
    positions = Position(
        np.arange(4)[:, None, None],
        np.arange(5)[None, :, None],
        np.arange(3)[None, None],
        np.zeros((1, 1, 1), int),
    )
    exists = jnp.arange(60).reshape(4, 5, 3) % 7 > 0

    def value(z, predictions, rule):
        return cpc_loss(
            CPCOutputs(z, z, predictions),
            positions,
            rule,
            loss=loss,
            choose=choose,
            offsets=(2, 3),
            where=exists,
        )

    results = [
        jax.jit(jax.value_and_grad(value, (0, 1), has_aux=True), static_argnums=2)(
            grid.z, grid.predictions, rule
        )
        for rule in (GENERAL, negatives.one_per_sequence)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), *results)


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        negatives.batch,
        negatives.same_group,
        negatives.within_shards(2, 4),
        negatives.Rule("late", lambda anchor, candidate, k: candidate.time > 3),
    ],
    ids=lambda rule: rule.name,
)
def test_a_rule_joined_with_an_aligned_one_is_aligned(other):
    """The numbers of all pairs, and none of their work."""
    outputs, rule = random_outputs(4, 12, 64, 3), other & negatives.one_per_sequence
    positions = positions_of(4, 12, np.array([0, 0, 1, 0]))

    def compile_loss(rule):
        def loss(outputs):
            return cpc_loss(outputs, positions, rule, block=48)

        return jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(outputs).compile()

    whole = dataclasses.replace(rule, aligned=False, shard_size=None)
    aligned, pairs = compile_loss(rule), compile_loss(whole)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6),
        aligned(outputs),
        pairs(outputs),
    )
    assert aligned.cost_analysis()["flops"] < 0.3 * pairs.cost_analysis()["flops"]


@pytest.mark.parametrize("columns", [None, 5])
def test_a_temperature_bound_to_info_nce_is_that_of_the_loss(columns):
    """The same program: derivative by hand, and rows that are cut."""
    outputs, positions = random_outputs(), positions_of(3, 7)

    def program(**options):
        def loss(outputs):
            return cpc_loss(outputs, positions, negatives.batch, columns=columns, **options)

        return str(jax.make_jaxpr(jax.value_and_grad(loss, has_aux=True))(outputs))

    expected = program(temperature=0.25)
    bound = functools.partial(info_nce, temperature=0.25)
    assert program(loss=bound) == expected
    assert program(loss=functools.partial(bound, temperature=0.5), temperature=0.5) == expected
    assert program(loss=lambda *args: bound(*args)) != expected


GAP = np.array([0, 1, 3, 4, 5, 6])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("positions", "rule"),
    [
        (positions_of(4, 6)._replace(time=GAP[None]), negatives.one_per_sequence),
        (
            positions_of(4, 6)._replace(time=np.arange(6) + np.array([[0], [1], [0], [1]])),
            negatives.one_per_sequence,
        ),
        (
            positions_of(4, 6)._replace(lane=np.array([0, 1, 0, 0])[:, None]),
            negatives.one_per_sequence,
        ),
        (
            positions_of(4, 6)._replace(sequence=np.array([0, 2, 1, 3])[:, None]),
            negatives.within_shards(2, 4),
        ),
        (
            positions_of(4, 6)._replace(sequence=np.array([0, 1, 0, 1])[:, None]),
            negatives.within_shards(2, 4),
        ),
    ],
    ids=["gap", "other start", "other lane", "mixed shards", "one shard twice"],
)
def test_positions_that_a_structure_does_not_fit_are_refused(positions, rule):
    """Known, by a sentence; traced, by a loss that is no number. All pairs are scored rightly."""
    outputs = random_outputs(4, 6, 3, 1)
    with pytest.raises(UserError, match=r"under the rule"):
        cpc_loss(outputs, positions, rule)
    traced, _ = jax.jit(lambda p: cpc_loss(outputs, p, rule))(positions)
    assert np.isnan(traced)
    pairs = dataclasses.replace(rule, aligned=False, shard_size=None)
    assert np.isfinite(cpc_loss(outputs, positions, pairs)[0])
    fine, _ = jax.jit(lambda p: cpc_loss(outputs, p, rule))(positions_of(4, 6))
    assert np.isfinite(fine)


@pytest.mark.slow
def test_gaps_that_are_padding_are_no_gaps():
    outputs, rule = random_outputs(3, 6, 3, 2), negatives.one_per_sequence
    where = np.ones((3, 6), bool)
    where[1, 4:] = False
    time = np.where(where, np.arange(6)[None], -1)
    positions = positions_of(3, 6)._replace(time=time)
    loss, _ = cpc_loss(outputs, positions, rule, where=jnp.asarray(where))
    expected, _ = cpc_loss(outputs, positions_of(3, 6), rule, where=jnp.asarray(where))
    assert float(loss) == float(expected)


@pytest.mark.slow
def test_memory_is_further_candidates_without_a_gradient():
    """Two batches as one, against one batch with 9 latents of the other as its memory."""
    both, positions = random_outputs(4, 6, 5, 2), positions_of(4, 6)
    rule = negatives.excluding_sequence
    half = CPCOutputs(*(x[:2] for x in both))
    other = Position(
        *(jnp.broadcast_to(p, (4, 6))[2:].reshape(-1) for p in positions),
    )

    def loss(outputs, old):
        exists = jnp.arange(12) < 9
        memory = MemoryBank(jnp.where(exists[:, None], old.reshape(-1, 5), jnp.nan), other, exists)
        return cpc_loss(outputs, positions_of(2, 6), rule, memory=memory)

    (value, sums), (new, dold) = jax.value_and_grad(loss, (0, 1), has_aux=True)(half, both.z[2:])
    np.testing.assert_array_equal(sums.n / sums.anchors, 1 + 6 + 9)
    assert all(np.isfinite(gradient).all() for gradient in new)
    assert np.any(np.asarray(new.z))
    assert not np.any(np.asarray(dold))
    queries = half.predictions[:, :, 0].reshape(-1, 5)
    candidates = jnp.concatenate([half.z.reshape(-1, 5), both.z[2:].reshape(-1, 5)[:9]])
    matrix = np.asarray(queries @ candidates.T, np.float64)
    losses = []
    for i in range(12):
        if i % 6 < 5:
            allowed = [j for j in range(21) if j == i + 1 or j >= 12 or j // 6 != i // 6]
            losses.append(np.logaddexp.reduce(matrix[i, allowed]) - matrix[i, i + 1])
    np.testing.assert_allclose(sums.loss[0], np.sum(losses), rtol=1e-5)
    assert np.isfinite(float(value))


@pytest.mark.slow
def test_bias_is_added_to_every_score():
    outputs, positions = random_outputs(3, 6, 4, 2), positions_of(3, 6)

    def biased(positive, negatives, where):
        return margin_loss(positive - 0.5, 2 * (negatives - 0.5), where)

    def plain(positive, negatives, where):
        return margin_loss(positive, 2 * negatives, where)

    expected, _ = cpc_loss(outputs, positions, negatives.batch, loss=plain)

    def loss(bias):
        return cpc_loss(outputs, positions, negatives.batch, loss=biased, bias=bias)[0]

    got, slope = jax.value_and_grad(loss)(jnp.array(0.5))
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    step = (loss(jnp.array(0.51)) - loss(jnp.array(0.49))) / 0.02
    np.testing.assert_allclose(slope, step, rtol=1e-2)


@pytest.mark.parametrize("bias", [-2.0, jnp.float32(0.0)], ids=["number", "array"])
@pytest.mark.parametrize("rule", [negatives.batch, negatives.one_per_sequence])
def test_a_loss_with_a_floor_takes_no_bias(rule, bias):
    """In the scores and not in the floor, it would move the one against the other."""
    loss = functools.partial(debiased, prior=0.5)
    call = functools.partial(cpc_loss, random_outputs(), positions_of(3, 7), rule, loss=loss)
    with pytest.raises(UserError, match="leave bias=0"):
        call(bias=bias)


def cost_of_all(positive, negatives, where, *, size):
    """Not zero where an anchor does not count."""
    return size * (1 + jnp.square(positive) + jnp.where(where, negatives, 0.0).sum(-1))


OF_BATCH = functools.partial(nce, log_noise_positive=0.0, log_noise_negatives=0.0)
SHARDS = negatives.within_shards(2, 4)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [negatives.one_per_sequence, SHARDS], ids=["aligned", "shards"])
@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (OF_BATCH, "log_normalizer"),
        (sigmoid, "bias"),
        (functools.partial(hard_weighted, prior=0.1), "concentration"),
        (sup_con, "temperature"),
        (cost_of_all, "size"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_an_option_of_the_loss_may_be_learned(loss, name, rule):
    """As where the structure of the rule is used, and, to rounding, as the slope."""
    outputs, positions = random_outputs(4, 6, 5, 2), positions_of(4, 6, [0, 1, 1, 0])
    where = jnp.arange(6)[None] < jnp.array([[6], [2], [6], [4]])

    def of_rule(rule, outputs, option):
        options = {"loss": functools.partial(loss, **{name: option}), "where": where, "block": 8}
        return cpc_loss(outputs, positions, rule, temperature=2.0, **options)[0]

    def found(rule):
        call = functools.partial(of_rule, rule)
        return jax.value_and_grad(jax.jit(call), (0, 1))(outputs, jnp.float32(0.7))

    general = dataclasses.replace(rule, aligned=False, shard_size=None)
    got, expected = found(general), found(rule)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), got, expected)
    low, high = (of_rule(general, outputs, jnp.float32(x)) for x in (0.69, 0.71))
    assert float(got[1][1]) == pytest.approx(float(high - low) / 0.02, rel=1e-2)
    assert abs(float(got[1][1])) > 1e-3


def by_temperature(outputs, tau):
    return cpc_loss(outputs, positions_of(16, 33), negatives.batch, temperature=tau)[0]


def by_temperature_aligned(outputs, tau):
    options = {"num_frames": 1, "temperature": tau}
    return acpc_loss(outputs, positions_of(16, 33), negatives.batch, **options)[0]


def by_bias(outputs, bias):
    options = {"loss": sigmoid, "temperature": 0.125, "bias": bias}
    return cpc_loss(outputs, positions_of(16, 33), negatives.batch, **options)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "at"), [(by_temperature, 0.125), (by_temperature_aligned, 0.125), (by_bias, -2.5)]
)
def test_the_gradient_of_a_number_is_summed_in_float32(loss, at):
    """Of half a thousand anchors; in bfloat16 a sum of ones stops at 256."""
    single = random_outputs(16, 33, 8, 1)
    single = jax.tree.map(lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True), single)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), single)
    expected, got = (jax.jit(jax.grad(loss, 1))(outputs, at) for outputs in (single, half))
    assert float(got) == pytest.approx(float(expected), rel=5e-3)


@pytest.mark.slow
def test_offsets_name_what_is_predicted():
    outputs, positions = random_outputs(3, 9, 4, 4), positions_of(3, 9)
    _, sums = cpc_loss(outputs, positions, negatives.batch)
    chosen = outputs._replace(predictions=outputs.predictions[:, :, 1::2])
    _, some = cpc_loss(chosen, positions, negatives.batch, offsets=(2, 4))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1::2], b), sums, some)


@pytest.mark.parametrize("offsets", [(1, 2), (0, 1, 2, 3), (1,)])
def test_offsets_are_as_many_as_predictions(offsets):
    with pytest.raises(UserError, match="offsets"):
        cpc_loss(random_outputs(2, 9, 3, 4), positions_of(2, 9), negatives.batch, offsets=offsets)


@pytest.mark.slow
def test_a_temperature_may_be_an_array_that_jit_closes_over():
    tau = jnp.float32(0.5)
    call = functools.partial(cpc_loss, random_outputs(), positions_of(3, 7), negatives.batch)
    loss, _ = jax.jit(lambda: call(temperature=tau))()
    assert float(loss) == pytest.approx(float(call(temperature=0.5)[0]), rel=1e-6)


def test_too_many_offsets_is_a_sentence():
    with pytest.raises(UserError, match="an offset of 12 needs sequences of more than 12 latents"):
        cpc_loss(random_outputs(2, 12, 3, 12), positions_of(2, 12), negatives.batch)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"temperature": 0.0}, "temperature is 0.0: it must be above 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": jnp.ones(3)}, r"temperature has shape \(3,\): it must be one number"),
        ({"block": 0}, "block is 0: it must be 1 or more"),
        ({"columns": 0}, "columns is 0"),
        ({"where": jnp.ones((3, 7))}, "where is float32"),
        ({"where": jnp.ones((3, 1), bool)}, r"booleans of the shape \(3, 7\)"),
    ],
    ids=str,
)
def test_mistakes_are_named(options, sentence, unchecked):
    with pytest.raises(UserError, match=sentence):
        cpc_loss(random_outputs(), positions_of(3, 7), negatives.batch, **options)


@pytest.mark.parametrize("loss", [cpc_loss, functools.partial(acpc_loss, num_frames=3)])
def test_shapes_that_do_not_fit_are_named(loss, unchecked):
    outputs, positions = random_outputs(4, 5, 2, 2), positions_of(4, 5)
    for shape in ((4, 4, 1, 4), (4, 2, 1, 2), (4, 5, 1, 4), (4, 5, 0, 2), (4, 5, 2), (2,)):
        wrong = outputs._replace(predictions=jnp.zeros(shape))
        with pytest.raises(UserError, match=r"z has shape \(4, 5, 2\) and predictions"):
            loss(wrong, positions, negatives.batch)
    with pytest.raises(UserError, match=r"the positions' sequence has shape \(3, "):
        loss(outputs, positions_of(3, 5), negatives.batch)


@pytest.mark.parametrize("shape", [(2, 3, 2), (1, 2, 2), (2, 2, 3), (2, 2)], ids=str)
def test_maps_that_lead_elsewhere_are_named(shape, unchecked):
    outputs = random_outputs(4, 5, 2, 2)
    outputs = outputs._replace(c=jnp.zeros((4, 5, 2)))
    with pytest.raises(UserError, match=r"maps has shape .*, c \(4, 5, 2\)"):
        cpc_loss(outputs, positions_of(4, 5), negatives.batch, maps=jnp.zeros(shape))


@pytest.mark.parametrize("shape", [(6, 3), (5, 2)], ids=str)
def test_memory_of_other_latents_is_named(shape, unchecked):
    positions = Position(*(jnp.zeros(6, jnp.int32) + 9 for _ in Position._fields))
    memory = MemoryBank(jnp.zeros(shape), positions, jnp.ones(6, bool))
    with pytest.raises(UserError, match="the memory's keys have shape"):
        cpc_loss(random_outputs(4, 5, 2, 2), positions_of(4, 5), negatives.batch, memory=memory)


def test_float64_of_numpy_is_read_as_float32(unchecked):
    """JAX would warn of each array, and warnings are errors here."""
    rng = np.random.default_rng(0)
    latents = (
        rng.normal(size=(3, 7, 4)),
        rng.normal(size=(3, 7, 4)),
        rng.normal(size=(3, 7, 2, 4)),
    )
    given, wanted = (
        cpc_loss(CPCOutputs(*(x.astype(d) for x in latents)), Position.grid(3, 7), negatives.batch)
        for d in (np.float64, np.float32)
    )
    assert float(given[0]) == pytest.approx(float(wanted[0]), rel=1e-6)
