"""Files below a folder, and features of those that can be read."""

import contextlib
import pathlib
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from cpc.data.walk import DOCUMENTS, find_data, list_endings, printable
from cpc.types import UserError


def list_files(
    root: pathlib.Path,
    suffixes: Collection[str],
    skipped: list[tuple[str, str]],
    others: Collection[str] = DOCUMENTS,
) -> dict[str, pathlib.Path]:
    """Return the files below `root`, by path without ending, or with it if two would be equal.

    Folders and files that are left out are added to `skipped`, as `find_data` lists them.
    """
    if not root.is_dir():
        raise UserError(f"there is no folder {root}: give a folder with --input")
    found = find_data(root, suffixes, others)
    skipped += [*found.unreadable, *found.left_out]
    below = [path.relative_to(root) for path in found.files]
    if not below:
        endings = list_endings(suffixes)
        raise UserError(f"nothing to embed in {root}: looked for {endings} files at any depth")
    stems = [path.with_suffix("").as_posix() for path in below]
    count = Counter(stems)
    names = [
        stem if count[stem] == 1 else path.as_posix()
        for stem, path in zip(stems, below, strict=True)
    ]
    if len(set(names)) < len(names):  # x.wav, x.flac and x.wav.wav
        names = [path.as_posix() for path in below]
    return dict(zip(names, (root / path for path in below), strict=True))


@contextlib.contextmanager
def skip(name: str, skipped: list[tuple[str, str]]) -> Iterator[None]:
    """Add what cannot be read to a list, and why; the next file is next."""
    try:
        yield
    except (UserError, OSError) as error:
        skipped.append((printable(name), printable(str(error))))


def embed_batch(module: Any, is_context: bool, variables: Any, x: Any) -> Any:
    """Return z or c of a batch."""
    if is_context:
        return module.apply(variables, x, method="embed")[1]
    return module.apply(variables, x, method="encode")


def fill(rows: list[np.ndarray]) -> np.ndarray:
    """A batch of a power of two of rows, so that there are few shapes; the last one repeated.

    >>> fill([np.array([1]), np.array([2]), np.array([3])])[:, 0].tolist()
    [1, 2, 3, 3]
    """
    return np.stack([*rows, *[rows[-1]] * (2 ** (len(rows) - 1).bit_length() - len(rows))])
