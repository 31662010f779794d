"""NT-Xent, SupCon and triplets against pytorch-metric-learning and lightly, and reductions."""

import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.losses import info_nce, nt_xent, sup_con, triplet, view_scores
from cpc.types import UserError

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "goldens"))
from goldens import load_golden

META, CASES = load_golden("metric_learning.npz")
RTOL, ATOL = META["tolerance"]["f32_rtol"], META["tolerance"]["f32_atol"]
_, OF_LIGHTLY = load_golden("lightly.npz")


def close(actual, expected, largest=1.0):
    scale = max(largest, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=ATOL + RTOL * scale)


def pairs_of(labels):
    """(anchor, positive) of every ordered pair, and the anchors' masks of positives, negatives."""
    same = labels[:, None] == labels
    is_positive = same & ~np.eye(len(labels), dtype=bool)
    return np.argwhere(is_positive), jnp.asarray(is_positive), jnp.asarray(~same)


def unit(z):
    return z / jnp.linalg.norm(z, axis=-1, keepdims=True)


@pytest.mark.parametrize("name", CASES)
def test_nt_xent_and_sup_con_equal_metric_learning(name):
    params, inputs, expected = CASES[name]
    pairs, is_positive, is_negative = pairs_of(inputs["labels"])
    temperature = params["temperature"]
    anchors, positives = pairs.T

    def losses(z):
        scores = unit(z) @ unit(z).T
        of_pairs = nt_xent(
            scores[anchors, positives], scores[anchors], is_negative[anchors],
            temperature=temperature,
        )  # fmt: skip
        masks = {"where": is_negative, "where_positive": is_positive, "temperature": temperature}
        return of_pairs, info_nce(scores, scores, **masks), sup_con(scores, scores, **masks)

    @jax.jit
    def values_and_gradients(z):
        (of_pairs, by_anchor, supervised), pull = jax.vjp(losses, z)
        zero, one = jnp.zeros(len(z)), jnp.full(len(z), 1 / len(z))
        (nt_xent_gradient,) = pull((jnp.full(len(pairs), 1 / len(pairs)), zero, zero))
        (sup_con_gradient,) = pull((jnp.zeros(len(pairs)), zero, one))
        return of_pairs, by_anchor, supervised, nt_xent_gradient, sup_con_gradient

    z = jnp.asarray(inputs["embeddings"], jnp.float32)
    of_pairs, by_anchor, supervised, *gradients = values_and_gradients(z)
    largest = 1 / temperature  # of the scores
    close(of_pairs.mean(), expected["ntxent_mean"], largest)
    close(gradients[0], expected["ntxent_grad"], largest)
    close(supervised.mean(), expected["supcon_mean_all"], largest)
    close(gradients[1], expected["supcon_mean_all_grad"], largest)
    if "supcon_per_anchor" in expected:
        close(supervised, expected["supcon_per_anchor"], largest)
        np.testing.assert_array_equal(pairs, expected["ntxent_pairs"])
        close(of_pairs, expected["ntxent_per_pair"], largest)
        # InfoNCE with several positives is the mean over the anchor's pairs.
        sums = np.bincount(anchors, expected["ntxent_per_pair"], minlength=len(z))
        counts = np.bincount(anchors, minlength=len(z))
        close(by_anchor, sums / np.maximum(counts, 1), largest)


@pytest.mark.parametrize("name", CASES)
def test_triplets_equal_metric_learning(name):
    params, inputs, expected = CASES[name]
    if params["N"] == 5:
        assert expected["miner_all_count"] == 0, "case one_class has no negative at all"
    pairs, is_positive, is_negative = pairs_of(inputs["labels"])
    anchors, positives = pairs.T
    margin = params["margin"]
    has_pair = np.asarray(is_positive).any(-1) & np.asarray(is_negative).any(-1)
    kept = np.flatnonzero(has_pair)

    def distances(z):
        z = unit(z) if params["normalize"] else z
        squared = jnp.square(z[:, None] - z).sum(-1)
        return jnp.where(squared > 1e-12, jnp.sqrt(jnp.where(squared > 1e-12, squared, 1.0)), 0.0)

    def hard(z):
        """Of each anchor that has both: its farthest positive and its nearest negative."""
        d = distances(z)[kept]
        farthest = jnp.where(is_positive[kept], d, -jnp.inf).max(-1)
        return triplet(-farthest, -d, is_negative[kept], margin=margin)

    def every(z):
        """The mean over all triplets, from the mean over each pair's negatives."""
        d = distances(z)
        rows = -d[anchors, positives], -d[anchors], is_negative[anchors]
        count = is_negative[anchors].sum(-1)
        losses = triplet(*rows, margin=margin, mining="all")
        return (losses * count).sum() / jnp.maximum(count.sum(), 1)

    z = jnp.asarray(inputs["embeddings"], jnp.float32)
    mean, gradient = jax.jit(jax.value_and_grad(every))(z)
    close(mean, expected["triplet_alltriplets_mean"])
    close(gradient, expected["triplet_alltriplets_grad"])
    if not len(kept):
        return
    mean, gradient = jax.jit(jax.value_and_grad(lambda z: hard(z).mean()))(z)
    close(mean, expected["miner_hard_triplet_mean"])
    if name != "duplicates":  # two distances are equal: any may be mined
        close(gradient, expected["miner_hard_triplet_grad"])


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("one_class", "wide")])
def test_semi_hard_negatives_are_the_nearest_beyond_the_positive(name):
    params, inputs, expected = CASES[name]
    d, margin = expected["distance"], params["margin"]
    pairs, _, is_negative = pairs_of(inputs["labels"])
    anchors, positives = pairs.T
    mined = jax.jit(functools.partial(triplet, margin=margin, mining="semi_hard"))(
        jnp.asarray(-d[anchors, positives], jnp.float32),
        jnp.asarray(-d[anchors], jnp.float32),
        is_negative[anchors],
    )
    inside = {}  # the library lists every negative within the margin; here the nearest is taken
    for a, p, n in expected["miner_semihard_t_idx"]:
        inside.setdefault((a, p), []).append(d[a, n])
    for (a, p), loss in zip(pairs, mined, strict=True):
        others = d[a][np.asarray(is_negative)[a]]
        chosen = min(inside[a, p]) if (a, p) in inside else others.max()
        assert float(loss) == pytest.approx(max(0.0, d[a, p] - chosen + margin), abs=1e-5)
    # One triplet an anchor: the nearest negative beyond the farthest positive, margin or not.
    rows = {tuple(pair): float(loss) for pair, loss in zip(pairs.tolist(), mined, strict=True)}
    batch = [rows[a, p] for a, p, _ in expected["miner_batch_semihard_idx"].tolist()]
    close(np.mean(batch), expected["miner_batch_semihard_triplet_mean"])


@pytest.mark.parametrize("b", [1, 2, 5])
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


@pytest.mark.parametrize("b", [1, 2, 8])
def test_nt_xent_at_chance(b):
    """T25: log(2b - 1); a batch of one has no negative and no loss."""
    same = jnp.ones((b, 4))
    losses = jax.jit(lambda z: nt_xent(*view_scores(z, z)))(same)
    np.testing.assert_allclose(losses, np.log(2 * b - 1), atol=1e-6)


def random_rows(seed, m=4, p=3, n=5):
    rng = np.random.default_rng(seed)
    arrays = rng.normal(size=(m, p)), rng.normal(size=(m, n))
    return *(jnp.asarray(x, jnp.float32) for x in arrays), *(
        jnp.asarray(rng.random(shape) < 0.7).at[0].set(True) for shape in ((m, p), (m, n))
    )


@pytest.mark.slow
def test_sup_con_reduces_to_nt_xent_and_bounds_hold():
    """T23: with one positive both forms are NT-Xent; L_in <= L_out with several."""
    positive, negatives, where_positive, where = random_rows(0)
    one = nt_xent(positive[:, 0], negatives, where, temperature=0.3)
    for inside in (False, True):
        loss = sup_con(positive[:, 0], negatives, where, temperature=0.3, inside=inside)
        np.testing.assert_allclose(loss, one, rtol=1e-5, atol=1e-6)
    masks = {"where": where, "where_positive": where_positive, "temperature": 0.3}
    out = sup_con(positive, negatives, **masks)
    inner = sup_con(positive, negatives, **masks, inside=True)
    assert (inner <= out + 1e-6).all()
    assert (inner[0] < out[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
def test_sup_con_equals_naive_twin(inside):
    positive, negatives, where_positive, where = random_rows(1, m=6)
    where_positive, where = where_positive.at[1].set(False), where.at[2].set(False)
    poisoned = jnp.where(where_positive, positive, jnp.nan)

    @jax.jit
    @jax.value_and_grad
    def total(poisoned, weights):
        masks = {"where_positive": where_positive, "temperature": 0.2, "inside": inside}
        return (weights * sup_con(poisoned, negatives, where, **masks)).sum()

    for i in range(6):
        p = np.float64(positive[i])[np.asarray(where_positive[i])] / 0.2
        n = np.float64(negatives[i])[np.asarray(where[i])] / 0.2
        expected = 0.0
        if len(p) and len(n):
            everything = np.logaddexp.reduce([*p, *n])
            own = np.logaddexp.reduce(p) - np.log(len(p)) if inside else p.mean()
            expected = everything - own
        value, slope = total(poisoned, jnp.eye(6)[i])
        assert float(value) == pytest.approx(expected, rel=2e-5, abs=2e-5)
        np.testing.assert_array_equal(np.asarray(slope)[~np.asarray(where_positive)], 0.0)
        assert np.isfinite(slope).all()


@pytest.mark.slow
def test_huge_scores_of_several_positives_are_finite():
    positive, negatives = jnp.array([[1e4, -1e4]]), jnp.array([[-1e4, 1e4]])
    where = jnp.ones((1, 2), bool)  # or they could be embeddings
    for loss, expected in (
        (lambda p, n: info_nce(p, n, where=where), 1e4),  # log 2 and 2e4
        (lambda p, n: sup_con(p, n, where=where, temperature=1.0), 1e4),
        (lambda p, n: sup_con(p, n, where=where, temperature=1.0, inside=True), np.log(4)),
    ):
        value, slopes = jax.value_and_grad(lambda p, n, f=loss: f(p, n).sum(), (0, 1))(
            positive, negatives
        )
        assert float(value) == pytest.approx(expected, rel=1e-3)
        assert all(np.isfinite(slope).all() for slope in slopes)


def test_bad_input_is_a_sentence(unchecked):
    with pytest.raises(UserError, match=r"second has shape \(3, 2\): it must be that of first"):
        view_scores(jnp.zeros((2, 2)), jnp.zeros((3, 2)))
    mask = jnp.ones((2, 2), bool)
    with pytest.raises(UserError, match=r"where_positive is bool of shape \(2, 2\)"):
        sup_con(jnp.zeros((2, 3)), jnp.zeros((2, 4)), where_positive=mask, temperature=1.0)
    with pytest.raises(UserError, match="where_positive needs several positives"):
        info_nce(jnp.zeros(2), jnp.zeros((2, 4)), where_positive=jnp.ones((2, 1), bool))
