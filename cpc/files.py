"""Files that are written whole or not at all, and what JSON can hold of a value."""

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cpc.types import ArrayLike, UserError


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to; it becomes `path` in one step when the block ends well.

    Whoever reads `path` meanwhile, or after a crash, finds the old content or the new one, never a
    part. The folder is made. The bytes are on the disk before the name is (fsync), so that not
    even a power cut leaves an empty file. A block that raises leaves nothing behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: str | Path, text: str, errors: str = "strict") -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8", errors=errors)


def write_json(path: str | Path, value: Any) -> None:
    """Write what `plain` makes of a value as JSON, whole or not at all."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def write_arrays(path: str | Path, **arrays: ArrayLike) -> None:
    """Write named arrays as a compressed .npz, whole or not at all."""
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        UserError: there is no such file, or it is damaged.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # bad JSON and bad UTF-8 are both ValueErrors
        raise UserError(
            f"cannot read {path} ({error}): it is missing, damaged, or not what it should be"
        ) from error


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file.

    Raises:
        UserError: there is no such file, or it is damaged.
    """
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except Exception as error:  # numpy and zip raise many kinds for damaged and foreign files
        raise UserError(f"cannot read {path} ({error}): it is missing or damaged") from error


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
