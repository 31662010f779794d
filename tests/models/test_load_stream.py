"""Recordings in chunks against the whole at once, and the samples that a latent depends on."""

import jax
import numpy as np
import pytest
from random_variables import noise, random_variables

from cpc import models

SMALL = models.ConvEncoder(8, (10, 8), (5, 4))


@pytest.mark.parametrize(("context", "encoder", "channels"), [
    (models.GRU(6, 2), SMALL.clone(norm="channel", padding="same", channels=3), (3,)),
    (models.CausalTransformer(8, 1, num_heads=2, span=4),
     models.LogMelEncoder(8, (3, 5), padding="valid"), ()),
])  # fmt: skip
def test_chunks_equal_the_whole(context, encoder, channels):
    frames, chunk, after = 23, 6, encoder.frames_around[1]
    module = models.CPC(encoder, context, models.LinearPredictor(2, 8))
    # Energies near the floor are less exact.
    tolerance = 1e-4 if isinstance(encoder, models.LogMelEncoder) else 1e-5
    whole = np.asarray(noise((frames + after + chunk) * encoder.stride, *channels))
    variables, x = random_variables(module, whole[None]), whole[: (frames + after) * encoder.stride]
    z_all, c_all = jax.jit(models.make_model(module).embed)(variables, x[None])
    padded = np.pad(whole, ((0, 10 * encoder.stride), *((0, 0) for _ in channels)))
    latents = [*models.stream_latents(module, variables, lambda a, b: padded[a:b], frames, chunk)]
    assert {z.shape for z in latents} == {(1, chunk, 8)}
    contexts = models.stream_contexts(module, variables, iter(latents))
    z, c = (np.concatenate(list(parts), axis=1)[:, :frames] for parts in (latents, contexts))
    np.testing.assert_allclose(z, z_all[:, :frames], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(c, c_all[:, :frames], rtol=tolerance, atol=tolerance)


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
