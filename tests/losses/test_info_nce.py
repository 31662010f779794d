"""InfoNCE of score matrices: closed forms, masks, a naive twin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpc.losses import info_nce
from cpc.types import UserError


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


def test_more_negatives_cannot_lower_the_loss():
    rng = np.random.default_rng(1)
    positive, negative = jnp.asarray(rng.normal(size=4)), jnp.asarray(rng.normal(size=(4, 6)))
    assert (info_nce(positive, negative) > info_nce(positive, negative[:, :5])).all()


@pytest.mark.parametrize("temperature", [0, 0.0, -1.0])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(UserError, match="temperature is"):
        info_nce(jnp.zeros(1), jnp.zeros((1, 2)), temperature=temperature)
