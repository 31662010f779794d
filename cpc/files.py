"""Files that are written whole or not at all, sealed against damage, and what JSON can hold."""

import contextlib
import errno
import glob
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from cpc.types import ArrayLike, UserError

try:
    import fcntl
except ModuleNotFoundError as error:  # whatever reads or writes files of ours imports this module
    raise ImportError(
        "this part of cpc needs Linux or macOS, whose locks hold its files: on Windows use WSL, or "
        "cpc.losses, cpc.negatives and cpc.estimators alone"
    ) from error


#: Whoever writes a file for longer than this was killed.
WRITING_SECONDS = 3600.0
#: Files that a run, and a sweep of runs, lay into their folders before all others, and leave there.
RUN_LOCK, SWEEP_LOCK = "run.lock", "sweep.lock"
#: The arrays of an .npz file may take this many bytes, or this many times the size of the file.
MAX_ARRAY_BYTES, MAX_INFLATION = 2**30, 20
#: Bytes of a file that are read at a time.
CHUNK_BYTES = 2**24
#: The split of the record that describes the run of all others.
RUN_SPLIT = "run"
#: The key of a mapping's checksum.
SEAL = "crc32"


@contextlib.contextmanager
def replacing(path: str | Path, is_durable: bool = True) -> Iterator[Path]:
    """Yield a path to write to, which becomes `path` in one step when the block ends well.

    Readers find the old content or the new one, never a part; a block that raises leaves nothing
    behind. If it is durable, not even a power cut leaves an empty file; pass False for a file that
    the same command writes again. The folder is made.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        if is_durable:
            with part.open("rb+") as file:
                os.fsync(file.fileno())
        part.replace(path)
        if is_durable:
            sync_folder(path.parent)
    except OSError as error:  # a failed write names no file, and a failed rename the part
        if error.filename in (None, str(part), part):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def part_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder next to `path`, which is removed at the end unless it has been moved.

    Folders that killed processes left there are removed first.
    """
    for folder in path.parent.glob(f"{glob.escape(path.name)}.part-*"):
        with contextlib.suppress(OSError):  # another process was faster
            files = [*folder.iterdir()] or [folder]
            if time.time() - max(file.stat().st_mtime for file in files) > WRITING_SECONDS:
                shutil.rmtree(folder)
    part = path.with_name(f"{path.name}.part-{secrets.token_hex(4)}")
    part.mkdir(parents=True)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def replace_folder(part: Path, path: Path) -> None:
    """Move a finished folder to `path`, in place of the folder that is there."""
    old = part.with_name(f"{part.name}-replaced")
    while True:
        if path.is_dir():
            with contextlib.suppress(FileNotFoundError):
                path.rename(old)
            shutil.rmtree(old, ignore_errors=True)
        try:
            part.rename(path)
        except OSError:
            if not path.is_dir():  # otherwise another process was faster by a moment
                raise
        else:
            return sync_folder(path.parent)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder, which becomes `path` when the block ends well."""
    with part_folder(path) as part:
        yield part
        replace_folder(part, path)


def advise(error: BaseException) -> str:
    """Return what to do after a failed write, as a clause.

    >>> advise(OSError(errno.EMFILE, "Too many open files"))
    'raise the limit on open files (ulimit -n)'
    """
    if "Too many open files" in str(error):  # libraries wrap the error, and keep its text
        return "raise the limit on open files (ulimit -n)"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file is in the way: choose another path"
    return "free some space or check the permissions"


def remove_parts(folder: Path) -> None:
    """Remove what killed processes were writing by `replacing`, in a folder and one level below."""
    for part in (*folder.glob("*.part"), *folder.glob("*/*.part")):
        with contextlib.suppress(OSError):  # another process was faster
            is_ours = re.search(r"\.\d+\.part$", part.name)  # downloads have no number of a process
            if is_ours and time.time() - part.stat().st_mtime > WRITING_SECONDS:
                part.unlink()


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk: a rename promises nothing before."""
    with contextlib.suppress(OSError):  # some file systems of clusters cannot
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def try_lock(file: IO[Any] | int) -> bool | None:
    """Lock an open file until it is closed; False if another process has, None without locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Wait until no other process has locked a file or folder, and keep others waiting.

    `on_wait` is called before a wait. Nothing is locked where no file can be made, as in a cache
    that is read-only, or where the file system has no locks.
    """
    with contextlib.ExitStack() as stack:
        for mode in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
            with contextlib.suppress(OSError):
                number = os.open(path, mode, 0o666)
                stack.callback(os.close, number)
                if try_lock(number) is False:
                    on_wait()
                    fcntl.flock(number, fcntl.LOCK_EX)
                break
        yield


def write_text(path: str | Path, text: str, errors: str = "strict") -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with replacing(path, is_durable=False) as part:
        part.write_text(text, encoding="utf-8", errors=errors)


def write_json(path: str | Path, value: Any) -> None:
    """Write a value, made plain, as JSON, whole or not at all."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def write_sealed(path: str | Path, value: Any, is_durable: bool = False) -> None:
    """Write a mapping as JSON with a checksum, so that `read_json` finds every changed bit."""
    with replacing(path, is_durable) as part:
        part.write_text(json.dumps(seal(value), indent=2, allow_nan=False) + "\n", "utf-8")


def seal(value: Any) -> dict[str, Any]:
    """Return a mapping, made plain, with the checksum of its content.

    >>> seal({"step": 3})
    {'step': 3, 'crc32': '08b1f3bf'}
    """
    content = {name: one for name, one in plain(value).items() if name != SEAL}
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return {**content, SEAL: f"{zlib.crc32(text.encode()):08x}"}


def unseal(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sealed mapping without its checksum; ValueError if it is wrong or missing."""
    if SEAL not in content:
        raise ValueError("it has no checksum")
    if seal(content) != content:
        raise ValueError("its checksum is wrong")
    return {name: value for name, value in content.items() if name != SEAL}


def write_arrays(path: str | Path, **arrays: ArrayLike) -> None:
    """Write named arrays as a compressed .npz, whole or not at all."""
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]


def file_sha256(path: Path) -> str:
    """Return the digest of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_crc32(path: Path) -> int:
    """Return the checksum of a file."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return value


def check_regular(path: str | Path) -> None:
    """Raise an OSError unless a path is a regular file: reading a fifo may never end."""
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_text(path: str | Path, errors: str = "strict") -> str:
    """Read a regular file in UTF-8; OSError for any other, such as a fifo."""
    check_regular(path)
    return Path(path).read_text(encoding="utf-8", errors=errors)


def parse_json(text: str) -> Any:
    """Parse JSON whose whole numbers fit 64 bits and whose strings are valid Unicode.

    Infinity becomes NaN; anything else is a ValueError.
    """
    content = json.loads(
        text, parse_int=_parse_int, parse_float=_parse_float, parse_constant=_parse_float
    )
    if re.search(r"\\u[dD][89a-fA-F]", text):  # half of a surrogate pair cannot be encoded
        json.dumps(content, ensure_ascii=False).encode()
    return content


def _parse_int(digits: str) -> int:
    number = int(digits)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{digits[:20]}... does not fit 64 bits")
    return number


def _parse_float(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else math.nan


def read_lines(path: Path) -> list[tuple[str, dict[str, Any] | None]]:
    """Return each line of a file of records, and its record without the seal; None if damaged.

    If one line is sealed, all are. A last line that was not written to its end is left out.
    """
    lines = read_text(path, errors="replace").split("\n")
    is_sealed = any(f'"{SEAL}"' in line for line in lines)
    found = [(line, _parse_record(line, is_sealed)) for line in lines]
    return found[:-1] if found[-1][1] is None else found


def _parse_record(line: str, is_sealed: bool) -> dict[str, Any] | None:
    """Return an object with a step; None for anything else."""
    try:
        record = unseal(parse_json(line)) if is_sealed else parse_json(line)
        step = int(record["step"])
        return {**record, "step": step} if 0 <= step < 2**63 else None
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file, without its checksum if it has one, which is checked."""
    try:
        content = parse_json(read_text(path))
        return unseal(content) if isinstance(content, dict) and SEAL in content else content
    # Bad JSON and bad UTF-8 are both ValueErrors.
    except (OSError, ValueError, RecursionError) as error:
        raise _cannot_read(path, error) from error


def read_object(path: Path, problems: list[str]) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if there is none or, with a problem, if damaged."""
    if not path.exists():
        return None
    try:
        content = read_json(path)
    except UserError:
        content = None
    if isinstance(content, dict):
        return content
    problems.append(f"{path} is damaged and is left out.")
    return None


def read_sealed(path: str | Path) -> dict[str, Any]:
    """Return a sealed mapping; a file without a checksum is damaged."""
    try:
        return unseal(parse_json(read_text(path)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise _cannot_read(path, error) from error


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file, after comparing their sizes with a limit."""
    try:
        check_regular(path)
        _check_archive(Path(path))
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except Exception as error:  # numpy and zip raise many kinds for damaged and foreign files
        raise _cannot_read(path, error) from error


def _cannot_read(path: str | Path, error: Exception) -> UserError:
    """Return a sentence without the number and the repeated name that OSErrors have."""
    if isinstance(error, FileNotFoundError):
        return UserError(f"cannot read {path}: it does not exist")
    reason = getattr(error, "strerror", None) or error
    return UserError(f"cannot read {path} ({reason}): it is damaged or of another kind")


def _check_archive(path: Path) -> None:
    """Check by its headers that the arrays of an .npz file have the sizes that they claim."""
    headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    total, limit = 0, max(MAX_ARRAY_BYTES, MAX_INFLATION * path.stat().st_size)
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as stream:
                version = npy.read_magic(stream)
                if version not in headers:
                    raise ValueError(f"{entry.filename} has the unknown version {version}")
                shape, _, dtype = headers[version](stream)
                header = stream.tell()
            claimed = header + math.prod(shape) * dtype.itemsize
            # Deflate never compresses to less than a thousandth.
            possible = min(entry.file_size, 1032 * entry.compress_size + header)
            if min(shape, default=0) < 0 or not claimed == entry.file_size <= possible:
                raise ValueError(f"{entry.filename} claims {claimed:,} bytes, not {possible:,}")
            total += claimed
    if total > limit:
        raise ValueError(f"its arrays would take {total:,} bytes, above the limit of {limit:,}")


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: arrays as lists, tuples as lists, NaN as None.

    >>> plain({"loss": np.float32(0.5), "bound": np.array([1.0, np.nan]), 3: (1, "a")})
    {'loss': 0.5, 'bound': [1.0, None], '3': [1, 'a']}
    """
    if hasattr(value, "items"):  # mappings, and the configs of ml_collections, which are none
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # of NumPy, JAX and pandas
        return plain(np.asarray(value).tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def flatten(nested: Any, separator: str = ".") -> dict[str, Any]:
    """Return a nested mapping, or config, as one level, with the names on the way joined.

    >>> flatten({"optim": {"rate": 0.1, "clip": {}}, "seed": 0})
    {'optim.rate': 0.1, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if hasattr(value, "items"):  # mappings, and the configs of ml_collections, which are none
            inner = flatten(value, separator)
            flat |= {f"{name}{separator}{key}": entry for key, entry in inner.items()}
        else:
            flat[str(name)] = value
    return flat
