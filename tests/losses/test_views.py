"""NT-Xent, SupCon and triplets against pytorch-metric-learning and lightly, and reductions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.losses import info_nce, nt_xent, sup_con, triplet, view_scores
from cpc.types import UserError
from tests.goldens.goldens import load_golden

META, CASES = load_golden("metric_learning.npz")
RTOL, ATOL = META["tolerance"]["f32_rtol"], META["tolerance"]["f32_atol"]
_, OF_LIGHTLY = load_golden("lightly.npz")


def close(actual, expected, largest=1.0):
    scale = max(largest, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=ATOL + RTOL * scale)


def unit(z):
    return z / jnp.sqrt(jnp.maximum((z**2).sum(-1, keepdims=True), 1e-24))


N, D = 32, 16  # to which all cases are padded


def case_of(name):
    """Embeddings, masks of positives and negatives, all padded, and the ordered pairs."""
    params, inputs, expected = CASES[name]
    labels, z = inputs["labels"], np.zeros((N, D), np.float32)
    n, d = inputs["embeddings"].shape
    z[:n, :d] = inputs["embeddings"]
    same = labels[:, None] == labels
    masks = np.zeros((2, N, N), bool)
    masks[:, :n, :n] = same & ~np.eye(n, dtype=bool), ~same
    return params, z, *masks, expected


@jax.jit
def of_pairs_and_anchors(z, is_positive, is_negative, num, temperature):
    """NT-Xent of each pair (n, n), InfoNCE and SupCon of each anchor, and two gradients."""
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
    n, largest = params["N"], 1 / params["temperature"]  # of the scores
    means, gradients, of_pairs, by_anchor, supervised = of_pairs_and_anchors(
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


@jax.jit
def triplets(z, is_positive, is_negative, normalize, margin):
    """Means over all triplets and over the hardest of each anchor, with gradients."""
    has_both = is_positive.any(-1) & is_negative.any(-1)
    count = is_negative.sum(-1, keepdims=True) * is_positive

    def losses(z):
        z = jnp.where(normalize, unit(z), z)
        squared = jnp.square(z[:, None] - z).sum(-1)
        d = jnp.where(squared > 1e-12, jnp.sqrt(jnp.where(squared > 1e-12, squared, 1.0)), 0.0)
        farthest = jnp.where(is_positive, d, 0.0).max(-1)
        hard = jnp.where(has_both, triplet(-farthest, -d, is_negative, margin=margin), 0.0)
        rows = jnp.repeat(-d, N, 0), jnp.repeat(is_negative, N, 0)
        every = triplet(-d.ravel(), *rows, margin=margin, mining="all").reshape(N, N)
        every = (every * count).sum() / jnp.maximum(count.sum(), 1)
        return jnp.stack([every, hard.sum() / jnp.maximum(has_both.sum(), 1)])

    return losses(z), jax.jacrev(losses)(z)


@pytest.mark.parametrize("name", CASES)
def test_triplets_equal_metric_learning(name):
    params, z, is_positive, is_negative, expected = case_of(name)
    if params["N"] == 5:
        assert expected["miner_all_count"] == 0, "case one_class has no negative at all"
    given = params["normalize"], params["margin"]
    means, gradients = triplets(z, is_positive, is_negative, *given)
    inside = slice(params["N"]), slice(params["D"])
    close(means[0], expected["triplet_alltriplets_mean"])
    close(gradients[0][inside], expected["triplet_alltriplets_grad"])
    if not (is_positive.any(-1) & is_negative.any(-1)).any():
        return
    close(means[1], expected["miner_hard_triplet_mean"])
    if name != "duplicates":  # two distances are equal: any may be mined
        close(gradients[1][inside], expected["miner_hard_triplet_grad"])


semi_hard = jax.jit(functools.partial(triplet, mining="semi_hard"))


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("one_class", "wide")])
def test_semi_hard_negatives_are_the_nearest_beyond_the_positive(name):
    params, _, is_positive, is_negative, expected = case_of(name)
    n, margin, distance = params["N"], params["margin"], expected["distance"]
    d = np.zeros((N, N), np.float32)
    d[:n, :n] = distance
    pairs = np.argwhere(is_positive)
    rows = np.repeat(-d, N, 0), np.repeat(is_negative, N, 0)
    mined = np.asarray(semi_hard(-d.ravel(), *rows, margin=margin)).reshape(N, N)
    inside = {}  # the library lists every negative within the margin; here the nearest is taken
    for a, p, negative in expected["miner_semihard_t_idx"]:
        inside.setdefault((a, p), []).append(distance[a, negative])
    for a, p in pairs:
        others = d[a][is_negative[a]]
        chosen = min(inside[a, p]) if (a, p) in inside else others.max()
        assert float(mined[a, p]) == pytest.approx(max(0.0, d[a, p] - chosen + margin), abs=1e-5)
    # One triplet an anchor: the nearest negative beyond the farthest positive, margin or not.
    batch = [mined[a, p] for a, p, _ in expected["miner_batch_semihard_idx"].tolist()]
    close(np.mean(batch), expected["miner_batch_semihard_triplet_mean"])


@pytest.mark.parametrize("b", [1, 5])
def test_view_scores_are_the_pairs_of_views(b):
    rng = np.random.default_rng(b)
    first, second = rng.normal(size=(2, b, 3))
    positive, negatives = jax.jit(view_scores)(jnp.asarray(first), jnp.asarray(second))
    z = np.concatenate([first, second])
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    for i in range(2 * b):
        twin = (i + b) % (2 * b)
        others = [z[i] @ z[j] for j in range(2 * b) if j not in (i, twin)]
        assert float(positive[i]) == pytest.approx(z[i] @ z[twin], abs=1e-6)
        np.testing.assert_allclose(np.sort(negatives[i]), np.sort(others), atol=1e-6)


def test_view_scores_of_a_zero_vector_are_zero_without_a_gradient():
    views = jnp.zeros((2, 3)).at[0].set(1.0)
    total = jax.jit(jax.value_and_grad(lambda z: nt_xent(*view_scores(z, views)).sum()))
    value, slope = total(views)
    assert np.isfinite(value)
    assert abs(slope).max() < 1
    assert not slope[1].any()


def as_lightly(z0, z1, temperature, bank=None):
    """NTXentLoss(temperature)(z0, z1); with a memory bank, of its rows before the call."""
    if bank is None:
        return nt_xent(*view_scores(z0, z1), temperature=temperature).mean()
    positive = (unit(z0) * unit(z1)).sum(1)
    return info_nce(positive, unit(z0) @ bank.T, temperature=temperature).mean()


@pytest.mark.parametrize("name", OF_LIGHTLY)
def test_nt_xent_equals_that_of_lightly(name):
    params, inputs, expected = OF_LIGHTLY[name]
    loss = functools.partial(as_lightly, **params, bank=inputs.get("bank"))
    value, slopes = jax.jit(jax.value_and_grad(loss, (0, 1)))(inputs["z0"], inputs["z1"])
    np.testing.assert_allclose(value, expected["loss"], rtol=1e-5)
    for slope, key in zip(slopes, ("grad0", "grad1"), strict=True):
        largest = np.abs(expected[key]).max()
        np.testing.assert_allclose(slope, expected[key], rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize("b", [1, 8])
def test_nt_xent_at_chance(b):
    """T25: log(2b - 1); a batch of one has no negative and no loss."""
    same = jnp.ones((b, 4))
    losses = jax.jit(lambda z: nt_xent(*view_scores(z, z)))(same)
    np.testing.assert_allclose(losses, np.log(2 * b - 1), atol=1e-6)


@jax.jit
def supervised(positive, negatives, where_positive, where):
    """SupCon and its gradients by the positives, whose masked entries hold NaN, of both forms."""

    def run(inside):
        def losses(positive, negatives):
            masks = {"where_positive": where_positive, "temperature": 0.2, "inside": inside}
            return sup_con(positive, negatives, where, **masks)

        positives = jnp.where(where_positive, positive, jnp.nan), negatives
        return losses(*positives), jax.jacrev(losses)(*positives)

    return {inside: run(inside) for inside in (False, True)}


def test_sup_con_equals_naive_twin_and_bounds_hold():
    """T23: with one positive both forms are NT-Xent; L_in <= L_out with several."""
    rng = np.random.default_rng(1)
    positive, negatives = (np.float32(rng.normal(size=s)) for s in ((6, 3), (6, 5)))
    where_positive, where = (rng.random(s) < 0.7 for s in ((6, 3), (6, 5)))
    where_positive[0], where_positive[1], where[0], where[2] = True, False, True, False
    where_positive[3] = np.arange(3) == 1
    found = supervised(positive, negatives, where_positive, where)
    for inside, (values, slopes) in found.items():
        for i in range(6):
            p = np.float64(positive[i])[where_positive[i]] / 0.2
            n = np.float64(negatives[i])[where[i]] / 0.2
            expected = 0.0
            if len(p) and len(n):
                own = np.logaddexp.reduce(p) - np.log(len(p)) if inside else p.mean()
                expected = np.logaddexp.reduce([*p, *n]) - own
            assert float(values[i]) == pytest.approx(expected, rel=2e-5, abs=2e-5)
        np.testing.assert_array_equal(np.asarray(slopes)[:, ~where_positive], 0.0)
        assert np.isfinite(slopes).all()
    out, inner = found[False][0], found[True][0]
    assert (inner <= out + 1e-6).all()
    assert inner[0] < out[0]
    assert float(inner[3]) == pytest.approx(float(out[3]), rel=1e-5)


def test_huge_scores_of_several_positives_are_finite():
    scores = jnp.array([[1e4, -1e4]]), jnp.array([[-1e4, 1e4]])

    @jax.jit
    def values(*scores):
        masks = {
            "where": jnp.ones((1, 2), bool),
            "temperature": 1.0,
        }  # or they look like embeddings

        def losses(p, n):
            found = [loss(p, n, **masks)[0] for loss in (info_nce, sup_con)]
            return jnp.stack([*found, sup_con(p, n, **masks, inside=True)[0]])

        return losses(*scores), jax.jacrev(losses, (0, 1))(*scores)

    found, slopes = values(*scores)
    np.testing.assert_allclose(found, [1e4, 1e4, np.log(4)], rtol=1e-3)  # log 2 and 2e4
    assert all(np.isfinite(slope).all() for slope in slopes)


def test_bad_input_is_a_sentence(unchecked):
    with pytest.raises(UserError, match=r"second has shape \(3, 2\): it must be that of first"):
        view_scores(jnp.zeros((2, 2)), jnp.zeros((3, 2)))
    mask = jnp.ones((2, 2), bool)
    with pytest.raises(UserError, match=r"where_positive is bool of shape \(2, 2\)"):
        sup_con(jnp.zeros((2, 3)), jnp.zeros((2, 4)), where_positive=mask, temperature=1.0)
    with pytest.raises(UserError, match="where_positive needs several positives"):
        info_nce(jnp.zeros(2), jnp.zeros((2, 4)), where_positive=jnp.ones((2, 1), bool))
