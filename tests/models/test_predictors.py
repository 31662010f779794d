"""Predictors: the formulas by hand, causality, and that an export can name each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import losses
from cpc.models import (
    CPC,
    GRU,
    PREDICTORS,
    CausalConv,
    CausalTransformer,
    ConvEncoder,
    HiddenPredictor,
    TransformersPredictor,
    make_model,
)
from cpc.models.description import build, describe


def made(predictor, seed=0):
    c = jax.random.normal(jax.random.key(seed), (2, 7, 16))
    variables = predictor.init(jax.random.key(seed + 1), c)
    return c, variables, predictor.apply(variables, c)


@pytest.mark.slow
def test_the_hidden_layer_by_hand():
    c, variables, predictions = made(HiddenPredictor(3, 4, hidden_width=5))
    own = variables["params"]
    h = np.maximum(c @ own["hidden"]["kernel"] + own["hidden"]["bias"], 0)
    expected = np.einsum("bth,hkd->btkd", h, own["linear"]["W"]["kernel"])
    np.testing.assert_allclose(predictions, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", PREDICTORS)
def test_predictions_of_a_context_see_none_after_it(name):
    predictor = PREDICTORS[name](3, 4)
    c, variables, _ = made(predictor)

    def at(c):
        return jnp.square(predictor.apply(variables, c)[0, 3]).sum()

    gradient = jax.grad(at)(c)
    assert np.abs(gradient[0, 3]).min() > 0
    assert np.abs(gradient[0, 4:]).max() == np.abs(gradient[1]).max() == 0


@pytest.mark.slow
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


@pytest.mark.slow
def test_transformers_are_a_layer_and_a_map_for_each_offset():
    """A loop over offsets, with the parameters of each, gives the same."""
    c, variables, predictions = made(TransformersPredictor(3, 4, hidden_width=16))
    own = variables["params"]["offsets"]
    assert {leaf.shape[0] for leaf in jax.tree.leaves(own)} == {3}
    for k in range(3):
        layer, linear = (
            jax.tree.map(lambda leaf, k=k: leaf[k], own[n]) for n in ("layer", "linear")
        )
        h = CausalTransformer(16, 1).apply({"params": layer}, c)
        np.testing.assert_allclose(predictions[:, :, k], h @ linear["kernel"], atol=1e-5)
    kernel = own["layer"]["hidden0"]["kernel"]
    assert np.abs(kernel[0] - kernel[1]).max() > 0.01  # each is drawn by itself


def test_affine_predictions_by_hand():
    predictor = PREDICTORS["affine"](3, 4)
    c, variables, _ = made(predictor)
    own = variables["params"]["W"]
    own = {**own, "bias": jnp.arange(12.0).reshape(3, 4)}
    wanted = np.einsum("bth,hkd->btkd", c, own["kernel"]) + own["bias"]
    np.testing.assert_allclose(predictor.apply({"params": {"W": own}}, c), wanted, atol=1e-5)


@pytest.mark.slow
def test_convolutions_without_dilation_look_back_by_as_much_each():
    context = CausalConv(8, 3, dilated=False)
    z = jax.random.normal(jax.random.key(0), (1, 12, 8))
    variables = context.init(jax.random.key(1), z)
    gradient = jax.grad(lambda z: jnp.square(context.apply(variables, z)[0, 9]).sum())(z)
    seen = np.abs(gradient[0]).max(-1) > 0
    np.testing.assert_array_equal(seen, [3 <= t <= 9 for t in range(12)])
    assert context.reach == 6
    start, state = context.apply(variables, z[:, :5], method="advance")
    rest, _ = context.apply(variables, z[:, 5:], state, method="advance")
    whole = context.apply(variables, z)
    np.testing.assert_allclose(jnp.concatenate([start, rest], 1), whole, atol=1e-6)


@pytest.mark.slow
def test_the_loss_of_wav2vec_is_the_sigmoid_loss_of_all_its_negatives():
    """- log s(p) - lambda E log s(-n), lambda as many as the negatives: Schneider et al. 2019."""
    positive, negatives = jax.random.normal(jax.random.key(0), (5,)), jnp.ones((5, 10))
    negatives = negatives * jax.random.normal(jax.random.key(1), (5, 10))
    log_sigma = jax.nn.log_sigmoid
    wanted = -log_sigma(positive) - 10 * log_sigma(-negatives).mean(-1)
    np.testing.assert_allclose(losses.sigmoid(positive, negatives), wanted, rtol=1e-5)
