"""Sampled losses, one by one and as TensorFlow's users call them, against TensorFlow's numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.losses import (
    candidate_sampling,
    full_softmax,
    nce,
    negative_sampling,
    sampled_logistic,
    sampled_softmax,
)
from cpc.types import UserError
from tests.goldens.goldens import load_golden

META, CASES = load_golden("tf_sampled_losses.npz")
NAMES = {"nce": sampled_logistic, "ssm": sampled_softmax}
KEYS = [(of, hits, q) for of in NAMES for hits in ("keep", "rm") for q in ("logq", "raw")]


M, V, S, D = 16, 201, 32, 8  # to which all cases are padded; the last class scores -1e9


@jax.jit
def sampled_losses(arrays, labels, sample, hits, real):
    """Losses by TensorFlow's name, and gradients of their sums; the last three are called alone."""
    ids, true, sampled = sample

    def losses(arrays):
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
        found += [nce(*scores, **noise), negative_sampling(*scores)]
        values = jnp.stack([*found, negative_sampling(*scores, ~hits)])
        return values @ real, values

    return jax.jacrev(losses, has_aux=True)(arrays)


def pad(x, *shape, value=0.0):
    pads = [(0, size - n) for size, n in zip(shape, x.shape, strict=True)]
    return np.pad(x, pads, constant_values=value).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_equals_tensorflow(case):
    """Classes, rows and columns are added; the classes that fill a sample add nothing to a loss."""
    _, inputs, expected = CASES[case]
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
    rtol, atol = (META["tolerance"][f"f32_{kind}"] for kind in ("rtol", "atol"))
    for i, key in enumerate([*map("_".join, KEYS), "nce_keep_logq", "nce_keep_raw", "nce_rm_raw"]):
        found = {key: values[i][:m]}
        for name, gradient in gradients.items():
            if f"{key}_grad_{name}" in expected:
                want = expected[f"{key}_grad_{name}"]
                found[f"{key}_grad_{name}"] = gradient[i][tuple(map(slice, want.shape))]
        for name, got in found.items():
            want = expected[name]
            close = {"rtol": rtol, "atol": atol + rtol * np.abs(want).max()}
            np.testing.assert_allclose(got, want, **close, err_msg=name)


W, BIASES, X = (
    jnp.asarray(np.random.default_rng(0).normal(size=s), jnp.float32)
    for s in ((6, 3), (6,), (4, 3))
)


def test_all_classes_drawn_once_are_the_full_softmax():
    labels, rng = jnp.array([0, 5, 2, 2]), jax.random.key(0)
    for sampler in (negatives.uniform_sampler(6), negatives.fixed_sampler(np.ones(6), unique=True)):
        loss = jax.jit(
            lambda w, sampler=sampler: candidate_sampling(
                w, BIASES, labels, X, 6, sampler, rng=rng, subtract_log_q=False
            )
        )(W)
        np.testing.assert_allclose(loss, full_softmax(X @ W.T + BIASES, labels), rtol=1e-5)


def test_bad_calls_are_named(unchecked):
    w, b, x, labels = jnp.ones((3, 2)), jnp.ones(3), jnp.ones((1, 2)), jnp.array([0])
    with pytest.raises(UserError, match="do not fit"):
        candidate_sampling(w, b[:2], labels, x, 2)
    with pytest.raises(UserError, match="sampler and its key"):
        candidate_sampling(w, b, labels, x, 2)
    with pytest.raises(UserError, match="4 distinct classes"):
        candidate_sampling(w, b, labels, x, 4, negatives.uniform_sampler(3), rng=jax.random.key(0))
    drawn = jnp.array([1, 2]), jnp.ones((1, 1)), jnp.ones(2)
    for label in (-1, 3):  # gathered, it would be another class
        with pytest.raises(UserError, match=f"labels holds {label}: with 3 classes"):
            candidate_sampling(w, b, jnp.array([label]), x, 2, sampled_values=drawn)


def test_a_label_that_is_never_drawn_is_refused_and_not_nan_under_a_trace():
    labels, never = jnp.array([2, 0]), (jnp.array([0, 1]), jnp.array([[0.0], [1.0]]), jnp.ones(2))

    def loss(x, drawn):
        return candidate_sampling(W[:3], BIASES[:3], labels, x, 2, sampled_values=drawn)

    with pytest.raises(UserError, match="never draws the class of a label"):
        loss(X[:2], never)
    assert jnp.isfinite(jax.jit(loss)(X[:2], never)).all()
    closed = jax.jit(lambda x: loss(x, (never[0], jnp.ones((2, 1)), never[2])))
    assert jnp.isfinite(closed(X[:2])).all()
