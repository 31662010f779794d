"""Decoding of image files to uint8 pixels, for any format, depth and color mode."""

import contextlib
import io
import re
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from cpc.data.walk import DOCUMENTS, LISTS, check_file, printable
from cpc.types import UserError

#: Formats that Pillow may decode. Pillow detects formats by content, and would pass an EPS file
#: named .png to another program.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
IMAGE_SUFFIXES = frozenset({
    ".jpeg", ".jpg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".gif", ".ppm", ".pgm",
    ".pbm", ".pnm", ".tif", ".tiff",
})  # fmt: skip
#: Suffixes of files that may accompany images, such as lists and annotations.
COMPANION_SUFFIXES = DOCUMENTS | LISTS
#: Increment this if `decode_image` returns different pixels.
DECODER_VERSION = 2
#: Maximum number of pixels, since a file of a few kilobytes can declare gigabytes of pixels.
MAX_PIXELS = 89_000_000
#: Maximum number of scans in a JPEG, each of which takes time. Encoders write about ten.
MAX_SCANS = 100
#: Bytes inserted after a JPEG's data, which change the pixels only if the data are incomplete.
FILLER = bytes(range(1, 251)) * 2


def read_image(path: str | Path, *, size: int | None, channels: int) -> UInt8[np.ndarray, "y x ch"]:
    """Read an image file and decode it with `decode_image`."""
    name = printable(path)
    check_file(path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}") from error
    return decode_image(content, name, size=size, channels=channels)


def decode_image(
    content: bytes, name: str, *, size: int | None, channels: int
) -> UInt8[np.ndarray, "y x ch"]:
    """Decode an image to uint8 pixels with 1 (grey) or 3 (RGB) channels.

    Palettes, CMYK and YCbCr are converted, 16-bit grey keeps its upper 8 bits, transparent pixels
    are blended with white, and orientation tags are applied. Animations and multi-page files yield
    their first image. If `size` is given, the central square is resized to size x size pixels, even
    if the square is smaller. `name` is used in error messages.
    """
    try:
        data_end = _find_jpeg_end(content, name)
        image = _load(content, name, size)
        if data_end and _lacks_data(image):
            filled = content[:data_end] + FILLER + content[data_end:]
            if not np.array_equal(np.asarray(image), np.asarray(_load(filled, name, size))):
                raise UserError(f"{name} does not decode: it is truncated")
        with contextlib.suppress(Exception):  # tags may be damaged although pixels are valid
            ImageOps.exif_transpose(image, in_place=True)
        bitmap = _fit(_convert(image, channels, name), size)
    except UserError:
        raise
    except Exception as error:  # damaged files make Pillow raise a dozen types, even IndexError
        why = re.sub(r" <_io\.BytesIO[^>]*>", "", str(error))  # Pillow names its input
        raise UserError(f"{name} does not decode: {why}") from error
    return np.asarray(bitmap, np.uint8).reshape(bitmap.height, bitmap.width, channels)


def fit_pixels(
    pixels: UInt8[np.ndarray, "y x c"], *, size: int, channels: int
) -> UInt8[np.ndarray, "size size ch"]:
    """Convert pixels with c = 1, 3 or 4 (alpha) channels as `decode_image` does."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    bitmap = _fit(_convert(image, channels, "x"), size)
    return np.asarray(bitmap, np.uint8).reshape(size, size, channels)


def _fit(bitmap: Image.Image, size: int | None) -> Image.Image:
    """Resize the central square to size x size pixels, unless size is None."""
    if size is None or bitmap.size == (size, size):
        return bitmap
    side = min(bitmap.size)
    left, top = (bitmap.width - side) / 2, (bitmap.height - side) / 2
    square = (left, top, left + side, top + side)
    return bitmap.resize((size, size), Image.Resampling.BILINEAR, square)


def _load(content: bytes, name: str, size: int | None) -> Image.Image:
    image = Image.open(io.BytesIO(content), formats=FORMATS)
    if image.width * image.height > MAX_PIXELS:
        raise UserError(
            f"{name} is {image.width}x{image.height} pixels, more than {MAX_PIXELS}: shrink it"
        )
    if size is not None:  # decode a JPEG at 1/2, 1/4 or 1/8 if that is large enough
        image.draft(None, (size, size))
    image.load()
    return image


def _find_jpeg_end(content: bytes, name: str) -> int:
    """Return the position after a JPEG's data, or 0 for other formats."""
    start, position = 0, 2
    while content[:2] == b"\xff\xd8" and content[position : position + 1] == b"\xff":
        if content[position + 1 : position + 2] == b"\xda":
            start = position
            break
        position += 2 + max(2, int.from_bytes(content[position + 2 : position + 4], "big"))
    if not start:
        return 0
    end = content.find(b"\xff\xd9", start)
    if end < 0:
        raise UserError(f"{name} does not decode: it is truncated")
    if (num_scans := content.count(b"\xff\xda", start, end)) > MAX_SCANS:
        raise UserError(f"{name} has {num_scans:,} scans, more than {MAX_SCANS}: save it again")
    return end


def _lacks_data(image: Image.Image) -> bool:
    """Return whether a JPEG may be incomplete, since libjpeg fills missing data with grey."""
    width, height = image.size
    last = np.asarray(image.crop((width - 1, height - 1, width, height)), int)
    return "progressive" in image.info or bool((abs(last - 128) <= 2).all())


def _convert(image: Image.Image, channels: int, name: str) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image)
        if image.mode == "F" or values.min() < 0 or values.max() >= 2**16:
            raise UserError(f"{name} has {image.mode} pixels that are not colors: use 8-bit pixels")
        grey = (values >> 8).astype(np.uint8)  # Pillow would clip at 255 instead of scaling
        if "transparency" in image.info:
            grey[values == image.info["transparency"]] = 255
        return Image.fromarray(grey).convert("L" if channels == 1 else "RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if channels == 1 else "RGB")
