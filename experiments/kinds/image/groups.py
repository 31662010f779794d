"""Groups of images, such as the pictures of a subject, that only train or only test."""

import pathlib
from collections.abc import Sequence

import numpy as np

from cpc import data
from cpc.types import UserError
from experiments.command.config import Config


def split_groups(config: Config, parts: Sequence[data.Images]) -> Sequence[data.Images]:
    """Return images to train, to probe and to test on, of which no group is tested and trained.

    If the test images are of the same split as others, `data.test_fraction` of their groups are
    drawn to test; otherwise all are. No image of a test group is left to train or to probe.
    """
    options = config.data
    if not options.group_level:
        return parts
    root = pathlib.Path(options.path).expanduser()
    groups = [group_images(root, options.group_level, images) for images in parts]
    *_, tested = groups
    held = np.unique(tested)
    if options.test_split in (options.split, options.probe_split):
        order = np.random.default_rng(config.seed).permutation(held)
        held = order[: max(1, min(len(held) - 1, round(options.test_fraction * len(held))))]
    kept = [~np.isin(own, held) for own in groups[:-1]] + [np.isin(tested, held)]
    if not all(rows.any() for rows in kept):
        raise UserError(
            f"no image is left besides those of the test groups ({', '.join(held[:3])}): give more "
            "groups, or set another data.group_level"
        )
    return [
        data.select_images(images, np.flatnonzero(rows))
        for images, rows in zip(parts, kept, strict=True)
    ]


def group_images(root: pathlib.Path, level: int, images: data.Images) -> np.ndarray:
    """Return the name of the folder of each image at a level below the root, 1 for the split."""
    depth, names = len(root.parts) + level - 1, []
    for number in range(len(images)):
        path = images.describe(number)
        parts = pathlib.PurePath(path).parts[:-1]
        if len(parts) <= depth:
            raise UserError(
                f"{path} lies above directory level {level}, which data.group_level names: lower "
                "it, or move the image"
            )
        names.append(parts[depth])
    return np.array(names)
