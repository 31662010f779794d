"""The log-mel encoder: filters and formulas; `test_embeddings` tests energies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft
from random_variables import noise, random_variables

from cpc.mel import log_mel, mel_filters
from cpc.models import LogMelEncoder
from cpc.models.encoders import ENERGY_MEAN, ENERGY_SCALE
from cpc.types import UserError


def test_mel_filters_share_every_frequency_out():
    """Between the first centre and the last, neighbouring triangles of height 1 add up to 1."""
    fft_length, num_filters = 2048, 80
    filters = mel_filters(16000, fft_length, num_filters)
    centers = 700 * (10 ** (np.linspace(0, np.log10(1 + 80 / 7), num_filters + 2)[1:-1]) - 1)
    hz = np.linspace(0, 8000, fft_length // 2 + 1)
    inside = (hz >= centers[0]) & (hz <= centers[-1])
    np.testing.assert_allclose(filters[:, inside].sum(0), 1, atol=1e-5)
    np.testing.assert_allclose(hz[filters.argmax(1)], centers, atol=8000 / (fft_length / 2))
    assert (filters.max(1) > 0.5).all()  # each has a bin near its middle


@pytest.mark.parametrize("num_cepstra", [0, 13])
def test_latents_are_convolutions_of_the_energies_or_of_their_cosine_transform(num_cepstra):
    encoder, x = LogMelEncoder(4, (3, 1), num_cepstra=num_cepstra), 0.05 * noise(2, 1600)
    variables = random_variables(encoder, x)
    energies = log_mel(
        np.pad(x, ((0, 0), (240, 0))), np.hamming(400), 160, mel_filters(16000, 2048, 80)
    )
    y = (np.asarray(energies) - ENERGY_MEAN) / ENERGY_SCALE
    if num_cepstra:
        y = scipy.fft.dct(y, norm="ortho")[..., :num_cepstra] * np.sqrt(num_cepstra / 80)
    params = variables["params"]["convolutions"]
    y = np.pad(y, ((0, 0), (2, 0), (0, 0)))  # mean energy before the beginning
    y = sum(y[:, i : i + 10] @ params["kernel0"][i] for i in range(3)) + params["bias0"]
    expected = np.maximum(np.maximum(y, 0) @ params["kernel1"][0] + params["bias1"], 0)
    z = jax.jit(encoder.apply)(variables, x)
    np.testing.assert_allclose(z, expected, rtol=1e-4, atol=1e-4)


def test_energies_of_voices_reach_the_convolutions_at_a_moderate_scale():
    """Noise at the loudness of recordings, and digital silence: within a few deviations."""
    filters = mel_filters(16000, 2048, 80)
    y = log_mel(jnp.stack([0.05 * noise(900), jnp.zeros(900)]), np.hamming(400), 160, filters)
    assert np.abs((y - ENERGY_MEAN) / ENERGY_SCALE).max() < 3


def test_mistakes_are_sentences():
    for options in ({"norm": "laier"}, {"padding": "reflect"}, {"window_samples": 4000}):
        with pytest.raises(UserError):
            LogMelEncoder(8, **options)
