"""Recordings in chunks against the whole at once, and the samples that a latent depends on."""

import jax
import numpy as np
import pytest
from random_variables import noise, random_variables

from cpc import models

SMALL = models.ConvEncoder(8, (10, 8), (5, 4))


def test_contexts_of_the_whole_recording_cannot_be_streamed():
    module = models.SegmentalCPC(SMALL, models.GRU(6), models.LinearPredictor(1, 8), 8)
    can_stream = [models.Layers(module, {}, (name,)).can_stream for name in ("z", "c")]
    assert can_stream == [True, False]


@pytest.mark.parametrize(("context", "encoder", "channels"), [
    (models.GRU(6, 2), SMALL.clone(norm="channel", padding="same", channels=3), (3,)),
    (models.CausalTransformer(8, 1, num_heads=2, span=4),
     models.LogMelEncoder(8, (3, 5), padding="valid"), ()),
])  # fmt: skip
def test_chunks_equal_the_whole(monkeypatch, context, encoder, channels):
    monkeypatch.setattr(models.features, "CHUNK_SAMPLES", 6 * encoder.stride)
    frames, after = 23, encoder.frames_around[1]
    module = models.CPC(encoder, context, models.LinearPredictor(2, 8))
    # Energies near the floor are less exact.
    tolerance = 1e-4 if isinstance(encoder, models.LogMelEncoder) else 1e-5
    x = np.asarray(noise((frames + after) * encoder.stride, *channels))
    variables = random_variables(module, x[None])
    layers = models.Layers(module, variables, ("z", "c"))
    found = layers.embed_long(lambda start, stop: x[start:stop], len(x))
    whole = jax.jit(models.make_model(module).embed)(variables, x[None])
    for name, wanted in zip("zc", whole, strict=True):
        assert len(found[name]) == frames + after
        pairs = found[name][:frames], wanted[0, :frames]
        np.testing.assert_allclose(*pairs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("encoder", [
    *(SMALL.clone(padding=padding) for padding in ("causal", "same", (2, 1))),
    models.LogMelEncoder(8, padding="valid"),
    models.LogMelEncoder(8, kernels=(5,), hop_samples=80, padding="same"),
])  # fmt: skip
def test_the_samples_of_a_latent_lie_in_the_frames_around_it(encoder):
    x, stride, at = noise(1, 10 * encoder.stride, seed=1), encoder.stride, 4
    variables = random_variables(encoder, x)
    slope = jax.jit(jax.grad(lambda x: encoder.apply(variables, x)[0, at].sum()))(x)[0]
    seen = np.flatnonzero(slope)
    before, after = encoder.frames_around
    assert (seen.min() // stride, seen.max() // stride) == (at - before, at + after)
    assert seen.max() - seen.min() + 1 == encoder.receptive_field
