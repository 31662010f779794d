"""Decoupled losses against lightly; debiased and hard-weighted ones where they reduce."""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.losses import (
    debiased,
    decoupled,
    decoupled_weights,
    hard_weighted,
    info_nce,
    view_scores,
)
from cpc.types import UserError
from tests.losses import naive_losses as naive

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "goldens"))
from goldens import load_golden

META, CASES = load_golden("dcl.npz")


@pytest.mark.parametrize("weighted", [False, True], ids=["dcl", "dclw"])
@pytest.mark.parametrize("name", CASES)
def test_decoupled_equals_lightly(name, weighted):
    params, inputs, expected = CASES[name]

    @jax.jit
    def loss(first, second):
        positive, negatives = view_scores(first, second)
        weight = 1.0
        if weighted:  # each view's anchors have weights among themselves
            weight = jnp.concatenate(
                [decoupled_weights(half, sigma=params["sigma"]) for half in jnp.split(positive, 2)]
            )
        return decoupled(
            positive, negatives, temperature=params["temperature"], positive_weight=weight
        ).mean()

    arrays = [jnp.asarray(inputs[f"out{i}"], jnp.float32) for i in (0, 1)]
    value, gradients = jax.value_and_grad(loss, (0, 1))(*arrays)
    key, tolerance = "dclw" if weighted else "dcl", META["tolerance"]
    for actual, of in ((value, ""), (gradients[0], "_grad0"), (gradients[1], "_grad1")):
        golden = expected[key + of]
        largest = max(np.abs(golden).max(), 1 / params["temperature"])  # of the scores
        np.testing.assert_allclose(
            actual,
            golden,
            rtol=tolerance["f32_rtol"],
            atol=tolerance["f32_atol"] + 1e-6 * largest,
        )


def cosines(seed, m=4, n=6):
    rng = np.random.default_rng(seed)
    arrays = rng.uniform(-1, 1, m), rng.uniform(-1, 1, (m, n))
    where = jnp.asarray(rng.random((m, n)) < 0.7).at[:, 0].set(True)
    return *(jnp.asarray(x, jnp.float32) for x in arrays), where


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_reductions(temperature):
    """T23: prior 0 is InfoNCE, concentration 0 is debiased, both 0 InfoNCE."""
    rows = cosines(0)
    plain = info_nce(*rows, temperature=temperature)
    keywords = {"temperature": temperature}
    np.testing.assert_allclose(debiased(*rows, prior=0, **keywords), plain, rtol=1e-5, atol=1e-6)
    both = hard_weighted(*rows, prior=0, concentration=0, **keywords)
    np.testing.assert_allclose(both, plain, rtol=1e-5, atol=1e-6)
    for prior in (0.05, 0.3):
        untilted = hard_weighted(*rows, prior=prior, concentration=0, **keywords)
        np.testing.assert_array_equal(debiased(*rows, prior=prior, **keywords), untilted)
        assert (untilted != plain).any()


def test_large_concentration_leaves_the_hardest():
    positive, negatives, where = cosines(1)
    tilted = hard_weighted(
        positive, negatives, where, prior=0, concentration=500.0, temperature=0.5
    )
    k = where.sum(-1)
    hardest = jnp.where(where, negatives, -jnp.inf).max(-1)
    alone = jnp.log1p(k * jnp.exp((hardest - positive) / 0.5))
    np.testing.assert_allclose(tilted, alone, rtol=0.02)


@pytest.mark.slow
def test_floor_where_the_correction_takes_all():
    """A positive above all negatives, and a large prior: g = e^(-1 / tau)."""
    positive, negatives = jnp.array([0.9]), jnp.array([[0.1, -0.2, 0.0]])

    def loss(positive, negatives):
        return debiased(positive, negatives, prior=0.9, temperature=0.5).sum()

    value, (to_positive, to_negatives) = jax.value_and_grad(loss, (0, 1))(positive, negatives)
    own, floor = np.exp(0.9 / 0.5), 3 * np.exp(-1 / 0.5)
    assert float(value) == pytest.approx(np.log1p(floor / own), rel=1e-5)
    assert float(to_positive[0]) == pytest.approx(-2 * floor / (own + floor), rel=1e-5)
    np.testing.assert_array_equal(to_negatives, 0.0)


def test_more_draws_of_the_own_class():
    positive, negatives, where = cosines(2)
    extra = jnp.asarray(np.random.default_rng(3).uniform(-1, 0, (4, 2)), jnp.float32)
    keywords = {"prior": 0.2, "temperature": 0.5, "extra_positives": extra}
    loss = debiased(positive, negatives, where, **keywords)
    for i in range(4):
        u = np.exp(np.float64(negatives[i])[np.asarray(where[i])] / 0.5)
        own = np.exp(np.float64(extra[i]) / 0.5).mean()
        noise = max((u.mean() - 0.2 * own) / 0.8, np.exp(-2.0))
        expected = np.log1p(len(u) * noise / np.exp(float(positive[i]) / 0.5))
        assert float(loss[i]) == pytest.approx(expected, rel=1e-5)
    itself = debiased(
        positive, negatives, where, **keywords | {"extra_positives": positive[:, None]}
    )
    default = debiased(positive, negatives, where, **keywords | {"extra_positives": None})
    np.testing.assert_array_equal(itself, default)


@pytest.mark.slow
@pytest.mark.parametrize("gap", [0.0, 1e-7, 1e-6, 1e-3, -1e-6])
def test_gradient_where_the_correction_nearly_vanishes(gap):
    """mean e^s - pi e^s+ near 0, at any size of the scores: finite, and the twin's value."""
    for size in (0.0, 20.0):
        positive = jnp.array([size - np.log(0.5) - gap], jnp.float32)
        negatives = jnp.full((1, 2), size, jnp.float32)

        def loss(positive, negatives):
            return debiased(positive, negatives, prior=0.5, temperature=1.0).sum()

        value, slopes = jax.value_and_grad(loss, (0, 1))(positive, negatives)
        expected = naive.hard_weighted(float(positive[0]), [size, size], 0.5, 0.0, 1.0)
        assert float(value) == pytest.approx(expected, abs=1e-4)
        assert all(np.isfinite(slope).all() for slope in slopes)


@pytest.mark.slow
def test_decoupled_may_be_negative_and_has_no_rival_in_the_positive():
    positive, negatives = jnp.array([0.9]), jnp.array([[0.1, -0.3]])
    slope = jax.grad(lambda p: decoupled(p, negatives, temperature=0.1).sum())
    assert float(decoupled(positive, negatives, temperature=0.1)[0]) < 0.0
    for p in (-0.9, 0.9):  # no factor 1 - p_positive
        assert float(slope(jnp.array([p]))[0]) == pytest.approx(-10.0, rel=1e-6)


def test_weights_have_mean_one_and_no_gradient():
    positive = jnp.array([0.9, 0.1, -0.4])
    weights = decoupled_weights(positive, sigma=0.3)
    assert float(weights.mean()) == pytest.approx(1.0, rel=1e-6)
    assert (jnp.diff(weights) > 0).all(), "far positives weigh more"
    np.testing.assert_array_equal(jax.grad(lambda p: decoupled_weights(p)[0])(positive), 0.0)
    with pytest.raises(UserError, match="sigma is 0"):
        decoupled_weights(positive, sigma=0)


def test_bad_extra_positives_are_a_sentence(unchecked):
    with pytest.raises(UserError, match=r"extra_positives has shape \(3, 2\): it must be \(2, p\)"):
        debiased(
            jnp.zeros(2), jnp.zeros((2, 3)), prior=0.1, temperature=1.0,
            extra_positives=jnp.zeros((3, 2)),
        )  # fmt: skip
