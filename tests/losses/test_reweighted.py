"""Decoupled losses against lightly; debiased and hard-weighted ones where they reduce."""

import functools
import itertools

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
from tests.goldens.goldens import load_golden
from tests.losses import naive_losses as naive

META, CASES = load_golden("dcl.npz")


@functools.partial(jax.jit, static_argnames="sigma")
def decoupled_losses(first, second, temperature, sigma):
    """The decoupled loss, plain and weighted, with gradients; widths may be padded."""

    def losses(first, second):
        positive, negatives = view_scores(first, second)
        # Each view's anchors have weights among themselves.
        halves = [decoupled_weights(half, sigma=sigma) for half in jnp.split(positive, 2)]
        of = functools.partial(decoupled, positive, negatives, temperature=temperature)
        return jnp.stack([of().mean(), of(positive_weight=jnp.concatenate(halves)).mean()])

    return losses(first, second), *jax.jacrev(losses, (0, 1))(first, second)


@pytest.mark.parametrize("name", CASES)
def test_decoupled_equals_lightly(name):
    params, inputs, expected = CASES[name]
    d = params["D"]
    arrays = [np.pad(np.float32(inputs[f"out{i}"]), ((0, 0), (0, 16 - d))) for i in (0, 1)]
    value, *slopes = decoupled_losses(*arrays, params["temperature"], sigma=params["sigma"])
    tolerance = META["tolerance"]
    for i, key in enumerate(("dcl", "dclw")):
        found = {"": value[i], "_grad0": slopes[0][i][:, :d], "_grad1": slopes[1][i][:, :d]}
        for of, actual in found.items():
            golden = expected[key + of]
            largest = max(np.abs(golden).max(), 1 / params["temperature"])  # of the scores
            atol = tolerance["f32_atol"] + 1e-6 * largest
            np.testing.assert_allclose(actual, golden, rtol=tolerance["f32_rtol"], atol=atol)


def cosines(seed, m=4, n=6):
    rng = np.random.default_rng(seed)
    arrays = rng.uniform(-1, 1, m), rng.uniform(-1, 1, (m, n))
    where = jnp.asarray(rng.random((m, n)) < 0.7).at[:, 0].set(True)
    return *(jnp.asarray(x, jnp.float32) for x in arrays), where


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_reductions(temperature):
    """T23: prior 0 is InfoNCE, concentration 0 is debiased, both 0 InfoNCE."""

    @jax.jit
    def losses(*rows):
        keywords = {"temperature": temperature}
        tilted = functools.partial(hard_weighted, *rows, concentration=0, **keywords)
        of_prior = {
            prior: (debiased(*rows, prior=prior, **keywords), tilted(prior=prior))
            for prior in (0, 0.05, 0.3)
        }
        return info_nce(*rows, **keywords), of_prior

    plain, of_prior = losses(*cosines(0))
    for prior, (loss, untilted) in of_prior.items():
        np.testing.assert_allclose(loss, untilted, rtol=1e-6)
        is_plain = np.isclose(loss, plain, rtol=1e-5, atol=1e-6)
        assert is_plain.all() if prior == 0 else not is_plain.all()


def test_large_concentration_leaves_the_hardest():
    positive, negatives, where = cosines(1)
    options = {"prior": 0, "concentration": 500.0, "temperature": 0.5}
    tilted = jax.jit(functools.partial(hard_weighted, **options))(positive, negatives, where)
    k = np.asarray(where).sum(-1)
    hardest = np.where(where, negatives, -np.inf).max(-1)
    alone = np.log1p(k * np.exp((hardest - np.asarray(positive)) / 0.5))
    np.testing.assert_allclose(tilted, alone, rtol=0.02)


def debiased_sum(positive, negatives, prior, temperature):
    return debiased(positive, negatives, prior=prior, temperature=temperature).sum()


with_slopes = jax.jit(jax.value_and_grad(debiased_sum, (0, 1)), static_argnums=(2, 3))


def test_floor_where_the_correction_takes_all():
    """A positive above all negatives, and a large prior: g = e^(-1 / tau)."""
    positive, negatives = jnp.array([0.9]), jnp.array([[0.1, -0.2, 0.0]])
    value, (to_positive, to_negatives) = with_slopes(positive, negatives, 0.9, 0.5)
    own, floor = np.exp(0.9 / 0.5), 3 * np.exp(-1 / 0.5)
    assert float(value) == pytest.approx(np.log1p(floor / own), rel=1e-5)
    assert float(to_positive[0]) == pytest.approx(-2 * floor / (own + floor), rel=1e-5)
    np.testing.assert_array_equal(to_negatives, 0.0)


def test_more_draws_of_the_own_class():
    positive, negatives, where = cosines(2)
    extra = jnp.asarray(np.random.default_rng(3).uniform(-1, 0, (4, 2)), jnp.float32)

    @jax.jit
    def losses(*rows):
        keywords = {"prior": 0.2, "temperature": 0.5}
        return [
            debiased(*rows, extra_positives=draws, **keywords)
            for draws in (extra, rows[0][:, None], None)
        ]

    loss, itself, default = losses(positive, negatives, where)
    for i in range(4):
        u = np.exp(np.float64(negatives[i])[np.asarray(where[i])] / 0.5)
        own = np.exp(np.float64(extra[i]) / 0.5).mean()
        noise = max((u.mean() - 0.2 * own) / 0.8, np.exp(-2.0))
        expected = np.log1p(len(u) * noise / np.exp(float(positive[i]) / 0.5))
        assert float(loss[i]) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(itself, default, rtol=1e-6)


def test_gradient_where_the_correction_nearly_vanishes():
    """mean e^s - pi e^s+ near 0, at any size of the scores: finite, and the twin's value."""
    for gap, size in itertools.product((0.0, 1e-7, 1e-6, 1e-3, -1e-6), (0.0, 20.0)):
        positive = jnp.array([size - np.log(0.5) - gap], jnp.float32)
        negatives = jnp.full((1, 2), size, jnp.float32)
        value, slopes = with_slopes(positive, negatives, 0.5, 1.0)
        expected = naive.hard_weighted(float(positive[0]), [size, size], 0.5, 0.0, 1.0)
        assert float(value) == pytest.approx(expected, abs=1e-4)
        assert all(np.isfinite(slope).all() for slope in slopes)


def test_decoupled_may_be_negative_and_has_no_rival_in_the_positive():
    negatives = jnp.array([[0.1, -0.3]])
    loss = jax.jit(jax.value_and_grad(lambda p: decoupled(p, negatives, temperature=0.1).sum()))
    assert float(loss(jnp.array([0.9]))[0]) < 0.0
    for p in (-0.9, 0.9):  # no factor 1 - p_positive
        assert float(loss(jnp.array([p]))[1][0]) == pytest.approx(-10.0, rel=1e-6)


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
