"""Loading and splitting the images of an image config, and cutting them into patches."""

import itertools
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from cpc import data
from cpc.data import augment
from cpc.data.sources.fashion_mnist import load_fashion_mnist
from cpc.data.walk import Skipped, count_names
from cpc.models import patch_grid
from cpc.types import Batch, UserError
from experiments.command.config import Config, subset
from experiments.command.run_dir import Fingerprint
from experiments.training.checks import data_root, group_files, name_of, reject

#: Locations of a split's images, as base splits or files with ranges of image numbers.
Places: TypeAlias = list[tuple[str, range]]


class ImageData(NamedTuple):
    """Training, probe and test images."""

    train: data.Images
    """Training images, whose labels are not used."""
    probe: data.Images
    """Images that probes are fitted to, with their labels."""
    test: data.Images
    name: str = ""

    @property
    def skipped(self) -> Sequence[Skipped]:
        """Skipped images, each with the reason."""
        return skipped(self[:3])

    def fingerprint(self) -> dict[str, Fingerprint]:
        """Return fingerprints of the training and test images."""
        return {"train": fingerprint(self.train), "test": fingerprint(self.test)}


def load_data(config: Config, log: Callable[[str], object]) -> ImageData:
    """Read the splits of `config.data`, and remove test images from the other splits."""
    options = config.data
    splits = (options.split, options.probe_split, options.test_split)
    read, locate = make_reader(config, log)
    if not options.group_level:  # groups may divide one split into training and test
        check_splits(config, locate)
    sets = {split: read(split) for split in dict.fromkeys(splits)}
    parts = [sets[split] for split in splits]
    loaded = ImageData(*split_groups(config, parts), name=name_of(config))
    where = f"data.test_split ({options.test_split})"
    for part, key in tested_parts(config).items():
        images = data.leave_out_shared(getattr(loaded, part), loaded.test, where)
        if not len(images):
            number = f"all {len(getattr(loaded, part)):,} images of data.{key} ({options[key]})"
            raise UserError(f"{number} are copies of images in {where}: choose another split")
        loaded = loaded._replace(**{part: images})
    num_copies = len(loaded.skipped) - len(skipped(sets.values()))
    copies = f", {num_copies:,} of them copies of test images" if num_copies else ""
    y, x, channels = loaded.train.pixels.shape[1:]
    log(
        f"data: {len(loaded.train):,} images of {y} by {x} pixels, {channels} channel"
        f"{'s' * (channels > 1)} to train on, {len(loaded.probe):,} to probe, "
        f"{len(loaded.test):,} to test; {count_names(loaded.skipped, 'skipped')}{copies}"
    )
    return loaded


def tested_parts(config: Config) -> dict[str, str]:
    """Return the `ImageData` fields that must not contain test images, with their config keys."""
    if config.probe.tasks:
        return {"probe": "probe_split", "train": "split"}
    return {"train": "split"} if config.evaluate.num_images > 0 else {}


def split_groups(config: Config, parts: Sequence[data.Images]) -> Sequence[data.Images]:
    """Remove test groups from training and probe images, and other groups from test images.

    Groups are folders (`data.group_level`). If the test split is also used for training or probes,
    `data.test_fraction` of its groups are drawn as test groups. Otherwise all of them are.
    """
    options = config.data
    if not options.group_level:
        return parts
    depth = len(pathlib.Path(options.path).expanduser().parts)
    groups = []
    for images in parts:
        paths = (pathlib.PurePath(images.describe(number)) for number in range(len(images)))
        below = ["/".join(path.parts[depth:]) for path in paths]
        groups.append(np.array(group_files(options.group_level, below)))
    *_, test_groups = groups
    drawn = np.unique(test_groups)
    if options.test_split in (options.split, options.probe_split):
        order = np.random.default_rng(config.seed).permutation(drawn)
        drawn = order[: max(1, min(len(drawn) - 1, round(options.test_fraction * len(drawn))))]
    kept = [~np.isin(own, drawn) for own in groups[:-1]] + [np.isin(test_groups, drawn)]
    if not all(rows.any() for rows in kept):
        groups = ", ".join(drawn[:3])
        raise UserError(f"all images are in the test groups ({groups}): add images of other groups")
    return list(map(data.select_images, parts, map(np.flatnonzero, kept)))


def check_splits(config: Config, locate: Callable[[str], Places]) -> None:
    """Check that training and probe splits share no image with the test split."""
    options = config.data
    for key in tested_parts(config).values():
        places = itertools.product(locate(options[key]), locate(options.test_split))
        if any(a == b and max(x.start, y.start) < min(x.stop, y.stop) for (a, x), (b, y) in places):
            shared = f"data.test_split ({options.test_split}) shares images with data.{key}"
            raise UserError(f"{shared} ({options[key]}): choose disjoint splits")


def make_reader(
    config: Config, log: Callable[[str], object]
) -> tuple[Callable[[str], data.Images], Callable[[str], Places]]:
    """Return two functions of a split's name, which read and locate its images.

    A split may be a part of a base split, such as "train[:50000]".
    """
    options = config.data
    if options.source == "fashion_mnist":
        reject(config,
            ((options.size, options.channels) != (28, 1), "data.size data.channels",
             "fashion_mnist has size 28 and 1 channel; set data.size=28 and data.channels=1"),
        )  # fmt: skip
        splits = load_fashion_mnist(log=log)
        return (lambda split: cut_split(splits, split), lambda split: [locate_part(splits, split)])
    root = data_root(config)
    how = {**subset(options, "size", "channels", "max_skipped_fraction"), "log": log}
    if options.source == "folder":
        return (
            lambda split: data.read_image_folder(root, split, **how),
            lambda split: [(split, range(1))],  # folders have no named parts
        )
    reject(config, (not options.name, "data.source data.name", "set data.name, e.g. to cifar10"))
    return (
        lambda split: data.read_images_tfds(root, options.name, split, **how),
        lambda split: data.locate_images_tfds(root, options.name, split),
    )


def cut_split(splits: Mapping[str, data.Images], text: str) -> data.Images:
    """Return a split such as "train", or a part of it such as "train[:50000]" or "train[90%:]"."""
    name, rows = locate_part(splits, text)
    images = splits[name]
    return images if len(rows) == len(images) else data.select_images(images, rows)


def locate_part(splits: Mapping[str, data.Images], text: str) -> tuple[str, range]:
    """Parse a split or a part such as "train[90%:]" into a split name and image numbers."""
    match = re.fullmatch(r"(\w+)(?:\[(-?\d+%?)?:(-?\d+%?)?\])?", text)
    if not match or match[1] not in splits:
        choices = f"{' or '.join(splits)}, or a part such as train[:50000] or train[90%:]"
        raise UserError(f"fashion_mnist has no split {text!r}: choose {choices}")
    size = len(splits[match[1]])
    bounds = (  # such as "-5", "90%" or None
        (int(one[:-1]) * size // 100 if one[-1] == "%" else int(one)) if one else None
        for one in match.groups()[1:]
    )
    if not (rows := range(size)[slice(*bounds)]):
        raise UserError(f"the split {text!r} of fashion_mnist is empty: choose a larger part")
    return match[1], rows


def skipped(parts: Iterable[data.Images]) -> list[Skipped]:
    """Return skipped images in all splits, each with the reason."""
    return list(dict(entry for part in parts for entry in part.skipped).items())


def fingerprint(part: data.Images) -> Fingerprint:
    """Return a fingerprint of all labels and of up to 16 images."""
    some = np.linspace(0, len(part) - 1, min(16, len(part))).astype(int)
    return Fingerprint(len(part), part.labels.tobytes(), part.pixels[some].tobytes())


def side_of(config: Config) -> int:
    """Return the height and width, in pixels, of an image that is cut into patches."""
    return config.augment.crop or config.data.size


def grid_of(config: Config) -> tuple[int, int]:
    """Return the numbers of patch rows and patch columns in an image."""
    side = side_of(config)
    return patch_grid((side, side), config.model.patch, config.model.stride)


def preprocess(config: Config, batch: Batch, rng: Any, train: bool) -> Batch:
    """Cut a batch of images (b, y, x, ch) into patches (b, i, j, y, x, ch).

    In training, images and patches are augmented.
    """
    options, images, side = config.augment, batch["x"], side_of(config)
    cut = {"grey": options.grey, "patch": config.model.patch, "stride": config.model.stride}
    if not train:
        return {**batch, "x": augment.cut_for_evaluation(images, crop=side, **cut)}
    image_rng, patch_rng, jitter_rng = jax.random.split(rng, 3)
    images = augment.crop_and_flip(image_rng, images, side)
    patches = augment.augment_patches(
        patch_rng,
        augment.cut_for_evaluation(images, crop=0, **cut),
        **subset(options, "color_drop", "rotation_degrees", "shear", "elastic_pixels"),
        **subset(options, "brightness", "contrast"),
    )
    if options.jitter:
        patches = augment.jitter_patches(jitter_rng, patches, options.jitter)
    return {**batch, "x": patches}
