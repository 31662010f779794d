"""Sentence encoders compared with a naive twin; padding does not contribute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import random_variables

from cpc.models import CPC, GRU, LinearPredictor, QuickThoughts, SentenceEncoder, make_model


def sentences(b=2, t=5, w=7, vocabulary=11, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocabulary, (b, t, w))
    length = rng.integers(1, w + 1, (b, t, 1))
    return jnp.asarray(np.where(np.arange(w) < length, ids, -1), jnp.int32)


ENCODER = SentenceEncoder(11, embedding_width=4, width=6, kernel=3)
MODEL = make_model(CPC(ENCODER, GRU(5), LinearPredictor(2, 6)))
EMBED = jax.jit(MODEL.embed)


@pytest.fixture(scope="module")
def variables():
    return random_variables(MODEL.module, sentences())


def test_latents_are_those_of_a_naive_twin(variables):
    x = sentences()
    own = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"]["encoder"])
    table, kernel, bias = own["embedding"], own["conv"]["kernel"], own["conv"]["bias"]
    z = np.asarray(EMBED(variables, x)[0])
    for row, found in zip(np.asarray(x).reshape(-1, x.shape[-1]), z.reshape(-1, 6), strict=True):
        words = row[row >= 0]
        around = np.concatenate([np.zeros((1, 4)), table[words], np.zeros((1, 4))])
        hidden = [
            np.maximum(sum(around[i + j] @ kernel[j] for j in range(3)) + bias, 0)
            for i in range(len(words))
        ]
        np.testing.assert_allclose(found, np.mean(hidden, axis=0), rtol=1e-5, atol=1e-6)


def test_padding_has_no_part(variables):
    """Ids below 0 read some row of the table, whose NaN goes nowhere, forward or backward."""
    x = sentences()
    x = jnp.where(x == 0, 1, x)
    wider = jnp.pad(x, ((0, 0), (0, 0), (0, 6)), constant_values=-7)
    params = variables["params"]
    table = params["encoder"]["embedding"].at[0].set(jnp.nan)
    bad = {"params": {**params, "encoder": {**params["encoder"], "embedding": table}}}

    @jax.jit
    def run(variables, x):
        embed = lambda v: (MODEL.embed(v, x)[1].sum(), MODEL.embed(v, x))  # noqa: E731
        return jax.grad(embed, has_aux=True)(variables)

    found, wanted = run(bad, wider), run(variables, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, wanted)


def test_a_missing_sentence_is_zero_and_those_before_see_nothing_of_it(variables):
    x = sentences()
    (z, c), (whole_z, whole_c) = EMBED(variables, x.at[:, 3:].set(-1)), EMBED(variables, x)
    assert (np.asarray(z[:, 3:]) == 0).all()
    np.testing.assert_array_equal(z[:, :3], whole_z[:, :3])
    np.testing.assert_allclose(c[:, :3], whole_c[:, :3], rtol=1e-6)
    assert MODEL.module.num_layers == {"z": 1, "c": 1}
    assert MODEL.module.upto("z", 1, variables)[0].encoder == ENCODER


def test_two_encoders_share_nothing():
    module, x = QuickThoughts(ENCODER, SentenceEncoder(11, 4, 6)), sentences()
    variables = random_variables(module, x)
    assert set(variables["params"]) == {"encoder", "context"}

    @jax.jit
    def run(x):
        own = [ENCODER.apply({"params": variables["params"][n]}, x) for n in ("encoder", "context")]
        return module.apply(variables, x), module.apply(variables, x, method="encode"), own

    outputs, latents, (z, c) = run(x)
    for found, wanted in ((outputs.z, z), (outputs.c, c), (latents, z)):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
    assert outputs.predictions.shape == (2, 5, 1, 6)
    np.testing.assert_array_equal(outputs.predictions[:, :, 0], outputs.c)
