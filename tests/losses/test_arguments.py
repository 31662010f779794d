"""Arguments of another kind, and batches without a negative, are refused by one sentence."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import losses, negatives
from cpc.estimators import bound_over_sequences
from cpc.types import CPCOutputs, Position, Rule, UserError

OF_SCORES = {
    "nce": functools.partial(losses.nce, log_noise_positive=0.0, log_noise_negatives=0.0),
    "debiased": functools.partial(losses.debiased, prior=0.1),
    "hard_weighted": functools.partial(losses.hard_weighted, prior=0.1, concentration=1.0),
    "triplet": functools.partial(losses.triplet, margin=0.5),
    **{
        name: getattr(losses, name)
        for name in (
            "info_nce", "sup_con", "sampled_softmax", "sampled_logistic", "negative_sampling",
            "ranking_nce", "nt_xent", "decoupled", "sigmoid",
        )
    },
}  # fmt: skip
SEVERAL = ("info_nce", "sup_con", "nce", "sampled_softmax", "sampled_logistic", "negative_sampling")


def outputs_of(b, t=5, k=2):
    rng = np.random.default_rng(0)
    z, c, p = (
        jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((b, t, 4), (b, t, 3), (b, t, k, 4))
    )
    return CPCOutputs(z, c, p)


@pytest.mark.parametrize("name", OF_SCORES)
def test_embeddings_are_not_scores(name, unchecked):
    for shape in ((4, 8), (1, 8), (16, 16)):
        with pytest.raises(UserError, match="scores"):
            OF_SCORES[name](jnp.zeros(shape), jnp.ones(shape))


@pytest.mark.parametrize("name", OF_SCORES)
def test_scores_and_masks_are_arrays_of_numbers(name, unchecked):
    positive, scores = jnp.zeros(2), jnp.zeros((2, 3))
    wrong = [
        (0.0, 1.0), (None, scores), ([0.0, 1.0], scores), (positive, scores.tolist()),
        (positive > 0, scores), (positive, scores > 0), (positive, 1j * scores),
        (positive, scores, [[True] * 3] * 2), (positive, scores, True),
    ]  # fmt: skip
    for args in wrong:
        with pytest.raises(UserError, match=r"positive|negatives|where"):
            OF_SCORES[name](*args)


def test_scores_may_be_of_any_type(unchecked):
    types = (np.float32, np.int32, np.float64, jnp.bfloat16)

    @jax.jit
    def losses():
        arrays = [(np.ones(2, kind), np.zeros((2, 3), kind)) for kind in types]
        return {name: [loss(*x) for x in arrays] for name, loss in OF_SCORES.items()}

    for name, (right, *others) in losses().items():
        for found in others:
            np.testing.assert_allclose(found, right, rtol=1e-6, err_msg=name)


def test_other_losses_take_matrices_of_numbers(unchecked):
    x, there = jnp.ones((2, 3)), jnp.ones((2, 3), bool)
    for wrong in (x.tolist(), None, x[0], x[None], x > 0):
        for loss in (losses.view_scores, losses.alignment):
            with pytest.raises(UserError, match=r"first|z "):
                loss(wrong, wrong)
        with pytest.raises(UserError, match="z "):
            losses.uniformity(wrong)
        for loss in (losses.logistic_pairs, losses.softmax_pairs):
            for args in ((wrong, x, there), (x, wrong, there), (x, x, x), (x, x[:1], there)):
                with pytest.raises(UserError, match=r"positive|negatives"):
                    loss(*args)


@pytest.mark.parametrize("value", ["0.1", None, [0.1], jnp.ones(2)])
def test_a_temperature_is_one_number(value, unchecked):
    with pytest.raises(UserError, match="temperature"):
        losses.info_nce(jnp.zeros(2), jnp.zeros((2, 3)), temperature=value)
    with pytest.raises(UserError, match="temperature"):
        run(2, temperature=value)


def test_as_many_positives_as_negatives_go_with_a_mask():
    rng = np.random.default_rng(2)
    positive, scores = jnp.asarray(rng.normal(size=(2, 3, 4)), jnp.float32)

    @jax.jit
    def losses(positive, scores):
        wider = jnp.concatenate([scores, scores[:, :1] + jnp.nan], -1)
        where = jnp.broadcast_to(jnp.arange(5) < 4, (3, 5))
        pairs = {}
        for name in SEVERAL:
            loss = OF_SCORES[name]
            given = loss(positive, scores, jnp.ones((3, 4), bool))
            pairs[name] = given, loss(positive, wider, where)
        return pairs

    for name, (given, want) in losses(positive, scores).items():
        np.testing.assert_allclose(given, want, rtol=1e-6, err_msg=name)


def test_as_many_labels_as_samples_are_not_embeddings():
    w, b, x = jnp.ones((9, 2)), jnp.zeros(9), jnp.ones((2, 2))
    drawn = jnp.arange(3), jnp.ones((2, 3)), jnp.ones(3)
    labels = jnp.array([[1, 2, 3], [4, 5, 6]])
    sample = functools.partial(losses.candidate_sampling, sampled_values=drawn)
    found = jax.eval_shape(
        functools.partial(sample, remove_accidental_hits=False), w, b, labels, x, 3
    )
    assert found.shape == (2,)


def run(b, rule=negatives.batch, where=None, **options):
    return losses.cpc_loss(outputs_of(b), Position.grid(b, 5), rule, where=where, **options)


ALONE = {
    "excluding_sequence": negatives.excluding_sequence,
    "one_per_sequence": negatives.one_per_sequence,
    "joined": negatives.own_sequence & negatives.excluding_sequence,
    "own": Rule("own", lambda a, c, k: jnp.not_equal(a.sequence, c.sequence)),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_batch_without_negatives_is_refused(name):
    rule = ALONE[name]
    with pytest.raises(UserError, match="no anchor has a negative"):
        run(1, rule)
    with pytest.raises(UserError, match="no anchor has a negative"):
        jax.jit(lambda: run(1, rule))()
    with pytest.raises(UserError, match="no anchor has a negative"):
        losses.acpc_loss(outputs_of(1), Position.grid(1, 5), rule, num_frames=3)
    flat = jax.tree.map(np.ravel, Position.grid(1, 5))
    x = outputs_of(1).z[0]
    for loss in (losses.streaming_info_nce, losses.streaming_symmetric_info_nce):
        with pytest.raises(UserError, match="no anchor has a negative"):
            loss(x, x, flat, flat, rule, 1)


def test_a_batch_without_positives_is_refused():
    """Times that count no latents, as those in seconds or of one latent a sequence."""
    right = Position.grid(2, 5)
    for time in (0 * right.time, 10 * right.time, 0):
        with pytest.raises(UserError, match="no anchor has a positive"):
            losses.cpc_loss(outputs_of(2), right._replace(time=time), negatives.batch)
    flat, x = jax.tree.map(np.ravel, right), outputs_of(2).z.reshape(10, 4)
    for loss in (losses.streaming_info_nce, losses.streaming_symmetric_info_nce):
        with pytest.raises(UserError, match="no anchor has a positive"):
            loss(x, x, flat, flat, negatives.batch, 5)


def test_sup_con_of_one_group_is_refused():
    group = np.zeros(3, np.int32)
    args = outputs_of(3), Position.grid(3, 5, group=group), negatives.excluding_sequence
    with pytest.raises(UserError, match="no anchor has a negative"):
        losses.cpc_loss(*args, loss=losses.sup_con)
    jax.eval_shape(lambda: losses.cpc_loss(*args))


def test_traced_positions_without_a_negative_give_nan():
    rules = negatives.excluding_sequence, negatives.own_sequence

    @functools.partial(jax.jit, static_argnums=1)
    def loss(positions, rule):
        return losses.cpc_loss(outputs_of(1), positions, rule)[0]

    found = [float(loss(Position.grid(1, 5), rule)) for rule in rules]
    assert np.isnan(found[0])
    assert found[1] > 0


def test_some_anchors_without_negatives_count_for_nothing():
    """Groups of two sequences and of one: the anchors of the latter are left out."""
    positions = Position.grid(3, 5, group=np.array([0, 0, 1]))
    pair = jax.tree.map(lambda x: x[:2], positions)
    rule = negatives.same_group & negatives.excluding_sequence

    @jax.jit
    def both(outputs):
        two = jax.tree.map(lambda x: x[:2], outputs)
        return losses.cpc_loss(outputs, positions, rule), losses.cpc_loss(two, pair, rule)

    (value, sums), (want, of_pair) = both(outputs_of(3))
    assert float(value) == pytest.approx(float(want), rel=1e-6)
    np.testing.assert_array_equal(sums.anchors, of_pair.anchors)


def test_traced_groups_that_leave_no_negative_by_chance_give_zero():
    positions = Position.grid(3, 5, group=np.zeros(3, int))
    rule = negatives.excluding_sequence
    loss = functools.partial(losses.cpc_loss, rule=rule, loss=losses.sup_con)
    assert float(jax.jit(loss)(outputs_of(3), positions)[0]) == 0.0


def test_padding_that_leaves_no_negative_gives_zero():
    """As the last shard of an evaluation, which may hold one sequence or none."""
    masks = [jnp.broadcast_to(jnp.arange(3)[:, None] < num, (3, 5)) for num in (0, 1)]
    loss = jax.jit(lambda where: run(3, negatives.excluding_sequence, where))
    found = [loss(mask) for mask in masks]
    found.append(run(3, negatives.excluding_sequence, masks[1]))
    for value, sums in found:
        assert float(value) == 0.0
        assert not np.asarray(sums.anchors).any()


def test_an_empty_queue_gives_zero():
    nothing = jnp.full(4, -9, jnp.int32)
    empty = losses.MemoryBank(jnp.zeros((4, 4)), Position(*[nothing] * 4), jnp.zeros(4, bool))
    loss = jax.jit(lambda: run(1, negatives.excluding_sequence, memory=empty)[0])
    assert float(loss()) == 0.0


def test_one_sequence_has_no_strict_bound():
    outputs = outputs_of(1)
    sums = jax.jit(bound_over_sequences)(outputs.z, outputs.predictions)
    assert [float(leaf.sum()) for leaf in sums] == [0.0] * len(sums)


def plain_rule(anchor, candidate, offset):
    return anchor.sequence != candidate.sequence


WRONG = {
    "rule": ["batch", plain_rule, 3, (1, 2), None, negatives.outside_window, negatives],
    "loss": ["info_nce", 5, (losses.info_nce,), None, losses.debiased, losses.view_scores],
    "choose": [16, "hardest", negatives.uniform_draws, negatives.with_zero, (16,)],
    "positions": [(1, 2, 3, 4), "grid", None, tuple(Position.grid(2, 5)), np.zeros((2, 5))],
    "outputs": [tuple(outputs_of(2)), outputs_of(2).z, None],
}


GRID = Position.grid(2, 5)
MALFORMED = {
    "z is": {"outputs": CPCOutputs(*(x.tolist() for x in outputs_of(2)))},
    "predictions is": {"outputs": outputs_of(2)._replace(predictions=None)},
    "positions' time": {"positions": GRID._replace(time=GRID.time.tolist())},
    "positions' group": {"positions": GRID._replace(group=None)},
    "positions' sequence": {"positions": GRID._replace(sequence=GRID.sequence > 0)},
    "positions' lane": {"positions": GRID._replace(lane=0.0 * GRID.lane)},
    "where": {"where": [[True] * 5] * 2},
    "memory": {"memory": (1, 2, 3)},
    "offsets": {"offsets": 2},
    "offsets ": {"offsets": (2, 1)},
    "offsets do": {"offsets": (1, 1)},
    "offsets do not": {"offsets": (0.5, 1.5)},
}


@pytest.mark.parametrize("match", MALFORMED)
def test_malformed_arguments_are_named(match, unchecked):
    args = {"outputs": outputs_of(2), "positions": GRID, "rule": negatives.batch}
    with pytest.raises(UserError, match=match):
        losses.cpc_loss(**{**args, **MALFORMED[match]})


@pytest.mark.parametrize("name", WRONG)
def test_arguments_of_another_type_are_named(name, unchecked):
    right = {"outputs": outputs_of(2), "positions": Position.grid(2, 5), "rule": negatives.batch}
    aligned = functools.partial(losses.acpc_loss, num_frames=3)
    for loss in (losses.cpc_loss, *([aligned] if name != "loss" else [])):
        for value in WRONG[name]:
            with pytest.raises(UserError, match=rf"^{name} (has the wrong type|cannot be called)"):
                loss(**{**right, name: value})


def test_rules_take_rules_and_functions(unchecked):
    for other in ("batch", plain_rule, 3, None):
        with pytest.raises(UserError, match="wrong type"):
            negatives.batch & other  # pyright: ignore[reportOperatorIssue]
    for function in ("batch", 3, lambda anchor: True):
        with pytest.raises(UserError, match="allows"):
            Rule("mine", function)  # pyright: ignore[reportArgumentType]
    for rule, choose in (("batch", None), (negatives.batch, 16), (negatives.batch, "hardest")):
        with pytest.raises(UserError, match=r"rule|choose"):
            negatives.audit_rule(rule, Position.grid(2, 3), [1], choose=choose)
    here = Position.grid(2, 3)
    for positions in (tuple(here), here._asdict(), here.time, "grid", None, [tuple(here)]):
        with pytest.raises(UserError, match=r"^positions"):
            negatives.audit_rule(negatives.batch, positions, [1])
    flat = jax.tree.map(np.ravel, Position.grid(1, 5))
    x = outputs_of(1).z[0]
    for positions, rule in ((tuple(flat), negatives.batch), (flat, "batch"), (flat, 3)):
        with pytest.raises(UserError, match="wrong type"):
            losses.streaming_info_nce(x, x, positions, positions, rule, 1)


def test_a_grid_is_the_positions_of_its_latents():
    grid = Position.grid(2, 3, 4, group=np.array([7, 9]))
    for b, i, j in np.ndindex(2, 3, 4):
        found = [int(field[b, i, j]) for field in grid]
        assert found == [b, i, j, (7, 9)[b]]
    assert {field.dtype for field in grid} == {np.dtype(np.int32)}
    assert [field.shape for field in Position.grid(2, 3)] == [(2, 3)] * 4
    np.testing.assert_array_equal(Position.grid(2, 3).group, Position.grid(2, 3).sequence)
    for args, options in (((0, 3), {}), ((2, 3), {"group": np.zeros(3, int)}), ((2, 3, 0), {})):
        with pytest.raises(UserError, match=r"Position.grid|group"):
            Position.grid(*args, **options)
