from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage

from cpc.data import augment
from cpc.types import UserError

SWITCHES = {
    "color_drop": 1.0,
    "rotation_degrees": 30,
    "shear": 0.3,
    "elastic_pixels": 1.0,
    "brightness": 1.0,  # beyond white, if it were not clipped
    "contrast": 0.5,
}
augment_patches = jax.jit(augment.augment_patches, static_argnames=tuple(SWITCHES))
crop_and_flip = jax.jit(augment.crop_and_flip, static_argnames="size")


def raw(b=3, y=12, x=10, ch=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (b, y, x, ch), np.uint8)


def patches(b=4, i=2, j=3, p=8, ch=3):
    """Smooth, well inside [-1, 1], every patch another."""
    coarse = np.random.default_rng(1).uniform(-0.4, 0.4, (b * i * j, 3, 3, ch))
    fine = [scipy.ndimage.zoom(patch, (p / 3, p / 3, 1), order=1) for patch in coarse]
    return jnp.asarray(np.stack(fine).reshape(b, i, j, p, p, ch), jnp.float32)


def test_scale_and_grey():
    scaled = augment.scale_pixels(jnp.asarray(raw()))
    assert scaled.dtype == jnp.float32
    np.testing.assert_allclose((np.asarray(scaled) + 1) * 127.5, raw(), atol=1e-4)
    grey = np.asarray(augment.to_grey(scaled))
    expected = np.asarray(scaled, np.float64) @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(grey[..., 0], expected, atol=1e-6)
    np.testing.assert_array_equal(augment.to_grey(jnp.asarray(grey)), grey)
    np.testing.assert_array_equal(augment.centre_crop(jnp.asarray(raw()), 6), raw()[:, 3:9, 2:8])


@pytest.mark.parametrize(("patch", "stride", "ch"), [(10, 1, 1), (3, 4, 3)])
def test_patches_are_windows(patch, stride, ch):
    pixels = raw(ch=ch)
    cut = np.asarray(jax.jit(augment.cut_patches, static_argnums=(1, 2))(pixels, patch, stride))
    rows, columns = (12 - patch) // stride + 1, (10 - patch) // stride + 1
    assert cut.shape == (3, rows, columns, patch, patch, ch)
    assert cut.dtype == np.uint8
    for i, j in np.ndindex(rows, columns):
        top, left = i * stride, j * stride
        window = pixels[:, top : top + patch, left : left + patch]
        np.testing.assert_array_equal(cut[:, i, j], window)


def find(crop, image):
    """Where in `image` the crop is, and whether mirrored."""
    windows = np.lib.stride_tricks.sliding_window_view(image, crop.shape)[:, :, 0]
    both = (False, crop), (True, crop[:, ::-1])
    found = [(mirrored, (windows == one).all((2, 3, 4))) for mirrored, one in both]
    return [(*place, mirrored) for mirrored, same in found for place in np.argwhere(same).tolist()]


def test_crops_and_flips_are_uniform():
    image = raw(b=1, y=6, x=5)
    pixels = jnp.asarray(np.repeat(image, 2400, 0))
    cropped = np.asarray(crop_and_flip(jax.random.key(0), pixels, 4))
    assert cropped.dtype == np.uint8
    kinds, counts = np.unique(cropped.reshape(2400, -1), axis=0, return_counts=True)
    places = [find(kind.reshape(4, 4, 3), image[0]) for kind in kinds]
    assert sorted(places) == sorted(
        [(top, left, m)] for top in range(3) for left in range(2) for m in (False, True)
    )
    # Twelve kinds of 200 on average, standard deviation 13.5.
    assert np.abs(counts - 200).max() < 5 * 13.5


def test_each_image_by_itself():
    """The result for an image depends on key and row, not on the batch. Dtypes stay."""
    pixels = jnp.asarray(raw(b=5))
    whole = crop_and_flip(jax.random.key(1), pixels, 8)
    np.testing.assert_array_equal(crop_and_flip(jax.random.key(1), pixels[:2], 8), whole[:2])
    half = patches().astype(jnp.bfloat16)
    some = augment_patches(jax.random.key(1), half[:2], **SWITCHES)
    assert some.dtype == jnp.bfloat16
    every = augment_patches(jax.random.key(1), half.astype(jnp.float32), **SWITCHES)
    np.testing.assert_allclose(some.astype(jnp.float32), every[:2], atol=0.01)


def test_jitter_keeps_a_crop_in_a_grey_frame():
    many = patches(b=40, i=2, j=2, p=6, ch=1)
    jittered = np.asarray(augment.jitter_patches(jax.random.key(0), many, 3))
    assert jittered.shape == many.shape
    inside = np.zeros((6, 6), bool)
    inside[1:4, 1:4] = True  # three pixels of frame: one before, two behind
    assert (jittered[..., ~inside, :] == 0).all()
    flat = jittered[..., 1:4, 1:4, :].reshape(-1, 3, 3, 1)
    before = np.asarray(many).reshape(-1, 6, 6, 1)
    places = [
        next(place for place in find(crop, old) if not place[2])[:2]
        for crop, old in zip(flat, before, strict=True)
    ]
    assert set(places) == {(top, left) for top in range(4) for left in range(4)}
    np.testing.assert_array_equal(augment.jitter_patches(jax.random.key(0), many, 6), many)


@pytest.mark.parametrize("name", SWITCHES)
def test_each_switch_changes_every_patch_and_stays_in_range(name):
    before, keys = patches(), jax.random.split(jax.random.key(0), 12)
    change = partial(augment.augment_patches, **{name: SWITCHES[name]})
    after = np.asarray(jax.jit(jax.vmap(change, (0, None)))(keys, before)).reshape(12, 24, -1, 3)
    before = np.asarray(before).reshape(24, -1, 3)
    assert np.abs(after).max() <= 1
    assert (np.abs(after[0] - before).max((-1, -2)) > 1e-4).all()
    assert len({one.tobytes() for one in after}) == 12
    if name == "brightness":  # U(-0.5, 0.5), which clips nothing
        change = partial(augment.augment_patches, brightness=0.5)
        after = np.asarray(jax.jit(jax.vmap(change, (0, None)))(keys, patches()))
        added = after.reshape(12, 24, -1) - before.reshape(24, -1)
        assert np.ptp(added, -1).max() < 1e-6
        assert np.abs(added).max() <= 0.5
        assert 0.25 < added[..., 0].std() < 0.33  # 0.289
    if name == "contrast":
        mean = before.mean((-1, -2), keepdims=True)
        np.testing.assert_allclose(
            after.mean((-1, -2)), np.tile(mean[..., 0, 0], (12, 1)), atol=1e-6
        )
        factor = after.std((-1, -2), keepdims=True) / before.std((-1, -2), keepdims=True)
        np.testing.assert_allclose(after, mean + factor * (before - mean), atol=1e-5)
        assert 0.5 <= factor.min() < 0.55
        assert 1.45 < factor.max() <= 1.5


def test_color_drop_keeps_one_channel():
    before = patches(b=50)
    dropped = np.asarray(augment_patches(jax.random.key(0), before, color_drop=0.75))
    dropped, before = dropped.reshape(300, -1, 3), np.asarray(before).reshape(300, -1, 3)
    is_zero = (dropped == 0).all(1)
    number = is_zero.sum(-1)
    assert set(number) == {0, 2}
    assert abs((number == 2).mean() - 0.75) < 0.1  # four standard deviations
    kept = np.argmin(is_zero[number == 2], -1)
    assert np.bincount(kept, minlength=3).min() > 50  # of about 75
    np.testing.assert_array_equal(dropped[number == 0], before[number == 0])
    grey = patches(ch=1)
    np.testing.assert_array_equal(augment_patches(jax.random.key(0), grey, color_drop=1), grey)
    np.testing.assert_array_equal(augment_patches(jax.random.key(0), patches()), patches())


WARP = jax.jit(augment.warp)
PATCH = patches(p=9)[0, 0, 1]


def warped(angle=0.0, shear=0.0, displacement=None):
    displacement = jnp.zeros((3, 3, 2)) if displacement is None else displacement
    return np.asarray(WARP(PATCH, jnp.float32(angle), jnp.float32(shear), displacement))


def test_rotation_is_scipys():
    for degrees in (0, 13, -40, 90):
        given = np.asarray(PATCH, np.float64)
        expected = scipy.ndimage.rotate(given, degrees, reshape=False, order=1, mode="nearest")
        np.testing.assert_allclose(warped(np.deg2rad(degrees)), expected, atol=2e-6)


def test_shear_moves_rows_and_displacement_pixels():
    columns = np.arange(9)
    expected = [
        np.interp(columns + 0.4 * (row - 4), columns, np.asarray(PATCH[row, :, 0]))
        for row in columns
    ]
    np.testing.assert_allclose(warped(shear=0.4)[..., 0], expected, atol=1e-6)
    moved = warped(displacement=jnp.broadcast_to(jnp.array([1.0, 2.0]), (3, 3, 2)))
    np.testing.assert_allclose(moved[:-1, :-2], PATCH[1:, 2:], atol=1e-6)
    np.testing.assert_allclose(moved[-1, -1], PATCH[-1, -1], atol=1e-6)
    corner = jnp.zeros((3, 3, 2)).at[0, 0].set(2.0)
    local = np.abs(warped(displacement=corner) - PATCH).max(-1)
    assert local[0, 0] > 1e-3
    assert local[-2:].max() < local[:2, :2].max() / 4


KEY, IMAGES = jax.random.key(0), jnp.asarray(raw())


@pytest.mark.parametrize(("name", "given", "options", "message"), [
    ("cut_patches", (IMAGES, 11, 2), {}, "12x10"), ("cut_patches", (IMAGES, 0, 2), {}, "0 pixels"),
    ("cut_patches", (IMAGES, 4, 0), {}, "stride of patches is 0"),
    ("crop_and_flip", (KEY, IMAGES, 11), {}, "11x11"), ("centre_crop", (IMAGES, 11), {}, "11x11"),
    ("jitter_patches", (KEY, patches(), 9), {}, "inner is 9: choose 1 to 8"),
    ("to_grey", (jnp.zeros((2, 4)),), {}, "4 channels"),
    ("augment_patches", (KEY, patches(ch=2)), {"shear": 0.1}, "2 channels"),
    ("augment_patches", (KEY, patches()), {"color_drop": 1.5}, "color_drop is 1.5"),
    ("augment_patches", (KEY, patches()), {"elastic_pixels": -1}, "elastic_pixels is -1"),
])  # fmt: skip
def test_impossible_arguments(name, given, options, message):
    with pytest.raises(UserError, match=message):
        getattr(augment, name)(*given, **options)
