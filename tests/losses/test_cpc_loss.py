"""The CPC loss: goldens, naive float64 twins, closed forms and invariances."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import losses, negatives
from cpc.estimators import Tracker, bound_over_sequences
from cpc.losses import MemoryBank, cpc_loss, debiased, info_nce, sigmoid
from cpc.types import CPCOutputs, Position, Rule, UserError
from tests.goldens.goldens import load_golden
from tests.losses.any_rule import any_rule, assert_same, contrasts, with_index

META, CASES = load_golden("cpc_loss.npz")
RULES = {
    "all": negatives.batch,
    "exclude_own": negatives.excluding_sequence,
    "own_only": negatives.own_sequence,
    "same_speaker": negatives.same_group,
    "same_speaker_exclude_own": negatives.same_group & negatives.excluding_sequence,
}
TARGETS_ONLY = Rule("targets", lambda anchor, candidate, k: candidate.time >= k)
COVERED = [
    name
    for name, (params, _, expected) in CASES.items()
    if params["rule"] in RULES
    and params["anchors"] == "per_step"
    and (expected["n_anchors"] > expected["n_without_negatives"]).any()
]
assert len(COVERED) >= 25, "only explicit negatives and common anchors are out of scope"


def positions_of(batch, length, speaker=None):
    return Position.grid(batch, length, group=np.zeros(batch) if speaker is None else speaker)


def golden_rule(params):
    rule = RULES[params["rule"]] & negatives.outside_window(params["window"])
    return rule & TARGETS_ONLY if params["pool"] == "targets" else rule


GOLDEN_RULES = {golden_rule(CASES[name][0]).name: golden_rule(CASES[name][0]) for name in COVERED}
ANY_GOLDEN = any_rule(list(GOLDEN_RULES.values()))


@functools.partial(jax.jit, static_argnames="block")
@functools.partial(jax.value_and_grad, has_aux=True)
def golden_loss(arrays, positions, where, temperature, cosine, *, block):
    """Return the loss of latents that are NaN outside the mask."""
    z, c, w = arrays
    predictions = jnp.einsum("bth,kdh->btkd", c, w)
    z, predictions = (
        jnp.where(cosine, x / jnp.sqrt(jnp.maximum((x**2).sum(-1, keepdims=True), 1e-24)), x)
        for x in (z, predictions)
    )
    poison = jnp.where(where, 0.0, jnp.nan)[..., None]
    outputs = CPCOutputs(z + poison, z + poison, predictions + poison[..., None])
    options = {"temperature": temperature, "where": where, "block": block}
    return cpc_loss(outputs, positions, ANY_GOLDEN, **options)


def pad(x, shape):
    return np.pad(np.float32(x), [(0, size - n) for size, n in zip(shape, x.shape, strict=True)])


def run_golden(params, inputs):
    """Run a case padded to the shape of all cases; added offsets have zero predictions."""
    b, t = inputs["z"].shape[:2]
    if params["K"] == 12:
        size, num, block = (5, 24, 6, 8), 12, 512
    else:
        size, num, block = (4, 12, 12, 12), 3, 20
    batch, length, d, h = size
    shapes = {"z": (batch, length, d), "c": (batch, length, h), "W": (num, d, h)}
    lengths = np.zeros(batch, int)
    lengths[:b] = inputs.get("lengths", t)
    speaker = np.zeros(batch, int)
    speaker[:b] = inputs.get("speaker", 0)
    index = list(GOLDEN_RULES).index(golden_rule(params).name)
    (_, sums), gradients = golden_loss(
        [pad(inputs[key], shape) for key, shape in shapes.items()],
        with_index(positions_of(batch, length, speaker), index),
        np.arange(length) < lengths[:, None], 1 / params["scale"], params["cosine"], block=block,
    )  # fmt: skip
    return jax.tree.map(lambda x: x[: params["K"]], sums), dict(zip("zcW", gradients, strict=True))


@pytest.mark.parametrize("name", COVERED)
def test_equals_golden(name):
    params, inputs, expected = CASES[name]
    sums, gradients = run_golden(params, inputs)
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
    num_counted = np.sum(counted > 0)  # the goldens hold the gradient of the mean over offsets
    for key, gradient in gradients.items():
        if f"grad_{key}" in expected:
            want = expected[f"grad_{key}"] * num_counted
            close(gradient[tuple(map(slice, want.shape))], want, atol=scale(want))
        assert np.isfinite(gradient).all()


def linear_loss(arrays, with_maps, rule=negatives.batch, **options):
    z, c, maps, *memory = arrays
    if memory:
        positions = Position(*(jnp.full(len(memory[0]), -7) for _ in range(4)))
        options["memory"] = MemoryBank(memory[0], positions, jnp.ones(len(memory[0]), bool))
    outputs = CPCOutputs(z, c, jnp.einsum("bth,khd->btkd", c, maps))
    positions = positions_of(*z.shape[:2])
    return cpc_loss(outputs, positions, rule, maps=maps if with_maps else None, **options)


SHARDS = negatives.within_shards(2, 4)


@pytest.mark.parametrize(
    "options",
    [
        {"block": 8, "columns": 5, "offsets": (2, 4),
         "where": jnp.arange(6)[None] < jnp.array([6, 4, 5, 6])[:, None]},
        {"rule": SHARDS, "loss": sigmoid, "bias": -1.0, "temperature": 0.5},
    ],
    ids=["cut", "shards"],
)  # fmt: skip
def test_projecting_candidates_gives_the_same_loss(options):
    shapes = (4, 6, 7), (4, 6, 3), (2, 3, 7), *([] if "rule" in options else [(6, 7)])
    arrays = [jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes)]

    def both(with_maps):
        loss = functools.partial(linear_loss, with_maps=with_maps, **options)
        return jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays)

    assert_same(both(True), both(False), atol=2e-5)


def flop_and_program(with_maps, *shapes, rule=negatives.batch):
    def gradient(arrays):
        return jax.grad(linear_loss, has_aux=True)(arrays, with_maps, rule, block=10_000)

    lowered = jax.jit(gradient).lower([jnp.zeros(shape) for shape in shapes])
    return lowered.cost_analysis()["flops"], lowered.as_text()


def test_candidates_are_projected_if_contexts_are_narrower():
    narrow = (4, 64, 128), (4, 64, 16), (1, 16, 128)
    wide = (4, 64, 16), (4, 64, 16), (1, 16, 16)
    assert flop_and_program(True, *narrow)[0] < 0.5 * flop_and_program(False, *narrow)[0]
    assert flop_and_program(True, *wide) == flop_and_program(False, *wide)
    aligned = functools.partial(flop_and_program, rule=negatives.one_per_sequence)
    assert aligned(True, *narrow) == aligned(False, *narrow)


def random_outputs(batch=3, length=7, width=4, num_offsets=2, seed=0, lanes=()):
    rng = np.random.default_rng(seed)
    shapes = (batch, length, *lanes, width), (batch, length, *lanes, num_offsets, width)
    z, predictions = (jnp.float32(rng.normal(size=shape)) for shape in shapes)
    return CPCOutputs(z, z, predictions)


def naive(z, predictions, positions, rule, offsets, group=(-1,), inside=False, **options):
    """Return the losses of anchors by offset; allowed latents of a known group are positives."""
    losses, length, args = [[] for _ in offsets], z[0, ..., 0].size, (positions, rule, offsets)
    for row, i, target, allowed, scores in contrasts(z, predictions, *args, **options):
        own = np.take(group, i // length, mode="clip")
        is_alike = (np.take(group, allowed // length, mode="clip") == own) & (own >= 0)
        alike = scores[[target, *allowed[is_alike]], row]
        if not is_alike.all():
            total = np.logaddexp.reduce([*alike, *scores[allowed[~is_alike], row]])
            losses[row].append(total - (np.log(np.exp(alike).mean()) if inside else alike.mean()))
    return losses


LANES = Position.grid(4, 4, 3, group=np.arange(4) % 2)
LANE_RULES = {name: RULES[name] for name in ("all", "exclude_own", "own_only", "same_speaker")}
LANE_RULES["shards"] = SHARDS
ANY_LANE = any_rule(list(LANE_RULES.values()))


@functools.partial(jax.jit, static_argnames="rule")
def loss_of_lanes(outputs, positions, rule):
    return cpc_loss(outputs, positions, rule, block=5, offsets=(1, 3))


@pytest.mark.parametrize("name", LANE_RULES)
def test_lanes_equal_the_naive_twin(name):
    outputs, rule = random_outputs(4, 4, 3, 2, lanes=(3,)), LANE_RULES[name]
    want = sum(map(np.mean, naive(outputs.z, outputs.predictions, LANES, rule, (1, 3))))
    for one in (ANY_LANE, *[SHARDS] * (rule is SHARDS)):
        loss, _ = loss_of_lanes(outputs, with_index(LANES, list(LANE_RULES).index(name)), one)
        assert float(loss) == pytest.approx(want, rel=1e-5)


def test_equal_scores_give_log_n():
    outputs = jax.tree.map(jnp.zeros_like, random_outputs(4, 4, 3, 2, lanes=(3,)))
    loss, sums = loss_of_lanes(outputs, with_index(LANES, 0), ANY_LANE)
    assert float(loss) == pytest.approx(2 * np.log(48), rel=1e-6)
    np.testing.assert_array_equal(sums.n / sums.anchors, 48.0)
    np.testing.assert_array_equal(sums.top1, 0.0)  # ties are lost
    np.testing.assert_allclose(sums.pairwise / sums.anchors, 0.5)


def test_chance_averages_over_anchors():
    """Lengths of 0, 6, 8 and 10 leave few candidates at late times."""
    outputs, mask = random_outputs(8, 10, 4, 1), np.arange(10) < np.r_[0, [6] * 5, 8, 10][:, None]

    @jax.jit
    def sums_of(where):
        return cpc_loss(outputs, positions_of(8, 10), negatives.one_per_sequence, where=where)[1]

    sums = sums_of(jnp.array(mask))
    among = np.array([mask[:, t].sum() for t in range(1, 10) for there in mask if there[t]])
    among = among[among > 1]
    assert float(sums.n[0]) == among.sum()
    assert float(sums.sequences[0]) == 7  # the empty sequence does not count
    assert float(sums.chance[0]) == pytest.approx((1 / among).sum())
    track = Tracker(True)(sums)
    assert track.chance[0] == pytest.approx((1 / among).mean())
    assert track.chance[0] > 1.1 / track.n[0]


def margin_loss(positive, negatives, where, *, weight=1.0):
    """A loss without closed form that returns NaN if masks are applied too late."""
    hinge = jnp.square(jnp.maximum(0.0, 1.0 + negatives - positive[:, None]))
    return weight * jnp.where(where, hinge, 0.0).sum(-1)


def shrink(rng, positive, scores, where):
    """Keep scores below the positive, shrunk and shifted with it."""
    return 0.5 * scores + 0.1 * positive[:, None], where & (scores < positive[:, None])


POSITIONS = positions_of(3, 5)


def whole_matrices(loss, z, predictions, tau, bias):
    """Return the loss after `shrink`, from one score matrix per offset."""
    flat = Position(*(np.broadcast_to(p, (3, 5)).reshape(-1) for p in POSITIONS))
    anchors, total = Position(*(p[:, None] for p in flat)), 0.0
    for k in (1, 2):
        scores = predictions[:, :, k - 1].reshape(-1, 5) @ z.reshape(-1, 5).T / tau + bias
        here = np.flatnonzero(np.asarray(flat.time) + k < 5)
        where = jnp.asarray(negatives.batch(anchors, flat, k)[here])
        chosen, where = shrink(None, scores[here, here + k], scores[here], where)
        total += loss(scores[here, here + k], chosen, where).sum() / where.any(-1).sum()
    return total


@pytest.mark.parametrize("loss", [info_nce, margin_loss])
def test_blocks_equal_the_whole_matrix_for_any_loss(loss):
    def blocks(loss, z, predictions, tau, bias):
        options = {"temperature": tau, "bias": bias, "block": 6, "loss": loss, "sampler": shrink}
        outputs = CPCOutputs(z, z, predictions)
        return cpc_loss(outputs, POSITIONS, negatives.batch, **options)[0]

    _, *arrays = random_outputs(3, 5, 5, 2)
    args = *arrays, jnp.float32(0.8), jnp.float32(0.5)
    ways = [functools.partial(way, loss) for way in (blocks, whole_matrices)]
    found, want = (jax.jit(jax.value_and_grad(way, (0, 1, 2, 3)))(*args) for way in ways)
    assert_same(found, want, rtol=3e-5, atol=1e-5)


def test_floor_of_cosines_follows_the_temperature():
    """The floor is exp(-1 / tau); half of the anchors reach it."""
    loss = functools.partial(losses.hard_weighted, prior=0.3, concentration=0.5)
    outputs = random_outputs(3, 5, 5, 1)
    unit = jax.tree.map(lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True), outputs)
    moved = 2 * jnp.roll(unit.z, -1, axis=1)[:2, :, None]  # towards their positives
    predictions = unit.predictions.at[:2].add(moved)
    predictions = predictions / jnp.linalg.norm(predictions, axis=-1, keepdims=True)

    def whole(z, predictions, tau):
        scores = predictions[:, :-1, 0].reshape(-1, 5) @ z.reshape(-1, 5).T
        place = jnp.arange(15).reshape(3, 5)[:, 1:].ravel()  # columns of the positives
        positive, where = scores[jnp.arange(12), place], jnp.arange(15) != place[:, None]
        return loss(positive, scores, where, temperature=tau).mean()

    def blocks(z, predictions, tau):
        outputs = CPCOutputs(z, z, predictions)
        options = {"loss": loss, "temperature": tau, "block": 6}
        return cpc_loss(outputs, POSITIONS, negatives.batch, **options)[0]

    args = unit.z, predictions
    programs = [jax.jit(jax.value_and_grad(f, (0, 1, 2))) for f in (whole, blocks)]
    for tau in (1.0, 0.1):
        expected, got = (program(*args, jnp.float32(tau)) for program in programs)
        assert_same(got, expected, rtol=1e-4, atol=2e-5)
    known = jax.jit(lambda z, p: blocks(z, p, 0.1))(*args)
    assert float(known) == pytest.approx(float(expected[0]), rel=2e-5)


def test_strict_bound_equals_the_rule():
    outputs = random_outputs(5, 6, 4, 3)

    @jax.jit
    def both(outputs):
        rule = dataclasses.replace(negatives.one_per_sequence, aligned=False)
        strict = bound_over_sequences(outputs.z, outputs.predictions)
        return strict, cpc_loss(outputs, positions_of(5, 6), rule)[1]

    assert_same(*both(outputs))


def cost_of_all(positive, negatives, where, *, size):
    """A loss that is nonzero for anchors that do not count."""
    return size * (1 + jnp.square(positive) + jnp.where(where, negatives, 0.0).sum(-1))


def bind(loss, name, **known):
    return lambda option: {"loss": functools.partial(loss, **known, **{name: option})}


STRUCTURES = {
    "aligned, a group, a choice": (
        negatives.same_group & negatives.one_per_sequence & SHARDS,
        lambda option: {"sampler": shrink, **bind(margin_loss, "weight")(option)},
    ),
    "aligned, a floor": (
        negatives.one_per_sequence,
        lambda option: {"loss": functools.partial(debiased, prior=0.5), "temperature": option},
    ),
    "shards, several positives": (SHARDS, bind(losses.sup_con, "temperature")),
    "shards, any cost": (SHARDS, bind(cost_of_all, "size")),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structured_rules_equal_general_rules_with_less_work(name):
    rule, bind_option = STRUCTURES[name]
    outputs = random_outputs(4, 4, 64, 2, lanes=(3,))
    unit = jax.tree.map(lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True), outputs)
    positions = LANES._replace(group=np.array([0, 1, 0, 0])[:, None, None])
    mask = jnp.arange(48).reshape(4, 4, 3) % 7 > 0
    args = unit.z, unit.predictions, jnp.float32(0.7)

    def compile_loss(rule):
        @functools.partial(jax.value_and_grad, argnums=(0, 1, 2), has_aux=True)
        def loss(z, predictions, option):
            options = {"offsets": (2, 3), "where": mask, "block": 48, **bind_option(option)}
            return cpc_loss(CPCOutputs(z, z, predictions), positions, rule, **options)

        lowered = jax.jit(loss).lower(*args)
        return lowered.compile(), lowered.cost_analysis()["flops"]

    structured, flop = compile_loss(rule)
    general, flop_of_pairs = compile_loss(dataclasses.replace(rule, aligned=False, shard_size=None))
    assert flop < (0.5 if rule.aligned else 0.7) * flop_of_pairs
    found = structured(*args)
    assert_same(found, general(*args))
    low, high = (general(*args[:2], jnp.float32(x))[0][0] for x in (0.69, 0.71))
    slope = float(found[1][2])
    assert slope == pytest.approx(float(high - low) / 0.02, rel=1e-2)
    assert abs(slope) > 1e-3


@pytest.mark.parametrize("columns", [None, 5])
def test_temperature_may_be_bound_to_info_nce(columns):
    """Both give the same program, with derivative by hand and tiled rows."""
    outputs = random_outputs()

    def program(**options):
        def loss(outputs):
            positions = positions_of(3, 7)
            return cpc_loss(outputs, positions, negatives.batch, columns=columns, **options)

        return str(jax.make_jaxpr(jax.value_and_grad(loss, has_aux=True))(outputs))

    expected = program(temperature=0.25)
    bound = functools.partial(info_nce, temperature=0.25)
    assert program(loss=bound) == expected
    assert program(loss=functools.partial(bound, temperature=0.5), temperature=0.5) == expected
    assert program(loss=lambda *args: bound(*args)) != expected


GRID = positions_of(4, 6)
MISFITS = {
    "gap": (GRID._replace(time=np.array([[0, 1, 3, 4, 5, 6]])), negatives.one_per_sequence),
    "other start": (
        GRID._replace(time=np.arange(6) + np.array([[0], [1], [0], [1]])),
        negatives.one_per_sequence,
    ),
    "other lane": (
        GRID._replace(lane=np.array([0, 1, 0, 0])[:, None]), negatives.one_per_sequence
    ),
    "mixed shards": (GRID._replace(sequence=np.array([0, 2, 1, 3])[:, None]), SHARDS),
    "one shard twice": (GRID._replace(sequence=np.array([0, 1, 0, 1])[:, None]), SHARDS),
}  # fmt: skip


@functools.partial(jax.jit, static_argnames="rule")
def loss_at(positions, where, rule):
    return cpc_loss(random_outputs(4, 6, 3, 1), positions, rule, where=where)[0]


def traced_loss(positions, rule, where=True):
    shape = (4, 6)
    positions = Position(*(jnp.broadcast_to(jnp.asarray(p), shape) for p in positions))
    return loss_at(positions, jnp.broadcast_to(where, shape), rule)


@pytest.mark.parametrize("name", MISFITS)
def test_positions_that_violate_a_structure_are_rejected(name):
    positions, rule = MISFITS[name]
    with pytest.raises(UserError, match="under the rule"):
        cpc_loss(random_outputs(4, 6, 3, 1), positions, rule)
    assert np.isnan(traced_loss(positions, rule))
    assert np.isfinite(traced_loss(GRID, rule))


def test_padding_may_violate_a_structure():
    where = np.ones((4, 6), bool)
    where[1, 4:] = False
    positions = GRID._replace(time=np.where(where, np.arange(6)[None], -1))
    found, expected = (traced_loss(p, negatives.one_per_sequence, where) for p in (positions, GRID))
    assert float(found) == float(expected)
    outputs, where = random_outputs(4, 4, 3, 2, lanes=(3,)), jnp.arange(48).reshape(4, 4, 3) % 3 < 1
    jax.eval_shape(lambda: cpc_loss(outputs, LANES, negatives.one_per_sequence, where=where))


def test_memory_adds_candidates_without_gradient():
    both, positions = random_outputs(4, 6, 5, 2), positions_of(4, 6)
    half = CPCOutputs(*(x[:2] for x in both))
    other = Position(*(jnp.broadcast_to(p, (4, 6))[2:].reshape(-1) for p in positions))

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def loss(outputs, old):
        mask = jnp.arange(12) < 9
        memory = MemoryBank(jnp.where(mask[:, None], old.reshape(-1, 5), jnp.nan), other, mask)
        rule = negatives.excluding_sequence
        return cpc_loss(outputs, positions_of(2, 6), rule, memory=memory)

    (_, sums), (new, dold) = loss(half, both.z[2:])
    np.testing.assert_array_equal(sums.n / sums.anchors, 1 + 6 + 9)
    assert all(np.isfinite(gradient).all() for gradient in new)
    assert np.any(np.asarray(new.z))
    assert not np.any(np.asarray(dold))
    memory = MemoryBank(both.z[2:].reshape(-1, 5), other, np.arange(12) < 9)
    args = half.z, half.predictions, positions_of(2, 6), negatives.excluding_sequence, (1, 2)
    want = naive(*args, memory=memory)
    np.testing.assert_allclose(sums.loss, [np.sum(losses) for losses in want], rtol=1e-5)


def test_scalar_gradients_are_summed_in_float32():
    """In bfloat16 a sum of ones stops at 256."""
    single = random_outputs(16, 33, 8, 1)
    single = jax.tree.map(lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True), single)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), single)

    @jax.jit
    @functools.partial(jax.grad, argnums=(1, 2))
    def slopes(outputs, tau, bias):
        options = {"loss": sigmoid, "temperature": tau, "bias": bias}
        return cpc_loss(outputs, positions_of(16, 33), negatives.batch, **options)[0]

    expected, got = (np.array(slopes(outputs, 0.125, -2.5)) for outputs in (single, half))
    np.testing.assert_allclose(got, expected, rtol=5e-3)


def test_float64_arrays_are_read_as_float32(unchecked):
    z = np.random.default_rng(0).normal(size=(3, 7, 4))

    def loss(z):
        args = CPCOutputs(z, z, z[:, :, None]), positions_of(3, 7), negatives.batch
        return cpc_loss(*args, temperature=jnp.float32(0.5))[0]

    given, wanted = jax.jit(lambda: [loss(z), loss(np.float32(z))])()
    assert float(given) == pytest.approx(float(wanted), rel=1e-6)


#: SupCon on latents: candidates in the anchor's group are additional positives.
B, T, K, D = 6, 5, 2, 5
GROUP = np.array([0, 1, 0, -1, 1, -1])  # negative: unknown group
GROUPED = Position.grid(B, T, group=GROUP)
GROUP_RULES = {
    "blocks": negatives.batch,
    "other sequences": negatives.excluding_sequence,
    "shards": negatives.batch & negatives.within_shards(2, B),
    "aligned": negatives.one_per_sequence,
}
LENGTHS = np.array([T, T - 2, T, T - 1, T, 3])


@functools.partial(jax.jit, static_argnames=("rule", "inside"))
@functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
def group_loss(z, predictions, positions, where, tau, *, rule, inside=False):
    z = jnp.where(where[..., None], z, jnp.nan)  # padding may hold anything
    options = {"temperature": tau, "where": where, "block": 8}
    loss = functools.partial(losses.sup_con, inside=inside)
    return cpc_loss(CPCOutputs(z, z, predictions), positions, rule, loss=loss, **options)


def run_groups(name, arrays, lengths=LENGTHS, **options):
    where = np.arange(T) < lengths[:, None]
    return group_loss(*arrays, GROUPED, where, 0.7, rule=GROUP_RULES[name], **options)


def naive_groups(z, predictions, rule, inside):
    """Return the sum over offsets of the mean over anchors, in float64."""
    options = {"where": np.arange(T) < LENGTHS[:, None], "tau": 0.7}
    args = z, predictions, GROUPED, rule, range(1, K + 1), GROUP, inside
    return sum(map(np.mean, naive(*args, **options)))


@pytest.mark.parametrize(
    ("name", "inside"),
    [*((name, False) for name in GROUP_RULES), ("blocks", True), ("aligned", True)],
)
def test_group_positives_equal_the_naive_twin(name, inside):
    arrays, rule = [*map(np.asarray, random_outputs(B, T, D, K)[1:])], GROUP_RULES[name]
    (value, sums), gradients = run_groups(name, arrays, inside=inside)
    np.testing.assert_allclose(value, naive_groups(*arrays, rule, inside), rtol=2e-5)
    assert np.isfinite(sums.loss).all()
    rng = np.random.default_rng(2)
    directions = [rng.normal(size=x.shape) for x in arrays]
    slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    low, high = (
        naive_groups(*(x + s * d for x, d in zip(arrays, directions, strict=True)), rule, inside)
        for s in (-1e-4, 1e-4)
    )
    np.testing.assert_allclose(slope, (high - low) / 2e-4, rtol=2e-3)


def test_metrics_compare_the_predicted_latent_with_other_groups():
    z = jnp.zeros((B, T, D)).at[:, :, 0].set(jnp.where(GROUP[:, None] == 0, 2.0, 0.0))
    predictions = jnp.zeros((B, T, K, D)).at[:, :, :, 0].set(1.0)
    (_, sums), _ = run_groups("blocks", (z, predictions), lengths=np.full(B, T))
    num_first = 2 * np.array([T - 1, T - 2])  # anchors in the two sequences of group 0
    np.testing.assert_array_equal(sums.top1, num_first)
    others = 4 * T * num_first  # ungrouped: all except the positive
    assert sums.n[0] == others[0] + num_first[0] + 2 * (T - 1) * (4 * T + 1) + 2 * (T - 1) * B * T
