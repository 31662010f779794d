"""Alignment and uniformity: closed forms, the limit of InfoNCE, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.losses import alignment, info_nce, uniformity
from cpc.types import UserError


def sphere(seed, m, d=3):
    z = np.random.default_rng(seed).normal(size=(m, d))
    return z / np.linalg.norm(z, axis=1, keepdims=True)


@pytest.mark.parametrize("power", [1, 2, 3.0])
def test_alignment_equals_its_formula(power):
    z, other = sphere(0, 5), sphere(1, 5)
    expected = (np.linalg.norm(z - other, axis=1) ** power).mean()
    arrays = jnp.asarray(z, jnp.float32), jnp.asarray(other, jnp.float32)
    found = jax.jit(alignment, static_argnums=2)(*arrays, power)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    half = [x.astype(jnp.bfloat16) for x in arrays]
    assert jax.eval_shape(lambda: alignment(*half, power)).dtype == jnp.float32


@pytest.mark.parametrize("scale", [0.5, 2])
def test_uniformity_equals_its_formula(scale):
    z = sphere(2, 6)
    pairs = [
        np.exp(-scale * ((z[i] - z[j]) ** 2).sum()) for i in range(6) for j in range(6) if i != j
    ]
    found = jax.jit(uniformity, static_argnums=1)(jnp.asarray(z, jnp.float32), scale)
    assert float(found) == pytest.approx(np.log(np.mean(pairs)), rel=1e-5)


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


def test_info_nce_tends_to_one_term_of_each():
    """L - log K -> -E s / tau + E_c log E_x e^(s / tau), with many negatives."""
    z, pool, tau = sphere(4, 8), sphere(5, 20000), 0.5
    positive, negatives = np.full(8, 0.7), z @ pool.T
    scores = jnp.asarray(positive, jnp.float32), jnp.asarray(negatives, jnp.float32)
    loss = jax.jit(lambda *scores: info_nce(*scores, temperature=tau))(*scores)
    # Cosines with a uniform direction in three dimensions are uniform on [-1, 1].
    spread = np.log(tau * np.sinh(1 / tau))
    assert float(loss.mean()) - np.log(20000) == pytest.approx(-0.7 / tau + spread, abs=0.02)


def test_bad_input_is_a_sentence(unchecked):
    z = jnp.ones((2, 3))
    with pytest.raises(UserError, match=r"z_positive has shape \(3, 3\)"):
        alignment(z, jnp.ones((3, 3)))
    with pytest.raises(UserError, match="power is 0"):
        alignment(z, z, 0)
    with pytest.raises(UserError, match="z holds 1 latents"):
        uniformity(z[:1])
    with pytest.raises(UserError, match=r"scale is -1"):
        uniformity(z, -1)
