"""InfoNCE of score matrices: closed forms and another implementation."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.losses import info_nce
from tests.goldens.goldens import load_golden

META, CASES = load_golden("infonce_explicit.npz")
#: Queries, negatives and width to which the cases of a mode are padded.
SIZES = {"unpaired": (6, 9, 8), "paired": (12, 32, 16), "in-batch": (6, 6, 4)}
of_rows = jax.jit(info_nce)


@jax.jit
def golden_loss(query, positive, negative, where, weights, temperature):
    """Losses, and gradients of the weighted sum; negatives (m, d) or (n, m, d)."""

    def losses(*arrays):
        query, positive, negative = (
            x / jnp.sqrt(jnp.maximum((x**2).sum(-1, keepdims=True), 1e-24)) for x in arrays
        )
        paired = "nmd" if negative.ndim == 3 else "md"
        scores = jnp.einsum(f"nd,{paired}->nm", query, negative)
        attraction = (query * positive).sum(-1)
        values = info_nce(attraction, scores, where, temperature=temperature)
        return (weights * values).sum(), values

    return jax.grad(losses, (0, 1, 2), has_aux=True)(query, positive, negative)


def pad(x, shape):
    return np.pad(np.float32(x), [(0, size - n) for size, n in zip(shape, x.shape, strict=True)])


@pytest.mark.parametrize("name", CASES)
def test_equals_golden(name):
    params, inputs, expected = CASES[name]
    mode = params["negative_mode"]
    query, positive = inputs["query"], inputs["positive_key"]
    negative = positive if mode == "in-batch" else inputs["negative_keys"]
    n, m = len(query), negative.shape[-2]
    rows, columns, width = SIZES[mode]
    shape = (rows, columns, width)[3 - negative.ndim :]
    where = pad(~np.eye(n, dtype=bool) if mode == "in-batch" else np.ones((n, m)), (rows, columns))
    gradients, values = golden_loss(
        *(pad(x, (rows, width)) for x in (query, positive)), pad(negative, shape),
        where > 0, pad(np.full(n, 1 / n), (rows,)), params["temperature"],
    )  # fmt: skip
    rtol, atol = META["tolerance"]["f32_rtol"], META["tolerance"]["f32_atol"]
    close = {"rtol": rtol, "atol": atol + 1e-6 / params["temperature"]}  # the largest score
    values = values[:n]
    np.testing.assert_allclose(values, expected["loss_none"], **close)
    np.testing.assert_allclose(values.mean(), expected["loss_mean"], **close)
    np.testing.assert_allclose(values.sum(), expected["loss_sum"], **close)
    if "grad_query" not in expected:
        return
    gradients = [np.asarray(g) for g in gradients]
    if mode == "in-batch":  # the keys are both positives and negatives
        gradients = [gradients[0], gradients[1] + gradients[2]]
    for gradient, of in zip(gradients, ("query", "positive", "negative"), strict=False):
        slope = expected[f"grad_{of}"]
        atol = close["atol"] + rtol * np.abs(slope).max()
        got = gradient[tuple(map(slice, slope.shape))]
        np.testing.assert_allclose(got, slope, rtol=rtol, atol=atol)


def test_gradient_is_softmax_less_one_hot():
    """T1, and it sums to zero."""
    scores = np.random.default_rng(2).normal(size=(4, 6)) * 2

    def total(scores):
        return info_nce(scores[:, 0], scores[:, 1:], temperature=0.5).sum()

    gradient = jax.jit(jax.grad(total))(jnp.asarray(scores, jnp.float32))
    share = np.exp(2 * scores - np.logaddexp.reduce(2 * scores, axis=1, keepdims=True))
    np.testing.assert_allclose(gradient, 2 * (share - np.eye(6)[0]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient.sum(-1), 0.0, atol=1e-6)


def test_is_the_posterior_of_the_index_and_free_of_shifts():
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
    scores = np.log(given_c / p)[candidates]
    for shift in (0.0, np.linspace(-70, 300, len(scores))[:, None]):
        moved = jnp.asarray(scores + shift, jnp.float32)
        loss = of_rows(moved[:, 0], moved[:, 1:])
        np.testing.assert_allclose(
            jnp.exp(-loss), posterior, rtol=1e-5 if np.ndim(shift) == 0 else 1e-4
        )


@pytest.mark.parametrize("n", [0, 7])
def test_chance_no_negative_and_no_doubt(n):
    """T5: log N at equal scores, 0 without a negative, 0 with a huge positive."""
    negatives = jnp.full((2, n), 0.3)
    np.testing.assert_allclose(of_rows(jnp.full(2, 0.3), negatives), np.log(n + 1), rtol=1e-6)
    np.testing.assert_array_equal(of_rows(jnp.full(2, 1e4), negatives), 0.0)


def test_several_positives_are_the_mean_of_each_alone():
    rng = np.random.default_rng(5)
    positive, negatives = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((4, 3), (4, 6))
    )
    where_positive = np.array([[True] * 3, [False] * 3, [True] * 3, [True, False, True]])
    where = jnp.asarray(rng.random((4, 6)) < 0.7).at[2].set(False).at[0].set(True)
    of_positive = jnp.asarray(where_positive)

    @jax.jit
    def losses(positive, negatives):
        def total(positive, negatives):
            masks = {"where_positive": of_positive, "temperature": 0.5}
            found = info_nce(positive, negatives, where, **masks)
            return found.sum(), found

        alone = [info_nce(s, negatives, where, temperature=0.5) for s in positive.T]
        poisoned = jnp.where(of_positive, positive, jnp.nan)
        slopes, found = jax.grad(total, (0, 1), has_aux=True)(poisoned, negatives)
        return found, jnp.stack(alone, -1), slopes

    found, alone, slopes = losses(positive, negatives)
    expected = np.where(where_positive, alone, 0.0).sum(-1) / np.maximum(where_positive.sum(-1), 1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert expected[1] == expected[2] == 0.0
    np.testing.assert_array_equal(np.asarray(slopes[0])[~where_positive], 0.0)
    for slope in slopes:
        assert not np.asarray(slope)[1:3].any()
        assert np.isfinite(slope).all()
