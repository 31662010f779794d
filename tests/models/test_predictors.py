"""Predictors: the formulas by hand, causality, and that an export can name each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.models import CPC, GRU, PREDICTORS, ConvEncoder, HiddenPredictor, make_model
from cpc.models.description import build, describe


def made(predictor, seed=0):
    c = jax.random.normal(jax.random.key(seed), (2, 7, 16))
    variables = predictor.init(jax.random.key(seed + 1), c)
    return c, variables, predictor.apply(variables, c)


def test_the_hidden_layer_by_hand():
    c, variables, predictions = made(HiddenPredictor(3, 4, hidden_width=5))
    own = variables["params"]
    h = np.maximum(c @ own["hidden"]["kernel"] + own["hidden"]["bias"], 0)
    expected = np.einsum("bth,hkd->btkd", h, own["linear"]["W"]["kernel"])
    np.testing.assert_allclose(predictions, expected, atol=1e-5)


@pytest.mark.parametrize("name", PREDICTORS)
def test_predictions_of_a_context_see_none_after_it(name):
    predictor = PREDICTORS[name](3, 4)
    c, variables, _ = made(predictor)

    def at(c):
        return jnp.square(predictor.apply(variables, c)[0, 3]).sum()

    gradient = jax.grad(at)(c)
    assert np.abs(gradient[0, 3]).min() > 0
    assert np.abs(gradient[0, 4:]).max() == np.abs(gradient[1]).max() == 0


@pytest.mark.parametrize("name", PREDICTORS)
def test_an_export_names_every_predictor_and_only_the_papers_is_linear(name):
    module = CPC(ConvEncoder(8), GRU(16), PREDICTORS[name](3, 8))
    assert build(describe(module)) == module
    model = make_model(module)
    variables = model.init(jax.random.key(0), {"x": jnp.zeros((1, 1600))})
    maps = model.linear_maps(variables["params"])
    assert (maps is not None) == (name == "linear")
    if maps is not None:
        assert maps.shape == (3, 16, 8)
