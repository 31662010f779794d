"""Predictors: closed forms, causality, and names for exports."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import noise, random_variables

from cpc.models import CPC, GRU, PREDICTORS, CausalTransformer, ConvEncoder, make_model

WIDE = {name: {"hidden_width": 16} for name in ("hidden", "transformer", "transformers")}


def make(name):
    predictor = PREDICTORS[name](3, 4).clone(**WIDE.get(name, {}))
    return predictor, random_variables(predictor, noise(2, 7, 16))["params"]


def expected(name, own, c):
    """Return the predictions by the formula, in a loop over offsets for separate layers."""
    if name in ("linear", "affine"):
        return jnp.einsum("bth,hkd->btkd", c, own["W"]["kernel"]) + own["W"].get("bias", 0)
    if name == "transformers":
        each = [jax.tree.map(lambda leaf, k=k: leaf[k], own["offsets"]) for k in range(3)]
        hidden = [CausalTransformer(16, 1).apply({"params": one["layer"]}, c) for one in each]
        maps = [one["linear"]["kernel"] for one in each]
        return jnp.stack([h @ w for h, w in zip(hidden, maps, strict=True)], 2)
    if name == "hidden":
        h = jnp.maximum(c @ own["hidden"]["kernel"] + own["hidden"]["bias"], 0)
    else:
        h = CausalTransformer(16, 1).apply({"params": own["layer"]}, c)
    return jnp.einsum("bth,hkd->btkd", h, own["linear"]["W"]["kernel"])


@pytest.mark.parametrize("name", PREDICTORS)
def test_predictions_are_their_formula_and_see_no_later_context(name):
    predictor, own = make(name)
    c = jnp.tile(noise(1, 7, 16), (8, 1, 1)) + jnp.pad(jnp.eye(7), ((0, 1), (0, 0)))[..., None]

    @jax.jit
    def both(c):
        return predictor.apply({"params": own}, c), expected(name, own, c)

    found, wanted = both(c)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    seen = np.asarray(found[:7, 3] != found[7, 3]).any((1, 2))  # row t differs in context t
    assert seen[3]
    assert not seen[4:].any()


def test_transformers_draw_each_offset_by_itself():
    predictor, _ = make("transformers")
    params = jax.jit(predictor.init)(jax.random.key(0), noise(1, 2, 16))["params"]
    kernel = params["offsets"]["layer"]["hidden0"]["kernel"]
    assert np.abs(kernel[0] - kernel[1]).max() > 0.01


@pytest.mark.parametrize("name", PREDICTORS)
def test_only_the_papers_predictor_is_linear(name):
    module = CPC(ConvEncoder(8, (4,), (2,)), GRU(16), PREDICTORS[name](3, 8))
    kernel = noise(16, 3, 8)
    maps = make_model(module).linear_maps({"predictor": {"W": {"kernel": kernel}}})
    assert (maps is not None) == (name == "linear")
    if maps is not None:
        np.testing.assert_array_equal(maps, jnp.einsum("hkd->khd", kernel))
