"""Encoders of images: published sizes, receptive fields, scale without norm, one long batch."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import noise, random_variables

from cpc.models import ResNet, SmallConvEncoder, Stage, image_encoders, resnet_stages
from cpc.types import UserError

#: All parameters of torchvision's networks, with batch norm after every convolution and a
#: classifier of 1000; the convolutions of v2 are the same.
PUBLISHED = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032}
TINY = (Stage(2, 4), Stage(1, 8, 4))
ENCODERS = {
    "small": SmallConvEncoder((4, 8)),
    "resnet": ResNet(TINY, pooled_stem=False, stem_width=4),
    "pooled": ResNet(TINY, pooled_stem=True, stem_width=4),
}


def images(n, size, channels=3, seed=0):
    return noise(n, size, size, channels, seed=seed)


@pytest.mark.parametrize("depth", [*PUBLISHED, 161])
def test_convolutions_are_the_published_ones(depth):
    """Widened to 161 layers: 305 million, context and predictors included (Henaff et al. 2019)."""
    stages = resnet_stages(depth)
    encoder, x = ResNet(stages, norm="batch"), jnp.zeros((5, 64, 64, 3))
    z, variables = jax.eval_shape(encoder.init_with_output, jax.random.key(0), x)
    kernels = [leaf for leaf in jax.tree.leaves(variables["params"]) if leaf.ndim == 4]
    size = sum(kernel.size + 2 * kernel.shape[-1] for kernel in kernels)
    if depth == 161:
        assert 300e6 < size < 305e6
        assert len(kernels) - len(stages) + 1 == 161  # without shortcuts, and with the classifier
    else:
        assert size + 1000 * (stages[-1].width + 1) == PUBLISHED[depth]
    assert z.shape == (5, stages[-1].width)


def test_resnets_state_their_geometry():
    """Receptive fields as published for networks that stride in their 3x3 convolutions."""
    for depth, field in {18: 435, 34: 899, 50: 427, 101: 971, 152: 1451}.items():
        encoder = ResNet(resnet_stages(depth))
        assert (encoder.stride, encoder.receptive_field) == (32, field)


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


def convolve(y, layer, stride=1):
    """Cross-correlation with zeros around, in float64."""
    kernel = np.asarray(layer["kernel"], np.float64)
    size, half = kernel.shape[0], kernel.shape[0] // 2
    y = np.pad(y, ((0, 0), (half, half), (half, half), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(y, (size, size), (1, 2))
    windows = windows[:, ::stride, ::stride]
    return np.einsum("nyxcuv,uvcd->nyxd", windows, kernel) + layer.get("bias", 0.0)


def activate(y, norm, groups=1):
    """Return ReLU of y, after a norm of a whole image, or of groups of its channels."""
    if norm is not None:
        y = y.reshape(*y.shape[:3], groups, -1)
        y = y - y.mean((1, 2, 4), keepdims=True)
        y = y / np.sqrt((y**2).mean((1, 2, 4), keepdims=True) + 1e-6)
        y = y.reshape(*y.shape[:3], -1) * norm["scale"] + norm["bias"]
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


def plain_small(params, x, groups=1):
    for n in range(len([name for name in params if name.startswith("conv")])):
        x = convolve(x, params[f"conv{n}"], 2 if n else 1)
        x = activate(x, params.get(f"norm{n}"), groups)
    return x.mean((1, 2))


@pytest.mark.parametrize(("kernel", "stride", "side"), [
    ((3, 3), 2, 3), ((5, 5), 2, 16), ((1, 3), 1, 6), ((2, 1), 1, 6),
])  # fmt: skip
def test_products_are_convolutions(kernel, stride, side):
    x, w = noise(2, side, side - side // 4, 3), noise(*kernel, 3, 5, seed=1)
    padding = [(size // 2, (size - 1) // 2) for size in kernel]  # a kernel of 2 looks back
    options = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}

    def differentiate(conv):
        value, pull = jax.vjp(lambda x, w: conv(x, w, (stride, stride), padding, **options), x, w)
        return value, pull(jnp.cos(value))

    convolutions = image_encoders.convolve_images, jax.lax.conv_general_dilated
    pairs = jax.jit(lambda: [differentiate(conv) for conv in convolutions])()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *pairs)


@pytest.mark.parametrize(("name", "norm"), [
    ("small", "layer"), ("resnet", "layer"), ("pooled", "none"), ("wide", "group"),
])  # fmt: skip
def test_encoders_equal_plain_loops(name, norm):
    """Each image by itself: norms see a whole patch, or groups of 32 channels of it."""
    encoder, x = {**ENCODERS, "wide": SmallConvEncoder((64,))}[name].clone(norm=norm), images(2, 12)
    variables = random_variables(encoder, x)
    params, x64 = jax.tree.map(np.float64, variables["params"]), np.asarray(x, np.float64)
    if isinstance(encoder, SmallConvEncoder):
        expected = plain_small(params, x64, 2 if norm == "group" else 1)
    else:
        expected = plain_resnet(params, x64, encoder.stages, encoder.pooled_stem)
    half = encoder.clone(dtype=jnp.bfloat16)
    z, z_half = jax.jit(lambda x: [one.apply(variables, x) for one in (encoder, half)])(x)
    np.testing.assert_allclose(z, expected, rtol=1e-4, atol=1e-5)
    assert z_half.dtype == jnp.bfloat16
    error = jnp.linalg.norm(z_half.astype(jnp.float32) - z) / jnp.linalg.norm(z)
    assert float(error) < 0.03
    kept = jax.eval_shape(half.init, jax.random.key(0), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(kept)} == {jnp.dtype("float32")}


def test_batch_norm_sees_the_other_patches_in_training():
    encoder, x = SmallConvEncoder((4,), "batch"), images(2, 8)
    x = jnp.stack([x, x.at[1].set(0.0)])
    variables = random_variables(encoder, x[0])
    apply = jax.jit(jax.vmap(lambda x: encoder.apply(variables, x, True, mutable=["batch_stats"])))
    z, moved = apply(x)
    assert (z[0, 0] != z[1, 0]).all()
    assert jax.tree.all(jax.tree.map(lambda a, b: (a[0] != b).all(), moved["batch_stats"],
                                     variables["batch_stats"]))  # fmt: skip
    np.testing.assert_array_equal(*(encoder.apply(variables, one)[0] for one in x))


@pytest.mark.parametrize(("inner", "norm"), [(None, "none"), (8, "none"), (8, "layer")])
def test_without_norm_the_signal_keeps_its_scale(inner, norm):
    """Each block starts as the identity, its other convolutions scaled by the depth (Fixup)."""
    stages = (Stage(2, 64, inner),) if norm == "layer" else (Stage(1, 32), Stage(2, 64, inner))
    encoder = ResNet(stages, norm, pooled_stem=False, stem_width=32)
    z, variables = jax.jit(encoder.init_with_output)(jax.random.key(0), images(4, 8))
    block = variables["params"][f"stage{len(stages) - 1}_block1"]
    last = max(name for name in block if name.startswith("conv"))
    if norm == "layer":
        assert all(jnp.abs(block[n]["kernel"]).max() > 0 for n in block if n.startswith("conv"))
        return
    assert 0.1 < float(jnp.sqrt(jnp.mean(z**2))) < 10
    np.testing.assert_array_equal(block[last]["kernel"], 0.0)
    first = block["conv0"]["kernel"]
    scale = 3 ** (-1 / 2) if inner is None else 3 ** (-1 / 4)
    wanted = math.sqrt(2 / math.prod(first.shape[:-1])) * scale
    np.testing.assert_allclose(first.std(), wanted, rtol=0.1)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: resnet_stages(51), "51"), (lambda: resnet_stages(161, 4), "161 has 3 .* is 4"),
    (lambda: resnet_stages(50, 0), "num_stages is 0"), (lambda: ResNet(()), "no stage"),
    (lambda: ResNet(TINY, "laier"), "laier"), (lambda: ResNet((Stage(1, 48),), "group"), "48"),
    (lambda: SmallConvEncoder(()), "no layer"),
    (lambda: SmallConvEncoder((8,), "channel"), "'channel'"),
    (lambda: SmallConvEncoder((8, 40), "group"), "40 channels"),
])  # fmt: skip
def test_mistakes_are_reported(make, words):
    with pytest.raises(UserError, match=words):
        make()
