"""Image encoders g_enc, which map each image of a batch (n, y, x, ch) to a latent (n, d).

All patches of a batch of images are encoded as one batch of small images.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from cpc.models.geometry import StridedLayers, check_norm
from cpc.models.layers import Conv, first_layers, part_of, with_part
from cpc.types import PyTree, UserError

IMAGE_NORMS = ("none", "layer", "group", "batch")


def normalise(y: Array, norm: str, train: bool, dtype: DTypeLike, name: str) -> Array:
    """Normalize (n, y, x, ch) with statistics in float32, within a compact module.

    "layer" normalizes all values of one image and "group" 32 channels of one image at a time, so no
    patch depends on another. "batch" uses all patches in training, which leaks information between
    patches and their targets. Henaff et al. (2019) replaced batch norm for this reason.
    """
    if norm == "none":
        return y
    if norm == "batch":
        return nn.BatchNorm(use_running_average=not train, momentum=0.9, dtype=dtype, name=name)(y)
    groups = max(1, y.shape[-1] // 32) if norm == "group" else 1
    return nn.GroupNorm(groups, dtype=dtype, name=name)(y)


def convolve_images(
    x: Float[Array, "n y x c"],
    w: Float[Array, "u v c d"],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    **options: Any,
) -> Float[Array, "n p q d"]:
    """Convolve like jax.lax.conv_general_dilated, but by matrix product for small images on a CPU.

    For these, XLA's convolution and especially its gradients are much slower than the product.
    """

    def convolve(x, w):
        return jax.lax.conv_general_dilated(x, w, strides, padding, **options)

    if max(x.shape[1:3]) > 16 and x.shape[-1] > 4:
        return convolve(x, w)
    multiply = functools.partial(_convolve_by_product, strides=strides, padding=padding)
    return jax.lax.platform_dependent(x, w, cpu=multiply, default=convolve)


def _convolve_by_product(x, w, strides, padding):
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    height, width, c, d = w.shape
    p, q = x.shape[1] - height + 1, x.shape[2] - width + 1
    columns = [
        x[:, u : u + p : strides[0], v : v + q : strides[1]]
        for u in range(height)
        for v in range(width)
    ]
    return jnp.concatenate(columns, axis=-1) @ w.reshape(height * width * c, d)


def _mean_pool(y):
    return y.mean((1, 2), dtype=jnp.float32).astype(y.dtype)


class SmallConvEncoder(StridedLayers, nn.Module):
    """3x3 convolutions with ReLU, for patches of 8 to 24 pixels from images of 28 to 96 pixels.

    Latents (n, widths[-1]) are means over all positions. The first convolution keeps the resolution
    and each later one halves it. Norms come before the ReLU.
    """

    widths: Sequence[int] = (64, 128, 256)
    norm: str = "none"
    dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        super().__post_init__()
        if not self.widths:
            raise UserError("encoder has no layers: pass at least one width")
        check_norm(self.norm, IMAGE_NORMS, self.widths)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Kernel and stride of each layer, from the input upwards."""
        return [(3, 1 if n == 0 else 2) for n in range(self.num_layers)]

    @property
    def num_layers(self) -> int:
        """Number of convolutions."""
        return len(self.widths)

    @nn.nowrap
    def upto(self, number: int, variables: PyTree) -> tuple["SmallConvEncoder", PyTree]:
        """Return the encoder's first `number` layers and their variables."""
        return self.clone(widths=self.widths[:number]), first_layers(variables, number)

    def __call__(self, x: Float[Array, "n y x ch"], train: bool = False) -> Float[Array, "n d"]:
        """Return the latents of images."""
        return self.through(x, train)[-1]

    @nn.compact
    def through(
        self, x: Float[Array, "n y x ch"], train: bool = False, cuts: Sequence[int] = ()
    ) -> list[Float[Array, "n _"]]:
        """Return the latents after each layer in `cuts` and the last layer; cuts stop gradients."""
        y, ends = x.astype(self.dtype), []
        for n, (width, (kernel, stride)) in enumerate(zip(self.widths, self.layers, strict=True)):
            y = _convolution(self, width, kernel, stride, 1.0, f"conv{n}")(y)
            y = jax.nn.relu(normalise(y, self.norm, train, self.dtype, f"norm{n}"))
            if n + 1 in cuts:
                ends.append(_mean_pool(y))
                y = jax.lax.stop_gradient(y)
        return [*ends, _mean_pool(y)]


class Stage(NamedTuple):
    """Residual blocks at one resolution, which is halved by the first block of later stages."""

    num_blocks: int
    width: int
    """Number of output channels of each block."""
    inner: int | None = None
    """Channels of the bottleneck's 3x3 convolution, or None for two 3x3 convolutions of `width`."""


def _bottlenecks(*num_blocks: int) -> tuple[Stage, ...]:
    return tuple(Stage(blocks, 256 * 2**n, 64 * 2**n) for n, blocks in enumerate(num_blocks))


DEPTHS = {
    18: (Stage(2, 64), Stage(2, 128), Stage(2, 256), Stage(2, 512)),
    34: (Stage(3, 64), Stage(4, 128), Stage(6, 256), Stage(3, 512)),
    50: _bottlenecks(3, 4, 6, 3),
    101: _bottlenecks(3, 4, 23, 3),
    152: _bottlenecks(3, 8, 36, 3),
    # Henaff et al. 2019 double ResNet-101's third stage, widen it 4 times, and end after it.
    161: (Stage(3, 256, 64), Stage(4, 512, 128), Stage(46, 4096, 512)),
}


def resnet_stages(depth: int, num_stages: int | None = None) -> tuple[Stage, ...]:
    """Return the stages of the ResNet with a depth of 18, 34, 50, 101, 152 or 161.

    CPC uses resnet_stages(101, 3) without norm (van den Oord et al. 2018, section 3.2), and its
    second version resnet_stages(161) with layer norm (Henaff et al. 2019).
    >>> resnet_stages(101, 3)[-1]
    Stage(num_blocks=23, width=1024, inner=256)
    """
    if depth not in DEPTHS:
        raise UserError(f"ResNet depth {depth} is unknown: choose one of {list(DEPTHS)}")
    stages = DEPTHS[depth]
    if num_stages is not None and not 1 <= num_stages <= len(stages):
        raise UserError(f"ResNet-{depth} has {len(stages)} stages, and num_stages is {num_stages}")
    return stages[:num_stages]


class ResNet(StridedLayers, nn.Module):
    """A ResNet-v2 from images (n, y, x, ch) to latents (n, stages[-1].width).

    Latents are means over all positions. A block computes x + f(x), where f is two 3x3 convolutions
    or a bottleneck of 1x1, 3x3 and 1x1 convolutions, each after norm and ReLU (He et al. 2016b).
    Without norm, the last convolution of each block starts at zero, and the others at He's scale
    times num_blocks^(-1 / (2 m - 2)) for m convolutions per block (Zhang et al. 2019, Fixup).

    If `pooled_stem` is true, as for ImageNet, the network starts with a 7x7 convolution and a 3x3
    maximum. Both halve the resolution. Otherwise, as for patches under 32 pixels, it starts with a
    3x3 convolution at full resolution. If `remat` is true, the gradient stores only each block's
    input and recomputes the rest.
    """

    stages: Sequence[Stage]
    norm: str = "none"
    pooled_stem: bool = True
    stem_width: int = 64
    remat: bool = False
    dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        super().__post_init__()
        if not self.stages:
            raise UserError("ResNet has no stages: pass at least one stage")
        widths = [width for stage in self.stages for width in stage[1:] if width]
        check_norm(self.norm, IMAGE_NORMS, [self.stem_width, *widths])

    @property
    def num_layers(self) -> int:
        """Number of stages."""
        return len(self.stages)

    @nn.nowrap
    def upto(self, number: int, variables: PyTree) -> tuple["ResNet", PyTree]:
        """Return the network's first `number` stages and their variables.

        The final norm was learned for the last stage. After another stage, it is reset to scale 1
        and shift 0, and for batch norm also to mean 0 and variance 1.
        """
        if number == self.num_layers:
            return self, variables
        dropped = tuple(f"stage{n}_" for n in range(number, self.num_layers))
        kept = {
            kind: {name: own for name, own in tree.items() if not name.startswith(dropped)}
            for kind, tree in variables.items()
        }
        width = self.stages[number - 1].width
        identity = {
            kind: {name: jnp.full(width, float(name in ("scale", "var"))) for name in norm}
            for kind, norm in part_of(kept, "norm").items()
        }
        return self.clone(stages=self.stages[:number]), with_part(kept, "norm", identity)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Kernel and stride of the layers on the longest path."""
        layers = [(7, 2), (3, 2)] if self.pooled_stem else [(3, 1)]
        for n, stage in enumerate(self.stages):
            for i in range(stage.num_blocks):
                layers += [(3, _stride(n, i))] + [(3, 1)] * (stage.inner is None)
        return layers

    @property
    def widths(self) -> tuple[int, ...]:
        """Output channels of each stage."""
        return tuple(stage.width for stage in self.stages)

    def __call__(self, x: Float[Array, "n y x ch"], train: bool = False) -> Float[Array, "n d"]:
        """Return the latents of images."""
        return self.through(x, train)[-1]

    @nn.compact
    def through(
        self, x: Float[Array, "n y x ch"], train: bool = False, cuts: Sequence[int] = ()
    ) -> list[Float[Array, "n _"]]:
        """Return the latents after each stage in `cuts` and the last stage; cuts stop gradients.

        Each of these stages has its own norm before the mean.
        """
        ends, (kernel, stride) = [], self.layers[0]
        # He's variance is halved, because the input of the stem is not rectified.
        stem = _convolution(self, self.stem_width, kernel, stride, math.sqrt(0.5), "stem")
        y = stem(x.astype(self.dtype))
        if self.pooled_stem:
            y = nn.max_pool(y, (3, 3), (2, 2), "SAME")
        num_blocks = sum(stage.num_blocks for stage in self.stages)
        make_block = nn.remat(Block, static_argnums=(2,)) if self.remat else Block
        for n, stage in enumerate(self.stages):
            for i in range(stage.num_blocks):
                sizes = stage.width, stage.inner, _stride(n, i), num_blocks
                y = make_block(*sizes, self.norm, self.dtype, name=f"stage{n}_block{i}")(y, train)
            if n + 1 in cuts:
                ends.append(_pool(y, self.norm, train, self.dtype, f"norm_end{n}"))
                y = jax.lax.stop_gradient(y)
        return [*ends, _pool(y, self.norm, train, self.dtype, "norm")]


def _pool(y, norm, train, dtype, name):
    return _mean_pool(jax.nn.relu(normalise(y, norm, train, dtype, name)))


def _stride(stage: int, block: int) -> int:
    return 2 if stage > 0 and block == 0 else 1


class Block(nn.Module):
    """A residual block, x + f(x), or W x' + f(x) with x' = relu(norm(x)) if the shape changes."""

    width: int
    inner: int | None
    stride: int
    num_blocks: int
    norm: str
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "n y x ch"], train: bool) -> Float[Array, "n p q d"]:
        """Return the output of the block."""
        layers = [(self.width, 3, self.stride), (self.width, 3, 1)]
        if self.inner is not None:
            layers = [(self.inner, 1, 1), (self.inner, 3, self.stride), (self.width, 1, 1)]
        y, scales = x, [1.0] * len(layers)
        if self.norm == "none":
            scales = [self.num_blocks ** (-0.5 / (len(layers) - 1))] * (len(layers) - 1) + [0.0]
        for n, (width, kernel, stride) in enumerate(layers):
            y = jax.nn.relu(normalise(y, self.norm, train, self.dtype, f"norm{n}"))
            if n == 0 and (self.stride > 1 or x.shape[-1] != self.width):
                x = _convolution(self, self.width, 1, self.stride, 1.0, "shortcut")(y)
            y = _convolution(self, width, kernel, stride, scales[n], f"conv{n}")(y)
        return x + y


def _convolution(module, width, kernel, stride, scale, name):
    """Return a convolution with He initialization times `scale`, and a bias if it has no norm."""
    make = nn.initializers.zeros
    if scale:
        make = nn.initializers.variance_scaling(2.0 * scale**2, "fan_in", "truncated_normal")
    return Conv(
        width,
        (kernel, kernel),
        strides=stride,
        padding=kernel // 2,
        use_bias=module.norm == "none",
        kernel_init=make,
        dtype=module.dtype,
        conv_general_dilated=convolve_images,
        name=name,
    )
