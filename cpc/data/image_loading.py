"""Decode a set of images once: into memory if it fits, else to know labels and damaged ones."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpc.data.cache import Log, cache_dir, remember
from cpc.data.image_file import DECODER_VERSION
from cpc.data.images import Images, LazyPixels, digest_pixels
from cpc.data.phones import UNLABELLED
from cpc.data.skipped import check_skipped
from cpc.data.walk import digest_files
from cpc.types import UserError

#: A larger set stays where it is and is decoded each time.
MEMORY_BYTES = 4 * 1024**3
#: Images a thread takes at a time.
BLOCK = 64


class ImageFiles(NamedTuple):
    """Images of which nothing is decoded yet."""

    num_images: int
    read: Callable[[int], tuple[np.ndarray, int]]  # index -> uint8 (y, x, ch), label; or UserError
    describe: Callable[[int], str]  # index -> path or record, for people
    class_names: tuple[str, ...]
    where: str  # folder or set, for people
    fingerprint: str  # digest of the files and of what `read` makes of them


def load_images(files: ImageFiles, log: Log, max_skipped_fraction: float) -> Images:
    """Decode all images; those that do not decode are in `skipped`.

    A set of more than `MEMORY_BYTES` is decoded all the same, once, to find the damaged ones before
    a run does; its labels, digests and damages are kept in `cache_dir()`.
    """
    shape = _first_shape(files)
    if files.num_images * prod(shape) <= MEMORY_BYTES:
        pixels = np.empty((files.num_images, *shape), np.uint8)
        labels, digests, reasons = _decode_all(files, shape, log, pixels)
    else:
        pixels = None
        path = cache_dir() / "images" / f"{files.fingerprint}.json"
        labels, digests, reasons = _checked_once(files, shape, log, path)
    skipped = tuple((files.describe(i), reason) for i, reason in sorted(reasons.items()))
    check_skipped(skipped, files.num_images, max_skipped_fraction, f"images in {files.where}")
    kept = np.delete(np.arange(files.num_images), sorted(reasons))
    if pixels is None:
        chosen = LazyPixels((len(kept), *shape), lambda i: files.read(int(kept[i]))[0])
    else:
        chosen = pixels if len(kept) == len(pixels) else pixels[kept]
    return Images(
        chosen,
        labels[kept],
        files.class_names,
        skipped,
        digests[kept],
        lambda i: files.describe(int(kept[i])),
    )


def fingerprint_files(paths: Iterable[str | Path], *settings: object) -> str:
    """Return a digest of files and of the settings with which their images are decoded."""
    return digest_files(paths, repr((DECODER_VERSION, *settings)))


def check_pixels(size: int | None, channels: int) -> None:
    """`UserError` for what no image can be decoded to."""
    if size is not None and size < 1:
        raise UserError(f"size is {size}: choose a number of pixels, at least 1")
    if channels not in (1, 3):
        raise UserError(f"channels is {channels}: choose 1 (grey) or 3 (color)")


def _first_shape(files: ImageFiles) -> tuple[int, int, int]:
    first = ""
    for index in range(files.num_images):
        try:
            y, x, ch = files.read(index)[0].shape
            return y, x, ch
        except UserError as error:
            first = first or str(error)
    raise UserError(f"none of the {files.num_images} images in {files.where} decodes: {first}")


def _decode_all(
    files: ImageFiles, shape: tuple[int, int, int], log: Log, pixels: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Labels and digests (n,), and why images do not decode; fills `pixels` (n, y, x, ch)."""
    labels = np.full(files.num_images, UNLABELLED, np.int32)
    digests = np.zeros(files.num_images, np.uint64)
    reasons: dict[int, str] = {}

    def decode(block: range) -> None:
        for index in block:
            try:
                image, labels[index] = files.read(index)
            except UserError as error:
                reasons[index] = str(error)
                continue
            if image.shape != shape:
                raise UserError(
                    f"the images in {files.where} have several sizes, first {shape}, then "
                    f"{image.shape} (rows, columns, channels): give the size to bring them to"
                )
            digests[index] = digest_pixels(image)
            if pixels is not None:
                pixels[index] = image

    starts = range(0, files.num_images, BLOCK)
    blocks = [range(start, min(start + BLOCK, files.num_images)) for start in starts]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, _ in enumerate(pool.map(decode, blocks), 1):
            if done % 1000 == 0:
                log(f"decoded {done * BLOCK} of {files.num_images} images")
    return labels, digests, reasons


def _checked_once(
    files: ImageFiles, shape: tuple[int, int, int], log: Log, path: Path
) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    def make() -> dict[str, Any]:
        log(f"decoding the {files.num_images} images of {files.where} once, to find damaged ones")
        labels, digests, reasons = _decode_all(files, shape, log, None)
        # In hexadecimal: numbers of 64 bits without a sign are more than JSON is read with.
        found = {"labels": labels, "digests": [f"{one:x}" for one in digests.tolist()]}
        return found | {"skipped": sorted(reasons.items())}

    def parse(kept: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
        labels = np.asarray(kept["labels"], np.int32)
        digests = np.asarray([int(one, 16) for one in kept["digests"]], np.uint64)
        if not labels.shape == digests.shape == (files.num_images,):
            raise UserError(f"{path} has another form")
        return labels, digests, {int(i): str(reason) for i, reason in kept["skipped"]}

    return remember(path, make, parse, log, "the images are decoded")
