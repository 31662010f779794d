"""Losses of pairs against the losses of the library, pair by pair."""

import functools

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


WAYS = {"logistic": (logistic_pairs, negative_sampling), "softmax": (softmax_pairs, info_nce)}


@functools.partial(jax.jit, static_argnames=("name", "masked"))
def run(positive, negatives, there, where, *, name, masked=True):
    """Losses, those of each pair by itself, and gradients of the sum of the former."""
    pairs, loss = WAYS[name]
    where = where if masked else None

    def total(positive, negatives):
        losses = pairs(positive, negatives, there, where)
        return losses.sum(), losses

    slopes, losses = jax.grad(total, (0, 1), has_aux=True)(positive, negatives)
    rows = [jnp.repeat(x, P, 0) for x in (negatives, jnp.ones((M, N), bool))]
    if masked:
        rows[1] = where.reshape(-1, N)
    each = loss(positive.ravel(), *rows).reshape(M, P)
    return losses, jnp.where(there, each, 0.0).sum(-1), slopes


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", WAYS)
def test_equals_the_loss_of_each_pair(name, masked):
    losses, want, _ = run(*scores(), name=name, masked=masked)
    np.testing.assert_allclose(losses, want, atol=1e-5)


def test_weight_is_that_of_the_negatives():
    positive, negatives, there, _ = scores()
    weighted = jax.jit(lambda w: logistic_pairs(positive, negatives, there, weight=w))
    one, three = weighted(1.0), weighted(3.0)
    data = np.where(there, np.logaddexp(0, -np.asarray(positive)), 0).sum(-1)
    np.testing.assert_allclose(three - data, 3 * (one - data), rtol=1e-5)


@pytest.mark.parametrize("name", WAYS)
def test_masked_scores_may_be_nan_and_have_no_gradient(name):
    """Negatives are masked that no positive of their anchor counts; anchor 0 has no positive."""
    positive, negatives, there, where = scores()
    where = where.at[1, :, 2].set(False)
    counts = (where & there[..., None]).any(1)
    assert not counts[1, 2]
    want, _, slopes = run(positive, negatives, there, where, name=name)
    poisoned = jnp.where(there, positive, jnp.nan), jnp.where(counts, negatives, jnp.nan)
    losses, _, found = run(*poisoned, there, where, name=name)
    np.testing.assert_allclose(losses, want, rtol=1e-6)
    for slope, clean, mask in zip(found, slopes, (there, counts), strict=True):
        np.testing.assert_allclose(slope, clean, rtol=1e-6)
        assert not slope[~mask].any()
