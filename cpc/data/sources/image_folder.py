"""Reader for image folders with the layout of ImageNet, `split/class/*.jpeg`."""

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from cpc.data.cache import Log
from cpc.data.image_file import COMPANION_SUFFIXES, IMAGE_SUFFIXES, read_image
from cpc.data.images import ImageFiles, Images, check_pixels, fingerprint_files, load_images
from cpc.data.phones import UNLABELLED
from cpc.data.walk import (
    COMPANIONS,
    Skipped,
    is_of_runs,
    printable,
    require_data,
    same_name,
)
from cpc.types import UserError

ADVICE = "save it as {stem}.png"


def read_image_folder(
    root: str | Path,
    split: str,
    *,
    size: int | None = None,
    channels: int = 3,
    log: Log = print,
    max_skipped_fraction: float = 0.1,
) -> Images:
    """Read the images of one split from a folder with the layout `ROOT/SPLIT/CLASS/*.jpeg`.

    Images may have other suffixes (.jpg, .png, ...) and be at any depth below the class. A label is
    a class's index in the sorted class names of all splits, so labels agree between splits. Images
    directly in the folder of the split are unlabelled. Damaged images, files in other formats,
    unreadable folders and class folders without images are listed in `skipped`.

    Args:
        root: folder with a subfolder for each split.
        split: name of a subfolder, such as "train".
        size: if given, crop the central square of each image and resize it to size x size pixels;
            otherwise, all images must have the same size.
        channels: 1 (grey) or 3 (color).
        log: called with each line of progress.
        max_skipped_fraction: largest fraction of damaged images that is accepted.
    """
    check_pixels(size, channels)
    root = Path(root).expanduser()
    folder = _split_folder(root, split)
    class_names = _class_names(root)
    numbers = {name: number for number, name in enumerate(class_names)}
    found = require_data(folder, "images", IMAGE_SUFFIXES, COMPANION_SUFFIXES, ADVICE)
    paths = [str(path) for path in found.files]
    classes = [path.relative_to(folder).parts[0] for path in found.files]
    labels = [
        UNLABELLED if path.parent == folder else numbers[printable(same_name(name))]
        for path, name in zip(found.files, classes, strict=True)
    ]
    left_out = [*found.unreadable, *found.left_out, *_list_strays(root)]
    explained = {path for path, _ in left_out}
    for name in sorted(set(_folders(folder)) - set(classes)):
        if (path := printable(folder / name)) not in explained:
            left_out.append((path, f"{path} has no images"))

    def read(index: int) -> tuple[np.ndarray, int]:
        return read_image(paths[index], size=size, channels=channels), labels[index]

    files = ImageFiles(
        num_images=len(paths),
        read=read,
        describe=lambda index: printable(paths[index]),
        class_names=class_names,
        where=printable(folder),
        fingerprint=fingerprint_files(paths, size, channels, class_names),
    )
    images = load_images(files, log, max_skipped_fraction)
    return replace(images, skipped=(*images.skipped, *left_out))


def _split_folder(root: Path, split: str) -> Path:
    if not root.is_dir():
        raise UserError(f"{printable(root)} is not a folder: pass a folder with SPLIT/CLASS/")
    # "", "." and ".." are also folders.
    if split in ("", ".", "..") or "/" in split or not (root / split).is_dir():
        splits = ", ".join(printable(name) for name in _folders(root)[:20]) or "none"
        raise UserError(
            f"split {split!r} is not in {printable(root)} (got {splits}): move the images to "
            "ROOT/SPLIT/CLASS/ or choose another split"
        )
    return root / split


def _class_names(root: Path) -> tuple[str, ...]:
    names = set()
    for split in _folders(root):
        with contextlib.suppress(UserError):  # an unreadable folder, such as lost+found
            names |= {printable(same_name(name)) for name in _folders(root / split)}
    return tuple(sorted(names))


def _folders(folder: Path) -> list[str]:
    return [path.name for path in _list(folder) if _is_folder(path) and not is_of_runs(str(path))]


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 (Path.is_dir raises if access is denied)


def _list(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry) for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"folder {printable(folder)} cannot be read: {error.strerror}") from error


def _list_strays(root: Path) -> list[Skipped]:
    """Return `skipped` entries for images, archives and other data next to the splits."""
    return [
        (printable(path), f"{printable(path)} is outside all splits: move it into one or unpack it")
        for path in _list(root)
        if not _is_folder(path)
        and path.suffix.lower() not in COMPANION_SUFFIXES
        and path.stem.lower() not in COMPANIONS
    ]
