"""Encoders g_enc of images: (n, y, x, ch) to latents (n, d), each image by itself.

A patch is an image: the patches of a batch go through as one long batch of small images.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from cpc.models.geometry import StridedLayers, check_norm
from cpc.models.layers import Conv, first_layers
from cpc.types import PyTree, UserError

IMAGE_NORMS = ("none", "layer", "group", "batch")


def normalise(y: Array, norm: str, train: bool, dtype: DTypeLike, name: str) -> Array:
    """Return (n, y, x, ch) normalized, with statistics in float32; called in a compact module.

    "layer" takes them over all of one image, "group" over its channels by 32: no patch sees
    another. "batch" takes them over all patches in training, and so tells each patch of the others,
    the ones it is to predict among them (Henaff et al. 2019 replaced it for that reason).
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
    """Convolve as jax.lax.conv_general_dilated does; small images on a CPU by a matrix product.

    Up to 16 pixels a side, or for few channels, XLA's convolution and above all its gradients run
    at a fraction of a CPU's matrix product; the product's copy of the columns costs less.
    """
    small = max(x.shape[1:3]) <= 16 or x.shape[-1] <= 4
    if not small:
        return jax.lax.conv_general_dilated(x, w, strides, padding, **options)
    return jax.lax.platform_dependent(
        x,
        w,
        cpu=lambda x, w: _as_product(x, w, strides, padding),
        default=lambda x, w: jax.lax.conv_general_dilated(x, w, strides, padding, **options),
    )


def _as_product(x, w, strides, padding):
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    height, width, c, d = w.shape
    p = (x.shape[1] - height) // strides[0] + 1
    q = (x.shape[2] - width) // strides[1] + 1
    columns = [
        x[:, u : u + strides[0] * p : strides[0], v : v + strides[1] * q : strides[1]][:, :p, :q]
        for u in range(height)
        for v in range(width)
    ]
    return jnp.concatenate(columns, axis=-1) @ w.reshape(height * width * c, d)


def mean_pool(y: Float[Array, "n y x d"]) -> Float[Array, "n d"]:
    """Return the mean over the pixels of each image, taken in float32.

    >>> mean_pool(jnp.array([[[[1.0], [2.0]], [[3.0], [6.0]]]]))
    Array([[3.]], dtype=float32)
    """
    return y.mean((1, 2), dtype=jnp.float32).astype(y.dtype)


class SmallConvEncoder(StridedLayers, nn.Module):
    """Convolutions of 3x3 with ReLU for patches of 8 to 24 pixels, such as those of 28 to 96.

    Images (n, y, x, ch) in, latents (n, widths[-1]) out: the mean over all places. The first
    convolution keeps the resolution, each further one halves it. Norms act before the ReLU.
    """

    widths: Sequence[int] = (64, 128, 256)
    norm: str = "none"
    dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        """Reject what no image could be encoded with."""
        super().__post_init__()
        if not self.widths:
            raise UserError("the encoder has no layer: give at least one width")
        check_norm(self.norm, IMAGE_NORMS, self.widths)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Kernel and stride of each layer."""
        return [(3, 1 if n == 0 else 2) for n in range(self.num_layers)]

    @property
    def num_layers(self) -> int:
        """Number of convolutions."""
        return len(self.widths)

    @nn.nowrap
    def upto(self, number: int, variables: PyTree) -> tuple["SmallConvEncoder", PyTree]:
        """Return the encoder that ends after its first `number` layers, and its variables."""
        return self.clone(widths=self.widths[:number]), first_layers(variables, number)

    def __call__(self, x: Float[Array, "n y x ch"], train: bool = False) -> Float[Array, "n d"]:
        """Return the latents of images."""
        return self.through(x, train)[-1]

    @nn.compact
    def through(
        self, x: Float[Array, "n y x ch"], train: bool = False, cuts: Sequence[int] = ()
    ) -> list[Float[Array, "n _"]]:
        """Return the latents after each of `cuts` layers, and the last; no gradient passes a cut.

        Each the mean over all places, as wide as its layer.
        """
        y, ends = x.astype(self.dtype), []
        for n, (width, (kernel, stride)) in enumerate(zip(self.widths, self.layers, strict=True)):
            y = Conv(
                width,
                (kernel, kernel),
                strides=stride,
                padding=1,
                use_bias=self.norm == "none",
                kernel_init=nn.initializers.he_normal(),
                dtype=self.dtype,
                conv_general_dilated=convolve_images,
                name=f"conv{n}",
            )(y)
            y = jax.nn.relu(normalise(y, self.norm, train, self.dtype, f"norm{n}"))
            if n + 1 in cuts:
                ends.append(mean_pool(y))
                y = jax.lax.stop_gradient(y)
        return [*ends, mean_pool(y)]
