"""Retrieval against TensorFlow's numbers; NCE and sampled losses by enumeration, in the limit."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from cpc.losses import (
    full_logistic,
    full_softmax,
    info_nce,
    nce,
    negative_sampling,
    ranking_nce,
    sampled_logistic,
    sampled_softmax,
)
from cpc.types import UserError
from tests.goldens.goldens import load_golden

META, RETRIEVAL = load_golden("tfrs_retrieval.npz")
_, NCE_GRADIENTS = load_golden("nce_mle_gradient.json")


def pad(x, *shape):
    return np.pad(np.float32(x), [(0, size - n) for size, n in zip(shape, x.shape, strict=True)])


def tempered(query, candidate, temperature):
    """Scores of the best head of each query (m, heads, d)."""
    return (query @ candidate.T).max(1) / temperature


@jax.jit
def retrieval(query, candidate, log_q, where, weights, temperature):
    def total(query, candidate):
        scores = tempered(query, candidate, temperature)
        corrections = {"log_q_positive": log_q[: len(query)], "log_q_negatives": log_q}
        losses = sampled_softmax(jnp.diagonal(scores), scores, where, **corrections)
        return (weights * losses).sum(), losses

    return jax.value_and_grad(total, (0, 1), has_aux=True)(query, candidate)


def retrieval_where(scores, params, inputs):
    """Which candidates are negatives: accidental hits, mask, hard negatives, in that order."""
    m, n = scores.shape
    where = np.arange(m)[:, None] != np.arange(n)
    if params.get("remove_accidental_hits"):
        where &= inputs["candidate_ids"][:m, None] != inputs["candidate_ids"]
    where &= inputs.get("score_mask", True)
    if "num_hard_negatives" in params:
        order = np.argsort(np.where(where, -scores, np.inf), axis=1)
        where &= np.argsort(order, axis=1) < params["num_hard_negatives"]
    return where


@pytest.mark.parametrize("name", RETRIEVAL)
def test_retrieval_equals_tensorflow_recommenders(name):
    """All cases in one shape: rows of weight 0 and masked columns are added."""
    params, inputs, expected = RETRIEVAL[name]
    query, candidate = inputs["query"], inputs["candidate"]
    heads = query if query.ndim == 3 else query[:, None]
    (m, num_heads, d), n = heads.shape, len(candidate)
    temperature = params.get("temperature", 1.0)
    log_q = np.log(np.clip(inputs.get("candidate_sampling_probability", np.ones(n)), 1e-6, 1.0))
    where = retrieval_where(tempered(heads, candidate, temperature) - log_q, params, inputs)
    (loss, losses), gradients = retrieval(
        pad(heads, 9, num_heads, 5), pad(candidate, 12, 5), pad(log_q, 12),
        pad(where, 9, 12) > 0, pad(inputs.get("sample_weight", np.ones(m)), 9), temperature,
    )  # fmt: skip
    found = {
        "loss": loss, "row_loss": losses[:m], "grad_candidate": gradients[1][:n, :d],
        "grad_query": gradients[0][:m, :, :d].reshape(query.shape),
    }  # fmt: skip
    tolerance = META["tolerance"]
    for key, got in found.items():
        atol = tolerance["f32_atol"] + tolerance["f32_rtol"] * np.abs(expected[key]).max()
        np.testing.assert_allclose(got, expected[key], rtol=tolerance["f32_rtol"], atol=atol)


# Four classes, every draw of six negatives, of which the first k count: T18 and T18b.
P, Q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.3, 0.4])
DRAWS = np.array(list(itertools.product(range(4), repeat=7)))
LABEL, SAMPLE = DRAWS[:, 0], DRAWS[:, 1:]
#: By convention: the largest gradient at the data of 1, 2, 4 and 6 draws; how far the optimum is.
CONVENTIONS = {
    "A": ((0, 0, 0, 0), 0.0),
    "B": ((0, 0.0032, 0.0095, 0.0133), 0.066),
    "C hits removed": ((0.1422, 0.1323, 0.1012, 0.0779), 1.178),
    "C hits kept": ((0.1422, 0.1161, 0.0717, 0.0443), None),
    "none": ((0.0555, 0.0901, 0.1294, 0.1505), 0.795),
}


@jax.jit
def population_losses(scores, k):
    """Loss and gradient of each convention by the classes' scores (v,), by enumeration."""
    weight = jnp.asarray(P[LABEL] * Q[SAMPLE].prod(1), jnp.float32)
    log_q = jnp.log(jnp.asarray(Q, jnp.float32))
    kept = jnp.broadcast_to(jnp.arange(6) < k, SAMPLE.shape)
    removed = kept & jnp.asarray(LABEL[:, None] != SAMPLE)
    positive, negatives = log_q[LABEL], log_q[SAMPLE]
    counts = {"log_q_negatives": jnp.log(k) + negatives}

    def losses(scores):
        rows = scores[LABEL], scores[SAMPLE]
        noise = {"log_noise_positive": positive, "log_noise_negatives": negatives}
        of = {
            "A": ranking_nce(*rows, kept, **noise),
            "B": sampled_softmax(
                *rows, removed, log_q_positive=positive, log_q_negatives=negatives
            ),
            "C hits removed": sampled_softmax(*rows, removed, **counts),
            "C hits kept": sampled_softmax(*rows, kept, **counts),
            "none": info_nce(*rows, kept),
        }
        return {name: (weight * loss).sum() for name, loss in of.items()}

    return losses(scores), jax.jacrev(losses)(scores)


def test_gradient_at_the_data_of_each_convention():
    for i, k in enumerate((1.0, 2.0, 4.0, 6.0)):
        _, gradients = population_losses(jnp.asarray(np.log(P), jnp.float32), k)
        for name, (published, _) in CONVENTIONS.items():
            largest = float(jnp.abs(gradients[name]).max())
            assert largest == pytest.approx(published[i], abs=6e-5), name


@pytest.mark.parametrize("name", [name for name in CONVENTIONS if name != "C hits kept"])
def test_optimum_of_each_convention(name):
    def value(scores):
        values, gradients = population_losses(jnp.asarray(scores, jnp.float32), 2.0)
        return float(values[name]), np.asarray(gradients[name], np.float64)

    found = optimize.minimize(value, np.zeros(4), jac=True, method="L-BFGS-B", tol=1e-9).x
    centred = found - found.mean() - (np.log(P) - np.log(P).mean())
    assert np.abs(centred).max() == pytest.approx(CONVENTIONS[name][1], abs=2e-3)
    if name == "none":  # which is InfoNCE: the ratio
        ratio = np.log(P / Q) - np.log(P / Q).mean()
        np.testing.assert_allclose(found - found.mean(), ratio, atol=2e-3)


def test_negative_sampling_finds_shifted_pmi():
    """T14: the optimum is PMI - log K; the gradient vanishes there and the optimiser ends there."""
    _, inputs, expected = NCE_GRADIENTS["sgns"]
    joint = np.array(inputs["P"])
    product = joint.sum(1, keepdims=True) * joint.sum(0)

    @jax.jit
    @jax.grad
    def gradient(scores, k):
        """Of E -log sigma(s) over the joint and K E -log sigma(-s) over the product."""
        flat = scores.reshape(-1)
        nothing = jnp.full_like(flat, -1e4)
        as_data = negative_sampling(flat, nothing[:, None])
        as_noise = negative_sampling(-nothing, flat[:, None])
        return (joint.ravel() * as_data + k * product.ravel() * as_noise).sum()

    for k, optimum in zip(inputs["k"], expected["pmi_minus_logk"], strict=True):
        optimum = jnp.asarray(optimum, jnp.float32)
        np.testing.assert_allclose(gradient(optimum, float(k)), 0.0, atol=2e-7)
        # The loss is convex in each score: a slope of the right sign on both sides is enough.
        assert (gradient(optimum + 1e-3, float(k)) > 0).all()
        assert (gradient(optimum - 1e-3, float(k)) < 0).all()


@jax.jit
@jax.grad
def nce_objective(theta, k, data, q, log_q):
    log_p = jax.nn.log_softmax(theta)
    # One noise sample each; log_normalizer = log k makes it one of k.
    noise = {"log_noise_positive": log_q, "log_noise_negatives": log_q[:, None]}
    nothing = jnp.full_like(log_p, -1e4)
    as_data = nce(log_p, nothing[:, None], log_normalizer=jnp.log(k), **noise)
    as_noise = nce(-nothing, log_p[:, None], log_normalizer=jnp.log(k), **noise)
    return -(data * as_data + k * q * as_noise).sum()


@pytest.mark.parametrize("name", ["V10", "V4", "V30"])
def test_nce_gradient_equals_exact_expectation(name):
    """The normalised model's gradient, negated: dJ_k of every k, by weights instead of draws.

    It tends to the likelihood's as 1 / k; below 1e-3 float32 leaves two digits of the distance.
    Classes are added that have no probability.
    """
    _, inputs, expected = NCE_GRADIENTS[name]
    theta, data, q = (np.array(inputs[x]) for x in ("theta", "pd", "q"))
    v = len(theta)
    padded = pad(data, 30), pad(q, 30), pad(np.log(q), 30)
    theta = np.where(np.arange(30) < v, pad(theta, 30), np.float32(-1e4))
    likelihood = np.array(expected["mle_gradient"])
    distances = expected["relative_error"]
    for k, exact, distance in zip(inputs["k"], expected["nce_gradient"], distances, strict=True):
        gradient = nce_objective(theta, float(k), *padded)[:v]
        np.testing.assert_allclose(gradient, exact, rtol=1e-4, atol=2e-6)
        found = np.linalg.norm(gradient - likelihood) / np.linalg.norm(likelihood)
        assert found == pytest.approx(distance, rel=1e-3, abs=3e-6)


def test_normaliser_may_be_one_of_each_anchor():
    noise = {"log_noise_positive": 0.0, "log_noise_negatives": 0.0}
    each = jax.jit(
        lambda log_z: nce(jnp.zeros(2), jnp.zeros((2, 3)), log_normalizer=log_z, **noise)
    )
    d = -np.array([0.0, 1.0]) - np.log(3)
    expected = np.logaddexp(0, -d) + 3 * np.logaddexp(0, d)
    np.testing.assert_allclose(each(jnp.array([0.0, 1.0])), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("loss", "prefix"),
    [(ranking_nce, "log_noise"), (nce, "log_noise"), (sampled_softmax, "log_q"),
     (sampled_logistic, "log_q")],
)  # fmt: skip
def test_corrections_may_be_shared_and_masked_ones_hold_anything(loss, prefix):
    rng = np.random.default_rng(3)
    positive, negatives, log_q = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2,), (2, 3), (3,))
    )
    where = np.array([[True, False, True], [True, True, False]])
    mask = jnp.asarray(where)

    @jax.jit
    def gradients(log_q):
        def total(positive, correction):
            keywords = {f"{prefix}_positive": jnp.full(2, 0.3), f"{prefix}_negatives": correction}
            return loss(positive, negatives, mask, **keywords).sum()

        poisoned = jnp.where(mask, log_q, jnp.nan)
        return jax.grad(total)(positive, log_q), *jax.grad(total, (0, 1))(positive, poisoned)

    shared, to_positive, to_correction = map(np.asarray, gradients(log_q))
    np.testing.assert_array_equal(to_positive, shared)
    np.testing.assert_array_equal(to_correction[~where], 0.0)
    assert np.isfinite(to_correction).all()
    assert (to_correction[where] != 0.0).all()


def test_a_correction_that_does_not_fit_is_named(unchecked):
    with pytest.raises(UserError, match=r"correction of negatives has shape \(4,\)"):
        ranking_nce(jnp.zeros(2), jnp.zeros((2, 3)), log_noise_negatives=jnp.zeros(4))


def test_full_losses():
    rng = np.random.default_rng(4)
    scores, labels = rng.normal(size=(3, 5)) * 3, np.array([4, 0, 2])
    mask = labels[:, None] == np.arange(5)
    two = mask | (np.arange(5) == 1)

    @jax.jit
    def losses(scores, labels):
        half = full_softmax(scores.astype(jnp.bfloat16), labels)
        assert half.dtype == jnp.float32
        negatives = info_nce(scores[jnp.arange(3), labels], scores, jnp.asarray(~mask))
        logistic = [full_logistic(scores, one) for one in (labels, jnp.asarray(mask))]
        return (
            full_softmax(scores, labels),
            negatives,
            *logistic,
            full_logistic(scores, jnp.asarray(two)),
        )

    softmax = np.logaddexp.reduce(scores, axis=1) - scores[np.arange(3), labels]
    logistic, of_two = (np.logaddexp(0, np.where(m, -scores, scores)).sum(1) for m in (mask, two))
    expected = softmax, softmax, logistic, logistic, of_two
    for got, want in zip(losses(jnp.float32(scores), jnp.asarray(labels)), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    closed_over = jax.jit(lambda scores: full_softmax(scores, jnp.asarray(labels)))
    np.testing.assert_allclose(closed_over(jnp.float32(scores)), softmax, rtol=1e-5)


@pytest.mark.parametrize("loss", [full_softmax, full_logistic])
def test_labels_outside_are_refused_or_nan(loss):
    scores = jnp.zeros((2, 3))
    for labels, wrong in (([0, 3], 3), ([-1, 0], -1)):
        with pytest.raises(UserError, match=f"labels holds {wrong}: with 3 classes"):
            loss(scores, jnp.array(labels))
    traced = jax.jit(loss)(scores, jnp.array([0, 3]))
    assert np.isfinite(traced[0])
    assert np.isnan(traced[1])
