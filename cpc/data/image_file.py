"""One image file as uint8 pixels, whatever its format, depth and colors."""

import io
import re
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from cpc.data.walk import check_file, printable
from cpc.types import UserError

IMAGE_SUFFIXES = frozenset({".jpeg", ".jpg", ".png", ".webp"})
#: Pillow goes by content, and would give an EPS that is called .png to another program.
FORMATS = ("JPEG", "PNG", "WEBP")
#: A file of some kilobytes can claim to be gigabytes of pixels.
MAX_PIXELS = 89_000_000


def read_image(path: str | Path, *, size: int | None, channels: int) -> UInt8[np.ndarray, "y x ch"]:
    """`decode_image` of a file.

    Raises:
        UserError: as `decode_image`; or the path cannot be read, or is no file but a device, say.
    """
    name = printable(path)
    try:
        check_file(path)
        content = Path(path).read_bytes()
    except UserError as error:
        raise UserError(printable(str(error))) from error
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}") from error
    return decode_image(content, name, size=size, channels=channels)


def decode_image(
    content: bytes, name: str, *, size: int | None, channels: int
) -> UInt8[np.ndarray, "y x ch"]:
    """Decode an image to `channels` channels, 1 (grey) or 3 (RGB).

    Palettes, CMYK and YCbCr are converted, 16-bit grey keeps its upper 8 bits, transparency is
    dropped, of an animation the first frame counts. Orientation tags of cameras are not followed.

    Args:
        content: the file's bytes.
        name: what error messages call it.
        size: the central square, resized to size x size pixels (a smaller one is enlarged); None
            for the whole image as it is.
        channels: 1 or 3.

    Raises:
        UserError: no image, cut short, damaged, or more than `MAX_PIXELS`.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UserError(
                    f"{name} is {image.width}x{image.height} pixels, more than {MAX_PIXELS}: "
                    "make it smaller"
                )
            if size is not None:  # a JPEG can decode to 1/2, 1/4 or 1/8, as long as that is enough
                image.draft(None, (size, size))
            image.load()
            bitmap = _convert(image, channels)
            if size is not None and bitmap.size != (size, size):
                square = _central_square(*bitmap.size)
                bitmap = bitmap.resize((size, size), Image.Resampling.BILINEAR, square)
    except UserError:
        raise
    except Exception as error:  # Pillow raises a dozen kinds, down to IndexError, for damaged files
        why = re.sub(r" <_io\.BytesIO[^>]*>", "", str(error))  # Pillow names what it reads from
        raise UserError(f"{name} does not decode: {why}") from error
    return np.asarray(bitmap, np.uint8).reshape(bitmap.height, bitmap.width, channels)


def _convert(image: Image.Image, channels: int) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits; Pillow clips them to 255 instead of scaling
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.mode in ("P", "PA") and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("L" if channels == 1 else "RGB")


def _central_square(width: int, height: int) -> tuple[float, float, float, float]:
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
