"""Sets of labelled images, in memory or decoded on demand, and batches of them.

Every image is decoded once at the start. A set that fits into memory is kept there. For a larger
set, only the labels, digests and damaged images are recorded.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int, Int32, UInt8, UInt64

from cpc.data.cache import Log, cache_dir, remember
from cpc.data.image_file import DECODER_VERSION
from cpc.data.phones import UNLABELLED
from cpc.data.pipeline import rows_of_process
from cpc.data.walk import Skipped, check_skipped, digest_files
from cpc.types import Batch, UserError

#: Minimum correlations of pixels and of thumbnails between an image and its copy, which may have
#: been saved again as JPEG, with a palette, or in another size.
MIN_CORRELATION, MIN_THUMBNAIL_CORRELATION = 0.99, 0.99
#: Minimum standard deviation of pixels. Flatter images are copies only if they are equal.
MIN_CONTRAST = 4.0
#: Side of a thumbnail in pixels, and number of images compared at a time.
THUMBNAIL, BLOCK_IMAGES = 8, 1024
#: Maximum size of a set in memory. A larger set is decoded on demand.
MEMORY_BYTES = 4 * 1024**3
#: Number of images that a thread decodes at a time.
BLOCK = 64


@dataclass(frozen=True)
class LazyPixels:
    """Images decoded on demand, indexed like the array (n, y, x, ch) of all images."""

    shape: tuple[int, int, int, int]
    read: Callable[[int], np.ndarray]
    """index -> uint8 (y, x, ch)."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        rows = np.arange(len(self))[index]
        if rows.ndim == 0:
            return self.read(int(rows))
        pixels = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for slot, row in zip(pixels, rows, strict=True):
            slot[:] = self.read(int(row))
        return pixels


@dataclass(frozen=True)
class Images:
    """A set of images of one size, in memory or decoded on demand."""

    pixels: UInt8[np.ndarray, "n y x ch"] | LazyPixels
    """uint8 (n, y, x, ch), where ch is 1 or 3."""
    labels: Int32[np.ndarray, " n"]
    """Index into `class_names`; `UNLABELLED` for images without a label."""
    class_names: tuple[str, ...]
    skipped: tuple[Skipped, ...] = ()
    """(path or record, reason) for each image that is left out."""
    digests: UInt64[np.ndarray, " n"] | None = None
    """Digest of each image's pixels. If None, digests are computed on demand."""
    describe: Callable[[int], str] = "image {}".format
    """index -> path or record of the image, for messages."""

    def __len__(self) -> int:
        return len(self.labels)


def digest_pixels(pixels: UInt8[np.ndarray, "y x ch"]) -> int:
    """Return a 64-bit digest of an image's pixels, independent of its file name and format."""
    digest = hashlib.blake2b(pixels.tobytes(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def find_digests(images: Images) -> UInt64[np.ndarray, " n"]:
    """Return a digest of each image's pixels, from `images.digests` if present."""
    if images.digests is not None:
        return images.digests
    pixels = images.pixels
    return np.array([digest_pixels(pixels[i]) for i in range(len(images))], np.uint64)


def find_near(
    pixels: UInt8[np.ndarray, "n y x ch"] | LazyPixels,
    others: UInt8[np.ndarray, "m y x ch"] | LazyPixels,
) -> dict[int, int]:
    """Map each image with a nearly equal image in `others` to that image, both by index.

    The result is empty unless both sets are in memory.
    """
    if isinstance(pixels, LazyPixels) or isinstance(others, LazyPixels):
        return {}
    near, blocks = {}, range(0, len(others), BLOCK_IMAGES)
    known = [_normalize(_shrink(others[start : start + BLOCK_IMAGES])) for start in blocks]
    for start in range(0, len(pixels) if len(others) else 0, BLOCK_IMAGES):
        block = pixels[start : start + BLOCK_IMAGES]
        thumbnails = _normalize(_shrink(block))
        products = np.concatenate([thumbnails @ one.T for one in known], axis=1)
        best = products.argmax(axis=1)
        largest = products[np.arange(len(best)), best]
        rows = np.flatnonzero(largest > MIN_THUMBNAIL_CORRELATION)
        for row in rows.tolist():
            pair = np.stack([block[row], others[best[row]]])
            first, second = _normalize(pair.astype(np.float32))
            if first @ second > MIN_CORRELATION:
                near[start + row] = int(best[row])
    return near


def _shrink(pixels: UInt8[np.ndarray, "n _ _ ch"]) -> Float32[np.ndarray, "n _ _ ch"]:
    """Return thumbnails, whose pixels are means over rectangles of the image."""
    means = pixels.astype(np.float32)
    for axis in (1, 2):
        size = means.shape[axis]
        bounds = np.linspace(0, size, min(size, THUMBNAIL) + 1).astype(int)
        sums = np.add.reduceat(means, bounds[:-1], axis)
        means = sums / np.diff(bounds).reshape(-1, *[1] * (3 - axis)).astype(np.float32)
    return means


def _normalize(values: Float32[np.ndarray, "n y x ch"]) -> Float32[np.ndarray, "n d"]:
    """Return images as zero-mean unit vectors, or zero vectors for flat images."""
    rows = values.reshape(len(values), -1)
    rows = rows - rows.mean(axis=1, keepdims=True)
    deviation = rows.std(axis=1, keepdims=True)
    unit = rows / np.maximum(deviation * rows.shape[1] ** 0.5, np.float32(1e-6))
    return np.where(deviation < MIN_CONTRAST, np.float32(0), unit)


def leave_out_shared(images: Images, others: Images, where: str) -> Images:
    """Remove images whose pixels also occur in `others`, so that two sets share no image.

    If both sets were decoded from files into memory, images that differ only by format, palette or
    size also count as copies. Each copy is listed in `skipped` as (path or record, reason), and the
    reason calls the other set `where`.
    """
    digests = find_digests(others).tolist()
    known = {digest: index for index, digest in reversed(list(enumerate(digests)))}  # the first
    own = find_digests(images).tolist()
    are_decoded = images.digests is not None and others.digests is not None
    shared = find_near(images.pixels, others.pixels) if are_decoded else {}
    shared |= {index: known[digest] for index, digest in enumerate(own) if digest in known}
    copies = [
        (name, f"{name} has the pixels of {others.describe(shared[index])}, of {where}")
        for index in sorted(shared)
        for name in [images.describe(index)]
    ]
    if not copies:
        return images
    kept = select_images(images, np.delete(np.arange(len(images)), list(shared)))
    return replace(kept, skipped=(*images.skipped, *copies))


def select_images(images: Images, indices: Sequence[int] | Int[np.ndarray, " m"]) -> Images:
    """Return the images at `indices` in that order, copying arrays and keeping lazy images lazy."""
    indices = np.asarray(indices, np.int64).reshape(-1)
    pixels, describe, digests = images.pixels, images.describe, images.digests
    if isinstance(pixels, LazyPixels):
        read = pixels.read
        _, y, x, ch = pixels.shape
        chosen = LazyPixels((len(indices), y, x, ch), lambda i: read(int(indices[i])))
    else:
        chosen = pixels[indices]
    return replace(
        images,
        pixels=chosen,
        labels=images.labels[indices],
        digests=None if digests is None else digests[indices],
        describe=lambda i: describe(int(indices[i])),
    )


def make_image_batches(
    images: Images, *, batch_size: int, seed: int, process: int = 0, num_processes: int = 1
) -> Callable[[int], Batch]:
    """Return a pure function from training step to batch, with a new shuffle per epoch.

    An epoch has len(images) // batch_size steps. Images that do not fill a batch are dropped, and
    differ between epochs. A batch does not contain an image twice. Every process shuffles alike and
    takes its own rows of the global batch, so batches depend on neither the number of processes nor
    the number of threads.

    A batch contains, with b = batch_size / num_processes:

        x: uint8 (b, y, x, ch), as stored. Scaling and augmentation run on the device.
        label: int32 (b,), `UNLABELLED` for images without a label.
        sequence: int32 (b,), row in the global batch.
        image: int32 (b,), index into `images`.
    """
    rows = rows_of_process(batch_size, process, num_processes, "images")
    if batch_size > len(images):
        raise UserError(f"batch_size {batch_size} exceeds {len(images)} images: lower batch_size")
    epoch_steps = len(images) // batch_size

    @lru_cache(maxsize=2)  # around the end of an epoch, threads need two
    def shuffle(epoch: int) -> np.ndarray:
        return np.random.default_rng((seed, epoch)).permutation(len(images)).astype(np.int32)

    def batch(step: int) -> Batch:
        epoch, number = divmod(step, epoch_steps)
        chosen = shuffle(epoch)[number * batch_size + rows]
        return {
            "x": images.pixels[chosen],
            "label": images.labels[chosen],
            "sequence": rows,
            "image": chosen,
        }

    return batch


class ImageFiles(NamedTuple):
    """A set of image files that are not decoded yet."""

    num_images: int
    read: Callable[[int], tuple[np.ndarray, int]]  # index -> uint8 (y, x, ch), label; or UserError
    describe: Callable[[int], str]  # index -> path or record, for messages
    class_names: tuple[str, ...]
    where: str  # folder or name of the set, for messages
    fingerprint: str  # digest of the files and decoding options


def load_images(files: ImageFiles, log: Log, max_skipped_fraction: float) -> Images:
    """Decode all images, and list damaged images in `skipped`.

    A set larger than `MEMORY_BYTES` is also decoded once, to find damaged images before training.
    Its labels, digests and damaged images are cached in `cache_dir()`.
    """
    shape = _first_shape(files)
    if files.num_images * prod(shape) <= MEMORY_BYTES:
        pixels = np.empty((files.num_images, *shape), np.uint8)
        labels, digests, reasons = _decode_all(files, shape, log, pixels)
    else:
        pixels = LazyPixels((files.num_images, *shape), lambda i: files.read(i)[0])
        path = cache_dir() / "images" / f"{files.fingerprint}.json"
        labels, digests, reasons = _check_once(files, shape, log, path)
    skipped = tuple((files.describe(i), reason) for i, reason in sorted(reasons.items()))
    check_skipped(skipped, files.num_images, max_skipped_fraction, f"images in {files.where}")
    images = Images(pixels, labels, files.class_names, skipped, digests, files.describe)
    kept = np.delete(np.arange(files.num_images), sorted(reasons))
    return select_images(images, kept) if reasons else images


def fingerprint_files(paths: Iterable[str | Path], *settings: object) -> str:
    """Return a digest of image files and of the options that affect their decoding."""
    return digest_files(paths, repr((DECODER_VERSION, *settings)))


def check_pixels(size: int | None, channels: int) -> None:
    """Raise UserError unless images can be decoded to `size` and `channels`."""
    if size is not None and size < 1:
        raise UserError(f"size is {size}: choose at least 1 pixel")
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
    """Fill `pixels` (n, y, x, ch), and return labels (n,), digests (n,) and errors by index."""
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
                    f"the images in {files.where} have several sizes, such as {shape} and "
                    f"{image.shape} (rows, columns, channels): give the size to resize images to"
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


def _check_once(
    files: ImageFiles, shape: tuple[int, int, int], log: Log, path: Path
) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    def make() -> dict[str, Any]:
        log(f"decoding the {files.num_images} images of {files.where} once, to find damaged files")
        labels, digests, reasons = _decode_all(files, shape, log, None)
        # Use hexadecimal, since JSON readers may not represent unsigned 64-bit integers.
        found = {"labels": labels, "digests": [f"{one:x}" for one in digests.tolist()]}
        return found | {"skipped": sorted(reasons.items())}

    def parse(kept: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
        labels = np.asarray(kept["labels"], np.int32)
        digests = np.asarray([int(one, 16) for one in kept["digests"]], np.uint64)
        if not labels.shape == digests.shape == (files.num_images,):
            raise UserError(f"{path} has an unknown format")
        return labels, digests, {int(i): str(reason) for i, reason in kept["skipped"]}

    return remember(path, make, parse, log, "the images are decoded")
