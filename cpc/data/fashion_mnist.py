"""Fashion-MNIST from a Debian package: 70,000 grey 28x28 pictures of clothes in ten classes.

python -m cpc.data.fashion_mnist        prepares it (31 MB of downloads), prints the classes
"""

import fcntl
import gzip
import hashlib
import shutil
import struct
import sys
import tempfile
import zlib
from math import prod
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from cpc.data.cache import cache_dir
from cpc.data.debian import Log, Package, fetch_archives, unpack
from cpc.data.images import Images
from cpc.data.voices import log_to_stderr
from cpc.types import UserError

PACKAGE = Package(
    "dataset-fashion-mnist",
    "0.0~git20200523.55506a9-1",
    30_900_652,
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
)
#: Our splits, by the first part of the files' names.
SPLITS = {"train": "train", "test": "t10k"}
#: Xiao, Rasul, Vollgraf (2017), Table 1, spelt as tfds spells them.
CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
#: Name -> (seconds, sha256) of the files as their authors published them: tfds takes no others.
PUBLISHED = {
    "train-images-idx3-ubyte": (
        1504176606,
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    "train-labels-idx1-ubyte": (
        1504176606,
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    "t10k-images-idx3-ubyte": (
        1504176627,
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    "t10k-labels-idx1-ubyte": (
        1504176627,
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
}


def prepare_fashion_mnist(cache: Path | None = None, log: Log = log_to_stderr) -> Path:
    """Fetch, verify and unpack the package; returns the folder, at once when it is there.

    The folder holds the four idx files as the package has them and its license.

    Args:
        cache: where archive and folder go, `cache_dir()` if None.
        log: called with each line of progress.

    Raises:
        UserError: without apt, network or disk space; it names the other sources.
    """
    cache = cache_dir() if cache is None else Path(cache)
    folder = cache / "fashion-mnist"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "fashion-mnist.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process at a time; the others find it prepared
            if not folder.exists():
                _prepare(cache, folder, log)
    except OSError as error:
        raise UserError(f"cannot prepare Fashion-MNIST in {cache}: {error}") from error
    return folder


def load_fashion_mnist(cache: Path | None = None, log: Log = log_to_stderr) -> dict[str, Images]:
    """The pictures by split, "train" (60,000) and "test" (10,000), prepared first if need be.

    Raises:
        UserError: as `prepare_fashion_mnist`; or a file is damaged.
    """
    folder = prepare_fashion_mnist(cache, log)
    return {split: _load_split(folder, prefix) for split, prefix in SPLITS.items()}


def restore_for_tfds(folder: Path, cache: Path | None = None, log: Log = log_to_stderr) -> Path:
    """Write the four files into `folder` as the builder of tfds accepts them, by `--manual_dir`.

    Debian takes name and time out of the gzip headers; with both put back, every byte is the
    published one.

        tfds build fashion_mnist --file_format=array_record --manual_dir=FOLDER

    Raises:
        UserError: as `prepare_fashion_mnist`; or a file does not become the published one.
    """
    source, folder = prepare_fashion_mnist(cache, log), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, (seconds, sha256) in PUBLISHED.items():
        data = (source / f"{name}.gz").read_bytes()
        # RFC 1952: flag 8 says that a name follows the ten bytes of the header.
        header = data[:3] + b"\x08" + struct.pack("<I", seconds) + data[8:10]
        restored = header + name.encode() + b"\0" + data[10:]
        if hashlib.sha256(restored).hexdigest() != sha256:
            raise UserError(
                f"{source / name}.gz does not become the file that tfds expects: it is damaged or "
                f"of another build of {PACKAGE.name} than {PACKAGE.version}"
            )
        (folder / f"{name}.gz").write_bytes(restored)
    return folder


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """The uint8 array of a gzipped idx file.

    An idx file is 0, 0, 8 (for uint8), the number of axes, each axis as big-endian int32, the data.

    Raises:
        UserError: no such file, not gzip, another type, or more or fewer bytes than it says.
    """
    try:
        with gzip.open(path) as file:
            data = file.read()  # to the end, where gzip checks size and CRC
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is no whole gzip file: {error}") from error
    if data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise UserError(f"{path} is no idx file of uint8: it begins with {data[:4].hex()}")
    shape = struct.unpack_from(f">{data[3]}i", data, 4)
    header_bytes = 4 + 4 * len(shape)
    if len(data) != header_bytes + prod(shape):
        raise UserError(
            f"{path} says shape {shape} but has {len(data) - header_bytes} bytes of data"
        )
    return np.frombuffer(data, np.uint8, offset=header_bytes).reshape(shape)


def _prepare(cache: Path, folder: Path, log: Log) -> None:
    try:
        (archive,) = fetch_archives([PACKAGE], cache / "debs", log)
    except UserError as error:
        raise UserError(
            f"cannot fetch Fashion-MNIST: {error} (other sources: a folder of pictures of your "
            "own, or a set that tfds has prepared)"
        ) from error
    with tempfile.TemporaryDirectory(dir=cache, prefix="unpacked-") as unpacked:
        unpack(archive, Path(unpacked))
        found = Path(unpacked, "usr/share/datasets/fashion-mnist")
        notice = Path(unpacked, "usr/share/doc", PACKAGE.name, "copyright")
        shutil.copyfile(notice, found / "LICENSE.txt")
        found.rename(folder)  # at once: a folder that is there is whole
    log(f"Fashion-MNIST is in {folder}")


def _load_split(folder: Path, prefix: str) -> Images:
    pixels = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
    if pixels.shape[1:] != (28, 28) or labels.shape != pixels.shape[:1]:
        raise UserError(
            f"{folder} is not Fashion-MNIST: pictures {pixels.shape}, labels {labels.shape}; "
            "remove the folder and prepare it again"
        )
    if labels.max(initial=0) >= len(CLASS_NAMES):
        raise UserError(
            f"{folder} has label {labels.max()}: remove the folder and prepare it again"
        )
    return Images(pixels[..., None], labels.astype(np.int32), CLASS_NAMES)


def main() -> int:
    """Prepare the set and print its classes."""
    try:
        folder = prepare_fashion_mnist()
        splits = load_fashion_mnist()
    except UserError as error:
        log_to_stderr(str(error))
        return 2
    lines = [f"{'class':12}" + "".join(f"{split:>8}" for split in splits)]
    for number, name in enumerate((*CLASS_NAMES, "all")):
        counts = [
            len(s) if name == "all" else int((s.labels == number).sum()) for s in splits.values()
        ]
        lines.append(f"{name:12}" + "".join(f"{count:8}" for count in counts))
    sys.stdout.write("\n".join([*lines, str(folder)]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
