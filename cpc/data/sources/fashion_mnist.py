"""Fashion-MNIST from a Debian package, with 70,000 grey 28x28 images in ten classes of clothes."""

import gzip
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from cpc.data.cache import Log, log_to_stderr, preparing
from cpc.data.images import Images
from cpc.data.sources.debian import Package, laying_out
from cpc.types import UserError

PACKAGE = Package(
    "dataset-fashion-mnist",
    "0.0~git20200523.55506a9-1",
    30_900_652,
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
)
ADVICE = "alternatively, use a folder of images, or a dataset prepared by tfds"
#: Prefixes of file names by split.
SPLITS = {"train": "train", "test": "t10k"}
#: Class names from Xiao, Rasul, Vollgraf (2017), Table 1, in the spelling of tfds.
CLASS_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
    "Ankle boot",
)  # fmt: skip


def prepare_fashion_mnist(log: Log = log_to_stderr) -> Path:
    """Fetch, verify and unpack the dataset into `cache_dir()`, and return its folder.

    The folder contains the four idx files of the package, `CREDITS.txt` and `licenses/`.
    """
    with preparing("fashion-mnist", log) as home:
        folder = home / "fashion-mnist"
        if not folder.exists():
            credits = ["Fashion-MNIST, by Han Xiao, Kashif Rasul and Roland Vollgraf (2017)."]
            described = laying_out("Fashion-MNIST", folder, [PACKAGE], credits, {}, ADVICE, log)
            with described as (unpacked, part):
                for path in (unpacked / "usr/share/datasets/fashion-mnist").iterdir():
                    path.rename(part / path.name)
        return folder


def load_fashion_mnist(log: Log = log_to_stderr) -> dict[str, Images]:
    """Return the 60,000 "train" and 10,000 "test" images, preparing the dataset if needed."""
    folder = prepare_fashion_mnist(log)
    return {split: _load_split(folder, prefix) for split, prefix in SPLITS.items()}


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """Read the uint8 array of a gzipped idx file.

    An idx file contains the bytes 0, 0, 8 (for uint8), the number of axes, the size of each axis as
    big-endian int32, and the data.
    """
    try:
        content = gzip.decompress(path.read_bytes())
        if content[:3] != b"\0\0\x08":
            raise ValueError(f"it begins with {content[:4].hex()}")
        shape = np.frombuffer(content, ">i4", content[3], offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
    except (OSError, EOFError, zlib.error, ValueError, IndexError) as error:
        raise UserError(f"{path} is not a complete gzipped idx file of uint8: {error}") from error


def _load_split(folder: Path, prefix: str) -> Images:
    pixels = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
    largest = labels.max(initial=0)
    if (*pixels.shape[1:], *labels.shape) != (28, 28, len(pixels)) or largest >= len(CLASS_NAMES):
        raise UserError(
            f"{folder} is not Fashion-MNIST (got images {pixels.shape}, labels {labels.shape} up "
            f"to {largest}): remove the folder and prepare it again"
        )
    return Images(pixels[..., None], labels.astype(np.int32), CLASS_NAMES)
