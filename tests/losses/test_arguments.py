"""Invalid arguments, and batches without negatives."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import losses, negatives
from cpc.estimators import bound_over_sequences
from cpc.types import CPCOutputs, Position, Rule, UserError, check_number, check_shape


def outputs_of(b, t=5, k=2):
    rng = np.random.default_rng(0)
    shapes = (b, t, 4), (b, t, 3), (b, t, k, 4)
    return CPCOutputs(*(jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes))


def run_cpc(b, rule=negatives.batch, **options):
    return losses.cpc_loss(outputs_of(b), Position.grid(b, 5), rule, **options)


FLAT = jax.tree.map(np.ravel, Position.grid(1, 5))
STREAMING = losses.streaming_info_nce, losses.streaming_symmetric_info_nce
ALONE = {
    "excluding_sequence": negatives.excluding_sequence,
    "joined": negatives.own_sequence & negatives.one_per_sequence,
    "own": Rule("own", lambda a, c, k: jnp.not_equal(a.sequence, c.sequence)),
}


@pytest.mark.parametrize("name", ALONE)
def test_batch_without_negatives_is_rejected(name):
    rule, x = ALONE[name], outputs_of(1).z[0]
    refused = functools.partial(pytest.raises, UserError, match="no anchor has a negative")
    with refused():
        run_cpc(1, rule)
    with refused():
        jax.jit(lambda: run_cpc(1, rule))()
    with refused():
        losses.acpc_loss(outputs_of(1), Position.grid(1, 5), rule, num_frames=3)
    for loss in STREAMING:
        with refused():
            loss(x, x, FLAT, FLAT, rule, 1)


def test_batch_without_positives_is_rejected():
    right = Position.grid(2, 5)
    refused = functools.partial(pytest.raises, UserError, match="no anchor has a positive")
    for time in (0 * right.time, 10 * right.time, 0):
        with refused():
            losses.cpc_loss(outputs_of(2), right._replace(time=time), negatives.batch)
    for loss in STREAMING:
        with refused():
            loss(*[outputs_of(1).z[0]] * 2, FLAT, FLAT, negatives.batch, 5)


def test_traced_batch_without_negatives_is_nan():
    """Within a group negatives may be missing by chance, which gives 0."""

    @functools.partial(jax.jit, static_argnums=1)
    def loss(positions, rule):
        return losses.cpc_loss(outputs_of(1), positions, rule)[0]

    assert np.isnan(loss(Position.grid(1, 5), negatives.excluding_sequence))
    assert loss(Position.grid(1, 5), negatives.own_sequence) > 0
    of_group = functools.partial(
        losses.cpc_loss, rule=negatives.excluding_sequence, loss=losses.sup_con
    )
    positions = Position.grid(3, 5, group=np.zeros(3, int))
    assert float(jax.jit(of_group)(outputs_of(3), positions)[0]) == 0.0
    with pytest.raises(UserError, match="no anchor has a negative"):
        of_group(outputs_of(3), positions)


def test_padded_batch_without_negatives_is_zero():
    masks = [jnp.broadcast_to(jnp.arange(3)[:, None] < num, (3, 5)) for num in (0, 1)]
    loss = jax.jit(lambda where: run_cpc(3, negatives.excluding_sequence, where=where))
    found = [*map(loss, masks)]
    jax.eval_shape(lambda: run_cpc(3, negatives.excluding_sequence, where=masks[1]))  # concrete
    nothing = jnp.full(4, -9, jnp.int32)
    empty = losses.MemoryBank(jnp.zeros((4, 4)), Position(*[nothing] * 4), jnp.zeros(4, bool))
    found.append(jax.jit(lambda: run_cpc(1, negatives.excluding_sequence, memory=empty))())
    for value, sums in found:
        assert float(value) == 0.0
        assert not np.asarray(sums.anchors).any()


def test_one_sequence_has_no_strict_bound():
    outputs = outputs_of(1)
    sums = jax.jit(bound_over_sequences)(outputs.z, outputs.predictions)
    assert [float(leaf.sum()) for leaf in sums] == [0.0] * len(sums)


def plain_rule(anchor, candidate, offset):
    return anchor.sequence != candidate.sequence


GRID = Position.grid(2, 5)
WRONG = {
    "rule": ["batch", plain_rule, (1, 2), None, negatives.outside_window],
    "loss": ["info_nce", (losses.info_nce,), None, losses.debiased, losses.view_scores],
    "sampler": [16, "hardest", negatives.uniform_draws, negatives.with_zero],
    "positions": ["grid", None, tuple(GRID), np.zeros((2, 5))],
    "outputs": [tuple(outputs_of(2)), outputs_of(2).z, None],
}
RIGHT = {"outputs": outputs_of(2), "positions": GRID, "rule": negatives.batch}
FAR = Position(*(jnp.zeros(6, jnp.int32) + 9 for _ in Position._fields))
MALFORMED = [
    ("z is", {"outputs": CPCOutputs(*(x.tolist() for x in outputs_of(2)))}),
    ("predictions is", {"outputs": outputs_of(2)._replace(predictions=None)}),
    *((r"^z and predictions .*got shapes \(2, 5, 4\)",
       {"outputs": outputs_of(2)._replace(predictions=jnp.zeros(shape))})
      for shape in ((2, 4, 1, 4), (2, 5, 1, 3), (2, 5, 0, 4), (2, 5, 4), (4,))),
    ("positions' time", {"positions": GRID._replace(time=GRID.time.tolist())}),
    ("positions' lane", {"positions": GRID._replace(lane=0.0 * GRID.lane)}),
    (r"the positions' sequence .*got shape \(3, ", {"positions": Position.grid(3, 5)}),
    (r"where .*booleans of shape \(2, 5\)", {"where": jnp.ones((2, 1), bool)}),
    ("memory", {"memory": (1, 2, 3)}),
    *(("memory.keys .*got shape", {"memory": losses.MemoryBank(keys, FAR, jnp.ones(6, bool))})
      for keys in (jnp.zeros((6, 3)), jnp.zeros((5, 4)))),
    *((r"^maps .*\(2, 3, 4\)", {"maps": jnp.zeros(shape)}) for shape in ((2, 2, 4), (1, 3, 4))),
    ("offsets", {"offsets": 2}),
    ("offsets ", {"offsets": (2, 1)}),
    ("offsets do", {"offsets": (0.5, 1.5)}),
    ("offsets do not fit", {"offsets": (1,)}),
    ("offsets do not fit", {"offsets": (0, 1)}),
    ("offset 5 exceeds", {"offsets": (1, 5)}),
    ("temperature", {"temperature": "0.1"}),
    (r"temperature .*got 0\.0\): pass a number above 0", {"temperature": 0.0}),
    *(("leave bias=0", {"loss": functools.partial(losses.debiased, prior=0.5), "bias": bias})
      for bias in (-2.0, jnp.float32(0))),
    ("block .*got 0", {"block": 0}),
    ("columns .*got 0", {"columns": 0}),
]  # fmt: skip


def test_invalid_arguments_are_named(unchecked):
    for match, options in MALFORMED:
        with pytest.raises(UserError, match=match):
            losses.cpc_loss(**{**RIGHT, **options})
    for match, options in (
        ("num_frames .*got 1.* least 2", {"num_frames": 1}),
        ("num_frames .*got 5.* below 5", {"num_frames": 5}),
        ("temperature .*got 0.0", {"temperature": 0.0}),
        ("block .*got 0", {"block": 0}),
        *MALFORMED[2:7],
    ):
        with pytest.raises(UserError, match=match):
            losses.acpc_loss(**{**RIGHT, "num_frames": 3, **options})


@pytest.mark.parametrize("name", WRONG)
def test_arguments_of_wrong_type_are_named(name, unchecked):
    aligned = functools.partial(losses.acpc_loss, num_frames=3)
    for loss in (losses.cpc_loss, *([aligned] if name != "loss" else [])):
        for value in WRONG[name]:
            with pytest.raises(UserError, match=rf"^{name} (has the wrong type|cannot be called)"):
                loss(**{**RIGHT, name: value})


def test_rule_arguments_of_wrong_type_are_named(unchecked):
    with pytest.raises(UserError, match="wrong type"):
        negatives.batch & plain_rule  # pyright: ignore[reportOperatorIssue]
    for function in ("batch", lambda anchor: True):
        with pytest.raises(UserError, match="allows"):
            Rule("mine", function)  # pyright: ignore[reportArgumentType]
    for rule, positions, sampler, match in (
        ("batch", GRID, None, "^rule"),
        (negatives.batch, GRID, 16, "^sampler"),
        (negatives.batch, tuple(GRID), None, "^positions"),
    ):
        with pytest.raises(UserError, match=match):
            negatives.audit_rule(rule, positions, [1], sampler=sampler)
    x = outputs_of(1).z[0]
    for positions, rule in ((tuple(FLAT), negatives.batch), (FLAT, "batch")):
        with pytest.raises(UserError, match="wrong type"):
            losses.streaming_info_nce(x, x, positions, positions, rule, 1)


def test_grid_positions():
    grid = Position.grid(2, 3, 4, group=np.array([7, 9]))
    for b, i, j in np.ndindex(2, 3, 4):
        assert [int(field[b, i, j]) for field in grid] == [b, i, j, (7, 9)[b]]
    assert {field.dtype for field in grid} == {np.dtype(np.int32)}
    assert [field.shape for field in Position.grid(2, 3)] == [(2, 3)] * 4
    np.testing.assert_array_equal(Position.grid(2, 3).group, Position.grid(2, 3).sequence)
    for args, options in (((0, 3), {}), ((2, 3), {"group": np.zeros(3, int)}), ((2, 3, 0), {})):
        with pytest.raises(UserError, match=r"Position.grid|group"):
            Position.grid(*args, **options)


def test_numbers_and_shapes_are_compared_with_their_limits():
    for bounds, right, wrong in (
        ({"above": 0}, (1e-9, math.inf), (0, -1.0, math.nan, jnp.float32(0), np.float64(-1))),
        ({"least": 0, "most": 1}, (0, 1, jnp.float32(1)), (-1e-9, 1.5, math.nan, jnp.int32(2))),
        ({"least": 1, "below": 3}, (1, np.int64(2)), (0, 3, jnp.ones(1))),
    ):
        for value in right:
            check_number("x", value, **bounds)
        for value in wrong:
            with pytest.raises(UserError, match=r"^x is (out of range|not a scalar) \(got"):
                check_number("x", value, **bounds)
    jax.eval_shape(lambda x: check_number("x", x, above=0), -1.0)  # a traced value is not compared
    check_shape("x", jnp.zeros((2, 3)), 2, "n")
    for shape in ((3, 3), (2,), (2, 3, 1), ()):
        with pytest.raises(UserError, match=r"^x has the wrong shape \(got shape .* \(2, n\)"):
            check_shape("x", jnp.zeros(shape), 2, "n")
