"""Encoders of sentences: what they compute, and that padding has no part in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.models import CPC, GRU, LinearPredictor, QuickThoughts, SentenceEncoder, make_model
from cpc.types import CPCOutputs


def sentences(b=2, t=5, w=7, vocabulary=11, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocabulary, (b, t, w))
    length = rng.integers(1, w + 1, (b, t, 1))
    return jnp.asarray(np.where(np.arange(w) < length, ids, -1), jnp.int32)


@pytest.fixture(scope="module")
def model():
    encoder = SentenceEncoder(11, embedding_width=4, width=6, kernel=3)
    return make_model(CPC(encoder, GRU(5), LinearPredictor(2, 6)))


@pytest.fixture(scope="module")
def variables(model):
    return model.init(jax.random.key(0), {"x": sentences()})


@pytest.mark.slow
def test_latents_are_those_of_a_naive_twin(model, variables):
    x = sentences()
    own = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"]["encoder"])
    table, kernel, bias = own["embedding"], own["conv"]["kernel"], own["conv"]["bias"]
    z = np.asarray(model.embed(variables, x)[0])
    for row, found in zip(np.asarray(x).reshape(-1, x.shape[-1]), z.reshape(-1, 6), strict=True):
        words = row[row >= 0]
        around = np.concatenate([np.zeros((1, 4)), table[words], np.zeros((1, 4))])
        hidden = [
            np.maximum(sum(around[i + j] @ kernel[j] for j in range(3)) + bias, 0)
            for i in range(len(words))
        ]
        np.testing.assert_allclose(found, np.mean(hidden, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_padding_has_no_part(model, variables):
    x = sentences()
    wider = jnp.pad(x, ((0, 0), (0, 0), (0, 6)), constant_values=-1)
    other = jnp.where(wider < 0, -7, wider)
    for one in (wider, other):
        for found, wanted in zip(
            model.embed(variables, one), model.embed(variables, x), strict=True
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
    # Ids below 0 read some row of the table, whose NaN goes nowhere, forward or backward.
    x = jnp.where(x == 0, 1, x)
    params = jax.tree.map(jnp.asarray, variables["params"])
    table = params["encoder"]["embedding"].at[0].set(jnp.nan)
    bad = {"params": {**params, "encoder": {**params["encoder"], "embedding": table}}}

    def total(v):
        return model.embed(v, x)[1].sum()

    gradient = jax.grad(total)(bad)
    wanted = jax.grad(total)({"params": params})
    jax.tree.map(np.testing.assert_allclose, gradient, wanted)


@pytest.mark.slow
def test_a_missing_sentence_is_zero_and_those_before_see_nothing_of_it(model, variables):
    x = sentences()
    cut = x.at[:, 3:].set(-1)
    z, c = model.embed(variables, cut)
    assert (np.asarray(z[:, 3:]) == 0).all()
    np.testing.assert_array_equal(z[:, :3], model.embed(variables, x)[0][:, :3])
    np.testing.assert_allclose(c[:, :3], model.embed(variables, x)[1][:, :3], rtol=1e-6)


def test_layers_are_named(model, variables):
    assert model.module.num_layers == {"z": 1, "c": 1}
    shorter, _ = model.module.upto("z", 1, variables)
    assert shorter.encoder == model.module.encoder


def test_two_encoders_share_nothing():
    encoder = SentenceEncoder(11, embedding_width=4, width=6)
    model = make_model(QuickThoughts(encoder, SentenceEncoder(11, 4, 6)))
    x = sentences()
    variables = model.init(jax.random.key(0), {"x": x})
    outputs: CPCOutputs = model.apply(variables, {"x": x})[0]
    assert outputs.predictions.shape == (2, 5, 1, 6)
    np.testing.assert_array_equal(outputs.predictions[:, :, 0], outputs.c)
    assert not np.allclose(outputs.z, outputs.c)
    assert set(variables["params"]) == {"encoder", "context"}
    _, c = model.embed(variables, x[:, ::-1])
    np.testing.assert_allclose(c[:, ::-1], outputs.c, rtol=1e-6, err_msg="each by itself")
    np.testing.assert_array_equal(model.module.apply(variables, x, method="encode"), outputs.z)
