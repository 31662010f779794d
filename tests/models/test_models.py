"""Encoders and contexts: goldens, fast against plain forms, causality, shapes."""

import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.models import (
    CPC,
    GRU,
    LSTM,
    CausalConv,
    CausalTransformer,
    ConvEncoder,
    LinearPredictor,
    LogMelEncoder,
    make_model,
)
from cpc.models.contexts import gru_scan
from cpc.models.convolution import LEAST_WIDTH, convolve_signal
from cpc.types import UserError

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "goldens"))
from goldens import load_golden
from random_variables import random_variables

META, CASES = load_golden("encoder_forward.npz")
WEIGHTS = CASES["weights"][1]
CONTEXTS = {
    "gru": GRU(12),
    "gru2": GRU(12, 2),
    "gru_blocks": GRU(12, 2, blocks=3),
    "lstm": LSTM(12),
    "conv": CausalConv(12, 2),
    "transformer": CausalTransformer(16, 2, num_heads=2, span=6),
}


def array(name):
    return jnp.asarray(WEIGHTS[name], jnp.float32)


def encoder_variables(norm):
    params, stats = {}, {}
    for i in range(5):
        params[f"kernel{i}"] = array(f"conv{i}.weight").transpose(2, 1, 0)
        bias = array(f"conv{i}.bias")
        scale = {"scale": array(f"norm{i}.weight"), "bias": array(f"norm{i}.bias")}
        if norm == "batch":  # which makes the convolution's bias a shift of the mean
            params[f"norm{i}"] = scale
            mean = array(f"norm{i}.running_mean") - bias
            stats[f"norm{i}"] = {"mean": mean, "var": array(f"norm{i}.running_var")}
        else:
            params[f"bias{i}"] = bias
            if norm != "none":
                params[f"norm{i}"] = scale
    return {"params": params, **({"batch_stats": stats} if stats else {})}


def recurrent_params(kind, layers):
    params = {}
    for i in range(layers):
        w_in, w_h, b_in, b_h = (
            array(f"{kind}{i}.{name}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        width = w_h.shape[1]
        if kind == "gru":  # torch's second bias of r and z adds to the first; that of n cannot
            b_in = b_in + b_h.at[2 * width :].set(0.0)
            params[f"bias{i}"] = b_h[2 * width :]
        else:
            b_in = b_in + b_h
        params[f"input{i}"] = {"kernel": w_in.T, "bias": b_in}
        params[f"recurrent{i}"] = w_h.T
    return {"params": params}


@pytest.mark.parametrize("name", [name for name in CASES if name != "weights"])
def test_equals_golden(name):
    params, inputs, expected = CASES[name]
    norm = params["norm"].removesuffix("_eval").removesuffix("_train")
    encoder = ConvEncoder(params["channels"], norm=norm, padding=tuple(params["padding"]))
    train = params["norm"] == "batch_train"
    mutable = ["batch_stats"] if train else False
    apply = jax.jit(functools.partial(encoder.apply, train=train, mutable=mutable))
    z = apply(encoder_variables(norm), jnp.asarray(inputs["x"][:, 0]))
    z = z[0] if train else z
    tolerance = {"rtol": META["tolerance"]["f32_rtol"], "atol": META["tolerance"]["f32_atol"]}
    np.testing.assert_allclose(z, expected["z"], **tolerance)
    kind, layers = params["context"], params["layers"]
    context = (GRU if kind == "gru" else LSTM)(params["hidden"], layers)
    start = (jnp.asarray(inputs["h0"]).reshape(z.shape[0], -1),) if "h0" in inputs else None
    advance = jax.jit(functools.partial(context.apply, method="advance"))
    c, _ = advance(recurrent_params(kind, layers), z, start)
    np.testing.assert_allclose(c, expected["c"], **tolerance)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [
    (10, 5, (5, 0)), (8, 4, (2, 2)), (4, 2, (0, 0)), (4, 2, (2, 0)), (4, 2, (1, 1)), (3, 2, (1, 0)),
])  # fmt: skip
@pytest.mark.parametrize("length", [8, 40, 43])
@pytest.mark.parametrize("channels", [1, 3, LEAST_WIDTH])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_fast_convolution_equals_plain(
    kernel, stride, padding, length, channels, platform, monkeypatch
):
    if platform == "gpu":
        monkeypatch.setattr(jax.lax, "platform_dependent", as_elsewhere)
    if length + sum(padding) < kernel:
        length = kernel
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, length, channels)), jnp.float32)
    w = jnp.asarray(channels**-0.5 * rng.normal(size=(kernel, channels, 5)), jnp.float32)
    bias = jnp.asarray(rng.normal(size=5), jnp.float32)

    def plain(x, w, bias):
        y = jax.lax.conv_general_dilated(
            x, w, (stride,), [padding], dimension_numbers=("NWC", "WIO", "NWC")
        )
        return y + bias

    def fast(x, w, bias):
        return convolve_signal(x, w, bias, stride, padding)

    @functools.partial(jax.jit, static_argnums=0)
    def value_and_gradients(convolution, cotangent):
        value, pull = jax.vjp(convolution, x, w, bias)
        return value, *pull(cotangent)

    shape = jax.eval_shape(plain, x, w, bias).shape
    cotangent = jnp.asarray(rng.normal(size=shape), jnp.float32)
    results = (value_and_gradients(convolution, cotangent) for convolution in (fast, plain))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def as_elsewhere(*args, default, **platforms):
    """platform_dependent, where the platform is none of those named."""
    return default(*args)


def gru_scan_plain(x, w, bias, start):
    """gru_scan, left to automatic differentiation."""
    width = start.shape[-1]

    def step(h, x):
        p = h @ w
        r = jax.nn.sigmoid(x[:, :width] + p[:, :width])
        u = jax.nn.sigmoid(x[:, width : 2 * width] + p[:, width : 2 * width])
        n = jnp.tanh(x[:, 2 * width :] + r * (p[:, 2 * width :] + bias))
        h = n + u * (h - n)
        return h, h

    return jax.lax.scan(step, start, x)[1]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("blocks", [(), (3,)])
def test_fast_gru_equals_plain(blocks, backend, monkeypatch):
    """Step by step, and as an accelerator does it: 8 steps in one turn, gates made again."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    rng = np.random.default_rng(1)
    shapes = (11, *blocks, 2, 12), (*blocks, 4, 12), (*blocks, 4), (*blocks, 2, 4)
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    cotangent = jnp.asarray(rng.normal(size=(11, *blocks, 2, 4)), jnp.float32)
    products = str(jax.make_jaxpr(lambda *x: jax.vjp(gru_scan, *x)[1](cotangent))(*arrays))
    assert products.count("unroll=8") == (2 if backend == "gpu" else 0)
    plain = jax.vmap(gru_scan_plain, (1, 0, 0, 0), 1) if blocks else gru_scan_plain
    expected, pull = jax.vjp(plain, *arrays)
    value, fast_pull = jax.vjp(gru_scan, *arrays)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    for a, b in zip(fast_pull(cotangent), pull(cotangent), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_blocks_of_a_gru_are_as_many_grus_of_the_same_latents():
    z = noise(2, 7 * 5).reshape(2, 7, 5)
    variables = random_variables(GRU(12, blocks=3), z)
    whole = GRU(12, blocks=3).apply(variables, z)
    params = variables["params"]
    for i in range(3):
        gates = slice(12 * i, 12 * (i + 1))
        own = {
            "input0": jax.tree.map(lambda w, gates=gates: w[..., gates], params["input0"]),
            "recurrent0": params["recurrent0"][i],
            "bias0": params["bias0"][4 * i : 4 * (i + 1)],
        }
        part = GRU(4).apply({"params": own}, z)
        np.testing.assert_allclose(whole[..., 4 * i : 4 * (i + 1)], part, rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match="GRU of 3 blocks needs a width"):
        GRU(8, blocks=3)


def small_model(context="gru", norm="none", padding="causal", dtype=jnp.float32):
    width = 32
    return make_model(CPC(
        ConvEncoder(width, norm=norm, padding=padding, dtype=dtype),
        CONTEXTS[context].clone(dtype=dtype),
        LinearPredictor(3, width, dtype=dtype),
    ))  # fmt: skip


def noise(batch, samples, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(batch, samples)), jnp.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "norm"),
    [*((context, "none") for context in CONTEXTS),
     *(("gru", norm) for norm in ("layer", "channel", "group", "batch"))],
)  # fmt: skip
def test_no_context_depends_on_a_later_sample(context, norm):
    """The gradient of c_t by every sample after frame t is exactly zero, and not by the frame."""
    model, x = small_model(context, norm), noise(1, 160 * 12)
    variables = random_variables(model, {"x": x})

    @jax.jit
    @jax.grad
    def differentiate(x, t):
        return jnp.sum(jnp.sin(model.embed(variables, x)[1][0, t]))

    for t in (0, 5, 11):
        gradient = differentiate(x, t)
        assert jnp.abs(gradient[0, 160 * t : 160 * (t + 1)]).max() > 0
        np.testing.assert_array_equal(gradient[0, 160 * (t + 1) :], 0.0)


def test_same_padding_looks_ahead_as_it_says():
    model, x = small_model(padding="same"), noise(1, 160 * 12)
    variables = random_variables(model, {"x": x})
    gradient = jax.jit(jax.grad(lambda x: model.embed(variables, x)[0][0, 5].sum()))(x)
    seen = np.flatnonzero(np.asarray(gradient[0]))
    assert seen.max() - (160 * 6 - 1) == 152
    assert seen.max() - seen.min() + 1 <= 465


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["causal", "same", "valid", (3, 2, 1, 1, 1), (0, 0, 1, 1, 0)])
@pytest.mark.parametrize("samples", [1, 159, 160, 161, 465, 1000, 1600])
def test_any_length_embeds(padding, samples):
    encoder, x = ConvEncoder(8, padding=padding), noise(1, samples)
    z, _ = encoder.init_with_output(jax.random.key(0), x)
    assert z.shape[1] == encoder.num_latents(samples)
    expected = {"causal": max(1, samples // 160), "valid": max(1, (samples - 465) // 160 + 1)}
    assert z.shape[1] == expected.get(padding if isinstance(padding, str) else "", z.shape[1])
    assert z.shape[1] >= 1
    assert jnp.isfinite(z).all()


def test_an_encoder_of_other_channels_is_named():
    encoder = ConvEncoder(8, (4,), (2,), channels=3)
    assert encoder.init_with_output(jax.random.key(0), jnp.zeros((2, 20, 3)))[0].shape == (2, 10, 8)
    for x in (jnp.zeros((2, 20)), jnp.zeros((2, 20, 2))):
        with pytest.raises(UserError, match=r"channels, but the encoder is made for 3"):
            encoder.init(jax.random.key(0), x)


def test_encoder_states_its_geometry():
    assert (ConvEncoder().stride, ConvEncoder().receptive_field) == (160, 465)


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS)
def test_bfloat16_computes_what_float32_does(context):
    x = noise(2, 1600)
    variables = random_variables(small_model(context), {"x": x})
    outputs, half = (
        jax.jit(small_model(context, dtype=dtype).apply)(variables, {"x": x})[0]
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    for a, b in zip(half, outputs, strict=True):
        assert a.dtype == jnp.bfloat16
        error = jnp.linalg.norm(a.astype(jnp.float32) - b) / jnp.linalg.norm(b)
        assert float(error) < 0.03
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))


def test_predictions_are_linear_maps_of_the_context():
    model, x = small_model(), noise(2, 1600)
    variables = random_variables(model, {"x": x})
    outputs, _ = jax.jit(model.apply)(variables, {"x": x})
    w = variables["params"]["predictor"]["W"]["kernel"]  # (h, k, d)
    expected = jnp.einsum("bth,hkd->btkd", outputs.c, w)
    np.testing.assert_allclose(outputs.predictions, expected, rtol=1e-5, atol=1e-6)


def test_batch_norm_keeps_state_only_in_training():
    model, x = small_model(norm="batch"), noise(4, 1600)
    variables = random_variables(model, {"x": x})
    apply = jax.jit(model.apply, static_argnums=2)
    _, kept = apply(variables, {"x": x}, False)
    _, moved = apply(variables, {"x": x}, True)
    same = jax.tree.map(
        lambda a, b: bool((a == b).all()), kept["batch_stats"], moved["batch_stats"]
    )
    assert not any(jax.tree.leaves(same))
    assert jax.tree.structure(kept) == jax.tree.structure(moved)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["none", "channel", "batch"])
@pytest.mark.parametrize("encoder", [ConvEncoder, LogMelEncoder])
def test_latents_of_what_is_filled_up_are_those_of_it_alone(encoder, norm):
    """Looking ahead at the signal's end it sees zeros at every layer, batch norm nothing else."""
    encoder, x = encoder(8, norm=norm, padding="same"), noise(3, 1600)
    variables = random_variables(encoder, x)
    apply = jax.jit(functools.partial(encoder.apply, mutable=["batch_stats"]), static_argnums=2)
    alone, moved = apply(variables, x, True)
    filled, moved_filled = apply(
        variables, jnp.pad(x, ((0, 0), (0, 1000))), True, jnp.full(3, 1600)
    )
    np.testing.assert_allclose(filled[:, : alone.shape[1]], alone, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), moved, moved_filled)
    short = jnp.where(jnp.arange(1600) < 70, x, 0)  # less than a latent
    first = apply(variables, short[:, :160], False)[0]
    found = apply(variables, short, False, jnp.full(3, 70))[0][:, :1]
    np.testing.assert_allclose(found, first, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["same", "causal", "valid", (5, 0, 3, 0, 1)])
def test_latents_of_a_clip_of_any_length_are_those_of_it_alone(padding):
    """A layer has more outputs than frames for one length in five, and the next one sees them."""
    encoder, x = ConvEncoder(8, padding=padding), noise(1, 1300)
    variables = random_variables(encoder, x)
    for length in (800, 804, 1119, 1124):
        alone = encoder.apply(variables, x[:, :length])
        filled = jnp.where(jnp.arange(1300) < length, x, 0)
        found = encoder.apply(variables, filled, False, jnp.array([length]))
        exist = int(encoder.num_existing(jnp.array([length]))[0])
        np.testing.assert_allclose(found[:, :exist], alone[:, :exist], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_transformer_forgets_what_lies_beyond_its_span():
    context = CausalTransformer(16, 1, num_heads=2, span=6)
    z = jnp.asarray(np.random.default_rng(0).normal(size=(1, 20, 8)), jnp.float32)
    variables = jax.jit(context.init)(jax.random.key(0), z)
    gradient = jax.jit(jax.grad(lambda z: jnp.sin(context.apply(variables, z)[0, 15]).sum()))(z)
    seen = np.flatnonzero(np.abs(np.asarray(gradient[0])).max(-1))
    assert (seen.min(), seen.max()) == (10, 15)


@pytest.mark.slow
@pytest.mark.parametrize("length", [0, 5, 6, 7, 12, 20])
def test_transformer_sees_of_a_long_sequence_what_it_sees_of_its_span_alone(length):
    context = CausalTransformer(16, 1, num_heads=2, span=6)
    z = jnp.asarray(np.random.default_rng(0).normal(size=(2, length, 8)), jnp.float32)
    variables = random_variables(context, jnp.zeros((2, 6, 8)))
    apply = jax.jit(context.apply)
    whole = apply(variables, z)
    assert whole.shape == (2, length, 16)
    for t in range(length):
        alone = apply(variables, z[:, max(0, t - 5) : t + 1])[:, -1]
        np.testing.assert_allclose(whole[:, t], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_transformer_reads_long_recordings_in_memory_linear_in_their_length():
    context = CausalTransformer(16, 1, num_heads=2, span=6)
    shapes = [jax.ShapeDtypeStruct((1, length, 8), jnp.float32) for length in (600, 6000)]
    variables = context.init(jax.random.key(0), jnp.zeros((1, 6, 8)))
    compiled = [jax.jit(context.apply).lower(variables, z).compile() for z in shapes]
    short, long = (one.memory_analysis().temp_size_in_bytes for one in compiled)
    assert long < 12 * short


@pytest.mark.parametrize(("options", "words"), [
    ({"norm": "laier"}, "choose one of none, layer"),
    ({"padding": "reflect"}, "causal, same or valid"),
    ({"padding": (1, 2)}, "5 layers but 2 paddings"),
    ({"kernels": (4, 4)}, "2 kernels but 5 strides"),
    ({"kernels": (4, 4), "strides": (2, 5)}, "no shorter than their strides"),
    ({"kernels": (), "strides": ()}, "at least one layer"),
    ({"norm": "group", "width": 100}, "multiple of 32"),
    ({"norm": "channel", "width": 1}, "at least 2"),
])  # fmt: skip
def test_mistakes_are_sentences(options, words):
    with pytest.raises(UserError, match=words):
        ConvEncoder(**{"width": 8, **options})


def test_transformer_heads_are_pairs():
    with pytest.raises(UserError, match="multiple of 16, not 20"):
        CausalTransformer(20)


def test_which_offsets_share_samples_with_the_context():
    """Receptive field 465 at stride 160: latents 1 and 2 ahead overlap the context, 3 does not."""
    model, x = small_model(), noise(1, 160 * 12)
    variables = random_variables(model, {"x": x})

    @functools.partial(jax.jit, static_argnums=0)
    def seen(which, t):
        return jax.grad(lambda x: jnp.sin(model.embed(variables, x)[which][0, t]).sum())(x)[0] != 0

    context = seen(1, 4)
    assert [bool((context & seen(0, 4 + k)).any()) for k in (1, 2, 3, 4)] == [
        True, True, False, False,
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_an_encoder_computed_again_is_the_same(norm):
    """Values, state and gradients, from the same parameters; and it does compute again."""
    plain, again = (ConvEncoder(8, norm=norm, remat=remat) for remat in (False, True))
    x = jax.random.normal(jax.random.key(0), (2, 800))
    variables, same = (jax.jit(e.init)(jax.random.key(1), x) for e in (plain, again))
    state = [name for name in variables if name != "params"]
    jax.tree.map(np.testing.assert_array_equal, variables, same)

    def energy(params, encoder):
        z, new = encoder.apply({**variables, "params": params}, x, True, mutable=state)
        return (z**2).sum(), new

    results = [
        jax.jit(jax.value_and_grad(functools.partial(energy, encoder=encoder), has_aux=True))(
            variables["params"]
        )
        for encoder in (plain, again)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4), *results)
    programs = [
        str(jax.make_jaxpr(jax.grad(lambda p, e=encoder: energy(p, e)[0]))(variables["params"]))
        for encoder in (plain, again)
    ]
    assert ["remat" in program or "checkpoint" in program for program in programs] == [False, True]
