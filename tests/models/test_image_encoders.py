"""Encoders of images: published sizes, receptive fields, scale without norm, one long batch."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import random_variables

from cpc.models import ResNet, SmallConvEncoder, Stage, image_encoders, resnet_stages
from cpc.types import UserError

#: All parameters of torchvision's networks, with batch norm after every convolution and a
#: classifier of 1000; the convolutions of v2 are the same.
PUBLISHED = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}
TINY = (Stage(2, 4), Stage(2, 8, 4))
ENCODERS = {
    "small": SmallConvEncoder((4, 8)),
    "resnet": ResNet(TINY, pooled_stem=False, stem_width=4),
    "pooled": ResNet(TINY, pooled_stem=True, stem_width=4),
}


def images(n, size, channels=3, seed=0):
    shape = (n, size, size, channels)
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def shapes(encoder, x):
    return jax.eval_shape(encoder.init, jax.random.key(0), x)


@pytest.mark.slow
@pytest.mark.parametrize("depth", PUBLISHED)
def test_convolutions_are_the_published_ones(depth):
    encoder = ResNet(resnet_stages(depth), norm="batch")
    leaves = jax.tree.leaves(shapes(encoder, jnp.zeros((1, 64, 64, 3)))["params"])
    kernels = [leaf for leaf in leaves if leaf.ndim == 4]
    norms_after = 2 * sum(kernel.shape[-1] for kernel in kernels)
    classifier = 1000 * (encoder.stages[-1].width + 1)
    total = sum(kernel.size for kernel in kernels) + norms_after + classifier
    assert total == PUBLISHED[depth]


@pytest.mark.slow
def test_the_widened_network_has_161_layers_and_300_million_parameters():
    encoder = ResNet(resnet_stages(161), norm="layer")
    params = shapes(encoder, jnp.zeros((1, 80, 80, 3)))["params"]
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 4]
    shortcuts = len(encoder.stages)
    assert len(kernels) - shortcuts + 1 == 161  # the classifier is counted in a network's depth
    # Henaff et al. 2019: 305 million, context and predictors included.
    assert 300e6 < sum(leaf.size for leaf in jax.tree.leaves(params)) < 305e6


@pytest.mark.parametrize(("depth", "field"), [
    (18, 435), (34, 899), (50, 427), (101, 971), (152, 1451)
])  # fmt: skip
def test_resnets_state_their_geometry(depth, field):
    """Receptive fields as published for networks that stride in their 3x3 convolutions."""
    encoder = ResNet(resnet_stages(depth))
    assert (encoder.stride, encoder.receptive_field) == (32, field)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "num_stages", "width"), [
    (18, None, 512), (50, None, 2048), (101, 3, 1024), (152, None, 2048), (161, None, 4096)
])  # fmt: skip
def test_latents_are_as_wide_as_the_last_stage(depth, num_stages, width):
    encoder, x = ResNet(resnet_stages(depth, num_stages)), jnp.zeros((5, 64, 64, 3))
    z = jax.eval_shape(lambda x: encoder.init_with_output(jax.random.key(0), x)[0], x)
    assert z.shape == (5, width)


@pytest.mark.slow
def test_work_of_the_first_version_of_cpc(monkeypatch):
    """49 patches of 64x64 to the third stage of ResNet-101: 48.5 GFLOP forward.

    Counted on XLA's convolutions, which leave out the zeros of the border that a product takes in.
    """
    monkeypatch.setattr(image_encoders, "convolve_images", jax.lax.conv_general_dilated)
    encoder, x = ResNet(resnet_stages(101, 3)), jnp.zeros((49, 64, 64, 3))
    cost = jax.jit(encoder.apply).lower(shapes(encoder, x), x).cost_analysis()
    np.testing.assert_allclose(cost["flops"], 48.5e9, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_places_see_the_stated_field(name):
    """Gradient of a place in the middle before the mean, by 8 images since ReLU is sparse."""
    encoder, x = ENCODERS[name], images(8, 48)
    if name != "small":
        encoder = encoder.clone(stages=(Stage(1, 4), Stage(1, 8, 4)))
    variables = random_variables(encoder, x)
    last = "conv1" if name == "small" else "stage1_block0"

    def place(x):
        _, state = encoder.apply(variables, x, capture_intermediates=True)
        y = state["intermediates"][last]["__call__"][0]
        return y[:, y.shape[1] // 2, y.shape[2] // 2].sum()

    seen = np.abs(np.asarray(jax.jit(jax.grad(place))(x))).max((0, 3))
    for axis in (0, 1):
        pixels = np.flatnonzero(seen.max(axis))
        assert pixels.max() - pixels.min() + 1 == encoder.receptive_field


@pytest.mark.slow
@pytest.mark.parametrize(("name", "norm"), [
    ("small", "none"), ("resnet", "layer"), ("pooled", "group")
])  # fmt: skip
def test_a_batch_of_patches_equals_a_loop_over_them(name, norm):
    encoder, x = ENCODERS[name].clone(norm=norm), images(3, 12)
    variables = random_variables(encoder, x)
    apply = jax.jit(lambda x: encoder.apply(variables, x, True))
    together, alone = apply(x), jnp.concatenate([apply(x[n : n + 1]) for n in range(3)])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def convolve(y, layer, stride=1):
    """Cross-correlation with zeros around, in float64."""
    kernel = np.asarray(layer["kernel"], np.float64)
    size, half = kernel.shape[0], kernel.shape[0] // 2
    y = np.pad(y, ((0, 0), (half, half), (half, half), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(y, (size, size), (1, 2))
    windows = windows[:, ::stride, ::stride]
    return np.einsum("nyxcuv,uvcd->nyxd", windows, kernel) + layer.get("bias", 0.0)


def activate(y, norm):
    """ReLU, after layer norm if there is one."""
    if norm is not None:
        y = y - y.mean((1, 2, 3), keepdims=True)
        y = y / np.sqrt((y**2).mean((1, 2, 3), keepdims=True) + 1e-6)
        y = y * norm["scale"] + norm["bias"]
    return np.maximum(y, 0.0)


def plain_resnet(params, x, stages, pooled):
    """He et al. 2016b, Figure 4e: activation, convolution, ...; the shortcut sees the activated."""
    y = convolve(x, params["stem"], 2 if pooled else 1)
    if pooled:
        y = np.pad(y, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=-np.inf)
        y = np.lib.stride_tricks.sliding_window_view(y, (3, 3), (1, 2))[:, ::2, ::2].max((-2, -1))
    for n, stage in enumerate(stages):
        for i in range(stage.num_blocks):
            block, stride = params[f"stage{n}_block{i}"], 2 if n > 0 and i == 0 else 1
            h = activate(y, block.get("norm0"))
            y = convolve(h, block["shortcut"], stride) if "shortcut" in block else y
            strides = (stride, 1) if stage.inner is None else (1, stride, 1)
            for m, stride in enumerate(strides):
                h = h if m == 0 else activate(h, block.get(f"norm{m}"))
                h = convolve(h, block[f"conv{m}"], stride)
            y = y + h
    return activate(y, params.get("norm")).mean((1, 2))


def plain_small(params, x):
    for n in range(len([name for name in params if name.startswith("conv")])):
        x = activate(convolve(x, params[f"conv{n}"], 2 if n else 1), params.get(f"norm{n}"))
    return x.mean((1, 2))


@pytest.mark.parametrize(
    ("kernel", "stride", "side"),
    [
        ((3, 3), 2, 4),
        ((3, 3), 2, 3),
        ((1, 1), 2, 4),
        ((3, 3), 1, 16),
        ((5, 5), 2, 16),
        ((1, 3), 1, 6),
        ((2, 1), 1, 6),
    ],
)
def test_products_are_convolutions(kernel, stride, side):
    """Values and gradients of the matrix product are those of XLA's convolution."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, side, side - side // 4, 3)), jnp.float32)
    w = jnp.asarray(rng.normal(size=(*kernel, 3, 5)), jnp.float32)
    padding = [(size // 2, (size - 1) // 2) for size in kernel]  # a kernel of 2 looks back
    options = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}

    def both(conv):
        value, pull = jax.vjp(lambda x, w: conv(x, w, (stride, stride), padding, **options), x, w)
        return value, pull(jnp.cos(value))

    own, expected = (
        jax.jit(lambda: both(image_encoders.convolve_images))(),
        both(jax.lax.conv_general_dilated),
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), own, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "norm"), [
    ("small", "layer"), ("resnet", "layer"), ("resnet", "none"), ("pooled", "none")
])  # fmt: skip
def test_encoders_equal_plain_loops(name, norm):
    encoder, x = ENCODERS[name].clone(norm=norm), images(2, 12)
    variables = random_variables(encoder, x)
    params, x64 = variables["params"], np.asarray(x, np.float64)
    if name == "small":
        expected = plain_small(params, x64)
    else:
        expected = plain_resnet(params, x64, encoder.stages, encoder.pooled_stem)
    z = jax.jit(encoder.apply)(variables, x)
    np.testing.assert_allclose(z, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_only_batch_norm_tells_a_patch_of_the_others():
    for norm, leaks in [("none", False), ("layer", False), ("group", False), ("batch", True)]:
        encoder, x = SmallConvEncoder((4, 8), norm), images(3, 8)
        variables = random_variables(encoder, x)

        def first(x, encoder=encoder, variables=variables):
            mutable = ["batch_stats"]
            return jnp.sin(encoder.apply(variables, x, True, mutable=mutable)[0][0]).sum()

        gradient = jax.jit(jax.grad(first))(x)
        assert jnp.abs(gradient[0]).max() > 0
        assert bool((gradient[1:] != 0).any()) == leaks


@pytest.mark.slow
def test_norms_see_a_whole_patch_or_groups_of_32_channels():
    x = images(2, 8)
    for norm in ("layer", "group"):
        encoder = SmallConvEncoder((64,), norm)
        variables = random_variables(encoder, x)
        _, state = encoder.apply(variables, x, capture_intermediates=True)
        y, normed = (
            np.asarray(state["intermediates"][part]["__call__"][0], np.float64)
            for part in ("conv0", "norm0")
        )
        groups = y.reshape(2, 64, -1, 64 if norm == "layer" else 32)
        centred = groups - groups.mean((1, 3), keepdims=True)
        expected = centred / np.sqrt(groups.var((1, 3), keepdims=True) + 1e-6)
        scale, bias = (variables["params"]["norm0"][name] for name in ("scale", "bias"))
        expected = expected.reshape(y.shape) * scale + bias
        np.testing.assert_allclose(normed, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("inner", [None, 8])
def test_without_norm_the_signal_keeps_its_scale(inner):
    """24 blocks deep; each block starts as the identity, its other convolutions scaled (Fixup)."""
    encoder = ResNet((Stage(12, 32, inner), Stage(12, 64, inner)), pooled_stem=False, stem_width=32)
    x = images(4, 8)
    variables = encoder.init(jax.random.key(0), x)  # without jit: few shapes, many draws
    z = jax.jit(encoder.apply)(variables, x)
    assert 0.1 < float(jnp.sqrt(jnp.mean(z**2))) < 10
    block = variables["params"]["stage1_block5"]
    last = max(name for name in block if name.startswith("conv"))
    np.testing.assert_array_equal(block[last]["kernel"], 0.0)
    first = block["conv0"]["kernel"]
    fan_in = math.prod(first.shape[:-1])
    scale = 24 ** (-1 / 2) if inner is None else 24 ** (-1 / 4)
    np.testing.assert_allclose(first.std(), math.sqrt(2 / fan_in) * scale, rtol=0.1)


@pytest.mark.slow
def test_with_norm_every_convolution_starts_random():
    encoder = ResNet((Stage(1, 4), Stage(1, 8, 4)), "layer", pooled_stem=False, stem_width=4)
    params = jax.jit(encoder.init)(jax.random.key(0), images(1, 8))["params"]
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 4]
    assert all(jnp.abs(kernel).max() > 0 for kernel in kernels)


@pytest.mark.slow
def test_rematerialisation_changes_no_gradient():
    plain, x = ENCODERS["resnet"].clone(norm="layer"), images(2, 8)
    remat = plain.clone(remat=True)
    variables = random_variables(plain, x)
    assert jax.tree.structure(shapes(remat, x)) == jax.tree.structure(variables)

    def loss(variables, encoder):
        return jnp.sin(encoder.apply(variables, x, True)).sum()

    gradients = [
        jax.jit(jax.grad(lambda v, e=encoder: loss(v, e)))(variables) for encoder in (plain, remat)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *gradients)
    traces = [str(jax.make_jaxpr(lambda v, e=e: loss(v, e))(variables)) for e in (plain, remat)]
    assert ["checkpoint" in trace or "remat" in trace for trace in traces] == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "norm"), [
    ("small", "group"), ("resnet", "none"), ("pooled", "layer"), ("small", "batch")
])  # fmt: skip
def test_bfloat16_computes_what_float32_does(name, norm):
    encoder, x = ENCODERS[name].clone(norm=norm), images(4, 12)
    variables = random_variables(encoder, x)
    z = jax.jit(encoder.apply)(variables, x)
    half = encoder.clone(dtype=jnp.bfloat16)
    z_half = jax.jit(half.apply)(variables, x)
    assert z_half.dtype == jnp.bfloat16
    error = jnp.linalg.norm(z_half.astype(jnp.float32) - z) / jnp.linalg.norm(z)
    assert float(error) < 0.03
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes(half, x))} == {jnp.dtype("float32")}


@pytest.mark.slow
def test_pictures_of_other_sizes_share_the_weights():
    """The same network takes a patch, a whole image, and one that is not square."""
    encoder = ENCODERS["pooled"]
    variables = random_variables(encoder, images(1, 16))
    for x in (images(2, 40), images(2, 1), images(2, 16)[:, :9]):
        z = jax.jit(encoder.apply)(variables, x)
        assert z.shape == (2, 8)
        assert jnp.isfinite(z).all()


@pytest.mark.parametrize(("make", "words"), [
    (lambda: resnet_stages(51), "depth 51 is unknown: choose one of"),
    (lambda: resnet_stages(161, 4), "ResNet-161 has 3 stages: it cannot end after 4"),
    (lambda: resnet_stages(50, 0), "cannot end after 0"),
    (lambda: ResNet(()), "no stage"),
    (lambda: ResNet(TINY, "laier"), "choose one of none, layer, group, batch"),
    (lambda: ResNet((Stage(1, 48),), "group"), "32 channels, which 48 channels do not fill"),
    (lambda: SmallConvEncoder(()), "no layer"),
    (lambda: SmallConvEncoder((8,), "channel"), "'channel' is unknown"),
    (lambda: SmallConvEncoder((8, 40), "group"), "which 40 channels do not fill"),
])  # fmt: skip
def test_mistakes_are_sentences(make, words):
    with pytest.raises(UserError, match=words):
        make()
