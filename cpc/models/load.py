"""A model in a folder to share, model.safetensors and config.json, and the way back.

Weights are flat dictionaries of named arrays, read from files as data: no code in them runs.
"""

import argparse
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax.traverse_util import flatten_dict, unflatten_dict

from cpc.files import file_sha256, read_arrays, read_json, replacing, write_sealed
from cpc.models.description import build, describe
from cpc.types import ArrayLike, PyTree, UserError

WEIGHTS, CONFIG = "model.safetensors", "config.json"
#: Folder of a run that its export is written to.
EXPORTED = "exported"
FORMAT = "cpc 1"
#: Collections that tell of the last batch that was trained on: no part of the model.
OF_A_BATCH = ("penalties", "measures")
#: Endings of files of weights.
SUFFIXES = ".safetensors", ".npz"
#: Entries of checkpoints that hold a model's arrays.
STATE_DICTS = "weights", "gEncoder", "state_dict", "model_state_dict", "model"
#: Endings of checkpoints of torch.
TORCH_SUFFIXES = ".pt", ".pth"


class Pretrained(NamedTuple):
    """A module, its variables, and what its input is."""

    module: nn.Module
    variables: PyTree
    input: dict[str, Any]
    """"kind" of the data and "shape" of one x, such as a training window; of audio also
    "sample_rate_hz" and "rms", to which each recording is brought (None: it is taken as it is)."""
    about: dict[str, Any] = {}  # noqa: RUF012 (never written to)
    """What else is known, as json takes it: the step, the config of the run."""


def save(folder: str | Path, pretrained: Pretrained) -> Path:
    """Write model.safetensors and config.json; returns the folder."""
    folder = Path(folder).expanduser()
    path = folder / CONFIG
    if path.exists() and f'"format": "{FORMAT}"' not in path.read_text("utf-8", "replace"):
        raise UserError(f"{folder} has a {CONFIG} of something else: choose another folder")
    module, variables, given, about = pretrained
    flat: Any = flatten_dict(_without_batch(variables), sep="/")
    write_weights(folder / WEIGHTS, flat)
    write_sealed(
        path,
        {
            "format": FORMAT,
            "model": describe(module),
            "input": given,
            "about": about,
            "sha256": file_sha256(folder / WEIGHTS),
        },
        is_durable=True,
    )
    return folder


def load_pretrained(folder: str | Path) -> Pretrained:
    """Return the module and variables in a folder that `save` wrote, or in a run's `exported`.

    Damaged files, and a run that has a newer checkpoint than its export, raise UserError.
    """
    run, folder = None, Path(folder).expanduser()
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: pass a run, or a folder with an exported model")
    if not (folder / WEIGHTS).exists() and (folder / EXPORTED / WEIGHTS).exists():
        run, folder = folder, folder / EXPORTED
    if not (folder / WEIGHTS).exists():
        raise UserError(
            f"{folder} has no {WEIGHTS}: give an exported folder, or export the run with "
            f"cpc export --workdir {folder}"
        )
    config = read_json(folder / CONFIG)
    described, given, about = _check_config(config, folder / CONFIG)
    names = [path.name for path in run.glob("checkpoints/*")] if run else []
    newest = max((int(name) for name in names if name.isdecimal()), default=0)
    if newest > about.get("step", newest):
        raise UserError(
            f"{folder} is of step {about['step']} and the run now at step {newest}: export it "
            f"again with cpc export --workdir {run}, or give {folder}"
        )
    if config.get("sha256") != file_sha256(folder / WEIGHTS):
        raise UserError(
            f"{folder / WEIGHTS} is damaged: its sha256 is not that in {CONFIG}: export again"
        )
    flat = read_weights(folder / WEIGHTS)
    try:
        module = build(described)
        wanted = _entries(module, given["shape"], flat)
    except Exception as error:  # fields that do not fit raise many kinds in flax and jax
        reason = str(error).strip().partition("\n")[0][:300] or type(error).__name__
        raise UserError(f"{folder / CONFIG} describes no model that works: {reason}") from error
    check_entries(flat, wanted, str(folder / WEIGHTS))
    for name, array in flat.items():
        if jnp.issubdtype(array.dtype, jnp.floating) != jnp.issubdtype(
            wanted[name].dtype, jnp.floating
        ):
            raise UserError(f"{name} in {folder / WEIGHTS} is of {array.dtype}: export again")
    variables = jax.tree.map(jnp.asarray, unflatten_dict(flat, sep="/"))
    return Pretrained(module, variables, given, about)


def _check_config(config: Any, path: Path) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the model's description, the input's, and what else is known."""
    config = config if isinstance(config, dict) else {}
    if config.get("format") != FORMAT:
        raise UserError(f"{path} is of the format {config.get('format')!r}, not {FORMAT!r}")
    given, about = (
        value if isinstance(value := config.get(name), dict) else {} for name in ("input", "about")
    )
    shape, step = given.get("shape"), about.get("step", 0)
    sizes = shape if isinstance(shape, list) and shape else [None]
    scales = [given[n] for n in ("rms", "sample_rate_hz", "rate_hz") if given.get(n) is not None]
    fits = all(type(size) is int and 0 < size < 2**31 for size in sizes)
    fits &= all(type(one) in (int, float) and 0 < one < 1e9 for one in scales)
    if not fits or not isinstance(given.get("kind"), str) or type(step) is not int:
        raise UserError(
            f"{path} lacks the kind, shape or scale of the model's input: export it again"
        )
    return config.get("model"), given, about


def _entries(
    module: nn.Module, shape: Sequence[int], found: Mapping[str, np.ndarray]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the entries that a module has, those of predictors only if the weights have some."""
    has_predictor = any(name.startswith("params/predictor") for name in found)
    init = functools.partial(module.init, method="__call__" if has_predictor else "embed")
    # No weight depends on how long a window is.
    x = jax.ShapeDtypeStruct((1, *(min(size, 2**14) for size in shape)), np.float32)
    made: Any = jax.eval_shape(init, jax.random.key(0), x)
    flat: Any = flatten_dict(_without_batch(made), sep="/")
    return flat


def _without_batch(variables: PyTree) -> PyTree:
    return {name: tree for name, tree in variables.items() if name not in OF_A_BATCH}


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
