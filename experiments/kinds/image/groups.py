"""Groups of images, such as the pictures of a subject, that only train or only test."""

import pathlib
from collections.abc import Sequence

import numpy as np

from cpc import data
from cpc.types import UserError
from experiments.command.config import Config
from experiments.training.checks import group_files


def split_groups(config: Config, parts: Sequence[data.Images]) -> Sequence[data.Images]:
    """Return images to train, to probe and to test on, of which no group is tested and trained.

    If the test images are of the same split as others, `data.test_fraction` of their groups are
    drawn to test; otherwise all are. No image of a test group is left to train or to probe.
    """
    options = config.data
    if not options.group_level:
        return parts
    root = pathlib.Path(options.path).expanduser()
    groups = [
        np.array(group_files(options.group_level, paths_below(root, images))) for images in parts
    ]
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


def paths_below(root: pathlib.Path, images: data.Images) -> list[str]:
    """Return the path of each image below a folder."""
    paths = (pathlib.PurePath(images.describe(number)) for number in range(len(images)))
    return ["/".join(path.parts[len(root.parts) :]) for path in paths]
