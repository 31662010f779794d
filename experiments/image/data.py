"""From the data section of an image config to images."""

import pathlib
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from cpc import data
from cpc.data.sources.fashion_mnist import load_fashion_mnist
from cpc.types import UserError
from experiments.command.config import Config


class ImageData(NamedTuple):
    """What an image experiment is run on."""

    train: data.Images
    """To train on; labels are not used."""
    probe: data.Images
    """To fit probes on."""
    test: data.Images
    """To measure on."""


def load_data(config: Config, log: Callable[[str], object]) -> ImageData:
    """Read the splits of `config.data`."""
    options = config.data
    splits = (options.split, options.probe_split, options.test_split)
    read = make_reader(config, log)
    sets = {split: read(split) for split in dict.fromkeys(splits)}
    loaded = ImageData(*(sets[split] for split in splits))
    y, x, channels = loaded.train.pixels.shape[1:]
    log(
        f"data: {len(loaded.train):,} images of {y} by {x} pixels, {channels} channel"
        f"{'s' * (channels > 1)} to train on, {len(loaded.probe):,} to probe, "
        f"{len(loaded.test):,} to test; {len(skipped(loaded)):,} skipped"
    )
    return loaded


def name_of(config: Config) -> str:
    """Return what the images are called: the name of a set of tfds, or of the folder."""
    options = config.data
    if options.source == "folder":
        return pathlib.Path(options.path).expanduser().resolve().name
    return options.name or options.source


def make_reader(config: Config, log: Callable[[str], object]) -> Callable[[str], data.Images]:
    """Return a function from the name of a split to its images."""
    options = config.data
    if options.source == "fashion_mnist":
        if (options.size, options.channels) != (28, 1):
            raise UserError(
                f"data.size is {options.size} and data.channels {options.channels}: images of "
                "fashion_mnist have 28 pixels a side and 1 channel"
            )
        splits = load_fashion_mnist(log=log)
        return lambda split: cut_split(splits, split)
    if not options.path:
        raise UserError(f"data.source is {options.source}: set data.path to its folder")
    root = pathlib.Path(options.path).expanduser()
    how = {
        "size": options.size,
        "channels": options.channels,
        "log": log,
        "max_skipped_fraction": options.max_skipped_fraction,
    }
    if options.source == "folder":
        return lambda split: data.read_image_folder(root, split, **how)
    if not options.name:
        raise UserError("data.source is tfds: set data.name to the set, such as cifar10")
    return lambda split: data.read_images_tfds(root, options.name, split, **how)


def cut_split(splits: Mapping[str, data.Images], text: str) -> data.Images:
    """Return a split, or a part as tfds writes it: "train", "train[:50000]", "train[90%:]"."""
    match = re.fullmatch(r"(\w+)(?:\[(-?\d+%?)?:(-?\d+%?)?\])?", text)
    if not match or match[1] not in splits:
        raise UserError(
            f"fashion_mnist has no split {text!r}: choose {' or '.join(splits)}, or a part such as "
            "train[:50000] or train[90%:]"
        )
    images = splits[match[1]]

    def row(bound: str | None) -> int | None:
        if bound is None:
            return None
        return int(bound[:-1]) * len(images) // 100 if bound.endswith("%") else int(bound)

    rows = range(len(images))[row(match[2]) : row(match[3])]
    if not rows:
        raise UserError(f"the split {text!r} of fashion_mnist holds no image")
    return images if len(rows) == len(images) else data.select_images(images, rows)


def skipped(images: ImageData) -> list[tuple[str, str]]:
    """Return what was left out of all splits, and why."""
    return list(dict(entry for part in images for entry in part.skipped).items())
