"""Losses of pairs against the losses of the library, pair by pair."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.losses import (
    info_nce,
    logistic_pairs,
    negative_sampling,
    softmax_pairs,
)

M, P, N = 4, 3, 5


def scores(seed=0):
    rng = np.random.default_rng(seed)
    positive, negatives = rng.normal(size=(M, P)), rng.normal(size=(M, N))
    there = rng.random((M, P)) < 0.7
    there[0] = False
    where = rng.random((M, P, N)) < 0.6
    where[..., 0] = True
    return tuple(map(jnp.asarray, (positive, negatives, there, where)))


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("pairs", "loss"), [(logistic_pairs, negative_sampling), (softmax_pairs, info_nce)]
)
def test_equals_the_loss_of_each_pair(pairs, loss, masked):
    positive, negatives, there, where = scores()
    got = pairs(positive, negatives, there, where if masked else None)
    for i in range(M):
        want = 0.0
        for j in np.flatnonzero(there[i]):
            counts = where[i, j][None] if masked else None
            want += float(loss(positive[i, j][None], negatives[i][None], counts)[0])
        assert float(got[i]) == pytest.approx(want, abs=1e-5)


def test_weight_is_that_of_the_negatives():
    positive, negatives, there, _ = scores()
    one, three = (logistic_pairs(positive, negatives, there, weight=w) for w in (1.0, 3.0))
    data = jnp.where(there, jax.nn.softplus(-positive), 0).sum(-1)
    np.testing.assert_allclose(three - data, 3 * (one - data), rtol=1e-5)


@pytest.mark.parametrize("pairs", [logistic_pairs, softmax_pairs])
def test_masked_positives_may_be_nan_and_have_no_gradient(pairs):
    positive, negatives, there, where = scores()
    positive = jnp.where(there, positive, jnp.nan)
    slope = jax.grad(lambda s: pairs(s, negatives, there, where).sum())(positive)
    assert np.isfinite(slope).all()
    assert not slope[~there].any()


@pytest.mark.parametrize("pairs", [logistic_pairs, softmax_pairs])
def test_masked_negatives_may_be_nan_and_have_no_gradient(pairs):
    """Those that no positive of their anchor counts; the first anchor has no positive at all."""
    positive, negatives, there, where = scores()
    where = where.at[1, :, 2].set(False)
    counts = (where & there[..., None]).any(1)
    assert not counts[1, 2]
    poisoned = jnp.where(counts, negatives, jnp.nan)
    value, slope = jax.value_and_grad(lambda s: pairs(positive, s, there, where).sum())(poisoned)
    assert float(value) == pytest.approx(float(pairs(positive, negatives, there, where).sum()))
    assert np.isfinite(slope).all()
    assert not slope[~counts].any()
