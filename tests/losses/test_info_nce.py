"""InfoNCE of score matrices: closed forms, masks, a naive twin, another implementation."""

import itertools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from cpc.losses import info_nce
from cpc.types import UserError

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "goldens"))
from goldens import load_golden

META, CASES = load_golden("infonce_explicit.npz")


@pytest.mark.slow
@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 10**6), st.floats(0.05, 5.0))
def test_equals_naive_twin(m, n, seed, temperature):
    rng = np.random.default_rng(seed)
    positive, negative = rng.normal(size=m) * 3, rng.normal(size=(m, n)) * 3
    where = rng.random((m, n)) < 0.6
    poisoned = np.where(where, negative, np.nan)
    loss = info_nce(
        jnp.asarray(positive, jnp.float32),
        jnp.asarray(poisoned, jnp.float32),
        jnp.asarray(where),
        temperature=temperature,
    )
    for i in range(m):
        kept = [positive[i], *negative[i][where[i]]]
        expected = np.logaddexp.reduce(np.array(kept) / temperature) - positive[i] / temperature
        assert float(loss[i]) == pytest.approx(expected, rel=2e-5, abs=2e-5)


@pytest.mark.slow
def test_masked_negatives_have_no_gradient():
    where = jnp.array([[True, False, True], [False, False, False]])
    negative = jnp.where(where, 0.3, jnp.nan)

    def total(positive, negative):
        return info_nce(positive, negative, where).sum()

    to_positive, to_negative = jax.grad(total, (0, 1))(jnp.zeros(2), negative)
    np.testing.assert_array_equal(np.asarray(to_negative)[~np.asarray(where)], 0.0)
    assert float(to_positive[0] + to_negative[0].sum()) == pytest.approx(0.0, abs=1e-6)
    assert float(to_positive[1]) == 0.0


def test_shift_of_an_anchors_scores_changes_nothing():
    rng = np.random.default_rng(0)
    positive, negative = jnp.asarray(rng.normal(size=3)), jnp.asarray(rng.normal(size=(3, 5)))
    shift = jnp.array([5.0, -70.0, 300.0])
    np.testing.assert_allclose(
        info_nce(positive + shift, negative + shift[:, None]),
        info_nce(positive, negative),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize("gap", [1e4, -1e4])
def test_huge_scores_are_finite(dtype, gap):
    value, gradient = jax.value_and_grad(lambda p: info_nce(p, jnp.zeros((1, 4), dtype)).sum())(
        jnp.full(1, gap, dtype)
    )
    assert value.dtype == jnp.float32
    assert float(value) == pytest.approx(max(-gap, 0.0), rel=1e-2)
    assert float(gradient[0]) == pytest.approx(-1.0 if gap < 0 else 0.0, abs=1e-3)


@pytest.mark.slow
def test_more_negatives_cannot_lower_the_loss():
    rng = np.random.default_rng(1)
    positive, negative = jnp.asarray(rng.normal(size=4)), jnp.asarray(rng.normal(size=(4, 6)))
    assert (info_nce(positive, negative) > info_nce(positive, negative[:, :5])).all()


@pytest.mark.parametrize("temperature", [0, 0.0, -1.0])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(UserError, match="temperature is"):
        info_nce(jnp.zeros(1), jnp.zeros((1, 2)), temperature=temperature)


@pytest.mark.parametrize("name", CASES)
def test_equals_golden(name):
    params, inputs, expected = CASES[name]
    mode = params["negative_mode"]

    def losses(query, positive, negative):
        query, positive, negative = (
            x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
            for x in (query, positive, negative)
        )
        where = None
        if mode == "in-batch":
            where = ~jnp.eye(len(query), dtype=bool)
        paired = "nmd" if mode == "paired" else "md"
        scores = jnp.einsum(f"nd,{paired}->nm", query, negative)
        attraction = (query * positive).sum(-1)
        return info_nce(attraction, scores, where, temperature=params["temperature"])

    arrays = [jnp.asarray(inputs[x], jnp.float32) for x in ("query", "positive_key")]
    if mode == "in-batch":
        arrays.append(arrays[1])
    else:
        arrays.append(jnp.asarray(inputs["negative_keys"], jnp.float32))
    values = jax.jit(losses)(*arrays)
    mean = jax.jit(jax.grad(lambda *x: losses(*x).mean(), (0, 1, 2)))
    rtol, atol = META["tolerance"]["f32_rtol"], META["tolerance"]["f32_atol"]
    largest = 1 / params["temperature"]  # of the scores
    close = {"rtol": rtol, "atol": atol + 1e-6 * largest}
    np.testing.assert_allclose(values, expected["loss_none"], **close)
    np.testing.assert_allclose(values.mean(), expected["loss_mean"], **close)
    np.testing.assert_allclose(values.sum(), expected["loss_sum"], **close)
    if "grad_query" not in expected:
        return
    gradients = [np.asarray(g) for g in mean(*arrays)]
    if mode == "in-batch":  # the keys are both positives and negatives
        gradients = [gradients[0], gradients[1] + gradients[2]]
    for gradient, of in zip(gradients, ("query", "positive", "negative"), strict=False):
        slope = expected[f"grad_{of}"]
        atol = close["atol"] + rtol * np.abs(slope).max()
        np.testing.assert_allclose(gradient, slope, rtol=rtol, atol=atol)


def test_gradient_is_softmax_less_one_hot():
    """T1, and it sums to zero."""
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(4, 6)) * 2

    def total(scores):
        return info_nce(scores[:, 0], scores[:, 1:], temperature=0.5).sum()

    gradient = jax.jit(jax.grad(total))(jnp.asarray(scores, jnp.float32))
    share = np.exp(2 * scores - np.logaddexp.reduce(2 * scores, axis=1, keepdims=True))
    np.testing.assert_allclose(gradient, 2 * (share - np.eye(6)[0]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient.sum(-1), 0.0, atol=1e-6)


@pytest.mark.slow
def test_is_the_posterior_of_the_index():
    """T3: with scores log p(x|c) / p(x), e^-L is p(d = 0 | candidates, c), by Bayes' rule."""
    p, given_c = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.1, 0.7])
    candidates = np.array(list(itertools.product(range(3), repeat=4)))
    joint = np.array(  # of the index i and the candidates: x_i from p(x|c), the others from p(x)
        [
            [np.prod([(given_c if j == i else p)[x] for j, x in enumerate(row)]) for i in range(4)]
            for row in candidates
        ]
    )
    posterior = joint[:, 0] / joint.sum(1)
    scores = jnp.asarray(np.log(given_c / p)[candidates], jnp.float32)
    loss = info_nce(scores[:, 0], scores[:, 1:])
    np.testing.assert_allclose(jnp.exp(-loss), posterior, rtol=1e-5)


@pytest.mark.parametrize("n", [0, 1, 7, 511])
def test_chance_nobody_else_and_no_doubt(n):
    """T5: log N at equal scores, 0 without a negative, 0 with a huge positive."""
    negatives = jnp.full((2, n), 0.3)
    np.testing.assert_allclose(info_nce(jnp.full(2, 0.3), negatives), np.log(n + 1), rtol=1e-6)
    np.testing.assert_array_equal(info_nce(jnp.full(2, 1e4), negatives), 0.0)


def best_value(match, count, log_weight):
    """Largest log N - L over critics b [x = c] of (does x match, how many negatives match)."""
    n = int(count.max())
    negatives = jnp.asarray(np.arange(n) < count[:, None], jnp.float32)
    weight = jnp.asarray(np.exp(log_weight), jnp.float32)

    @jax.jit
    def value(b):
        loss = info_nce(b * jnp.asarray(match, jnp.float32), b * negatives)
        return np.log(n + 1) - (weight * loss).sum()

    found = optimize.minimize_scalar(
        lambda b: -float(value(b)), bounds=(0.0, 12.0), method="bounded", options={"xatol": 1e-3}
    )
    return -found.fun


def matches(p, draws, frames):
    """Outcomes of a match with probability p and `draws` fair ones, each `frames` times over."""
    count = np.arange(draws + 1)
    match = np.repeat([1, 0], draws + 1)
    log_weight = np.repeat(np.log([p, 1 - p]), draws + 1)
    return (
        match,
        np.tile(count, 2) * frames,
        log_weight + np.tile(stats.binom(draws, 0.5).logpmf(count), 2),
    )


@pytest.mark.parametrize(
    ("p", "draws", "frames", "information", "published", "tolerance"),
    [
        (0.6, 1, 999, 0.02014, 0.500, 1e-3),
        (0.6, 999, 1, 0.02014, 0.02012, 5e-5),
        (0.95, 7, 128, 0.49463, 0.571, 1e-3),
        (0.95, 5, 2, 0.49463, 0.4975, 1e-4),
    ],
)
def test_dependent_negatives_pass_the_information(
    p, draws, frames, information, published, tolerance
):
    """T21: log N - L bounds I for independent negatives, and not for repeated ones."""
    assert p * np.log(2 * p) + (1 - p) * np.log(2 - 2 * p) == pytest.approx(information, abs=1e-5)
    value = best_value(*matches(p, draws, frames))
    assert value == pytest.approx(published, abs=tolerance)
    assert (value <= information) == (frames == 1)


def test_several_positives_are_the_mean_of_each_alone():
    rng = np.random.default_rng(5)
    positive, negatives = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((4, 3), (4, 6))
    )
    where_positive = jnp.array([[True] * 3, [False] * 3, [True] * 3, [True, False, True]])
    where = jnp.asarray(rng.random((4, 6)) < 0.7).at[2].set(False).at[0].set(True)
    poisoned = jnp.where(where_positive, positive, jnp.nan)

    @jax.jit
    def losses(positive, negatives):
        masks = {"where_positive": where_positive, "temperature": 0.5}
        return info_nce(positive, negatives, where, **masks)

    alone = np.stack([info_nce(s, negatives, where, temperature=0.5) for s in positive.T], -1)
    count = np.asarray(where_positive).sum(-1)
    expected = np.where(where_positive, alone, 0.0).sum(-1) / np.maximum(count, 1)
    np.testing.assert_allclose(losses(poisoned, negatives), expected, rtol=1e-5, atol=1e-6)
    assert expected[1] == expected[2] == 0.0
    slopes = jax.grad(lambda *x: losses(*x).sum(), (0, 1))(poisoned, negatives)
    np.testing.assert_array_equal(np.asarray(slopes[0])[~np.asarray(where_positive)], 0.0)
    for slope in slopes:
        assert not np.asarray(slope)[1:3].any()
        assert np.isfinite(slope).all()
