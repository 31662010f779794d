"""A set of labelled images, in memory or decoded when asked for, and batches of it.

A set is decoded once: into memory if it fits, else to know labels and damaged images.
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

#: Least correlation of two images' pixels, and of their thumbnails, for one to be a copy of the
#: other that was saved again: as JPEG, with a palette or in another size.
MIN_CORRELATION, MIN_THUMBNAIL_CORRELATION = 0.99, 0.99
#: Least standard deviation of an image's pixels: of flatter ones, only equal ones are copies.
MIN_CONTRAST = 4.0
#: Sides of a thumbnail, and images that are compared at a time.
THUMBNAIL, BLOCK_IMAGES = 8, 1024
#: A larger set stays where it is and is decoded each time.
MEMORY_BYTES = 4 * 1024**3
#: Images a thread takes at a time.
BLOCK = 64


@dataclass(frozen=True)
class LazyPixels:
    """Images that are decoded when asked for, indexed like the array (n, y, x, ch) of all."""

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
    """Images of one size, wherever they lie."""

    pixels: UInt8[np.ndarray, "n y x ch"] | LazyPixels
    """uint8 (n, y, x, ch); ch is 1 or 3."""
    labels: Int32[np.ndarray, " n"]
    """Index into `class_names`; `UNLABELLED` where there is none."""
    class_names: tuple[str, ...]
    skipped: tuple[Skipped, ...] = ()
    """(path or record, reason) of everything that was left out."""
    digests: UInt64[np.ndarray, " n"] | None = None
    """Digest of each image's pixels; None: made when it is asked for."""
    describe: Callable[[int], str] = "image {}".format
    """index -> path or record, for people."""

    def __len__(self) -> int:
        return len(self.labels)


def digest_pixels(pixels: UInt8[np.ndarray, "y x ch"]) -> int:
    """Return a digest of an image's pixels, of 64 bits, and of no file's name or format."""
    digest = hashlib.blake2b(pixels.tobytes(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def find_digests(images: Images) -> UInt64[np.ndarray, " n"]:
    """Return a digest of the pixels of each image, from `digests` if there are any."""
    if images.digests is not None:
        return images.digests
    pixels = images.pixels
    return np.array([digest_pixels(pixels[i]) for i in range(len(images))], np.uint64)


def find_near(
    pixels: UInt8[np.ndarray, "n y x ch"] | LazyPixels,
    others: UInt8[np.ndarray, "m y x ch"] | LazyPixels,
) -> dict[int, int]:
    """Return index -> index of a nearly equal one of the others; empty if not in memory."""
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
    """Return thumbnails, each pixel the mean of a rectangle."""
    means = pixels.astype(np.float32)
    for axis in (1, 2):
        size = means.shape[axis]
        bounds = np.linspace(0, size, min(size, THUMBNAIL) + 1).astype(int)
        sums = np.add.reduceat(means, bounds[:-1], axis)
        means = sums / np.diff(bounds).reshape(-1, *[1] * (3 - axis)).astype(np.float32)
    return means


def _normalize(values: Float32[np.ndarray, "n y x ch"]) -> Float32[np.ndarray, "n d"]:
    """Return images as unit vectors without their mean; flat ones as zero."""
    rows = values.reshape(len(values), -1)
    rows = rows - rows.mean(axis=1, keepdims=True)
    deviation = rows.std(axis=1, keepdims=True)
    unit = rows / np.maximum(deviation * rows.shape[1] ** 0.5, np.float32(1e-6))
    return np.where(deviation < MIN_CONTRAST, np.float32(0), unit)


def leave_out_shared(images: Images, others: Images, where: str) -> Images:
    """Return images without those that `others` have, too, by their pixels.

    If both were decoded from files into memory, images that differ as by another format, palette or
    size are copies as well. Copies are listed in `skipped`: (path or record, that it is a copy of
    one of `where`).
    """
    known: dict[int, int] = {}
    for index, digest in enumerate(find_digests(others).tolist()):
        known.setdefault(digest, index)
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
    """The images `indices`, in that order; an array is copied, lazy images stay lazy."""
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
    """`step -> batch`, each epoch a new shuffle: a pure function of (seed, step, process).

    An epoch is len(images) // batch_size steps; what a shuffle leaves over is another remainder
    next time, so no image is twice in a batch. The draws are those of the global batch and each
    process takes its rows, so the number of processes or threads changes nothing that is drawn.

    A batch, b = batch_size / num_processes:
        x: uint8 (b, y, x, ch), as stored: scaling and augmentation are the device's.
        label: int32 (b,), `UNLABELLED` where there is none.
        sequence: int32 (b,), row in the global batch.
        image: int32 (b,), index into `images`.
    """
    rows = rows_of_process(batch_size, process, num_processes, "images")
    if batch_size > len(images):
        raise UserError(
            f"a batch of {batch_size} is more than the {len(images)} images there are: "
            "choose a smaller batch_size"
        )
    epoch_steps = len(images) // batch_size

    @lru_cache(maxsize=2)  # threads may be on both sides of an epoch's end
    def shuffled(epoch: int) -> np.ndarray:
        return np.random.default_rng((seed, epoch)).permutation(len(images)).astype(np.int32)

    def batch(step: int) -> Batch:
        epoch, number = divmod(step, epoch_steps)
        chosen = shuffled(epoch)[number * batch_size + rows]
        return {
            "x": images.pixels[chosen],
            "label": images.labels[chosen],
            "sequence": rows,
            "image": chosen,
        }

    return batch


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
