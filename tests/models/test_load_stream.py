"""A recording in chunks against the whole at once."""

import jax
import jax.numpy as jnp
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
    LogMelEncoder,
    SegmentalCPC,
    make_model,
    stream_contexts,
    stream_latents,
)
from cpc.types import UserError

FRAMES, CHUNK = 23, 6
CONTEXTS = {
    "gru": GRU(6),
    "gru2": GRU(6, 2),
    "gru_blocks": GRU(6, 2, blocks=3),
    "lstm": LSTM(6),
    "lstm2": LSTM(6, 2),
    "conv": CausalConv(6, 3),
    "transformer": CausalTransformer(8, 2, num_heads=2, span=4),
}


def test_contexts_that_need_the_whole_recording_are_refused():
    module = SegmentalCPC(ConvEncoder(8), GRU(6), LinearPredictor(1, 8), 8)
    variables = random_variables(module, np.zeros((1, 640), "f"))
    with pytest.raises(UserError, match="and of segments, see a recording to its end"):
        next(stream_contexts(module, variables, iter([jnp.zeros((1, 4, 8))])))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "encoder"),
    [
        ("gru", ConvEncoder(8)),
        ("gru2", ConvEncoder(8, norm="channel", padding="same")),
        ("gru_blocks", ConvEncoder(8)),
        ("lstm", ConvEncoder(8)),
        ("lstm2", LogMelEncoder(8, padding="same")),
        ("conv", ConvEncoder(8, norm="batch")),
        ("conv", LogMelEncoder(8, (3, 5), norm="layer")),
        ("transformer", ConvEncoder(8, padding="valid")),
        ("gru", LogMelEncoder(8, padding="valid")),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_chunks_equal_the_whole(context, encoder):
    module = CPC(encoder, CONTEXTS[context], LinearPredictor(2, 8))
    variables = random_variables(module, np.zeros((1, 640), "f"))
    _, after = encoder.frames_around
    scale = 1e-4 if isinstance(encoder, LogMelEncoder) else 1e-5  # of energies near the floor
    whole = np.random.default_rng(0).normal(size=(FRAMES + after + CHUNK) * 160).astype("f")

    z_all, c_all = jax.jit(make_model(module).embed)(
        variables, whole[None, : (FRAMES + after) * 160]
    )
    padded = np.pad(whole, (0, 10 * 160))
    latents = [*stream_latents(module, variables, lambda a, b: padded[a:b], FRAMES, CHUNK)]
    assert {z.shape for z in latents} == {(1, CHUNK, 8)}
    contexts = stream_contexts(module, variables, iter(latents))
    z, c = (np.concatenate(list(parts), axis=1)[:, :FRAMES] for parts in (latents, contexts))
    np.testing.assert_allclose(z, z_all[:, :FRAMES], rtol=scale, atol=scale)
    np.testing.assert_allclose(c, c_all[:, :FRAMES], rtol=scale, atol=scale)


def test_chunks_of_several_channels_equal_the_whole():
    """At a stride of 6, as a series' encoder may have."""
    encoder = ConvEncoder(8, (6, 4), (3, 2), channels=3)
    module = CPC(encoder, GRU(6), LinearPredictor(2, 8))
    variables = random_variables(module, np.zeros((1, 60, 3), "f"))
    variables = jax.tree.map(jax.numpy.asarray, variables)
    x = np.random.default_rng(0).normal(size=(40 * 6, 3)).astype("f")
    padded = np.pad(x, ((0, 60), (0, 0)))
    parts = [*stream_latents(module, variables, lambda a, b: padded[a:b], 40, 12)]
    z = np.concatenate(parts, axis=1)[:, :40]
    wanted = module.apply(variables, jax.numpy.asarray(x[None]), method="encode")
    np.testing.assert_allclose(z, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "padding"),
    [
        *((ConvEncoder, padding) for padding in ("causal", "same", "valid", (2, 2, 2, 2, 1))),
        *((LogMelEncoder, padding) for padding in ("causal", "same", "valid")),
    ],
)
def test_the_samples_of_a_latent_lie_in_the_frames_around_it(make, padding):
    encoder = make(16, padding=padding)
    variables = random_variables(encoder, np.zeros((1, 1600), "f"))
    x = np.random.default_rng(1).normal(size=(1, 1600)).astype("f")
    at = 4
    slope = jax.jit(jax.grad(lambda x, v: encoder.apply(v, x)[0, at].sum()))(x, variables)[0]
    seen = np.flatnonzero(slope) // 160
    before, after = encoder.frames_around
    assert seen.min() == at - before
    assert seen.max() == at + after
    seen = np.flatnonzero(slope)
    assert seen.max() - seen.min() + 1 == encoder.receptive_field


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "lstm", "conv", "transformer"])
def test_a_context_depends_on_the_latents_in_its_reach_and_no_more(name):
    context, z = CONTEXTS[name], np.random.default_rng(0).normal(size=(4, 24, 8)).astype("f")
    variables, at = random_variables(context, z), 20
    slope = jax.jit(jax.grad(lambda z: jax.numpy.sin(context.apply(variables, z)[:, at]).sum()))(z)
    seen = np.flatnonzero(np.any(slope != 0, axis=(0, 2)))
    assert seen.max() == at
    assert seen.min() == (0 if context.reach is None else at - context.reach)
