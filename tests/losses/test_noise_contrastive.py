"""NCE, sampled losses and retrieval against TensorFlow's numbers, by enumeration, in the limit."""

import functools
import itertools
import pathlib
import sys

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

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "goldens"))
from goldens import load_golden

SAMPLED_META, SAMPLED = load_golden("tf_sampled_losses.npz")
RETRIEVAL_META, RETRIEVAL = load_golden("tfrs_retrieval.npz")
_, NCE_GRADIENTS = load_golden("nce_mle_gradient.json")


def close(actual, expected, meta):
    tolerance = meta["tolerance"]
    atol = tolerance["f32_atol"] + tolerance["f32_rtol"] * np.abs(expected).max(initial=0.0)
    np.testing.assert_allclose(actual, expected, rtol=tolerance["f32_rtol"], atol=atol)


def sampled_losses(positive, negatives, inputs, hits):
    """TensorFlow's names: how each is said here. Corrections are logs of expected counts."""
    true, sampled = (
        jnp.log(jnp.asarray(inputs[f"{which}_expected_count"], jnp.float32))
        for which in ("true", "sampled")
    )
    log_k = np.log(len(sampled))  # count = k q
    scores, kept = (positive, negatives), jnp.asarray(~hits)
    q = {"log_q_positive": true, "log_q_negatives": sampled}
    noise = {"log_noise_positive": true - log_k, "log_noise_negatives": sampled - log_k}
    return {
        "nce_keep_logq": nce(*scores, **noise),
        "nce_keep_raw": negative_sampling(*scores),
        "nce_rm_logq": sampled_logistic(*scores, kept, **q),
        "nce_rm_raw": negative_sampling(*scores, kept),
        "ssm_keep_logq": sampled_softmax(*scores, **q),
        "ssm_keep_raw": sampled_softmax(*scores),
        "ssm_rm_logq": sampled_softmax(*scores, kept, **q),
        "ssm_rm_raw": sampled_softmax(*scores, kept),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_losses_equal_tensorflow(name):
    _, inputs, expected = SAMPLED[name]
    labels, sampled = inputs["labels"], inputs["sampled"]
    hits = expected["hit_mask"]
    # TensorFlow removes hits from a sum that keeps the positive; here an anchor without any
    # negative has no loss. Only case allhit has such anchors.
    alone = hits.all(-1)

    def losses(arrays):
        positive = jnp.einsum("md,mpd->mp", arrays["inputs"], arrays["weights"][labels])
        negatives = arrays["inputs"] @ arrays["weights"][sampled].T + arrays["biases"][sampled]
        return sampled_losses(positive + arrays["biases"][labels], negatives, inputs, hits)

    @jax.jit
    def values_and_gradients(arrays):
        values, pull = jax.vjp(losses, arrays)
        zeros = jax.tree.map(jnp.zeros_like, values)
        return {
            key: (values[key], pull(zeros | {key: jnp.ones_like(values[key])})) for key in values
        }

    arrays = {of: jnp.asarray(inputs[of], jnp.float32) for of in ("inputs", "weights", "biases")}
    for key, (values, (gradients,)) in values_and_gradients(arrays).items():
        differs = alone.any() and key.startswith("nce_rm")
        close(
            values, np.where(alone, 0.0, expected[key]) if differs else expected[key], SAMPLED_META
        )
        for of, gradient in gradients.items():
            if f"{key}_grad_{of}" in expected:
                slope = expected[f"{key}_grad_{of}"]
                close(gradient, np.zeros_like(slope) if differs else slope, SAMPLED_META)


@pytest.mark.slow
def test_one_positive_may_be_flat_or_a_column():
    rng = np.random.default_rng(0)
    positive, negatives = jnp.asarray(rng.normal(size=4)), jnp.asarray(rng.normal(size=(4, 5)))
    for loss in (negative_sampling, sampled_softmax, sampled_logistic, info_nce):
        flat, column = loss(positive, negatives), loss(positive[:, None], negatives)
        np.testing.assert_allclose(flat, column, rtol=1e-6)


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
    return jnp.asarray(where)


@pytest.mark.parametrize("name", RETRIEVAL)
def test_retrieval_equals_tensorflow_recommenders(name):
    params, inputs, expected = RETRIEVAL[name]
    m, n = len(inputs["query"]), len(inputs["candidate"])
    q = np.clip(inputs.get("candidate_sampling_probability", np.ones(n)), 1e-6, 1.0)
    weights = jnp.asarray(inputs.get("sample_weight", np.ones(m)), jnp.float32)

    def tempered(query, candidate):
        heads = query if query.ndim == 3 else query[:, None]
        return (heads @ candidate.T).max(1) / params.get("temperature", 1.0)

    corrected = tempered(inputs["query"], inputs["candidate"]) - np.log(q)
    where = retrieval_where(corrected, params, inputs)
    log_q = jnp.asarray(np.log(q), jnp.float32)

    def total(query, candidate):
        scores = tempered(query, candidate)
        losses = sampled_softmax(
            jnp.diagonal(scores), scores, where, log_q_positive=log_q[:m], log_q_negatives=log_q
        )
        return (weights * losses).sum(), losses

    arrays = [jnp.asarray(inputs[of], jnp.float32) for of in ("query", "candidate")]
    (loss, losses), gradients = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(*arrays)
    close(loss, expected["loss"], RETRIEVAL_META)
    close(losses, expected["row_loss"], RETRIEVAL_META)
    for gradient, of in zip(gradients, ("query", "candidate"), strict=True):
        close(gradient, expected[f"grad_{of}"], RETRIEVAL_META)


# Four classes, every draw of six negatives, of which the first k count: T18 and T18b.
P, Q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.3, 0.4])
DRAWS = np.array(list(itertools.product(range(4), repeat=7)))
LABEL, SAMPLE = DRAWS[:, 0], DRAWS[:, 1:]


@functools.partial(jax.jit, static_argnames="convention")
@functools.partial(jax.value_and_grad, argnums=0)
def population_loss(scores, k, convention):
    """As a function of the classes' scores (v,), by enumeration."""
    weight = jnp.asarray(P[LABEL] * Q[SAMPLE].prod(1), jnp.float32)
    log_q = jnp.log(jnp.asarray(Q, jnp.float32))
    kept = jnp.broadcast_to(jnp.arange(6) < k, SAMPLE.shape)
    removed = kept & jnp.asarray(LABEL[:, None] != SAMPLE)
    rows = scores[LABEL], scores[SAMPLE]
    positive, negatives = log_q[LABEL], log_q[SAMPLE]
    shared = {"log_q_positive": positive, "log_q_negatives": negatives}
    log_count = jnp.log(k) + negatives
    if convention == "A":
        keywords = {"log_noise_positive": positive, "log_noise_negatives": negatives}
        losses = ranking_nce(*rows, kept, **keywords)
    elif convention == "B":
        losses = sampled_softmax(*rows, removed, **shared)
    elif convention == "C hits removed":
        losses = sampled_softmax(*rows, removed, log_q_negatives=log_count)
    elif convention == "C hits kept":
        losses = sampled_softmax(*rows, kept, log_q_negatives=log_count)
    else:
        losses = info_nce(*rows, kept)
    return (weight * losses).sum()


@pytest.mark.parametrize(
    ("convention", "published"),
    [
        ("A", (0, 0, 0, 0)),
        ("B", (0, 0.0032, 0.0095, 0.0133)),
        ("C hits removed", (0.1422, 0.1323, 0.1012, 0.0779)),
        ("C hits kept", (0.1422, 0.1161, 0.0717, 0.0443)),
        ("none", (0.0555, 0.0901, 0.1294, 0.1505)),
    ],
)
def test_gradient_at_the_data_of_each_convention(convention, published):
    for k, largest in zip((1, 2, 4, 6), published, strict=True):
        _, gradient = population_loss(jnp.asarray(np.log(P), jnp.float32), float(k), convention)
        assert float(jnp.abs(gradient).max()) == pytest.approx(largest, abs=6e-5)


@pytest.mark.parametrize(
    ("convention", "distance"),
    [("A", 0.0), ("B", 0.066), ("C hits removed", 1.178), ("none", 0.795)],
)
def test_optimum_of_each_convention(convention, distance):
    def value(scores):
        value, gradient = population_loss(jnp.asarray(scores, jnp.float32), 2.0, convention)
        return float(value), np.asarray(gradient, np.float64)

    found = optimize.minimize(value, np.zeros(4), jac=True, method="L-BFGS-B", tol=1e-9).x
    centred = found - found.mean() - (np.log(P) - np.log(P).mean())
    assert np.abs(centred).max() == pytest.approx(distance, abs=2e-3)
    if convention == "none":  # which is InfoNCE: the ratio
        ratio = np.log(P / Q) - np.log(P / Q).mean()
        np.testing.assert_allclose(found - found.mean(), ratio, atol=2e-3)


@pytest.mark.slow
def test_correction_of_negatives_alone_gains_with_their_number():
    """T17: the bias against the full softmax's gradient falls with K; uncorrected it stays."""
    rng = np.random.default_rng(0)
    v, draws = 50, 3000
    q = np.arange(1, v + 1) ** -1.5
    q /= q.sum()
    label, sample = rng.integers(0, v, draws), rng.choice(v, (draws, 400), p=q)
    scores = jnp.asarray(rng.normal(size=v), jnp.float32)
    log_q = jnp.asarray(np.log(q), jnp.float32)[sample]

    def full(scores):
        return full_softmax(jnp.tile(scores, (draws, 1)), jnp.asarray(label)).mean()

    exact = jax.grad(full)(scores)

    @jax.jit
    def bias(k, corrected):
        where = (jnp.arange(400) < k) & jnp.asarray(sample != label[:, None])
        correction = corrected * (jnp.log(k) + log_q)

        def mean(scores):
            rows = scores[label], scores[sample]
            return sampled_softmax(*rows, where, log_q_negatives=correction).mean()

        return jnp.linalg.norm(jax.grad(mean)(scores) - exact)

    with_q, without = ([float(bias(k, on)) for k in (5.0, 20.0, 100.0, 400.0)] for on in (1.0, 0.0))
    assert with_q == sorted(with_q, reverse=True)
    assert with_q[-1] < 0.5 * with_q[0]
    assert with_q[-1] < 0.4 * min(without)
    assert min(without) > 0.9 * without[0]


@pytest.mark.parametrize("index", range(3))
def test_negative_sampling_finds_shifted_pmi(index):
    """T14: the optimum is PMI - log K; the gradient vanishes there and the optimiser ends there."""
    _, inputs, expected = NCE_GRADIENTS["sgns"]
    joint, k = np.array(inputs["P"]), inputs["k"][index]
    optimum = np.array(expected["pmi_minus_logk"][index])
    product = joint.sum(1, keepdims=True) * joint.sum(0)
    weights = jnp.asarray(np.stack([joint, k * product]), jnp.float32)

    @jax.jit
    @jax.grad
    def gradient(scores):
        """Of E -log sigma(s) over the joint and K E -log sigma(-s) over the product."""
        flat = scores.reshape(-1)
        nothing = jnp.full_like(flat, -1e4)
        as_data = negative_sampling(flat, nothing[:, None])
        as_noise = negative_sampling(-nothing, flat[:, None])
        return (weights[0].reshape(-1) * as_data + weights[1].reshape(-1) * as_noise).sum()

    np.testing.assert_allclose(gradient(jnp.asarray(optimum, jnp.float32)), 0.0, atol=2e-7)
    # The loss is convex in each score, so that a slope of the right sign on both sides is enough.
    assert (gradient(jnp.asarray(optimum + 1e-3, jnp.float32)) > 0).all()
    assert (gradient(jnp.asarray(optimum - 1e-3, jnp.float32)) < 0).all()


@pytest.mark.parametrize("name", ["V10", "V4", "V30"])
def test_nce_gradient_equals_exact_expectation(name):
    """The normalised model's gradient, negated: dJ_k of every k, by weights instead of draws.

    It tends to the likelihood's as 1 / k; below 1e-3 float32 leaves two digits of the distance.
    """
    _, inputs, expected = NCE_GRADIENTS[name]
    data, q = (jnp.asarray(inputs[x], jnp.float32) for x in ("pd", "q"))

    def objective(theta, k):
        log_p = jax.nn.log_softmax(theta)
        # One noise sample each; log_normalizer = log k makes it one of k.
        keywords = {"log_noise_positive": jnp.log(q), "log_noise_negatives": jnp.log(q)[:, None]}
        keywords["log_normalizer"] = jnp.log(k)
        nothing = jnp.full_like(log_p, -1e4)
        as_data = nce(log_p, nothing[:, None], **keywords)
        as_noise = nce(-nothing, log_p[:, None], **keywords)
        return -(data * as_data + k * q * as_noise).sum()

    slope = jax.jit(jax.grad(objective))
    likelihood = np.array(expected["mle_gradient"])
    distances = expected["relative_error"]
    for k, exact, distance in zip(inputs["k"], expected["nce_gradient"], distances, strict=True):
        gradient = slope(jnp.asarray(inputs["theta"], jnp.float32), float(k))
        np.testing.assert_allclose(gradient, exact, rtol=1e-4, atol=2e-6)
        found = np.linalg.norm(gradient - likelihood) / np.linalg.norm(likelihood)
        assert found == pytest.approx(distance, rel=1e-3, abs=3e-6)


@pytest.mark.slow
def test_normaliser_of_nce_is_learned():
    """With log Z free, scores off by any constant reach the same minimum: log Z takes it."""
    log_p, log_q = np.log(P), np.log(Q)
    weight = jnp.asarray(P[:, None] * Q, jnp.float32)

    def loss(log_z, scores):
        positive = jnp.repeat(scores, 4)
        return (
            weight.reshape(-1)
            * nce(
                positive,
                jnp.tile(scores, 4)[:, None],
                log_noise_positive=jnp.asarray(np.repeat(log_q, 4), jnp.float32),
                log_noise_negatives=jnp.asarray(np.tile(log_q, 4), jnp.float32)[:, None],
                log_normalizer=log_z,
            )
        ).sum()

    scores = jnp.asarray(log_p + 2.5, jnp.float32)
    slope = jax.jit(jax.grad(loss))
    assert float(slope(jnp.float32(2.5), scores)) == pytest.approx(0.0, abs=1e-6)
    assert float(slope(jnp.float32(2.0), scores)) < -0.05
    assert float(slope(jnp.float32(3.0), scores)) > 0.05
    each = nce(
        jnp.zeros(2), jnp.zeros((2, 3)), log_noise_positive=0.0, log_noise_negatives=0.0,
        log_normalizer=jnp.array([0.0, 1.0]),
    )  # fmt: skip
    log_k = np.log(3)
    for log_z, value in zip((0.0, 1.0), each, strict=True):
        d = -log_z - log_k
        expected = np.logaddexp(0, -d) + 3 * np.logaddexp(0, d)
        assert float(value) == pytest.approx(expected, rel=1e-6)


def test_k_is_the_rows_own_count():
    where = jnp.array([[True, True, False], [True, True, True]])
    noise = {"log_noise_positive": -1.0, "log_noise_negatives": -2.0}
    rows = nce(jnp.ones(2), jnp.ones((2, 3)), where, **noise)
    assert float(rows[0]) == float(nce(jnp.ones(1), jnp.ones((1, 2)), **noise)[0])
    assert float(rows[0]) != float(rows[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (ranking_nce, ("log_noise_positive", "log_noise_negatives")),
        (nce, ("log_noise_positive", "log_noise_negatives")),
        (sampled_softmax, ("log_q_positive", "log_q_negatives")),
        (sampled_logistic, ("log_q_positive", "log_q_negatives")),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_corrections_may_be_shared_and_masked_ones_hold_anything(loss, names):
    rng = np.random.default_rng(3)
    positive, negatives, log_q = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2,), (2, 3), (3,))
    )
    where = jnp.array([[True, False, True], [True, True, False]])
    one_each = jnp.array([0.3, 0.3])

    def total(positive, correction):
        keywords = dict(zip(names, (one_each, correction), strict=True))
        return loss(positive, negatives, where, **keywords).sum()

    shared = jax.grad(total)(positive, log_q)
    poisoned = jnp.where(where, log_q, jnp.nan)
    np.testing.assert_array_equal(jax.grad(total)(positive, poisoned), shared)
    to_correction = jax.grad(total, 1)(positive, poisoned)
    np.testing.assert_array_equal(np.asarray(to_correction)[~np.asarray(where)], 0.0)
    assert np.isfinite(to_correction).all()
    assert (np.asarray(to_correction)[np.asarray(where)] != 0.0).all()


def test_correction_that_does_not_fit_is_a_sentence(unchecked):
    with pytest.raises(UserError, match=r"correction of negatives has shape \(4,\)"):
        ranking_nce(jnp.zeros(2), jnp.zeros((2, 3)), log_noise_negatives=jnp.zeros(4))


@pytest.mark.slow
def test_full_losses():
    rng = np.random.default_rng(4)
    scores = rng.normal(size=(3, 5)) * 3
    labels = np.array([4, 0, 2])
    mask = labels[:, None] == np.arange(5)
    as_arrays = jnp.asarray(scores, jnp.float32), jnp.asarray(labels)
    softmax = np.logaddexp.reduce(scores, axis=1) - scores[np.arange(3), labels]
    logistic = np.logaddexp(0.0, np.where(mask, -scores, scores)).sum(1)
    np.testing.assert_allclose(full_softmax(*as_arrays), softmax, rtol=1e-5)
    closed_over = jax.jit(lambda scores: full_softmax(scores, as_arrays[1]))(as_arrays[0])
    np.testing.assert_allclose(closed_over, softmax, rtol=1e-5)
    np.testing.assert_allclose(full_logistic(*as_arrays), logistic, rtol=1e-5)
    np.testing.assert_allclose(full_logistic(as_arrays[0], jnp.asarray(mask)), logistic, rtol=1e-5)
    two = mask | (np.arange(5) == 1)
    expected = np.logaddexp(0.0, np.where(two, -scores, scores)).sum(1)
    np.testing.assert_allclose(full_logistic(as_arrays[0], jnp.asarray(two)), expected, rtol=1e-5)
    half = full_softmax(as_arrays[0].astype(jnp.bfloat16), as_arrays[1])
    assert half.dtype == jnp.float32
    everything = info_nce(
        as_arrays[0][np.arange(3), labels], as_arrays[0], jnp.asarray(~mask)
    )  # every other class a negative
    np.testing.assert_allclose(full_softmax(*as_arrays), everything, rtol=1e-5)


@pytest.mark.parametrize("loss", [full_softmax, full_logistic])
def test_labels_outside_are_a_sentence_or_nan(loss):
    scores = jnp.zeros((2, 3))
    with pytest.raises(UserError, match="labels holds 3: with 3 classes it must be 0 to 2"):
        loss(scores, jnp.array([0, 3]))
    with pytest.raises(UserError, match="labels holds -1"):
        loss(scores, jnp.array([-1, 0]))
    traced = jax.jit(loss)(scores, jnp.array([0, 3]))
    assert np.isfinite(traced[0])
    assert np.isnan(traced[1])
