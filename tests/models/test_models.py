"""Encoders of signals: fast convolutions and norms, causality, padding, geometry."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import noise, random_variables

from cpc.models import CPC, GRU, ConvEncoder, LinearPredictor, LogMelEncoder, ResNet, Stage
from cpc.models.convolution import MIN_WIDTH, convolve_signal
from cpc.models.encoders import EPSILON, channel_norm
from cpc.types import UserError

SHORT = ConvEncoder(8, (50, 8), (40, 4), padding="same")


#: (kernel, stride, padding, length, channels, platform). Kernels of two strides share products in
#: pairs from MIN_WIDTH channels on, with an even and an odd number of outputs; narrow inputs are
#: rows of a product on an accelerator.
CONVOLUTIONS = [
    (10, 5, (5, 0), 43, 1, "cpu"), (10, 5, (5, 0), 43, 1, "gpu"), (4, 2, (1, 1), 40, 3, "gpu"),
    (4, 2, (2, 0), 43, MIN_WIDTH, "cpu"), (4, 2, (1, 1), 40, MIN_WIDTH, "cpu"),
    (4, 2, (0, 0), 4, MIN_WIDTH, "cpu"), (3, 2, (1, 0), 8, 3, "cpu"),
]  # fmt: skip


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_fast_convolution_equals_plain(case, monkeypatch):
    kernel, stride, padding, length, channels, platform = case
    if platform == "gpu":
        elsewhere = lambda *args, default, **_: default(*args)  # noqa: E731
        monkeypatch.setattr(jax.lax, "platform_dependent", elsewhere)
    x, bias = noise(2, length, channels), noise(5, seed=1)
    w = channels**-0.5 * noise(kernel, channels, 5, seed=2)

    def plain(x, w, bias):
        y = jax.lax.conv_general_dilated(
            x, w, (stride,), [padding], dimension_numbers=("NWC", "WIO", "NWC")
        )
        return y + bias

    def fast(x, w, bias):
        return convolve_signal(x, w, bias, stride, padding)

    def differentiate(convolution, *arrays):
        value, pull = jax.vjp(convolution, *arrays)
        return value, *pull(jnp.cos(jnp.arange(value.size, dtype=float)).reshape(value.shape))

    both = jax.jit(lambda *arrays: [differentiate(one, *arrays) for one in (fast, plain)])
    for a, b in zip(*both(x, w, bias), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", ["none", "layer", "channel", "group", "batch"])
def test_no_latent_depends_on_a_later_frame(norm):
    """Row t of the batch differs from the last in frame t, whose latent and the next see it."""
    encoder = ConvEncoder(32, (10, 4), (5, 2), norm=norm)
    x = jnp.tile(noise(50), (6, 1))
    x = x + jnp.pad(jnp.repeat(jnp.eye(5), 10, axis=1), ((0, 1), (0, 0)))
    z = jax.jit(encoder.apply)(random_variables(encoder, x), x)
    seen = np.asarray(z[:5] != z[5]).any(-1)  # (frame, latent)
    np.testing.assert_array_equal(np.tril(seen, -1), False)
    assert seen.diagonal().all()
    np.testing.assert_array_equal(np.triu(seen, 3), False)


PADDINGS = ("causal", "same", "valid")


@pytest.mark.parametrize("encoder", [
    *(ConvEncoder(8, padding=padding) for padding in (*PADDINGS, (3, 2, 1, 1, 1), (0, 0, 1, 1, 0))),
    *(LogMelEncoder(8, padding=padding) for padding in PADDINGS),
])  # fmt: skip
def test_any_length_embeds(encoder):
    padding, is_conv = encoder.padding, isinstance(encoder, ConvEncoder)
    for samples in (1, 161, 465, 719, 720, 1000, 1600):
        z, _ = jax.eval_shape(encoder.init_with_output, jax.random.key(0), jnp.zeros((1, samples)))
        assert z.shape == (1, encoder.num_latents(samples), 8)
        exist = int(encoder.num_existing(jnp.array([samples]))[0])
        if padding == "causal" or (padding == "same" and not is_conv):
            assert z.shape[1] == exist == max(1, samples // 160)
        if padding == "valid":
            field = encoder.receptive_field
            assert z.shape[1] == exist == max(1, (samples - field) // 160 + 1)
    if padding == "same" and is_conv:  # the lookahead is 152 samples
        assert encoder.pads == [(3, 3), (2, 2), (1, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize("encoder", [ConvEncoder(8, (10, 4), (5, 2)), LogMelEncoder(8, (3, 1))])
def test_bfloat16_computes_what_float32_does(encoder):
    """Energies are computed in float32."""
    x, parts = 0.05 * noise(2, 5 * encoder.stride), (encoder, GRU(6), LinearPredictor(2, 8))
    model, half = CPC(*parts), CPC(*(part.clone(dtype=jnp.bfloat16) for part in parts))
    variables = random_variables(model, x)
    pairs = jax.jit(lambda x: (half.apply(variables, x), model.apply(variables, x)))(x)
    for a, b in zip(*pairs, strict=True):
        assert a.dtype == jnp.bfloat16
        error = jnp.linalg.norm(a.astype(jnp.float32) - b) / jnp.linalg.norm(b)
        assert float(error) < 0.03
    kept = jax.eval_shape(half.init, jax.random.key(0), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(kept)} == {jnp.dtype("float32")}


@pytest.mark.parametrize(("encoder", "norm"), [
    (SHORT, "channel"), (SHORT, "batch"), (LogMelEncoder(8, (3,), padding="same"), "batch"),
    (LogMelEncoder(8, (3,), padding="valid"), "none"),
])  # fmt: skip
def test_latents_of_a_padded_signal_are_those_of_it_alone(encoder, norm):
    """Looking ahead at the signal's end it sees zeros at every layer, batch norm nothing else.

    The end of a clip shorter than a latent is padded with silence, which has energies.
    """
    encoder = encoder.clone(norm=norm)
    x = noise(3, 1600)
    variables = random_variables(encoder, x)
    apply = jax.jit(functools.partial(encoder.apply, mutable=["batch_stats"]), static_argnums=2)
    alone, moved = apply(variables, x, True)
    padded = jnp.pad(x, ((0, 0), (0, 1000)))
    filled, moved_filled = apply(variables, padded, True, jnp.full(3, 1600))
    np.testing.assert_allclose(filled[:, : alone.shape[1]], alone, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), moved, moved_filled)
    if norm == "batch":
        stats = moved["batch_stats"], variables["batch_stats"]
        assert jax.tree.all(jax.tree.map(lambda a, b: bool((a != b).all()), *stats))
    short = jnp.where(jnp.arange(1600) < 70, x, 0)  # less than a latent
    first = apply(variables, short[:, :160], False)[0]
    found = apply(variables, short, False, jnp.full(3, 70))[0][:, :1]
    np.testing.assert_allclose(found, first, rtol=1e-4, atol=1e-5)


def test_latents_of_a_clip_of_any_length_are_those_of_it_alone():
    """A layer has more outputs than frames for one length in five, and the next one sees them."""
    encoder, x, lengths = ConvEncoder(4, padding=(5, 0, 3, 0, 1)), noise(1, 1300), (804, 1119)
    variables = random_variables(encoder, x)
    filled = jnp.concatenate([jnp.where(jnp.arange(1300) < length, x, 0) for length in lengths])
    found = jax.jit(encoder.apply)(variables, filled, num_samples=jnp.array(lengths))
    for row, length in enumerate(lengths):
        alone = jax.jit(encoder.apply)(variables, x[:, :length])
        exist = int(encoder.num_existing(jnp.array([length]))[0])
        np.testing.assert_allclose(found[row, :exist], alone[0, :exist], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("options", "words"), [
    ({"norm": "laier"}, "choose one of none, layer"),
    ({"padding": "reflect"}, "causal, same or valid"),
    ({"padding": (1, 2)}, "5 layers and 2 paddings"),
    ({"kernels": (4, 4)}, r"\[4, 4\] and strides \[5, 4, 2"),
    ({"kernels": (4, 4), "strides": (2, 5)}, "no kernel shorter than its stride"),
    ({"kernels": (), "strides": ()}, "at least one layer"),
    ({"norm": "group", "width": 100}, "multiple of 32"),
    ({"norm": "channel", "width": 1}, "2 channels .*got 1"),
])  # fmt: skip
def test_mistakes_are_sentences(options, words):
    with pytest.raises(UserError, match=words):
        ConvEncoder(**{"width": 8, **options})


def test_an_encoder_of_other_channels_is_named():
    encoder = ConvEncoder(8, (4,), (2,), channels=3)
    shape = functools.partial(jax.eval_shape, encoder.init_with_output, jax.random.key(0))
    assert shape(jnp.zeros((2, 20, 3)))[0].shape == (2, 10, 8)
    for x in (jnp.zeros((2, 20)), jnp.zeros((2, 20, 2))):
        with pytest.raises(UserError, match="not 3: set channels"):
            shape(x)


@pytest.mark.parametrize(("encoder", "shape"), [
    (ConvEncoder(8, (10, 4), (5, 2), norm="batch"), (2, 80)), (LogMelEncoder(8, (3, 1)), (2, 800)),
    (ResNet((Stage(1, 4),), "layer", pooled_stem=False, stem_width=4), (2, 6, 6, 3)),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_rematerialisation_keeps_values_state_and_gradients(encoder, shape):
    x, encoders = noise(*shape), (encoder, encoder.clone(remat=True))
    variables, same = (random_variables(one, x) for one in encoders)
    jax.tree.map(np.testing.assert_array_equal, variables, same)

    def differentiate(params, one):
        def energy(params):
            z, new = one.apply({**variables, "params": params}, x, True, mutable=["batch_stats"])
            return (z**2).sum(), (z, new)

        return jax.value_and_grad(energy, has_aux=True)(params)

    both = jax.jit(lambda params: [differentiate(params, one) for one in encoders])
    plain, again = both(variables["params"])
    np.testing.assert_allclose(again[0][1][0], plain[0][1][0], rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4), plain, again)
    programs = [str(jax.make_jaxpr(lambda p, one=one: differentiate(p, one))(variables["params"]))
                for one in encoders]  # fmt: skip
    assert ["remat" in program or "checkpoint" in program for program in programs] == [False, True]


def channel_norm_plain(x, scale, bias, num_groups, unbiased):
    """The formula, left to automatic differentiation."""
    groups = x.reshape(*x.shape[:2], num_groups, -1)
    n = groups - groups.mean(-1, keepdims=True)
    variance = jnp.square(n).sum(-1, keepdims=True) / (groups.shape[-1] - unbiased)
    return (n / jnp.sqrt(variance + EPSILON)).reshape(x.shape) * scale + bias


@pytest.mark.parametrize(("num_groups", "unbiased"), [(1, True), (3, False)])
def test_channel_norm_equals_its_formula(num_groups, unbiased):
    rng = np.random.default_rng(0)
    x, weight = (jnp.asarray(3 * rng.normal(size=(2, 5, 12)) + 1, jnp.float32) for _ in range(2))
    scale, bias = (jnp.asarray(rng.normal(size=12), jnp.float32) for _ in range(2))

    def both(norm):
        def weighted(x, scale, bias):
            return (weight * norm(x, scale, bias, num_groups, unbiased)).sum()

        value = norm(x, scale, bias, num_groups, unbiased)
        return value, jax.grad(weighted, (0, 1, 2))(x, scale, bias)

    own, plain = jax.jit(lambda: (both(channel_norm), both(channel_norm_plain)))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), own, plain)


def test_channel_norm_takes_statistics_in_float32():
    """In bfloat16 a mean of 300 would leave nothing of differences of 1; equal channels are 0."""
    x = jnp.asarray([[[300.0, 302.0, 304.0, 306.0], [1.0] * 4]], jnp.bfloat16)

    def norm(x):
        return channel_norm(x, jnp.ones(4), jnp.zeros(4), 1, False)

    y, gradient = jax.jit(lambda x: (norm(x), jax.grad(lambda x: norm(x)[0, :, 0].sum())(x)))(x)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y[0, 0], (np.arange(4) - 1.5) / np.sqrt(1.25), rtol=1e-4)
    np.testing.assert_array_equal(y[0, 1], 0)
    assert gradient.dtype == jnp.bfloat16
    assert np.isfinite(gradient.astype("f")).all()
