"""Losses of views: goldens of pytorch-metric-learning and lightly, twins, closed forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import losses
from cpc.losses import alignment, info_nce, nt_xent, sup_con, uniformity, view_scores
from cpc.types import UserError
from tests.goldens.goldens import load_golden
from tests.losses.any_rule import assert_same

META, CASES = load_golden("metric_learning.npz")
RTOL, ATOL = META["tolerance"]["f32_rtol"], META["tolerance"]["f32_atol"]
_, LIGHTLY_CASES = load_golden("lightly.npz")


def close(actual, expected, largest=1.0):
    scale = max(largest, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=ATOL + RTOL * scale)


def unit(z):
    return z / jnp.sqrt(jnp.maximum((z**2).sum(-1, keepdims=True), 1e-24))


N, D = 32, 16  # padded sizes


def case_of(name):
    params, inputs, expected = CASES[name]
    labels, z = inputs["labels"], np.zeros((N, D), np.float32)
    n, d = inputs["embeddings"].shape
    z[:n, :d] = inputs["embeddings"]
    same = labels[:, None] == labels
    masks = np.zeros((2, N, N), bool)
    masks[:, :n, :n] = same & ~np.eye(n, dtype=bool), ~same
    return params, z, *masks, expected


@jax.jit
def view_losses(z, is_positive, is_negative, num, temperature):
    """Return means and gradients, NT-Xent per pair, InfoNCE and SupCon per anchor."""
    is_real = is_positive.any(-1) | is_negative.any(-1)

    def losses(z):
        scores = unit(z) @ unit(z).T
        rows = jnp.repeat(scores, N, 0), jnp.repeat(is_negative, N, 0)
        of_pairs = nt_xent(scores.ravel(), *rows, temperature=temperature)
        masks = {"where": is_negative, "where_positive": is_positive, "temperature": temperature}
        by_anchor, supervised = (loss(scores, scores, **masks) for loss in (info_nce, sup_con))
        of_pairs = jnp.where(is_positive, of_pairs.reshape(N, N), 0.0)
        means = of_pairs.sum() / is_positive.sum(), (is_real * supervised).sum() / num
        return jnp.stack(means), (of_pairs, by_anchor, supervised)

    gradients, found = jax.jacrev(losses, has_aux=True)(z)
    return losses(z)[0], gradients, *found


@pytest.mark.parametrize("name", CASES)
def test_nt_xent_and_sup_con_equal_metric_learning(name):
    params, z, is_positive, is_negative, expected = case_of(name)
    n, largest = params["N"], 1 / params["temperature"]  # largest score
    means, gradients, of_pairs, by_anchor, supervised = view_losses(
        z, is_positive, is_negative, n, params["temperature"]
    )
    inside = slice(n), slice(params["D"])
    close(means[0], expected["ntxent_mean"], largest)
    close(gradients[0][inside], expected["ntxent_grad"], largest)
    close(means[1], expected["supcon_mean_all"], largest)
    close(gradients[1][inside], expected["supcon_mean_all_grad"], largest)
    if "supcon_per_anchor" in expected:
        anchors, positives = np.argwhere(is_positive).T
        close(supervised[:n], expected["supcon_per_anchor"], largest)
        np.testing.assert_array_equal(np.argwhere(is_positive), expected["ntxent_pairs"])
        close(of_pairs[anchors, positives], expected["ntxent_per_pair"], largest)
        # InfoNCE with several positives is the mean over the anchor's pairs.
        sums = np.bincount(anchors, expected["ntxent_per_pair"], minlength=n)
        counts = np.bincount(anchors, minlength=n)
        close(by_anchor[:n], sums / np.maximum(counts, 1), largest)


def test_zero_vectors_have_finite_loss_and_no_gradient():
    views = jnp.zeros((2, 3)).at[0].set(1.0)
    total = jax.jit(jax.value_and_grad(lambda z: nt_xent(*view_scores(z, views)).sum()))
    value, slope = total(views)
    assert np.isfinite(value)
    assert abs(slope).max() < 1
    assert not slope[1].any()


def as_lightly(z0, z1, temperature, bank=None):
    """Return lightly's NTXentLoss; a memory bank is used as before the call."""
    if bank is None:
        return nt_xent(*view_scores(z0, z1), temperature=temperature).mean()
    positive = (unit(z0) * unit(z1)).sum(1)
    return info_nce(positive, unit(z0) @ bank.T, temperature=temperature).mean()


@pytest.mark.parametrize("name", LIGHTLY_CASES)
def test_nt_xent_equals_lightly(name):
    params, inputs, expected = LIGHTLY_CASES[name]
    loss = functools.partial(as_lightly, **params, bank=inputs.get("bank"))
    value, slopes = jax.jit(jax.value_and_grad(loss, (0, 1)))(inputs["z0"], inputs["z1"])
    np.testing.assert_allclose(value, expected["loss"], rtol=1e-5)
    for slope, key in zip(slopes, ("grad0", "grad1"), strict=True):
        largest = np.abs(expected[key]).max()
        np.testing.assert_allclose(slope, expected[key], rtol=1e-5, atol=1e-5 * largest)


@jax.jit
def multi_positive_losses(positive, negatives, where_positive, where):
    """Return three losses of several positives and their gradients; masked positives are NaN."""
    given = jnp.where(where_positive, positive, jnp.nan), negatives
    masks = {"where": where, "where_positive": where_positive, "temperature": 0.2}
    inside = functools.partial(sup_con, inside=True)
    of = [functools.partial(loss, **masks) for loss in (sup_con, inside, info_nce)]
    return [(loss(*given), jax.jacrev(loss, (0, 1))(*given)) for loss in of]


def test_several_positives_equal_naive_twins():
    """With one positive all equal NT-Xent; L_in <= L_out with several."""
    rng = np.random.default_rng(1)
    positive, negatives = (np.float32(rng.normal(size=s)) for s in ((6, 3), (6, 5)))
    where_positive, where = (rng.random(s) < 0.7 for s in ((6, 3), (6, 5)))
    where_positive[0], where_positive[1], where[0], where[2] = True, False, True, False
    where_positive[3] = np.arange(3) == 1
    found = multi_positive_losses(positive, negatives, where_positive, where)
    for i in range(6):
        p = np.float64(positive[i])[where_positive[i]] / 0.2
        n = np.float64(negatives[i])[where[i]] / 0.2
        expected = np.zeros(3)
        if len(p) and len(n):
            total, noise = np.logaddexp.reduce([*p, *n]), np.logaddexp.reduce(n)
            own = np.logaddexp.reduce(p) - np.log(len(p))
            expected = total - p.mean(), total - own, (np.logaddexp(p, noise) - p).mean()
        values = [float(losses[i]) for losses, _ in found]
        np.testing.assert_allclose(values, expected, rtol=2e-5, atol=2e-5)
    for _, (to_positive, to_negatives) in found:
        np.testing.assert_array_equal(np.asarray(to_positive)[:, ~where_positive], 0.0)
        assert np.isfinite(to_positive).all()
        assert np.isfinite(to_negatives).all()
        assert not to_negatives[1:3].any()  # anchors without positive or negative
    (out, _), (inner, _), _ = found
    assert (inner <= out + 1e-6).all()
    assert inner[0] < out[0]
    assert float(inner[3]) == pytest.approx(float(out[3]), rel=1e-5)


def test_huge_scores_of_several_positives_are_finite():
    scores, there = np.float32([[[1e4, -1e4]], [[-1e4, 1e4]]]), np.ones((1, 2), bool)
    for (values, slopes), want in zip(
        multi_positive_losses(*scores, there, there), (1, np.log(4), 1), strict=True
    ):
        np.testing.assert_allclose(values, want * (5e4 if want == 1 else 1), rtol=1e-3)
        assert all(np.isfinite(slope).all() for slope in slopes)


def test_invalid_input_is_rejected(unchecked):
    two, z, mask = jnp.zeros(2), jnp.ones((2, 3)), jnp.ones((2, 2), bool)
    for call, match in (
        (lambda: view_scores(z, jnp.zeros((3, 2))), r"second .*got shape \(3, 2\)"),
        (lambda: sup_con(z, z, where_positive=mask), r"where_positive .*bool of shape \(2, 2\)"),
        (lambda: info_nce(two, z, where_positive=mask), "where_positive needs several positives"),
        (lambda: alignment(z, jnp.ones((3, 3))), r"z_positive .*got shape \(3, 3\)"),
        (lambda: alignment(z, z, 0), "power .*got 0"),
        (lambda: uniformity(z[:1]), "latents .*got 1"),
        (lambda: uniformity(z, -1), "scale .*got -1"),
    ):
        with pytest.raises(UserError, match=match):
            call()


def sphere(seed, m, d=3):
    z = np.random.default_rng(seed).normal(size=(m, d))
    return z / np.linalg.norm(z, axis=1, keepdims=True)


@pytest.mark.parametrize("power", [0.5, 1, 2, 3.0])
def test_alignment_and_uniformity_equal_their_formulas(power):
    z, other = sphere(0, 5), sphere(1, 5)
    pairs = [np.exp(-power * ((z[i] - z[j]) ** 2).sum()) for i, j in np.ndindex(5, 5) if i != j]
    expected = (np.linalg.norm(z - other, axis=1) ** power).mean(), np.log(np.mean(pairs))

    @jax.jit
    def both(z, other):
        return alignment(z, other, power), uniformity(z, power)

    np.testing.assert_allclose(both(jnp.float32(z), jnp.float32(other)), expected, rtol=1e-5)
    half = [jnp.asarray(x, jnp.bfloat16) for x in (z, other)]
    assert {x.dtype.name for x in jax.eval_shape(both, *half)} == {"float32"}


def test_collapse_is_aligned_and_not_uniform():
    z = jnp.tile(jnp.asarray(sphere(3, 1), jnp.float32), (4, 1))

    @jax.jit
    def found(z, other):
        of = [jax.value_and_grad(alignment)(z, other, power) for power in (1, 2)]
        return of, jax.value_and_grad(uniformity)(z)

    aligned, (value, slope) = found(z, z)
    for one, to_z in aligned:
        assert float(one) == 0.0
        np.testing.assert_array_equal(to_z, 0.0)
    assert float(value) == pytest.approx(0.0, abs=1e-6)
    assert np.isfinite(slope).all()


def pair_scores():
    rng = np.random.default_rng(0)
    positive, negatives = rng.normal(size=(4, 3)), rng.normal(size=(4, 5))
    there = rng.random((4, 3)) < 0.7
    there[0] = False
    where = rng.random((4, 3, 5)) < 0.6
    where[..., 0], where[1, :, 2] = True, False
    return tuple(map(jnp.asarray, (positive, negatives, there, where)))


WAYS = {
    "logistic": (losses.logistic_pairs, losses.negative_sampling),
    "softmax": (losses.softmax_pairs, info_nce),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", WAYS)
def test_pair_losses_equal_single_pairs(name, masked):
    """Masked scores are NaN and have no gradient."""
    (pairs, single), (positive, negatives, there, where) = WAYS[name], pair_scores()
    where = where if masked else jnp.ones_like(where)
    counts = (where & there[..., None]).any(1) | (not masked)

    def of_pairs(positive, negatives):
        losses = pairs(positive, negatives, there, where if masked else None)
        return losses.sum(), losses

    def of_single(positive, negatives):
        each = single(positive.ravel(), jnp.repeat(negatives, 3, 0), where.reshape(-1, 5))
        losses = jnp.where(there, each.reshape(4, 3), 0.0).sum(-1)
        return losses.sum(), losses

    poisoned = jnp.where(there, positive, jnp.nan), jnp.where(counts, negatives, jnp.nan)
    found, want = (
        jax.jit(jax.grad(loss, (0, 1), has_aux=True))(*given)
        for loss, given in ((of_pairs, poisoned), (of_single, (positive, negatives)))
    )
    assert_same(found, want, atol=1e-5)
    assert not found[0][1][~counts].any()


def test_weight_scales_the_negatives():
    positive, negatives, there, _ = pair_scores()
    weighted = jax.jit(lambda w: losses.logistic_pairs(positive, negatives, there, weight=w))
    one, three = weighted(1.0), weighted(3.0)
    data = np.where(there, np.logaddexp(0, -np.asarray(positive)), 0).sum(-1)
    np.testing.assert_allclose(three - data, 3 * (one - data), rtol=1e-5)
