"""What all losses promise: equal to a naive twin, float32, masked entries unseen, rows alone."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import losses
from cpc.types import UserError
from tests.losses import naive_losses as naive

bind = functools.partial
#: name: (loss, its naive twin)
LOSSES = {
    "info_nce": (bind(losses.info_nce, temperature=0.5), bind(naive.info_nce, temperature=0.5)),
    "ranking_nce": (
        bind(losses.ranking_nce, log_noise_positive=-2.0, log_noise_negatives=-3.5),
        bind(naive.ranking_nce, log_positive=-2.0, log_negatives=-3.5),
    ),
    "nce": (
        bind(losses.nce, log_noise_positive=-2.0, log_noise_negatives=-3.5, log_normalizer=0.7),
        bind(naive.nce, log_positive=-2.0, log_negatives=-3.5, log_normalizer=0.7),
    ),
    "negative_sampling": (losses.negative_sampling, naive.sampled_logistic),
    "sampled_softmax": (
        bind(losses.sampled_softmax, log_q_positive=-1.0, log_q_negatives=0.5),
        bind(naive.ranking_nce, log_positive=-1.0, log_negatives=0.5),
    ),
    "sampled_logistic": (
        bind(losses.sampled_logistic, log_q_positive=-1.0, log_q_negatives=0.5),
        bind(naive.sampled_logistic, log_positive=-1.0, log_negatives=0.5),
    ),
    "nt_xent": (losses.nt_xent, bind(naive.info_nce, temperature=0.5)),
    "sup_con_out": (bind(losses.sup_con, temperature=0.3), bind(naive.info_nce, temperature=0.3)),
    "sup_con_in": (
        bind(losses.sup_con, temperature=0.3, inside=True),
        bind(naive.info_nce, temperature=0.3),
    ),
    "decoupled": (
        bind(losses.decoupled, temperature=0.4, positive_weight=1.5),
        bind(naive.decoupled, temperature=0.4, weight=1.5),
    ),
    "debiased": (
        bind(losses.debiased, prior=0.2, temperature=0.5),
        bind(naive.hard_weighted, prior=0.2, concentration=0.0, temperature=0.5),
    ),
    "hard_weighted": (
        bind(losses.hard_weighted, prior=0.1, concentration=0.8, temperature=0.5),
        bind(naive.hard_weighted, prior=0.1, concentration=0.8, temperature=0.5),
    ),
    "sigmoid": (
        bind(losses.sigmoid, temperature=0.2, bias=-3.0),
        bind(naive.sigmoid, temperature=0.2, bias=-3.0),
    ),
    **{
        f"triplet_{mining}": (
            bind(losses.triplet, margin=0.5, mining=mining),
            bind(naive.triplet, margin=0.5, mining=mining),
        )
        for mining in ("hard", "semi_hard", "all")
    },
}
EVERY = pytest.mark.parametrize("name", LOSSES)


@jax.jit
def every_loss(positive, negatives, where, weights):
    """By name: the losses of all anchors, and the gradients of their weighted sum."""

    def run(loss):
        def total(positive, negatives):
            values = loss(positive, negatives, where)
            return (weights * values).sum(), values

        gradients, values = jax.grad(total, (0, 1), has_aux=True)(positive, negatives)
        return values, gradients

    return {name: run(loss) for name, (loss, _) in LOSSES.items()}


def scores_of(seed, m, n, scale=1.0):
    rng = np.random.default_rng(seed)
    positive, negatives = rng.normal(size=m) * scale, rng.normal(size=(m, n)) * scale
    return positive.astype(np.float32), negatives.astype(np.float32), rng.random((m, n)) < 0.6


def run_loss(name, positive, negatives, where=None, weights=None, dtype=jnp.float32):
    where = np.ones(negatives.shape, bool) if where is None else where
    weights = np.ones(positive.shape, np.float32) if weights is None else weights
    arrays = jnp.asarray(positive, dtype), jnp.asarray(negatives, dtype)
    values, gradients = every_loss(*arrays, jnp.asarray(where), jnp.asarray(weights))[name]
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
def test_gradient_is_the_slope_of_the_naive_twin(name):
    positive, negatives, where = scores_of(3, 3, 6)
    _, (to_positive, to_negatives) = run_loss(name, positive, negatives, where)
    twin, step = LOSSES[name][1], 1e-6
    for i in range(3):
        row = np.float64(negatives[i])

        def value(p, row, kept=where[i]):
            return twin(p, list(row[kept]))

        p = float(positive[i])
        slope = (value(p + step, row) - value(p - step, row)) / (2 * step)
        assert to_positive[i] == pytest.approx(slope, rel=1e-4, abs=1e-5)
        for j in range(6):
            bump = step * np.eye(6)[j]
            slope = (value(p, row + bump) - value(p, row - bump)) / (2 * step)
            assert to_negatives[i, j] == pytest.approx(slope, rel=1e-4, abs=1e-5)


@EVERY
def test_masked_entries_are_never_seen(name):
    """An anchor without a negative has no loss and no gradient."""
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
    values, (to_positive, _) = run_loss(name, positive, np.zeros((3, 0), np.float32))
    np.testing.assert_array_equal(values, 0.0)
    np.testing.assert_array_equal(to_positive, 0.0)


@EVERY
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_read_into_float32(name, dtype):
    positive, negatives, where = scores_of(2, 3, 6)
    positive, negatives = (
        np.asarray(jnp.asarray(x, dtype), np.float32) for x in (positive, negatives)
    )
    values, gradients = run_loss(name, positive, negatives, where, dtype=dtype)
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
        # A score over the temperature reaches 5e4, of which float32 keeps 0.004.
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=0.02)
        for gradient in gradients:
            assert np.isfinite(gradient).all()


@EVERY
def test_rows_are_alone(name):
    positive, negatives, where = scores_of(4, 3, 6)
    where[0, 0], positive[0], negatives[0, 0] = True, 0.5, 0.4  # costs something under every loss
    values, gradients = run_loss(name, positive, negatives, where, np.eye(3, dtype=np.float32)[0])
    for gradient in gradients:
        assert np.abs(gradient[0]).max() > 0.0
        np.testing.assert_array_equal(gradient[1:], 0.0)
    positive[1:], negatives[1:] = np.nan, np.nan
    poisoned, _ = run_loss(name, positive, negatives, where)
    assert float(poisoned[0]) == float(values[0])


@EVERY
def test_shapes_that_do_not_match_are_a_sentence(name, unchecked):
    loss = LOSSES[name][0]
    two, mask = jnp.zeros(2), jnp.ones((2, 3), bool)
    with pytest.raises(UserError, match=r"negatives has shape \(3, 3\): with 2 anchors"):
        loss(two, jnp.zeros((3, 3)))
    with pytest.raises(UserError, match=r"negatives has shape \(2,\)"):
        loss(two, two)
    with pytest.raises(UserError, match=r"where is bool of shape \(2, 3\): .* \(2, 4\)"):
        loss(two, jnp.zeros((2, 4)), mask)
    with pytest.raises(UserError, match="where is int32"):
        loss(two, jnp.zeros((2, 3)), mask.astype(jnp.int32))
    with pytest.raises(UserError, match=r"positive has shape \(2, 3, 1\)"):
        loss(jnp.zeros((2, 3, 1)), jnp.zeros((2, 3)))


@pytest.mark.parametrize("name", [
    "nt_xent", "ranking_nce", "decoupled", "debiased", "hard_weighted", "sigmoid", "triplet_all",
])  # fmt: skip
def test_losses_of_one_positive_refuse_several(name, unchecked):
    with pytest.raises(UserError, match=r"positive has shape \(2, 3\): it must be \(m,\)"):
        LOSSES[name][0](jnp.zeros((2, 3)), jnp.zeros((2, 4)))


TEMPERED = {
    "info_nce": losses.info_nce,
    "nt_xent": losses.nt_xent,
    "sup_con": losses.sup_con,
    "decoupled": losses.decoupled,
    "debiased": bind(losses.debiased, prior=0.1),
    "hard_weighted": bind(losses.hard_weighted, prior=0.1, concentration=1.0),
    "sigmoid": bind(losses.sigmoid, bias=0.0),
}
SCORES = jnp.array([0.3]), jnp.array([[0.1, jnp.nan, -0.4]])


@jax.jit
def by_temperature(temperature):
    where = jnp.array([[True, False, True]])

    def values(temperature):
        given = (*SCORES, where)
        return {name: loss(*given, temperature=temperature)[0] for name, loss in TEMPERED.items()}

    return values(temperature), jax.jacfwd(values)(temperature)


@pytest.mark.parametrize("name", TEMPERED)
def test_temperature_is_checked_and_learnable(name):
    for temperature in (0, -1.0, float("nan"), jnp.float32(0.0)):
        with pytest.raises(UserError, match="temperature is"):
            TEMPERED[name](*SCORES, temperature=temperature)
    high, low = (by_temperature(tau)[0][name] for tau in (0.51, 0.49))
    assert float(by_temperature(0.5)[1][name]) == pytest.approx(float(high - low) / 0.02, rel=1e-2)


@pytest.mark.parametrize(
    ("loss", "keyword", "values"),
    [
        (bind(losses.debiased, temperature=1.0), "prior", (-0.1, 1, 1.5, float("nan"))),
        (bind(losses.hard_weighted, temperature=1.0, concentration=1.0), "prior", (-0.1, 1.0)),
        (bind(losses.hard_weighted, temperature=1.0, prior=0.1), "concentration", (-1, -0.5)),
        (losses.triplet, "margin", (-0.1, -1, float("nan"), jnp.float32(-1.0))),
        (bind(losses.triplet, margin=1.0), "mining", ("easy", "")),
    ],
    ids=["debiased", "hard_weighted", "concentration", "margin", "mining"],
)
def test_numbers_out_of_range_are_a_sentence(loss, keyword, values):
    for value in values:
        with pytest.raises(UserError, match=f"{keyword} is {value!r}|{keyword} is -1.0"):
            loss(jnp.zeros(1), jnp.zeros((1, 2)), **{keyword: value})
