"""Arguments of another kind, and batches without a negative, are refused."""

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
    shapes = (b, t, 4), (b, t, 3), (b, t, k, 4)
    return CPCOutputs(*(jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes))


@pytest.mark.parametrize("name", OF_SCORES)
def test_scores_and_masks_are_arrays_of_numbers(name, unchecked):
    positive, scores = jnp.zeros(2), jnp.zeros((2, 3))
    for args in [
        (None, scores), ([0.0, 1.0], scores), (positive, scores.tolist()),
        (positive > 0, scores), (positive, 1j * scores), (positive, scores, [[True] * 3] * 2),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=r"positive|negatives|where"):
            OF_SCORES[name](*args)
    with pytest.raises(UserError, match="scores"):
        OF_SCORES[name](jnp.zeros((4, 8)), jnp.ones((4, 8)))


def test_scores_may_be_of_any_type(unchecked):
    types = (np.float32, np.int32, np.float64, jnp.bfloat16)

    @jax.jit
    def run():
        arrays = [(np.ones(2, kind), np.zeros((2, 3), kind)) for kind in types]
        return {name: [loss(*x) for x in arrays] for name, loss in OF_SCORES.items()}

    for name, (right, *others) in run().items():
        for found in others:
            np.testing.assert_allclose(found, right, rtol=1e-6, err_msg=name)


def test_other_losses_take_matrices_of_numbers(unchecked):
    x, there = jnp.ones((2, 3)), jnp.ones((2, 3), bool)
    for wrong in (x.tolist(), x[0], x > 0):
        for loss in (losses.view_scores, losses.alignment):
            with pytest.raises(UserError, match=r"first|z "):
                loss(wrong, wrong)
        with pytest.raises(UserError, match="z "):
            losses.uniformity(wrong)
        for loss in (losses.logistic_pairs, losses.softmax_pairs):
            for args in ((wrong, x, there), (x, wrong, there), (x, x, x), (x, x[:1], there)):
                with pytest.raises(UserError, match=r"positive|negatives"):
                    loss(*args)


def test_as_many_positives_as_negatives_go_with_a_mask():
    rng = np.random.default_rng(2)
    positive, scores = jnp.asarray(rng.normal(size=(2, 3, 4)), jnp.float32)

    @jax.jit
    def run(positive, scores):
        wider = jnp.concatenate([scores, scores[:, :1] + jnp.nan], -1)
        where = jnp.broadcast_to(jnp.arange(5) < 4, (3, 5))
        every = jnp.ones((3, 4), bool)
        of = {name: OF_SCORES[name] for name in SEVERAL}
        return {n: (f(positive, scores, every), f(positive, wider, where)) for n, f in of.items()}

    for name, (given, want) in run(positive, scores).items():
        np.testing.assert_allclose(given, want, rtol=1e-6, err_msg=name)
    # As many labels as samples are no embeddings either.
    drawn = jnp.arange(3), jnp.ones((2, 3)), jnp.ones(3)
    sample = functools.partial(
        losses.candidate_sampling, num_sampled=3, sampled_values=drawn, remove_accidental_hits=False
    )
    w, labels = jnp.ones((9, 2)), jnp.array([[1, 2, 3], [4, 5, 6]])
    assert jax.eval_shape(sample, w, w[:, 0], labels, w[:2]).shape == (2,)


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
def test_a_batch_without_negatives_is_refused(name):
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


def test_a_batch_without_positives_is_refused():
    """For times that count no latents, such as those in seconds or of one latent a sequence."""
    right = Position.grid(2, 5)
    refused = functools.partial(pytest.raises, UserError, match="no anchor has a positive")
    for time in (0 * right.time, 10 * right.time, 0):
        with refused():
            losses.cpc_loss(outputs_of(2), right._replace(time=time), negatives.batch)
    for loss in STREAMING:
        with refused():
            loss(*[outputs_of(1).z[0]] * 2, FLAT, FLAT, negatives.batch, 5)


def test_sup_con_of_one_group_is_refused():
    args = outputs_of(3), Position.grid(3, 5, group=np.zeros(3, int)), negatives.excluding_sequence
    with pytest.raises(UserError, match="no anchor has a negative"):
        losses.cpc_loss(*args, loss=losses.sup_con)
    jax.eval_shape(lambda: losses.cpc_loss(*args))


def test_traced_positions_without_a_negative_give_nan():
    """A group may leave none by chance, which gives 0."""

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


def test_padding_or_an_empty_queue_that_leaves_no_negative_gives_zero():
    """As the last shard of an evaluation, which may hold one sequence or none."""
    masks = [jnp.broadcast_to(jnp.arange(3)[:, None] < num, (3, 5)) for num in (0, 1)]
    loss = jax.jit(lambda where: run_cpc(3, negatives.excluding_sequence, where=where))
    found = [*map(loss, masks), run_cpc(3, negatives.excluding_sequence, where=masks[1])]
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
    "choose": [16, "hardest", negatives.uniform_draws, negatives.with_zero],
    "positions": ["grid", None, tuple(GRID), np.zeros((2, 5))],
    "outputs": [tuple(outputs_of(2)), outputs_of(2).z, None],
}
MALFORMED = {
    "z is": {"outputs": CPCOutputs(*(x.tolist() for x in outputs_of(2)))},
    "predictions is": {"outputs": outputs_of(2)._replace(predictions=None)},
    "positions' time": {"positions": GRID._replace(time=GRID.time.tolist())},
    "positions' sequence": {"positions": GRID._replace(sequence=GRID.sequence > 0)},
    "positions' lane": {"positions": GRID._replace(lane=0.0 * GRID.lane)},
    "where": {"where": [[True] * 5] * 2},
    "memory": {"memory": (1, 2, 3)},
    "offsets": {"offsets": 2},
    "offsets ": {"offsets": (2, 1)},
    "offsets do": {"offsets": (0.5, 1.5)},
    "temperature": {"temperature": "0.1"},
}
RIGHT = {"outputs": outputs_of(2), "positions": GRID, "rule": negatives.batch}


@pytest.mark.parametrize("match", MALFORMED)
def test_malformed_arguments_are_named(match, unchecked):
    with pytest.raises(UserError, match=match):
        losses.cpc_loss(**{**RIGHT, **MALFORMED[match]})


@pytest.mark.parametrize("name", WRONG)
def test_arguments_of_another_type_are_named(name, unchecked):
    aligned = functools.partial(losses.acpc_loss, num_frames=3)
    for loss in (losses.cpc_loss, *([aligned] if name != "loss" else [])):
        for value in WRONG[name]:
            with pytest.raises(UserError, match=rf"^{name} (has the wrong type|cannot be called)"):
                loss(**{**RIGHT, name: value})


def test_rules_take_rules_and_functions(unchecked):
    with pytest.raises(UserError, match="wrong type"):
        negatives.batch & plain_rule  # pyright: ignore[reportOperatorIssue]
    for function in ("batch", lambda anchor: True):
        with pytest.raises(UserError, match="allows"):
            Rule("mine", function)  # pyright: ignore[reportArgumentType]
    for rule, choose in (("batch", None), (negatives.batch, 16)):
        with pytest.raises(UserError, match=r"rule|choose"):
            negatives.audit_rule(rule, GRID, [1], choose=choose)
    for positions in (tuple(GRID), GRID.time, None):
        with pytest.raises(UserError, match=r"^positions"):
            negatives.audit_rule(negatives.batch, positions, [1])
    x = outputs_of(1).z[0]
    for positions, rule in ((tuple(FLAT), negatives.batch), (FLAT, "batch")):
        with pytest.raises(UserError, match="wrong type"):
            losses.streaming_info_nce(x, x, positions, positions, rule, 1)


def test_a_grid_is_the_positions_of_its_latents():
    grid = Position.grid(2, 3, 4, group=np.array([7, 9]))
    for b, i, j in np.ndindex(2, 3, 4):
        assert [int(field[b, i, j]) for field in grid] == [b, i, j, (7, 9)[b]]
    assert {field.dtype for field in grid} == {np.dtype(np.int32)}
    assert [field.shape for field in Position.grid(2, 3)] == [(2, 3)] * 4
    np.testing.assert_array_equal(Position.grid(2, 3).group, Position.grid(2, 3).sequence)
    for args, options in (((0, 3), {}), ((2, 3), {"group": np.zeros(3, int)}), ((2, 3, 0), {})):
        with pytest.raises(UserError, match=r"Position.grid|group"):
            Position.grid(*args, **options)
