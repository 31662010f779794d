"""A set of labelled images, in memory or decoded when asked for, and batches of it."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float32, Int, Int32, UInt8, UInt64

from cpc.data.pipeline import rows_of_process
from cpc.data.skipped import Skipped
from cpc.types import Batch, UserError

#: Least correlation of two images' pixels, and of their thumbnails, for one to be a copy of the
#: other that was saved again: as JPEG, with a palette or in another size.
MIN_CORRELATION, MIN_THUMBNAIL_CORRELATION = 0.99, 0.99
#: Least standard deviation of an image's pixels: of flatter ones, only equal ones are copies.
MIN_CONTRAST = 4.0
#: Sides of a thumbnail, and images that are compared at a time.
THUMBNAIL, BLOCK_IMAGES = 8, 1024


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

    Raises:
        UserError: a batch below 1, larger than the set, or that does not divide among processes.
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
