"""Sampled, full, decoupled and reweighted losses: goldens, twins, closed forms."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import losses, negatives
from cpc.losses import candidate_sampling, debiased, decoupled, decoupled_weights, info_nce, nce
from cpc.types import UserError
from tests.goldens.goldens import load_golden
from tests.losses import naive_losses as naive

DCL_META, DCL = load_golden("dcl.npz")
SAMPLED_META, SAMPLED = load_golden("tf_sampled_losses.npz")


def test_normalizer_per_anchor():
    noise, z = {"log_noise_positive": 0.0, "log_noise_negatives": 0.0}, np.arange(2.0)
    found = nce(jnp.zeros(2), jnp.zeros((2, 3)), log_normalizer=jnp.float32(z), **noise)
    d = -z - np.log(3)
    np.testing.assert_allclose(found, np.logaddexp(0, -d) + 3 * np.logaddexp(0, d), rtol=1e-6)


CORRECTED = {losses.ranking_nce: "log_noise", nce: "log_noise"}
CORRECTED |= {losses.sampled_softmax: "log_q", losses.sampled_logistic: "log_q"}


def test_shared_and_masked_corrections():
    rng = np.random.default_rng(3)
    positive, negatives, log_q = (jnp.float32(rng.normal(size=s)) for s in ((2,), (2, 3), (3,)))
    where = np.array([[True, False, True], [True, True, False]])

    def total(loss, positive, correction):
        prefix = CORRECTED[loss]
        keywords = {f"{prefix}_positive": jnp.full(2, 0.3), f"{prefix}_negatives": correction}
        return loss(positive, negatives, jnp.asarray(where), **keywords).sum()

    @jax.jit
    def gradients(log_q):
        slopes = jax.grad(total, (1, 2))
        poisoned = jnp.where(where, log_q, jnp.nan)
        return [(slopes(f, positive, log_q)[0], *slopes(f, positive, poisoned)) for f in CORRECTED]

    for shared, to_positive, to_correction in jax.device_get(gradients(log_q)):
        np.testing.assert_array_equal(to_positive, shared)
        np.testing.assert_array_equal(to_correction[~where], 0.0)
        assert np.isfinite(to_correction).all()
        assert (to_correction[where] != 0.0).all()


def test_full_losses_equal_their_formulas():
    scores, labels = np.random.default_rng(4).normal(size=(3, 5)) * 3, np.array([4, 0, 2])
    mask = labels[:, None] == np.arange(5)
    two = mask | (np.arange(5) == 1)

    @jax.jit
    def run(scores, labels):
        assert losses.full_softmax(scores.astype(jnp.bfloat16), labels).dtype == jnp.float32
        softmax = [losses.full_softmax(scores, one) for one in (labels, known)]  # captured by jit
        masks = [jnp.asarray(m) for m in (mask, two)]
        return *softmax, *(losses.full_logistic(scores, one) for one in (labels, *masks))

    known = jnp.asarray(labels)
    softmax = np.logaddexp.reduce(scores, axis=1) - scores[np.arange(3), labels]
    logistic, of_two = (np.logaddexp(0, np.where(m, -scores, scores)).sum(1) for m in (mask, two))
    expected = softmax, softmax, logistic, logistic, of_two
    for got, want in zip(run(jnp.float32(scores), known), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("loss", [losses.full_softmax, losses.full_logistic])
def test_labels_out_of_range_are_rejected_or_nan(loss):
    scores = jnp.zeros((2, 3))
    for labels, wrong in (([0, 3], 3), ([-1, 0], -1)):
        with pytest.raises(UserError, match=f"labels .*got {wrong}.*0 to 2"):
            loss(scores, jnp.array(labels))
    traced = jax.jit(loss)(scores, jnp.array([0, 3]))
    assert np.isfinite(traced[0])
    assert np.isnan(traced[1])


@functools.partial(jax.jit, static_argnames="sigma")
def decoupled_losses(first, second, temperature, sigma):
    """Return plain and weighted decoupled losses with gradients; widths may be padded."""

    def both(first, second):
        positive, negatives = losses.view_scores(first, second)
        # Weights are normalized within each view.
        halves = [decoupled_weights(half, sigma=sigma) for half in jnp.split(positive, 2)]
        of = functools.partial(decoupled, positive, negatives, temperature=temperature)
        return jnp.stack([of().mean(), of(positive_weight=jnp.concatenate(halves)).mean()])

    return both(first, second), *jax.jacrev(both, (0, 1))(first, second)


@pytest.mark.parametrize("name", DCL)
def test_decoupled_equals_lightly(name):
    params, inputs, expected = DCL[name]
    d = params["D"]
    arrays = [np.pad(np.float32(inputs[f"out{i}"]), ((0, 0), (0, 16 - d))) for i in (0, 1)]
    value, *slopes = decoupled_losses(*arrays, params["temperature"], sigma=params["sigma"])
    tolerance = DCL_META["tolerance"]
    for i, key in enumerate(("dcl", "dclw")):
        found = {"": value[i], "_grad0": slopes[0][i][:, :d], "_grad1": slopes[1][i][:, :d]}
        for of, actual in found.items():
            golden = expected[key + of]
            largest = max(np.abs(golden).max(), 1 / params["temperature"])  # largest score
            atol = tolerance["f32_atol"] + 1e-6 * largest
            np.testing.assert_allclose(actual, golden, rtol=tolerance["f32_rtol"], atol=atol)


def cosines(seed, m=4, n=6):
    rng = np.random.default_rng(seed)
    arrays = rng.uniform(-1, 1, m), rng.uniform(-1, 1, (m, n))
    where = jnp.asarray(rng.random((m, n)) < 0.7).at[:, 0].set(True)
    return *(jnp.asarray(x, jnp.float32) for x in arrays), where


def test_debiased_loss_with_more_positive_draws_and_without_prior():
    positive, negatives, where = rows = cosines(2)
    for tau in (0.07, 0.5):
        loss = debiased(*rows, prior=0, temperature=tau)
        np.testing.assert_allclose(loss, info_nce(*rows, temperature=tau), rtol=1e-5, atol=1e-6)
    extra = jnp.asarray(np.random.default_rng(3).uniform(-1, 0, (4, 2)), jnp.float32)
    of = functools.partial(debiased, positive, negatives, where, prior=0.2, temperature=0.5)
    of_draws = jax.jit(lambda: [of(extra_positives=x) for x in (extra, positive[:, None], None)])
    loss, itself, default = of_draws()
    for i, row in enumerate(np.asarray(negatives)):
        args = float(positive[i]), row[np.asarray(where[i])].tolist(), 0.2, 0.0, 0.5
        expected = naive.hard_weighted(*args, own_class=extra[i].tolist())
        assert float(loss[i]) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(itself, default, rtol=1e-6)


def test_gradient_with_vanishing_correction():
    """The mean of e^s is close to pi e^s+, at any size of the scores."""
    loss = functools.partial(debiased, prior=0.5)
    with_slopes = jax.jit(jax.value_and_grad(lambda *scores: loss(*scores).sum(), (0, 1)))
    for gap, size in itertools.product((0.0, 1e-7, 1e-6, 1e-3, -1e-6), (0.0, 20.0)):
        positive = jnp.array([size - np.log(0.5) - gap], jnp.float32)
        negatives = jnp.full((1, 2), size, jnp.float32)
        value, slopes = with_slopes(positive, negatives)
        expected = naive.hard_weighted(float(positive[0]), [size, size], 0.5, 0.0, 1.0)
        assert float(value) == pytest.approx(expected, abs=1e-4)
        assert all(np.isfinite(slope).all() for slope in slopes)


NAMES = {"nce": losses.sampled_logistic, "ssm": losses.sampled_softmax}
KEYS = [(of, hits, q) for q in ("logq", "raw") for of in NAMES for hits in ("keep", "rm")]
VALUES = [*map("_".join, KEYS), "nce_keep_raw", "nce_rm_raw", "nce_keep_logq"]
SLOPES = [0, 1, 2, 3, -1]  # only with log q: the goldens lack gradients of the others
del SAMPLED["true3"]  # needs another program; hits_true2 also has several labels
M, V, S, D = 16, 201, 32, 8  # padded sizes; the last class scores -1e9


@jax.jit
def sampled_losses(arrays, labels, sample, hits, real):
    """Return losses by TensorFlow's name and gradients of the sums of the first."""
    ids, true, sampled = sample

    def every(arrays):
        weights, biases, x = (arrays[name] for name in ("weights", "biases", "inputs"))
        found = [
            candidate_sampling(
                weights, biases, labels, x, S, sampled_values=sample, loss=NAMES[of],
                remove_accidental_hits=which == "rm", subtract_log_q=q == "logq",
            )
            for of, which, q in KEYS
        ]  # fmt: skip
        positive = jnp.einsum("md,mpd->mp", x, weights[labels]) + biases[labels]
        scores = positive, x @ weights[ids].T + biases[ids]
        noise = {
            "log_noise_positive": jnp.log(true) - np.log(S),  # count = k q
            "log_noise_negatives": jnp.log(sampled) - np.log(S),
        }
        of_words = [losses.negative_sampling(*scores, where) for where in (None, ~hits)]
        values = jnp.stack([*found, *of_words, nce(*scores, **noise)])
        return values[jnp.array(SLOPES)] @ real, values

    return jax.jacrev(every, has_aux=True)(arrays)


def pad(x, *shape, value=0.0):
    pads = [(0, size - n) for size, n in zip(shape, x.shape, strict=True)]
    return np.pad(x, pads, constant_values=value).astype(np.float32)


@pytest.mark.parametrize("case", SAMPLED)
def test_equals_tensorflow(case):
    """Cases are padded with classes, rows and columns that do not affect the loss."""
    _, inputs, expected = SAMPLED[case]
    m, p = inputs["labels"].shape
    arrays = {
        "weights": pad(inputs["weights"], V, D),
        "biases": pad(inputs["biases"], V, value=-1e9),
        "inputs": pad(inputs["inputs"], M, D),
    }
    sample = (
        pad(inputs["sampled"], S, value=V - 1).astype(np.int32),
        pad(inputs["true_expected_count"], M, p, value=1.0),
        pad(inputs["sampled_expected_count"], S, value=1.0),
    )
    gradients, values = sampled_losses(
        arrays, pad(inputs["labels"], M, p).astype(np.int32), tuple(map(jnp.asarray, sample)),
        pad(expected["hit_mask"], M, S) > 0, pad(np.ones(m), M),
    )  # fmt: skip
    rtol, atol = (SAMPLED_META["tolerance"][f"f32_{kind}"] for kind in ("rtol", "atol"))
    found = [(key, value[:m]) for key, value in zip(VALUES, values, strict=True)]
    for name, gradient in gradients.items():
        found += [(f"{VALUES[i]}_grad_{name}", g) for i, g in zip(SLOPES, gradient, strict=True)]
    for name, got in found:
        if "grad" not in name or name in expected:
            want = expected[name]
            close = {"rtol": rtol, "atol": atol + rtol * np.abs(want).max()}
            got = got[tuple(map(slice, want.shape))]
            np.testing.assert_allclose(got, want, **close, err_msg=name)


W, BIASES, X = (
    jnp.float32(np.random.default_rng(0).normal(size=s)) for s in ((6, 3), (6,), (4, 3))
)


def test_drawing_all_classes_equals_full_softmax():
    labels, rng = jnp.array([0, 5, 2, 2]), jax.random.key(0)
    for sampler in (negatives.uniform_sampler(6), negatives.fixed_sampler(np.ones(6), unique=True)):
        loss = jax.jit(
            lambda w, sampler=sampler: candidate_sampling(
                w, BIASES, labels, X, 6, sampler, rng=rng, subtract_log_q=False
            )
        )(W)
        np.testing.assert_allclose(loss, losses.full_softmax(X @ W.T + BIASES, labels), rtol=1e-5)


def test_invalid_calls_are_named(unchecked):
    w, b, x, labels = jnp.ones((3, 2)), jnp.ones(3), jnp.ones((1, 2)), jnp.array([0])
    drawn = jnp.array([1, 2]), jnp.ones((1, 1)), jnp.ones(2)
    sample = functools.partial(candidate_sampling, w, b)
    sampler, two, rows = negatives.uniform_sampler(3), jnp.zeros(2), jnp.zeros((2, 3))
    for call, match in (
        (lambda: candidate_sampling(w, b[:2], labels, x, 2), r"biases .*got shape \(2,\)"),
        (lambda: sample(labels, x, 2), "pass sampler and rng"),
        (lambda: sample(labels, x, 4, sampler, rng=jax.random.key(0)), "4 distinct classes"),
        *((lambda i=i: sample(jnp.array([i]), x, 2, sampled_values=drawn), f"labels .*got {i}.*2")
          for i in (-1, 3)),  # gathered, it would be another class
        (lambda: decoupled_weights(two, sigma=0), "sigma .*got 0"),
        (lambda: losses.ranking_nce(two, rows, log_noise_negatives=jnp.zeros(4)),
         r"correction of negatives .*got shape \(4,\)"),
        (lambda: debiased(two, rows, prior=0.1, extra_positives=jnp.zeros((3, 2))),
         r"extra_positives .*got shape \(3, 2\)\): .*\(2, p\)"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=match):
            call()


def test_labels_that_are_never_drawn_are_rejected():
    labels, never = jnp.array([2, 0]), (jnp.array([0, 1]), jnp.array([[0.0], [1.0]]), jnp.ones(2))

    def loss(x, drawn):
        return candidate_sampling(W[:3], BIASES[:3], labels, x, 2, sampled_values=drawn)

    with pytest.raises(UserError, match="never draws the class of a label"):
        loss(X[:2], never)
    assert jnp.isfinite(jax.jit(loss)(X[:2], never)).all()
    closed = jax.jit(lambda x: loss(x, (never[0], jnp.ones((2, 1)), never[2])))
    assert jnp.isfinite(closed(X[:2])).all()
