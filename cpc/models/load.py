"""Saving and loading models as folders that contain model.safetensors and config.json.

Weights are flat dictionaries of named arrays. No code in the files is executed.
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
from cpc.models import hub
from cpc.models.description import build, describe
from cpc.types import ArrayLike, PyTree, UserError

WEIGHTS, CONFIG = "model.safetensors", "config.json"
#: Subfolder of a run that contains its exported model.
EXPORTED = "exported"
FORMAT = "cpc 1"
#: Collections that hold values of the last training batch and are not part of the model.
BATCH_COLLECTIONS = ("penalties", "measures")
#: File name extensions of weights.
SUFFIXES = ".safetensors", ".npz"
#: Entries of checkpoints that may contain a model's arrays. CPC_audio uses the first two.
STATE_DICTS = "weights", "gEncoder", "state_dict", "model_state_dict", "model"
#: File name extensions of torch checkpoints.
TORCH_SUFFIXES = ".pt", ".pth"


class Pretrained(NamedTuple):
    """A module with its variables and a description of its input."""

    module: nn.Module
    variables: PyTree
    input: dict[str, Any]
    """The "kind" of the data and the "shape" of one x, such as a training window. Audio also has
    "sample_rate_hz" and "rms". Recordings are converted to these unless they are None."""
    about: dict[str, Any] = {}  # noqa: RUF012 (never written to)
    """Further information as JSON data, such as the step and the config of the run."""


def save(folder: str | Path, pretrained: Pretrained) -> Path:
    """Save a model as model.safetensors and config.json in a folder, and return its path."""
    folder = Path(folder).expanduser()
    path = folder / CONFIG
    if path.exists() and f'"format": "{FORMAT}"' not in path.read_text("utf-8", "replace"):
        raise UserError(f"{folder} has a {CONFIG} of another format: choose another folder")
    module, variables, given, about = pretrained
    write_weights(folder / WEIGHTS, _flatten(variables))
    config = {"format": FORMAT, "model": describe(module), "input": given, "about": about}
    write_sealed(path, {**config, "sha256": file_sha256(folder / WEIGHTS)}, is_durable=True)
    return folder


def load_pretrained(folder: str | Path) -> Pretrained:
    """Load a model from a folder that `save` wrote, an exported run, or a repository of the hub.

    A repository, such as "team/voices", is downloaded unless a folder "team" exists.

    Raises:
        UserError: if a file is damaged, or if the run has a newer checkpoint than its export.
    """
    run, name, folder = None, str(folder), Path(folder).expanduser()
    if not folder.parent.exists() and hub.REPOSITORY.fullmatch(name):
        try:
            folder = hub.download_model(name)
        except UserError as error:
            raise UserError(f"{name} is not a folder, and {error}") from error
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: pass a run or a folder with an exported model")
    if not (folder / WEIGHTS).exists() and (folder / EXPORTED / WEIGHTS).exists():
        run, folder = folder, folder / EXPORTED
    if not (folder / WEIGHTS).exists():
        raise UserError(
            f"{folder} has no {WEIGHTS}: pass an export, or run cpc export --workdir {folder}"
        )
    config = read_json(folder / CONFIG)
    described, given, about = _check_config(config, folder / CONFIG)
    names = [path.name for path in run.glob("checkpoints/*")] if run else []
    newest = max((int(name) for name in names if name.isdecimal()), default=0)
    if newest > about.get("step", newest):
        raise UserError(
            f"{folder} was exported at step {about['step']} but the run is at step {newest}: run "
            f"cpc export --workdir {run}, or pass {folder}"
        )
    if config.get("sha256") != file_sha256(folder / WEIGHTS):
        raise UserError(f"{folder / WEIGHTS} is damaged (wrong sha256): export the model again")
    flat = read_weights(folder / WEIGHTS)
    try:
        module = build(described)
        has_predictor = any(name.startswith("params/predictor") for name in flat)
        expected = expected_entries(module, given["shape"], has_predictor)
    except Exception as error:  # invalid fields raise many kinds of errors in flax and jax
        reason = str(error).strip().partition("\n")[0][:300] or type(error).__name__
        raise UserError(f"{folder / CONFIG} has an invalid model: {reason}") from error
    check_entries(flat, expected, str(folder / WEIGHTS))
    variables = jax.tree.map(jnp.asarray, unflatten_dict(flat, sep="/"))
    return Pretrained(module, variables, given, about)


def _check_config(config: Any, path: Path) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Check the input of an exported config, and return its entries model, input and about."""
    config = _as_dict(config)
    if config.get("format") != FORMAT:
        raise UserError(f"format of {path} must be {FORMAT!r} (got {config.get('format')!r})")
    given, about = _as_dict(config.get("input")), _as_dict(config.get("about"))
    shape, step = given.get("shape"), about.get("step", 0)
    sizes = shape if isinstance(shape, list) and shape else [None]
    scales = [given[n] for n in ("rms", "sample_rate_hz", "rate_hz") if given.get(n) is not None]
    fits = all(type(size) is int and 0 < size < 2**31 for size in sizes)
    fits &= all(type(one) in (int, float) and 0 < one < 1e9 for one in scales)
    if not fits or not isinstance(given.get("kind"), str) or type(step) is not int:
        raise UserError(f"{path} lacks a valid input kind, shape or scale: export the model again")
    return config.get("model"), given, about


def _as_dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def expected_entries(
    module: nn.Module, shape: Sequence[int], has_predictor: bool = True
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of a module's arrays by name, such as "params/encoder/conv0/kernel"."""
    init = functools.partial(module.init, method="__call__" if has_predictor else "embed")
    # No weight depends on the length of a window.
    x = jax.ShapeDtypeStruct((1, *(min(size, 2**14) for size in shape)), np.float32)
    variables: Any = jax.eval_shape(init, jax.random.key(0), x)
    return _flatten(variables)


def _flatten(variables: PyTree) -> Any:
    kept = {name: tree for name, tree in variables.items() if name not in BATCH_COLLECTIONS}
    return flatten_dict(kept, sep="/")


def write_weights(path: Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Write named arrays to a safetensors file atomically, and create its folder if necessary."""
    # The format stores arrays in C order, so they must be contiguous.
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content = safetensors.numpy.save(contiguous)
    with replacing(path) as part:
        part.write_bytes(content)


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Read the named arrays in a safetensors or npz file."""
    check_path(path)
    if path.suffix == ".safetensors":
        try:
            return safetensors.numpy.load_file(path)
        except Exception as error:  # an error of safetensors, or of NumPy for unknown dtypes
            raise UserError(f"{path} is damaged ({error}): download or export it again") from error
    arrays = read_arrays(path)  # checks sizes against a limit first
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise UserError(f"{name} in {path} has dtype {array.dtype}: save numeric arrays")
    return arrays


def check_path(path: Path, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Check that a weights file exists and has one of the extensions `suffixes`."""
    known = ", ".join(suffixes)
    if path.suffix not in suffixes:
        raise UserError(f"{path} is not a weights file: pass a file that ends in {known}")
    if not path.is_file():
        raise UserError(f"{path} does not exist: pass a weights file ({known})")


def check_entries(found: Mapping[str, Any], expected: Mapping[str, Any], source: str) -> None:
    """Check that weights fit a model; if not, list missing, unknown and misshapen entries."""

    def form(x):
        return x.shape, jnp.issubdtype(x.dtype, jnp.floating)

    missing = [name for name in expected if name not in found]
    unknown = [name for name in found if name not in expected]
    shapes = [
        f"{name} is {found[name].dtype}{found[name].shape}, not {wanted.dtype}{wanted.shape}"
        for name, wanted in expected.items()
        if name in found and form(found[name]) != form(wanted)
    ]
    found_all = {"missing": missing, "unknown": unknown, "misshapen": shapes}
    problems = [f"{problem} {', '.join(names)}" for problem, names in found_all.items() if names]
    if problems:
        raise UserError(f"the weights in {source} do not fit the model: {'; '.join(problems)}")


def read_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return a torch checkpoint's arrays as float32, and its "config" dictionary.

    The arrays are its content or one of its entries in `STATE_DICTS`. A missing "config" yields {}.
    """
    content = _as_dict(_load(path))
    for found in (*(content.get(name) for name in STATE_DICTS), content):
        named = {str(name): x for name, x in _as_dict(found).items() if hasattr(x, "detach")}
        if named:
            arrays = {name: x.detach().float().numpy() for name, x in named.items()}
            return arrays, _as_dict(content.get("config"))
    raise UserError(f"{path} has no arrays, nor under {', '.join(STATE_DICTS)}: pass weights")


def _load(path: Path) -> Any:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(f"{path} needs torch: pip install 'cpc-jax[torch]'") from error
    try:
        # CPC_audio's training may save its options next to the arrays.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for unreadable files
        code = re.search(r"GLOBAL ([\w.]+)", str(error))
        reason = f"it refers to {code[1]}" if code else type(error).__name__
        raise UserError(
            f"torch cannot read {path} as data ({reason}): save only a state dict of tensors"
        ) from error
