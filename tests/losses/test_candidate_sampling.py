"""The function that TensorFlow's users know, against TensorFlow's numbers."""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.losses import candidate_sampling, full_softmax, sampled_logistic, sampled_softmax
from cpc.types import UserError

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "goldens"))
from goldens import load_golden

META, CASES = load_golden("tf_sampled_losses.npz")
NAMES = {"nce": sampled_logistic, "ssm": sampled_softmax}


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(set(CASES) - {"allhit"}))
def test_equals_tensorflow(case):
    _, inputs, expected = CASES[case]
    arrays = [jnp.asarray(inputs[name], jnp.float32) for name in ("weights", "biases", "inputs")]
    labels, ids = jnp.asarray(inputs["labels"]), jnp.asarray(inputs["sampled"])
    counts = (jnp.asarray(inputs[f"{of}_expected_count"]) for of in ("true", "sampled"))
    sample = (ids, *counts)

    for key in [f"{of}_{hits}_{q}" for of in NAMES for hits in ("keep", "rm")
                for q in ("logq", "raw")]:  # fmt: skip
        of, hits, q = key.split("_")

        def loss(weights, biases, x, of=of, hits=hits, q=q):
            return candidate_sampling(
                weights, biases, labels, x, len(ids), sampled_values=sample, loss=NAMES[of],
                remove_accidental_hits=hits == "rm", subtract_log_q=q == "logq",
            )  # fmt: skip

        scale = np.abs(expected[key]).max()
        np.testing.assert_allclose(loss(*arrays), expected[key], rtol=2e-5, atol=2e-6 * scale)
        if f"{key}_grad_weights" in expected:
            slopes = jax.grad(lambda *a, loss=loss: loss(*a).sum(), (0, 1, 2))(*arrays)
            for name, slope in zip(("weights", "biases", "inputs"), slopes, strict=True):
                want = expected[f"{key}_grad_{name}"]
                atol = 2e-5 * np.abs(want).max() + 2e-6
                np.testing.assert_allclose(slope, want, rtol=2e-5, atol=atol)


@pytest.mark.slow
def test_all_classes_drawn_once_are_the_full_softmax():
    rng = np.random.default_rng(0)
    w, b, x = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((6, 3), (6,), (4, 3)))
    labels = jnp.array([0, 5, 2, 2])
    for sampler in (
        negatives.uniform_sampler(6),
        negatives.fixed_sampler(np.ones(6), unique=True),
    ):
        loss = candidate_sampling(
            w, b, labels, x, 6, sampler, rng=jax.random.key(0), subtract_log_q=False
        )
        np.testing.assert_allclose(loss, full_softmax(x @ w.T + b, labels), rtol=1e-5)


def test_bad_calls_are_one_sentence(unchecked):
    w, b, x, labels = jnp.ones((3, 2)), jnp.ones(3), jnp.ones((1, 2)), jnp.array([0])
    with pytest.raises(UserError, match="do not fit"):
        candidate_sampling(w, b[:2], labels, x, 2)
    with pytest.raises(UserError, match="sampler and its key"):
        candidate_sampling(w, b, labels, x, 2)
    with pytest.raises(UserError, match="4 distinct classes"):
        candidate_sampling(w, b, labels, x, 4, negatives.uniform_sampler(3), rng=jax.random.key(0))


@pytest.mark.slow
def test_a_label_that_is_never_drawn_is_refused_and_no_nan_under_a_trace():
    w, b, x, labels = jnp.ones((3, 2)), jnp.ones(3), jnp.ones((2, 2)), jnp.array([2, 0])
    sampler = negatives.fixed_sampler(np.array([2.0, 1.0, 0.0]))

    def loss(labels):
        return candidate_sampling(w, b, labels, x, 2, sampler, rng=jax.random.key(0))

    with pytest.raises(UserError, match="never draws the class of a label"):
        loss(labels)
    assert jnp.isfinite(jax.jit(loss)(labels)).all()
    drawn = jnp.array([0, 1]), jnp.ones((2, 1)), jnp.ones(2)
    closed = jax.jit(lambda x: candidate_sampling(w, b, labels, x, 2, sampled_values=drawn))
    assert jnp.isfinite(closed(x)).all()


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_of_no_class_is_refused(label):
    """Gathered, it would be another class."""
    drawn = jnp.array([1, 3]), jnp.ones((1, 1)), jnp.ones(2)
    with pytest.raises(UserError, match=f"labels holds {label}: with 4 classes"):
        candidate_sampling(
            jnp.zeros((4, 2)),
            jnp.zeros(4),
            jnp.array([label]),
            jnp.ones((1, 2)),
            2,
            sampled_values=drawn,
        )
