"""All losses: naive twins, precision, masks, arguments and descriptions."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import losses
from cpc.losses import describe
from cpc.types import UserError
from tests.losses import naive_losses as naive

bind = functools.partial


def pair(loss, twin, **options):
    """Return a loss and its twin, which calls log_noise and log_q only log."""
    short = {re.sub("noise_|q_", "", name): value for name, value in options.items()}
    return bind(loss, **options), bind(twin, **short)


NOISE = {"log_noise_positive": -2.0, "log_noise_negatives": -3.5}
LOG_Q = {"log_q_positive": -1.0, "log_q_negatives": 0.5}
#: Loss and naive twin by name.
LOSSES = {
    "info_nce": pair(losses.info_nce, naive.info_nce, temperature=0.5),
    "ranking_nce": pair(losses.ranking_nce, naive.ranking_nce, **NOISE),
    "nce": pair(losses.nce, naive.nce, log_normalizer=0.7, **NOISE),
    "negative_sampling": (losses.negative_sampling, naive.sampled_logistic),
    "sampled_softmax": pair(losses.sampled_softmax, naive.ranking_nce, **LOG_Q),
    "sampled_logistic": pair(losses.sampled_logistic, naive.sampled_logistic, **LOG_Q),
    "nt_xent": (losses.nt_xent, bind(naive.info_nce, temperature=0.5)),
    "sup_con_out": pair(losses.sup_con, naive.info_nce, temperature=0.3),
    "sup_con_in": pair(bind(losses.sup_con, inside=True), naive.info_nce, temperature=0.3),
    "decoupled": pair(losses.decoupled, naive.decoupled, temperature=0.4, positive_weight=1.5),
    "debiased": pair(
        losses.debiased, bind(naive.hard_weighted, concentration=0.0), prior=0.2, temperature=0.5
    ),
    "hard_weighted": pair(
        losses.hard_weighted, naive.hard_weighted, prior=0.1, concentration=0.8, temperature=0.5
    ),
    "sigmoid": pair(losses.sigmoid, naive.sigmoid, temperature=0.2, bias=-3.0),
    **{
        f"triplet_{mining}": pair(losses.triplet, naive.triplet, margin=0.5, mining=mining)
        for mining in ("hard", "semi_hard", "all")
    },
}
EVERY = pytest.mark.parametrize("name", LOSSES)


@jax.jit
def every_loss(positive, negatives, where):
    def run(loss):
        def total(positive, negatives):
            values = loss(positive, negatives, where)
            return values.sum(), values

        gradients, values = jax.grad(total, (0, 1), has_aux=True)(positive, negatives)
        return values, gradients

    return {name: run(loss) for name, (loss, _) in LOSSES.items()}


def scores_of(seed, m, n, scale=1.0):
    rng = np.random.default_rng(seed)
    positive, negatives = rng.normal(size=m) * scale, rng.normal(size=(m, n)) * scale
    return positive.astype(np.float32), negatives.astype(np.float32), rng.random((m, n)) < 0.6


def run_loss(name, positive, negatives, where=None, dtype=jnp.float32):
    where = np.ones(negatives.shape, bool) if where is None else where
    arrays = jnp.asarray(positive, dtype), jnp.asarray(negatives, dtype)
    values, gradients = every_loss(*arrays, jnp.asarray(where))[name]
    return values, [np.asarray(g, np.float32) for g in gradients]


@EVERY
def test_equals_naive_twin(name):
    for seed, scale in itertools.product(range(4), (0.3, 1.0, 4.0)):
        positive, negatives, where = scores_of(seed, 3, 6, scale)
        values, _ = run_loss(name, positive, np.where(where, negatives, np.nan), where)
        expected = [
            LOSSES[name][1](float(p), [float(s) for s in row[kept]]) if kept.any() else 0.0
            for p, row, kept in zip(positive, negatives, where, strict=True)
        ]
        np.testing.assert_allclose(values, expected, rtol=2e-5, atol=2e-5)


@EVERY
def test_gradient_equals_difference_quotient_of_the_twin(name):
    positive, negatives, where = scores_of(3, 3, 6)
    _, (to_positive, to_negatives) = run_loss(name, positive, negatives, where)
    step, rows = 1e-6, np.float64(np.c_[positive, negatives])
    for row, kept, found in zip(rows, where, np.c_[to_positive, to_negatives], strict=True):
        ends = [[LOSSES[name][1](x[0], list(x[1:][kept])) for x in row + step * bumps]
                for bumps in (np.eye(7), -np.eye(7))]  # fmt: skip
        slopes = np.subtract(*ends) / (2 * step)
        assert found == pytest.approx(slopes, rel=1e-4, abs=1e-5)


@EVERY
def test_masked_entries_have_no_effect(name):
    positive, negatives, where = scores_of(0, 3, 6)
    where[1] = False
    clean = run_loss(name, positive, np.where(where, negatives, 0.0), where)
    for poison in (np.nan, np.inf, -np.inf):
        values, (to_positive, to_negatives) = run_loss(
            name, positive, np.where(where, negatives, poison), where
        )
        np.testing.assert_array_equal(values, clean[0])
        np.testing.assert_array_equal(to_positive, clean[1][0])
        np.testing.assert_array_equal(to_negatives[~where], 0.0)
        np.testing.assert_array_equal(to_negatives, clean[1][1])
    assert np.isfinite(clean[0]).all()
    assert np.abs(clean[1][1][where]).max() > 0.0
    assert float(clean[0][1]) == clean[1][0][1] == 0.0
    positive[1:], negatives[1:] = np.nan, np.nan  # rows are independent
    poisoned, _ = run_loss(name, positive, np.where(where, negatives, 0.0), where)
    assert float(poisoned[0]) == float(clean[0][0])
    values, (to_positive, _) = run_loss(name, np.ones(3), np.zeros((3, 0), np.float32))
    np.testing.assert_array_equal(values, 0.0)
    np.testing.assert_array_equal(to_positive, 0.0)


@EVERY
def test_half_precision_is_computed_in_float32(name):
    *scores, where = scores_of(2, 3, 6)
    positive, negatives = (np.float32(x.astype(jnp.bfloat16)) for x in scores)
    values, gradients = run_loss(name, positive, negatives, where, dtype=jnp.bfloat16)
    expected, slopes = run_loss(name, positive, negatives, where)
    assert values.dtype == jnp.float32
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-6)
    for gradient, slope in zip(gradients, slopes, strict=True):
        np.testing.assert_allclose(gradient, slope, rtol=0.01, atol=1e-4)  # in the input's dtype


@EVERY
def test_huge_scores_are_finite(name):
    for p, first, second in itertools.product([1e4, -1e4, 0.0], repeat=3):
        positive = np.array([p, 0.0, 1.0], np.float32)
        row = np.float32([first, second, *[0.0] * 4])
        where = np.tile(np.arange(6) < 2, (3, 1))
        values, gradients = run_loss(name, positive, np.tile(row, (3, 1)), where)
        expected = [LOSSES[name][1](float(s), row[:2].tolist()) for s in positive]
        # Scores over temperature reach 5e4, where float32 resolves 0.004.
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=0.02)
        for gradient in gradients:
            assert np.isfinite(gradient).all()


SEVERAL = ("info_nce", "sup_con_out", "nce", "sampled_softmax", "sampled_logistic")
SEVERAL = (*SEVERAL, "negative_sampling", "sup_con_in")


@EVERY
def test_mismatched_scores_and_masks_are_named(name, unchecked):
    two, rows, mask = jnp.zeros(2), jnp.zeros((2, 3)), jnp.ones((2, 3), bool)
    fix = r"pass \(m,\) or \(m, p\)" if name in SEVERAL else r"pass \(m,\)"
    for args, match in (
        ((two, jnp.zeros((3, 3))), r"negatives .*got shape \(3, 3\)\): .*\(2, n\)"),
        ((two, two), r"negatives .*got shape \(2,\)"),
        ((two, jnp.zeros((2, 4)), mask), r"where .*got bool of shape \(2, 3\)\): .* \(2, 4\)"),
        ((two, rows, mask.astype(jnp.int32)), "where .*got int32"),
        ((two, rows, [[True] * 3] * 2), "where"),
        ((jnp.zeros((2, 3, 1)), rows), rf"^positive .*got shape \(2, 3, 1\)\): {fix}"),
        ((rows, rows), "scores|positive .*m,"),
        ((None, rows), "positive"),
        ((two, rows.tolist()), "negatives"),
        ((two > 0, rows), "positive"),
        ((two, 1j * rows), "negatives"),
    ):
        with pytest.raises(UserError, match=match):
            LOSSES[name][0](*args)


def test_scores_may_have_any_dtype(unchecked):
    types = (np.float32, np.int32, np.float64, jnp.bfloat16)

    def run():
        arrays = [(np.ones(2, kind), np.zeros((2, 3), kind)) for kind in types]
        return [loss(*x) for loss, _ in LOSSES.values() for x in arrays]

    assert {(x.shape, x.dtype.name) for x in jax.eval_shape(run)} == {((2,), "float32")}


def test_equal_shapes_of_positives_and_negatives_with_mask():
    rows, mask = jnp.zeros((3, 4)), jnp.ones((3, 4), bool)
    jax.eval_shape(lambda: [LOSSES[name][0](rows, rows, mask) for name in SEVERAL])
    drawn, w = (jnp.arange(3), jnp.ones((2, 3)), jnp.ones(3)), jnp.ones((9, 2))
    options = {"sampled_values": drawn, "remove_accidental_hits": False}
    sample = bind(losses.candidate_sampling, num_sampled=3, **options)
    jax.eval_shape(sample, w, w[:, 0], jnp.array([[1, 2, 3], [4, 5, 6]]), w[:2])


def test_losses_of_latents_reject_other_types(unchecked):
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


TEMPERED = (
    *("info_nce", "nt_xent", "sup_con_out", "decoupled", "debiased", "hard_weighted", "sigmoid"),
)
SCORES = jnp.array([0.3]), jnp.array([[0.1, jnp.nan, -0.4]])


@jax.jit
def by_temperature(temperature):
    where = jnp.array([[True, False, True]])

    def values(temperature):
        given = (*SCORES, where)
        return {n: LOSSES[n][0](*given, temperature=temperature)[0] for n in TEMPERED}

    return values(temperature), jax.jacfwd(values)(temperature)


@pytest.mark.parametrize("name", TEMPERED)
def test_temperature_is_checked_and_learnable(name):
    for temperature in (0, -1.0, float("nan"), jnp.float32(0.0)):
        with pytest.raises(UserError, match=r"^temperature is out of range"):
            LOSSES[name][0](*SCORES, temperature=temperature)
    high, low = (by_temperature(tau)[0][name] for tau in (0.51, 0.49))
    assert float(by_temperature(0.5)[1][name]) == pytest.approx(float(high - low) / 0.02, rel=1e-2)


def test_options_out_of_range_are_rejected():
    for loss, keyword, value in (
        *((losses.debiased, "prior", value) for value in (-0.1, 1, float("nan"))),
        *((bind(losses.hard_weighted, concentration=1.0), "prior", value) for value in (-0.1, 1)),
        (bind(losses.hard_weighted, prior=0.1), "concentration", -0.5),
        *((losses.triplet, "margin", value) for value in (-0.1, float("nan"), jnp.float32(-1))),
        (bind(losses.triplet, margin=1.0), "mining", "easy"),
    ):
        with pytest.raises(UserError, match=rf"^{keyword} is .*got ({value!r}|-1\.0)"):
            loss(jnp.zeros(1), jnp.zeros((1, 2)), **{keyword: value})


SEEN = jnp.log(jnp.array([0.2, 0.8]))
OPTIONS = {
    "nce": {"log_noise_positive": 0.0, "log_noise_negatives": 0.0},
    "nt_xent": {"temperature": 1.0},
    "triplet": {"margin": 1.0},
    "debiased": {"prior": 0.2},
    "hard_weighted": {"prior": 0.1, "concentration": 0.8},
}
CONTRASTED = (
    *("info_nce", "ranking_nce", "negative_sampling", "sampled_softmax", "sampled_logistic"),
    *("sup_con", "decoupled", "sigmoid", *OPTIONS),
)
BOUNDS = {"info_nce", "ranking_nce", "sampled_softmax"}


def test_descriptions_match_the_losses():
    """The loss is log N at chance and 0 at best, as far as `has_log_n`."""
    every = {name: bind(getattr(losses, name), **OPTIONS.get(name, {})) for name in CONTRASTED}
    scores = jnp.array([0.0, 50.0]), jnp.zeros((2, 9))
    found = jax.jit(lambda *scores: {name: loss(*scores) for name, loss in every.items()})(*scores)
    every |= {name: getattr(losses, name) for name in ("full_softmax", "full_logistic")}
    assert len({describe(loss).name for loss in every.values()}) == 15
    for name, loss in every.items():
        description = describe(loss)
        assert description != losses.Description(description.name)
        assert description.bounds == ("I(x; c)" if name in BOUNDS else None)
        assert description.is_bound(independent_negatives=True) == (name in BOUNDS)
        assert not description.is_bound(independent_negatives=False)
        has_log_n = np.allclose(found.get(name, np.nan), (np.log(10), 0), atol=1e-5)
        assert description.has_log_n == (has_log_n and name != "sup_con")


def test_partials_are_described_as_their_loss():
    once = bind(losses.triplet, margin=0.2)
    assert describe(bind(once, mining="all")) == describe(losses.triplet)
    corrected = bind(losses.nce, log_noise_positive=-1.0, log_noise_negatives=SEEN)
    assert describe(corrected) == describe(losses.nce)


@pytest.mark.parametrize(
    ("loss", "prefix"), [(losses.ranking_nce, "log_noise"), (losses.sampled_softmax, "log_q")]
)
def test_correction_of_some_candidates_is_not_a_bound(loss, prefix):
    positive, negatives = f"{prefix}_positive", f"{prefix}_negatives"
    same = ((-3.0, -3.0), (SEEN, SEEN), (np.float32(-0.1), jnp.float32(-0.1)))
    for keywords in ({}, *({positive: one, negatives: two} for one, two in same)):
        assert describe(bind(loss, **keywords)).bounds == "I(x; c)", keywords
    other = ((-1.0, -3.0), (jnp.float32(-1), -3.0))
    of_one = ({negatives: SEEN}, {positive: SEEN}, {negatives: -3.0})
    for keywords in (*of_one, *({positive: one, negatives: two} for one, two in other)):
        description = describe(bind(loss, **keywords))
        assert description.bounds is None, keywords
        assert description.optimum is None
        assert not description.is_bound(independent_negatives=True)
    within = bind(bind(loss, **{positive: SEEN}), **{negatives: SEEN})
    assert describe(within).bounds == "I(x; c)"


class Unhashable:
    __hash__ = None

    def __call__(self, positive, negatives, where=None):
        return positive


def test_unknown_losses_have_an_empty_description():
    loss = Unhashable()
    for unknown, name in ((loss, "Unhashable"), (bind(loss.__call__), "__call__")):
        assert describe(unknown) == losses.Description(name)
