"""A recording in chunks against the whole at once."""

import jax
import numpy as np
import pytest
from random_variables import random_variables

from cpc.models import (
    CPC,
    GRU,
    LSTM,
    CausalConv,
    CausalTransformer,
    ConvEncoder,
    LinearPredictor,
    frames_around,
    make_model,
    stream_contexts,
    stream_latents,
)

FRAMES, CHUNK = 23, 6
CONTEXTS = {
    "gru": GRU(6),
    "gru2": GRU(6, 2),
    "lstm": LSTM(6),
    "conv": CausalConv(6, 3),
    "transformer": CausalTransformer(8, 2, num_heads=2, span=4),
}


@pytest.mark.parametrize(
    ("context", "padding", "norm"),
    [
        ("gru", "causal", "none"),
        ("gru2", "same", "channel"),
        ("lstm", "causal", "none"),
        ("conv", "causal", "batch"),
        ("transformer", "valid", "none"),
    ],
)
def test_chunks_equal_the_whole(context, padding, norm):
    encoder = ConvEncoder(8, norm=norm, padding=padding)
    module = CPC(encoder, CONTEXTS[context], LinearPredictor(2, 8))
    variables = random_variables(module, np.zeros((1, 640), "f"))
    _, after = frames_around(encoder)
    whole = np.random.default_rng(0).normal(size=(FRAMES + after + CHUNK) * 160).astype("f")

    z_all, c_all = jax.jit(make_model(module).embed)(
        variables, whole[None, : (FRAMES + after) * 160]
    )
    padded = np.pad(whole, (0, 10 * 160))
    latents = [*stream_latents(module, variables, lambda a, b: padded[a:b], FRAMES, CHUNK)]
    assert {z.shape for z in latents} == {(1, CHUNK, 8)}
    contexts = stream_contexts(module, variables, iter(latents))
    z, c = (np.concatenate(list(parts), axis=1)[:, :FRAMES] for parts in (latents, contexts))
    np.testing.assert_allclose(z, z_all[:, :FRAMES], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(c, c_all[:, :FRAMES], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", ["causal", "same", "valid", (2, 2, 2, 2, 1)])
def test_the_samples_of_a_latent_lie_in_the_frames_around_it(padding):
    encoder = ConvEncoder(16, padding=padding)
    variables = random_variables(encoder, np.zeros((1, 1600), "f"))
    x = np.random.default_rng(1).normal(size=(1, 1600)).astype("f")
    at = 4
    slope = jax.jit(jax.grad(lambda x, v: encoder.apply(v, x)[0, at].sum()))(x, variables)[0]
    seen = np.flatnonzero(slope) // 160
    before, after = frames_around(encoder)
    assert seen.min() == at - before
    assert seen.max() == at + after
