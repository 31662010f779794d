"""From the data section of an image config to images, and to the patches that a model takes."""

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

#: Where the images of a split lie: splits or files, and their rows there.
Places: TypeAlias = list[tuple[str, range]]


class ImageData(NamedTuple):
    """What an image experiment is run on."""

    train: data.Images
    """To train on; labels are not used."""
    probe: data.Images
    """To fit probes on."""
    test: data.Images
    """To measure on."""
    name: str = ""

    @property
    def skipped(self) -> Sequence[Skipped]:
        """What was left out, and why."""
        return skipped(self[:3])

    def fingerprint(self) -> dict[str, Fingerprint]:
        """Return what tells the parts of these data from those of others."""
        return {"train": fingerprint(self.train), "test": fingerprint(self.test)}


def load_data(config: Config, log: Callable[[str], object]) -> ImageData:
    """Read the splits of `config.data`, those to train and to probe on without test images."""
    options = config.data
    splits = (options.split, options.probe_split, options.test_split)
    read, locate = make_reader(config, log)
    if not options.group_level:  # which divides a split that is named twice
        check_splits(config, locate)
    sets = {split: read(split) for split in dict.fromkeys(splits)}
    parts = [sets[split] for split in splits]
    loaded = ImageData(*split_groups(config, parts), name=name_of(config, options.name))
    where = f"data.test_split ({options.test_split})"
    for part, key in tested_parts(config).items():
        images = data.leave_out_shared(getattr(loaded, part), loaded.test, where)
        if not len(images):
            raise UserError(
                f"all {len(getattr(loaded, part)):,} images of data.{key} ({options[key]}) are "
                f"copies of images of {where}: name a split with other images"
            )
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
    """Return the fields of ImageData that must share no test image, with their keys in `data`."""
    if config.probe.tasks:
        return {"probe": "probe_split", "train": "split"}
    return {"train": "split"} if config.evaluate.num_images > 0 else {}


def split_groups(config: Config, parts: Sequence[data.Images]) -> Sequence[data.Images]:
    """Return images to train, to probe and to test on, of which no group is tested and trained.

    If the test images share their split, `data.test_fraction` of their groups are drawn to test.
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


def check_splits(config: Config, locate: Callable[[str], Places]) -> None:
    """Check that no image is tested that the network or, if there are any, the probes know."""
    options = config.data
    test = locate(options.test_split)
    whose = {"probe": "probes are fitted", "train": "the network is trained"}
    for part, name in tested_parts(config).items():
        if share_rows(locate(options[name]), test):
            raise UserError(
                f"data.test_split ({options.test_split}) shares images with data.{name} "
                f"({options[name]}), on which {whose[part]}: name another split, or part of one"
            )


def share_rows(some: Places, others: Places) -> bool:
    """Return whether an image lies in both.

    >>> share_rows([("train", range(50))], [("train", range(40, 60)), ("test", range(9))])
    True
    """
    return any(
        a == b and max(rows.start, more.start) < min(rows.stop, more.stop)
        for a, rows in some
        for b, more in others
    )


def make_reader(
    config: Config, log: Callable[[str], object]
) -> tuple[Callable[[str], data.Images], Callable[[str], Places]]:
    """Return read(split) -> the images of a split, or part of one, and locate(split) -> places."""
    options = config.data
    if options.source == "fashion_mnist":
        reject(config,
            ((options.size, options.channels) != (28, 1), "data.size data.channels",
             "images of fashion_mnist have 28 pixels a side and 1 channel"),
        )  # fmt: skip
        splits = load_fashion_mnist(log=log)
        return (lambda split: cut_split(splits, split), lambda split: [locate_part(splits, split)])
    root = data_root(config)
    how = {**subset(options, "size", "channels", "max_skipped_fraction"), "log": log}
    if options.source == "folder":
        return (
            lambda split: data.read_image_folder(root, split, **how),
            lambda split: [(split, range(1))],  # no part of a folder has a name
        )
    reject(config, (not options.name, "data.source data.name", "name the set, such as cifar10"))
    return (
        lambda split: data.read_images_tfds(root, options.name, split, **how),
        lambda split: data.locate_images_tfds(root, options.name, split),
    )


def cut_split(splits: Mapping[str, data.Images], text: str) -> data.Images:
    """Return a split, or a part as tfds writes it: "train", "train[:50000]", "train[90%:]"."""
    name, rows = locate_part(splits, text)
    images = splits[name]
    return images if len(rows) == len(images) else data.select_images(images, rows)


def locate_part(splits: Mapping[str, data.Images], text: str) -> tuple[str, range]:
    """Return the split that a part is of, and the rows of the part, as `cut_split` cuts it."""
    match = re.fullmatch(r"(\w+)(?:\[(-?\d+%?)?:(-?\d+%?)?\])?", text)
    if not match or match[1] not in splits:
        raise UserError(
            f"fashion_mnist has no split {text!r}: choose {' or '.join(splits)}, or a part such as "
            "train[:50000] or train[90%:]"
        )
    size = len(splits[match[1]])

    def row(bound: str | None) -> int | None:
        if bound is None:
            return None
        return int(bound[:-1]) * size // 100 if bound.endswith("%") else int(bound)

    rows = range(size)[row(match[2]) : row(match[3])]
    if not rows:
        raise UserError(f"the split {text!r} of fashion_mnist holds no image")
    return match[1], rows


def skipped(parts: Iterable[data.Images]) -> list[Skipped]:
    """Return the images left out of all splits, and why."""
    return list(dict(entry for part in parts for entry in part.skipped).items())


def fingerprint(part: data.Images) -> Fingerprint:
    """Return labels, and some pixels: parts of a set may have the same numbers of each class."""
    some = np.linspace(0, len(part) - 1, min(16, len(part))).astype(int)
    return Fingerprint(len(part), part.labels.tobytes(), part.pixels[some].tobytes())


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
        **subset(options, "color_drop", "rotation_degrees", "shear", "elastic_pixels"),
        **subset(options, "brightness", "contrast"),
    )
    if options.jitter:
        patches = augment.jitter_patches(of_jitter, patches, options.jitter)
    return {**batch, "x": patches}
