"""From raw images to the patches that a model takes, on the device."""

from typing import Any

import jax

from cpc.data import augment
from cpc.models import patch_grid
from cpc.types import Batch
from experiments.command.config import Config


def side_of(config: Config) -> int:
    """Return the side in pixels of what is cut into patches."""
    return config.augment.crop or config.data.size


def grid_of(config: Config) -> tuple[int, int]:
    """Return the rows and columns of patches of an image."""
    side = side_of(config)
    return patch_grid((side, side), config.model.patch, config.model.stride)


def prepare(config: Config, batch: Batch, rng: Any, train: bool) -> Batch:
    """Return a batch of raw images (b, y, x, ch) as patches (b, i, j, y, x, ch)."""
    options, images, side = config.augment, batch["x"], side_of(config)
    cut = {"grey": options.grey, "patch": config.model.patch, "stride": config.model.stride}
    if not train:
        return {**batch, "x": augment.cut_for_evaluation(images, crop=side, **cut)}
    of_image, of_patch, of_jitter = jax.random.split(rng, 3)
    images = augment.crop_and_flip(of_image, images, side)
    patches = augment.augment_patches(
        of_patch,
        augment.cut_for_evaluation(images, crop=0, **cut),
        color_drop=options.color_drop,
        rotation_degrees=options.rotation_degrees,
        shear=options.shear,
        elastic_pixels=options.elastic_pixels,
        brightness=options.brightness,
        contrast=options.contrast,
    )
    if options.jitter:
        patches = augment.jitter_patches(of_jitter, patches, options.jitter)
    return {**batch, "x": patches}
