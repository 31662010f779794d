"""Atomic file writes, locks, and JSON files with checksums."""

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

from cpc.types import ArrayLike, UserError

try:
    import fcntl
except ModuleNotFoundError as error:  # all modules that read or write project files import this
    raise ImportError(
        "this part of cpc needs Linux or macOS for file locks: on Windows, use WSL, or import only "
        "cpc.losses, cpc.negatives and cpc.estimators"
    ) from error


#: Age after which a temporary file counts as left over by a killed process.
WRITING_SECONDS = 3600.0
#: Names of the lock files of runs and sweeps. Lock files are created first and never removed.
RUN_LOCK, SWEEP_LOCK = "run.lock", "sweep.lock"
#: Limits on the array sizes in an .npz file, in bytes and as a multiple of the file size. The
#: larger limit applies.
MAX_ARRAY_BYTES, MAX_INFLATION = 2**30, 20
CHUNK_BYTES = 2**24
#: Value of "split" in the metrics record that describes the run itself.
RUN_SPLIT = "run"
#: Key of a mapping's checksum.
SEAL = "crc32"


@contextlib.contextmanager
def replacing(path: str | Path, is_durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path that atomically replaces `path` when the block succeeds.

    Readers see either the old or the new content. If the block raises, the temporary file is
    removed. Missing parent directories are created. If `is_durable` is true, the file is synced to
    disk, so that a power failure cannot leave it empty.
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
    except OSError as error:  # name the target, not the temporary file of a failed rename
        if error.filename in (None, str(part), part):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def part_folder(path: Path) -> Iterator[Path]:
    """Yield a new temporary folder next to `path`.

    Unless the block moves the folder, it is removed when the block ends. Temporary folders that
    killed processes have left behind are removed first.
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
    """Move a finished folder to `path`, replacing an existing folder."""
    old = part.with_name(f"{part.name}-replaced")
    while True:
        if path.is_dir():
            with contextlib.suppress(FileNotFoundError):
                path.rename(old)
            shutil.rmtree(old, ignore_errors=True)
        try:
            part.rename(path)
        except OSError:
            if not path.is_dir():  # otherwise another process was faster: try again
                raise
        else:
            return sync_folder(path.parent)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `path` when the block succeeds."""
    with part_folder(path) as part:
        yield part
        replace_folder(part, path)


def advise(error: BaseException) -> str:
    """Return a clause for an error message that suggests how to fix a failed write.

    >>> advise(OSError(errno.EMFILE, "Too many open files"))
    'raise the limit on open files (ulimit -n)'
    """
    if "Too many open files" in str(error):  # libraries wrap the OSError but keep its text
        return "raise the limit on open files (ulimit -n)"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file is in the way: choose another path"
    return "free some space or check the permissions"


def remove_parts(folder: Path) -> None:
    """Remove temporary files of killed processes in a folder and its direct subfolders."""
    for part in (*folder.glob("*.part"), *folder.glob("*/*.part")):
        with contextlib.suppress(OSError):  # another process was faster
            is_ours = re.search(r"\.\d+\.part$", part.name)  # unlike downloads
            if is_ours and time.time() - part.stat().st_mtime > WRITING_SECONDS:
                part.unlink()


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, which makes renames in the folder durable."""
    with contextlib.suppress(OSError):  # not supported by some cluster file systems
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def try_lock(file: IO[Any] | int) -> bool | None:
    """Try to lock an open file without waiting, and return whether the lock was acquired.

    If the file system does not support locks, the result is None.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold an exclusive lock on a file or folder, waiting for other processes if necessary.

    `on_wait` is called before waiting. If the file cannot be opened, as in a read-only cache, or
    the file system does not support locks, the block runs without a lock.
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
    """Write a UTF-8 text file atomically."""
    with replacing(path, is_durable=False) as part:
        part.write_text(text, encoding="utf-8", errors=errors)


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as JSON atomically, after converting it with `plain`."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def write_sealed(path: str | Path, value: Any, is_durable: bool = False) -> None:
    """Write a mapping as JSON with a checksum. `read_json` and `read_sealed` verify it."""
    with replacing(path, is_durable) as part:
        part.write_text(json.dumps(seal(value), indent=2, allow_nan=False) + "\n", "utf-8")


def seal(value: Any) -> dict[str, Any]:
    """Convert a mapping with `plain` and add its checksum.

    >>> seal({"step": 3})
    {'step': 3, 'crc32': '08b1f3bf'}
    """
    content = {name: one for name, one in plain(value).items() if name != SEAL}
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return {**content, SEAL: f"{zlib.crc32(text.encode()):08x}"}


def unseal(content: Mapping[str, Any]) -> dict[str, Any]:
    """Verify a sealed mapping's checksum, and return the mapping without it.

    Raises ValueError if the checksum is wrong or missing.
    """
    if SEAL not in content:
        raise ValueError("its checksum is missing")
    if seal(content) != content:
        raise ValueError("its checksum is wrong")
    return {name: value for name, value in content.items() if name != SEAL}


def write_arrays(path: str | Path, **arrays: ArrayLike) -> None:
    """Write named arrays to a compressed .npz file atomically."""
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]


def file_sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_crc32(path: Path) -> int:
    """Return the CRC-32 checksum of a file."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return value


def check_regular(path: str | Path) -> None:
    """Raise OSError if a path is not a regular file, because reading a fifo may never end."""
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_text(path: str | Path, errors: str = "strict") -> str:
    """Read a UTF-8 text file. Raises OSError if the path is not a regular file."""
    check_regular(path)
    return Path(path).read_text(encoding="utf-8", errors=errors)


def parse_json(text: str) -> Any:
    """Parse a JSON text. Infinite numbers become NaN.

    Raises ValueError for invalid JSON or Unicode and for integers that do not fit in 64 bits.
    """
    content = json.loads(
        text, parse_int=_parse_int, parse_float=_parse_float, parse_constant=_parse_float
    )
    if re.search(r"\\u[dD][89a-fA-F]", text):  # a lone surrogate cannot be encoded
        json.dumps(content, ensure_ascii=False).encode()
    return content


def _parse_int(digits: str) -> int:
    number = int(digits)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{digits[:20]}... does not fit in 64 bits")
    return number


def _parse_float(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else math.nan


def read_lines(path: Path) -> list[tuple[str, dict[str, Any] | None]]:
    """Return the lines of a JSON Lines file, each with its parsed record.

    A damaged line has the record None. If any line has a checksum, a line without one counts as
    damaged. An incomplete last line is dropped.
    """
    lines = read_text(path, errors="replace").split("\n")
    is_sealed = any(f'"{SEAL}"' in line for line in lines)
    found = [(line, _parse_record(line, is_sealed)) for line in lines]
    return found[:-1] if found[-1][1] is None else found


def _parse_record(line: str, is_sealed: bool) -> dict[str, Any] | None:
    try:
        record = unseal(parse_json(line)) if is_sealed else parse_json(line)
        step = int(record["step"])
        return {**record, "step": step} if 0 <= step < 2**63 else None
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


def read_json(path: str | Path) -> Any:
    """Read a JSON file. If the content has a checksum, verify and remove it."""
    return _read(path, lambda content: unseal(content) if _was_sealed(content) else content)


def _was_sealed(content: Any) -> bool:
    if not (isinstance(content, dict) and content):
        return False
    *others, last = content  # a checksum with a damaged key is still the last value
    return SEAL in content or seal({k: content[k] for k in others})[SEAL] == content[last]


def read_object(path: Path, problems: list[str]) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if the file is missing or damaged.

    For a damaged file, a sentence that names it is appended to `problems`.
    """
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
    """Read a sealed JSON file and return its mapping without the checksum.

    Raises UserError if the file is damaged or has no checksum.
    """
    return _read(path, unseal)


def _read(path: str | Path, verify: Callable[[Any], Any]) -> Any:
    try:
        return verify(parse_json(read_text(path)))
    except (OSError, ValueError, TypeError, RecursionError) as error:  # ValueError: also bad UTF-8
        raise _cannot_read(path, error) from error


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file. Raises UserError if the file is damaged or too large."""
    try:
        check_regular(path)
        _check_archive(Path(path))
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        if others := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"{others[0]} is not an array")
        return arrays
    except Exception as error:  # numpy and zipfile raise many types for damaged files
        raise _cannot_read(path, error) from error


def _cannot_read(path: str | Path, error: Exception) -> UserError:
    # `strerror` leaves out the error number and the repeated path.
    if isinstance(error, FileNotFoundError):
        return UserError(f"cannot read {path}: it does not exist")
    reason = getattr(error, "strerror", None) or error
    return UserError(f"cannot read {path} ({reason}): it is damaged or has another format")


def _check_archive(path: Path) -> None:
    """Check sizes and checksums before arrays are made, as a small file could fill the memory."""
    limit = max(MAX_ARRAY_BYTES, MAX_INFLATION * path.stat().st_size)
    with zipfile.ZipFile(path) as archive:
        total = sum(entry.file_size for entry in archive.infolist())
        if total > limit:
            raise ValueError(f"its arrays would take {total:,} bytes, above the limit of {limit:,}")
        if name := archive.testzip():
            raise ValueError(f"the checksum of {name} is wrong")


def plain(value: Any) -> Any:
    """Convert a value to types that JSON supports.

    Arrays and tuples become lists, and non-finite numbers become None.

    >>> plain({"loss": np.float32(0.5), "bound": np.array([1.0, np.nan]), 3: (1, "a")})
    {'loss': 0.5, 'bound': [1.0, None], '3': [1, 'a']}
    """
    if hasattr(value, "items"):  # also ConfigDict, which is not a Mapping
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # NumPy, JAX and pandas
        return plain(np.asarray(value).tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def flatten(nested: Any, separator: str = ".") -> dict[str, Any]:
    """Flatten a nested mapping or config by joining the keys along each path.

    >>> flatten({"optim": {"rate": 0.1, "clip": {}}, "seed": 0})
    {'optim.rate': 0.1, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if hasattr(value, "items"):  # also ConfigDict, which is not a Mapping
            inner = flatten(value, separator)
            flat |= {f"{name}{separator}{key}": entry for key, entry in inner.items()}
        else:
            flat[str(name)] = value
    return flat
