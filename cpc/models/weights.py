"""Weights as flat dictionaries of named arrays, read from files as data: no code in them runs."""

import argparse
import re
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
    """Return the named arrays of a safetensors or npz file."""
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


#: Entries of checkpoints that hold a model's arrays.
STATE_DICTS = "weights", "gEncoder", "state_dict", "model_state_dict", "model"
#: Endings of checkpoints of torch.
TORCH_SUFFIXES = ".pt", ".pth"


def read_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the named arrays of a checkpoint as float32, and its "config", empty if it has none.

    The arrays are the content itself or its entry "weights" or "gEncoder", as CPC_audio calls
    those of its hub and of its training, or "state_dict".
    """
    content = _load(path)
    content = content if isinstance(content, dict) else {}
    for found in (*(content.get(name) for name in STATE_DICTS), content):
        named = found.items() if isinstance(found, dict) else ()
        arrays = {
            str(name): one.detach().float().numpy() for name, one in named if hasattr(one, "detach")
        }
        if arrays:
            config = content.get("config")
            return arrays, config if isinstance(config, dict) else {}
    raise UserError(
        f"{path} has no named arrays, by itself or under {', '.join(STATE_DICTS)}: pass a "
        "checkpoint with the state dict of a model"
    )


def _load(path: Path) -> Any:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            f"{path} is a file of torch, which is not installed: pip install 'cpc-jax[torch]'"
        ) from error
    try:
        # A training of CPC_audio may save its options beside the arrays.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has no common class for damaged and refused files
        code = re.search(r"GLOBAL ([\w.]+)", str(error))
        reason = f"it refers to {code[1]}" if code else type(error).__name__
        raise UserError(
            f"torch cannot read {path} as data ({reason}): fetch it again, or save the state dict "
            "of tensors alone"
        ) from error
