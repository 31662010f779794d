"""Weights as flat dictionaries of named arrays, in files that hold data and nothing else."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from cpc.files import read_arrays, replacing
from cpc.types import ArrayLike, UserError

#: Endings of files of weights.
SUFFIXES = ".safetensors", ".npz"


def write_weights(path: Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Write named arrays as safetensors, whole or not at all, into a folder that is made."""
    # The format is the arrays' bytes in C order, whatever the order in memory.
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content = safetensors.numpy.save(contiguous)
    with replacing(path) as part:
        part.write_bytes(content)


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Return the named arrays of a safetensors or npz file.

    Raises:
      UserError: no such file, another ending, a damaged file, or one that takes too much memory.
    """
    check_path(path)
    if path.suffix == ".safetensors":
        try:
            return safetensors.numpy.load_file(path)
        except Exception as error:  # the library's own kind, and what numpy says to odd types
            raise UserError(
                f"{path} is damaged or no file of weights ({error}): fetch or make it again"
            ) from error
    arrays = read_arrays(path)  # compares sizes with a limit first
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise UserError(f"{name} in {path} has dtype {array.dtype}: save arrays of numbers")
    return arrays


def check_path(path: Path, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Raise a UserError unless there is a file with one of the endings."""
    known = ", ".join(suffixes)
    if path.suffix not in suffixes:
        raise UserError(f"{path} is not a file of weights: pass one that ends in {known}")
    if not path.is_file():
        raise UserError(f"there is no file {path}: pass a file of weights ({known})")


def check_entries(found: Mapping[str, Any], wanted: Mapping[str, Any], where: str) -> None:
    """Raise a UserError that lists every missing, unknown and misshapen entry, if there is any."""
    missing = [name for name in wanted if name not in found]
    unknown = [name for name in found if name not in wanted]
    shapes = [
        f"{name} is {tuple(found[name].shape)} and must be {tuple(wanted[name].shape)}"
        for name in wanted
        if name in found and tuple(found[name].shape) != tuple(wanted[name].shape)
    ]
    problems = [
        f"{what} {', '.join(names)}"
        for what, names in (("missing", missing), ("unknown", unknown), ("misshapen", shapes))
        if names
    ]
    if problems:
        raise UserError(f"the weights in {where} do not fit the model: {'; '.join(problems)}")
