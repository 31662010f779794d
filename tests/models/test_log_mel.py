"""The log-mel encoder: energies against plain loops, geometry, causality, and its way to files."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft
from random_variables import random_variables

from cpc.evaluate import mfcc
from cpc.mel import log_mel, mel_filters
from cpc.models import (
    CPC,
    GRU,
    LinearPredictor,
    LogMelEncoder,
    Pretrained,
    end_at,
    load_pretrained,
    make_model,
    save,
)
from cpc.models.description import build, describe
from cpc.models.encoders import ENERGY_MEAN, ENERGY_SCALE
from cpc.types import UserError


def noise(*shape, seed=0):
    return jnp.asarray(0.05 * np.random.default_rng(seed).normal(size=shape), jnp.float32)


def draw(module, x):
    return jax.tree.map(jnp.asarray, random_variables(module, x))


def small_module(**options):
    return CPC(LogMelEncoder(8, **options), GRU(6), LinearPredictor(2, 8))


@pytest.mark.parametrize(("fft_length", "num_filters"), [(512, 40), (2048, 80)])
def test_mel_filters_share_every_frequency_out(fft_length, num_filters):
    """Between the first centre and the last, neighbouring triangles of height 1 add up to 1."""
    filters = mel_filters(16000, fft_length, num_filters)
    centers = 700 * (10 ** (np.linspace(0, np.log10(1 + 80 / 7), num_filters + 2)[1:-1]) - 1)
    hz = np.linspace(0, 8000, fft_length // 2 + 1)
    inside = (hz >= centers[0]) & (hz <= centers[-1])
    np.testing.assert_allclose(filters[:, inside].sum(0), 1, atol=1e-5)
    np.testing.assert_allclose(hz[filters.argmax(1)], centers, atol=8000 / (fft_length / 2))
    assert (filters.max(1) > 0.5).all()  # each has a bin near its middle


@pytest.mark.slow
def test_energies_equal_plain_loops():
    x = noise(2, 900)
    filters = mel_filters(16000, 512, 20)
    window = np.hamming(400)
    expected = np.zeros((2, 4, 20))
    for row, t in np.ndindex(2, 4):
        frame = np.asarray(x[row, 160 * t : 160 * t + 400], np.float64) * window
        angles = np.exp(-2j * np.pi * np.outer(np.arange(257), np.arange(400)) / 512)
        expected[row, t] = np.log(filters @ (np.abs(angles @ frame) ** 2 / 512))
    found = log_mel(x, window, 160, filters)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_cepstra_of_the_energies_are_the_mfcc():
    """With its filters, window, centring and pre-emphasis: one bank of filters serves both."""
    x = noise(1, 1600)
    emphasised = x - 0.97 * np.pad(x, ((0, 0), (1, 0)))[:, :-1]
    centred = np.pad(emphasised, ((0, 0), (120, 120)))
    energies = log_mel(centred, np.hamming(400), 160, mel_filters(16000, 512, 40))
    cepstra = scipy.fft.dct(np.asarray(energies), norm="ortho")[..., :13]
    np.testing.assert_allclose(cepstra, mfcc(x)[..., :13], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_latents_are_convolutions_of_the_energies():
    encoder, x = LogMelEncoder(4, (3, 1)), noise(2, 1600)
    variables = draw(encoder, x)
    energies = log_mel(
        np.pad(x, ((0, 0), (240, 0))), np.hamming(400), 160, mel_filters(16000, 2048, 80)
    )
    y = (np.asarray(energies) - ENERGY_MEAN) / ENERGY_SCALE
    params = variables["params"]["convolutions"]
    y = np.pad(y, ((0, 0), (2, 0), (0, 0)))  # mean energy before the beginning
    y = sum(y[:, i : i + 10] @ params["kernel0"][i] for i in range(3)) + params["bias0"]
    expected = np.maximum(np.maximum(y, 0) @ params["kernel1"][0] + params["bias1"], 0)
    np.testing.assert_allclose(encoder.apply(variables, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_energies_of_voices_reach_the_convolutions_at_a_moderate_scale():
    """Noise at the loudness of recordings, and digital silence: within a few deviations."""
    filters = mel_filters(16000, 2048, 80)
    for x in (noise(1, 8000), np.zeros((1, 8000), "f")):
        y = np.asarray(log_mel(x, np.hamming(400), 160, filters))
        assert np.abs((y - ENERGY_MEAN) / ENERGY_SCALE).max() < 3


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["causal", "same", "valid"])
@pytest.mark.parametrize("samples", [1, 160, 719, 720, 1000, 3200])
def test_any_length_embeds_to_as_many_latents_as_stated(padding, samples):
    encoder, x = LogMelEncoder(8, padding=padding), noise(1, samples)
    z, _ = encoder.init_with_output(jax.random.key(0), x)
    assert z.shape == (1, encoder.num_latents(samples), 8)
    if padding != "valid":
        assert z.shape[1] == max(1, samples // 160)
    assert jnp.isfinite(z).all()


@pytest.mark.slow
def test_a_clip_shorter_than_a_latent_is_the_same_in_a_batch():
    """Both alone and beside longer ones it is filled up with silence, which has energies."""
    encoder, x = LogMelEncoder(8, padding="valid"), noise(2, 1600).at[0, 700:].set(0.0)
    variables = encoder.init(jax.random.key(0), x)
    together = encoder.apply(variables, x, True, np.array([700, 1600]))
    np.testing.assert_allclose(
        together[0, 0], encoder.apply(variables, x[:1, :700])[0, 0], rtol=1e-5, atol=1e-6
    )


def test_the_encoder_states_its_geometry():
    encoder = LogMelEncoder()
    assert (encoder.stride, encoder.receptive_field, encoder.num_layers) == (160, 720, 5)
    assert LogMelEncoder(kernels=(5,), hop_samples=80).stride == 80
    assert LogMelEncoder(kernels=(5,), hop_samples=80).receptive_field == 400 + 4 * 80


@pytest.mark.slow
def test_no_context_depends_on_a_later_sample():
    """The gradient of c_t by every sample after frame t is exactly zero, and not by the frame."""
    module, x = small_module(norm="layer"), noise(1, 160 * 12)
    variables = draw(module, x)

    @jax.jit
    @jax.grad
    def differentiate(x, t):
        return jnp.sum(jnp.sin(make_model(module).embed(variables, x)[1][0, t]))

    for t in (0, 5, 11):
        gradient = differentiate(x, t)
        assert jnp.isfinite(gradient).all()
        assert jnp.abs(gradient[0, 160 * t : 160 * (t + 1)]).max() > 0
        np.testing.assert_array_equal(gradient[0, 160 * (t + 1) :], 0.0)


@pytest.mark.slow
def test_a_layer_is_the_output_of_its_convolution():
    module, x = small_module(kernels=(3, 1, 1)), noise(2, 1600)
    variables = draw(module, x)
    shorter, own = end_at(module, variables, "z2")
    assert set(own["params"]["encoder"]["convolutions"]) == {"kernel0", "bias0", "kernel1", "bias1"}
    z2 = shorter.apply(own, x, method="encode")
    last = variables["params"]["encoder"]["convolutions"]
    z = np.maximum(np.asarray(z2) @ last["kernel2"][0] + last["bias2"], 0)
    np.testing.assert_allclose(z, module.apply(variables, x, method="encode"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_what_is_loaded_embeds_the_same_to_the_last_bit(tmp_path, norm):
    module, x = small_module(norm=norm, kernels=(3, 1)), noise(2, 1600)
    given = {"kind": "audio", "shape": [1600], "sample_rate_hz": 16000, "rms": 0.05}
    first = Pretrained(module, draw(module, x), given, {"step": 7})
    assert build(json.loads(json.dumps(describe(module)))) == module
    save(tmp_path, first)
    assert load_pretrained(tmp_path).module == module
    wanted = jax.jit(make_model(module).embed)(first.variables, x)
    read = load_pretrained(tmp_path)
    found = jax.jit(make_model(read.module).embed)(read.variables, x)
    jax.tree.map(np.testing.assert_array_equal, tuple(found), tuple(wanted))


def test_bfloat16_computes_what_float32_does():
    """Energies are of float32 in both."""
    x = noise(2, 1600)
    variables = draw(LogMelEncoder(32), x)
    whole, half = (
        jax.jit(LogMelEncoder(32, dtype=dtype).apply)(variables, x)
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    assert half.dtype == jnp.bfloat16
    assert jnp.linalg.norm(half.astype(jnp.float32) - whole) / jnp.linalg.norm(whole) < 0.03


def test_convolutions_computed_again_have_the_same_gradient():
    x = noise(2, 800)
    variables = draw(LogMelEncoder(8), x)

    def energy(variables, remat):
        return jnp.square(LogMelEncoder(8, remat=remat).apply(variables, x)).sum()

    plain, again = (
        jax.jit(jax.grad(functools.partial(energy, remat=remat)))(variables)
        for remat in (False, True)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4), plain, again)
    program = str(jax.make_jaxpr(jax.grad(functools.partial(energy, remat=True)))(variables))
    assert "checkpoint" in program or "remat" in program


@pytest.mark.parametrize("options", [
    {"norm": "laier"}, {"padding": "reflect"}, {"window_samples": 4000}
])  # fmt: skip
def test_mistakes_are_sentences(options):
    with pytest.raises(UserError):
        LogMelEncoder(8, **options)
