"""Patches of images and their augmentation, on the device.

The host supplies raw uint8. All functions are pure in (rng, pixels), and the random draws for an
image do not depend on the batch size. `UserError` is raised for sizes that do not fit, for channels
other than 1 or 3, and for options out of range. The caller composes and jits the functions:

    [1] images -> crop_and_flip -> scale_pixels -> to_grey -> cut_patches -> jitter_patches
    [2] images -> crop_and_flip -> scale_pixels -> cut_patches -> augment_patches

References:
    [1] van den Oord, Li, Vinyals (2018), section 3.2.
    [2] Henaff et al. (2019), section 3, with heavier augmentation of each patch on its own.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates
from jaxtyping import Array, Float, Key, Shaped, UInt8

from cpc.types import UserError

#: Weights of red, green and blue in luma (Rec. 601), as used by Pillow and JPEG.
LUMA = (0.299, 0.587, 0.114)
#: Side of the grid on which elastic displacements are drawn (Ronneberger et al. 2015).
ELASTIC_GRID = 3

Number = float | int


def scale_pixels(images: UInt8[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Scale uint8 pixels to float32 in [-1, 1] by x / 127.5 - 1.

    >>> scale_pixels(jnp.array([0, 255], jnp.uint8)).tolist()
    [-1.0, 1.0]
    """
    return images.astype(jnp.float32) / 127.5 - 1


def to_grey(images: Float[Array, "*axes _"]) -> Float[Array, "*axes 1"]:
    """Convert RGB images to luma, 0.299 R + 0.587 G + 0.114 B, and keep grey images unchanged."""
    _check_channels(images.shape[-1])
    if images.shape[-1] == 1:
        return images
    weighted = images * jnp.asarray(LUMA, images.dtype)
    return jnp.sum(weighted, axis=-1, keepdims=True)


def centre_crop(images: Shaped[Array, "b _ _ ch"], size: int) -> Shaped[Array, "b size size ch"]:
    """Return the central size x size pixels of each image, as used in evaluation."""
    _check_size(images.shape, size, "a crop")
    top, left = (images.shape[1] - size) // 2, (images.shape[2] - size) // 2
    return images[:, top : top + size, left : left + size]


def crop_and_flip(
    rng: Key[Array, ""], images: Shaped[Array, "b _ _ ch"], size: int
) -> Shaped[Array, "b size size ch"]:
    """Return a random size x size crop of each image, mirrored with probability 1/2."""
    _check_size(images.shape, size, "a crop")
    _, y, x, ch = images.shape
    num_starts = jnp.array([y - size + 1, x - size + 1])

    def crop(rng: Array, image: Array) -> Array:
        rng_position, rng_flip = jax.random.split(rng)
        top, left = jax.random.randint(rng_position, (2,), 0, num_starts)
        crop = jax.lax.dynamic_slice(image, (top, left, 0), (size, size, ch))
        return jnp.where(jax.random.bernoulli(rng_flip), crop[:, ::-1], crop)

    return each_row(crop, rng, images)


def cut_patches(
    images: Shaped[Array, "b _ _ ch"], patch: int, stride: int
) -> Shaped[Array, "b i j patch patch ch"]:
    """Cut images into a grid of patch x patch windows at multiples of `stride`.

    There are i = (y - patch) // stride + 1 rows of windows, and j columns likewise, so 256 pixels
    give 7 patches of 64 at stride 32. Pixels below and to the right of the last whole patch are
    dropped.

    >>> cut_patches(jnp.arange(9).reshape(1, 3, 3, 1), 2, 1)[0, 1, 0, :, :, 0]
    Array([[3, 4],
           [6, 7]], dtype=int32)
    """
    if stride < 1:
        raise UserError(f"the stride of patches is {stride}: choose at least 1 pixel")
    _check_size(images.shape, patch, "a patch")
    _, y, x, _ = images.shape
    within = jnp.arange(patch)
    rows = jnp.arange(0, y - patch + 1, stride)[:, None] + within  # (i, patch)
    columns = jnp.arange(0, x - patch + 1, stride)[:, None] + within  # (j, patch)
    return images[:, rows[:, None, :, None], columns[None, :, None, :]]


def cut_for_evaluation(
    images: UInt8[Array, "b _ _ ch"], *, crop: int, grey: bool, patch: int, stride: int
) -> Float[Array, "b i j patch patch _"]:
    """Cut images, or their central crop if `crop` is not 0, into patches without augmentation."""
    images = scale_pixels(centre_crop(images, crop) if crop else images)
    return cut_patches(to_grey(images) if grey else images, patch, stride)


def jitter_patches(
    rng: Key[Array, ""], patches: Float[Array, "b i j p p ch"], inner: int
) -> Float[Array, "b i j p p ch"]:
    """Return a random inner x inner crop of each patch, padded with grey (0) to the patch size.

    [1] crops 60 of 64 pixels and pads the crop back, so that neighbouring patches share no edge.
    """
    p, ch = patches.shape[-2:]
    if not 1 <= inner <= p:
        raise UserError(f"inner is {inner}: choose 1 to {p}, which is the side of a patch")
    before = (p - inner) // 2
    frame = (before, p - inner - before)

    def jitter(rng: Array, patch: Array) -> Array:
        top, left = jax.random.randint(rng, (2,), 0, p - inner + 1)
        crop = jax.lax.dynamic_slice(patch, (top, left, 0), (inner, inner, ch))
        return jnp.pad(crop, (frame, frame, (0, 0)))

    return _each_patch(jitter, rng, patches)


def augment_patches(
    rng: Key[Array, ""],
    patches: Float[Array, "b i j p p ch"],
    *,
    color_drop: Number = 0,
    rotation_degrees: Number = 0,
    shear: Number = 0,
    elastic_pixels: Number = 0,
    brightness: Number = 0,
    contrast: Number = 0,
) -> Float[Array, "b i j p p ch"]:
    """Augment each patch independently, as in [2].

    An option of 0 turns its effect off. For values in [-1, 1], with the mean m of the patch and
    independent draws for every patch:

        warped = patch at rotate(shear(y, x)) + displacement, bilinear, edges continued
        out = clip((warped - m) * U(1 - contrast, 1 + contrast) + m + U(-brightness, brightness))

    Args:
        color_drop: probability that all channels but one become grey (0), for color images.
        rotation_degrees: angles are U(-rotation_degrees, rotation_degrees).
        shear: each row is moved by U(-shear, shear) times its distance from the middle.
        elastic_pixels: standard deviation of displacements on a 3 x 3 grid, smoothly interpolated.
        brightness: maximum absolute offset.
        contrast: maximum relative change of differences from the mean. 1 can give plain grey.
    """
    ch = patches.shape[-1]
    _check_channels(ch)
    _check_option("color_drop", color_drop, 1)
    _check_option("rotation_degrees", rotation_degrees, 180)
    _check_option("shear", shear, None)
    _check_option("elastic_pixels", elastic_pixels, None)
    _check_option("brightness", brightness, 2)
    _check_option("contrast", contrast, 1)

    def augment(rng: Array, patch: Array) -> Array:
        # One draw serves all options, so that turning one off leaves the others unchanged.
        rng_options, rng_elastic = jax.random.split(rng)
        turn, slant, factor, shift, drop, channel = jax.random.uniform(rng_options, (6,))
        if rotation_degrees or shear or elastic_pixels:
            angle = jnp.deg2rad(rotation_degrees * (2 * turn - 1))
            grid = (ELASTIC_GRID, ELASTIC_GRID, 2)
            displacement = elastic_pixels * jax.random.normal(rng_elastic, grid)
            patch = warp(patch, angle, shear * (2 * slant - 1), displacement)
        if contrast or brightness:
            mean = patch.mean()
            scaled = (patch - mean) * (1 + contrast * (2 * factor - 1)) + mean
            patch = jnp.clip(scaled + brightness * (2 * shift - 1), -1, 1)
        if color_drop and ch > 1:
            is_kept = jnp.arange(ch) == jnp.floor(ch * channel)
            patch = jnp.where(is_kept | (drop >= color_drop), patch, 0)
        return patch

    return _each_patch(augment, rng, patches.astype(jnp.float32)).astype(patches.dtype)


def warp(
    patch: Float[Array, "p p ch"],
    angle: Float[Array, ""],
    shear: Float[Array, ""],
    displacement: Float[Array, "g g 2"],
) -> Float[Array, "p p ch"]:
    """Apply rotation, shear and elastic displacement in one bilinear interpolation.

    Relative to the middle of the patch, out(y, x) = patch(R S (y, x) + displacement(y, x)) with
    R = [[cos, sin], [-sin, cos]] and S = [[1, 0], [shear, 1]]. Outside the patch, edge pixels are
    repeated. The angle is in radians, counter-clockwise in the image. The displacement is in pixels
    down and right on a coarse grid, interpolated cubically to (p, p, 2).
    """
    p = patch.shape[0]
    offsets = jnp.arange(p) - (p - 1) / 2
    y, x = jnp.meshgrid(offsets, offsets, indexing="ij")  # (p, p)
    x = x + shear * y
    fine = jax.image.resize(displacement, (p, p, 2), "cubic")
    rows = jnp.cos(angle) * y + jnp.sin(angle) * x + fine[..., 0] + (p - 1) / 2
    columns = -jnp.sin(angle) * y + jnp.cos(angle) * x + fine[..., 1] + (p - 1) / 2
    interpolate = partial(map_coordinates, order=1, mode="nearest")
    return jax.vmap(interpolate, (-1, None), -1)(patch, [rows, columns])


def each_row(augment: Callable[..., Array], rng: Array, *items: Array) -> Array:
    """Map `augment(key, *item)` over the first axis, with a key that depends only on the row."""
    keys = jax.vmap(partial(jax.random.fold_in, rng))(jnp.arange(len(items[0])))
    return jax.vmap(augment)(keys, *items)


def _each_patch(augment: Callable[[Array, Array], Array], rng: Array, patches: Array) -> Array:
    flat = patches.reshape(-1, *patches.shape[3:])  # (b * i * j, p, p, ch)
    return each_row(augment, rng, flat).reshape(patches.shape)


def _check_channels(channels: int) -> None:
    if channels not in (1, 3):
        raise UserError(f"images have {channels} channels: convert images to 1 (grey) or 3 (color)")


def _check_size(shape: tuple[int, ...], size: int, what: str) -> None:
    if size < 1:
        raise UserError(f"{what} of {size} pixels is empty: choose at least 1")
    if min(shape[1:3]) < size:
        raise UserError(
            f"images of {shape[1]}x{shape[2]} are smaller than {what} of {size}x{size}: resize them"
        )


def _check_option(name: str, value: Number, largest: Number | None) -> None:
    if value < 0 or (largest is not None and value > largest):
        allowed = "at least 0" if largest is None else f"0 to {largest}"
        raise UserError(f"{name} is {value}: choose {allowed} (0 is off)")
