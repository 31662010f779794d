"""A model in a folder to share: model.safetensors and config.json, and the way back."""

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from cpc.files import write_json
from cpc.models.cpc import make_model
from cpc.models.description import build, describe
from cpc.models.weights import check_entries, read_weights, write_weights
from cpc.types import ArrayLike, PyTree, UserError

WEIGHTS, CONFIG = "model.safetensors", "config.json"
#: Folder of a run that its export is written to.
EXPORTED = "exported"
FORMAT = "cpc 1"


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
    """Write model.safetensors and config.json; returns the folder.

    Raises:
      UserError: the package safetensors is not installed; the folder's config.json is of something
        else, such as a run.
    """
    folder = Path(folder).expanduser()
    path = folder / CONFIG
    if path.exists() and f'"format": "{FORMAT}"' not in path.read_text("utf-8", "replace"):
        raise UserError(f"{folder} has a {CONFIG} of something else: choose another folder")
    module, variables, given, about = pretrained
    flat: Any = flatten_dict(variables, sep="/")
    write_weights(folder / WEIGHTS, flat)
    config = {"format": FORMAT, "model": describe(module), "input": given, "about": about}
    write_json(path, config)
    return folder


def load(folder: str | Path) -> Callable[[ArrayLike], tuple[jax.Array, jax.Array]]:
    """Return embed(x) -> (z, c), compiled, from a folder that `save` wrote, or from a run.

    A run is exported when it has reached its last step, and by `python -m experiments.export`.
    x is (b, s) of audio and (b, i, j, y, x, ch) of the patches of images; the numbers are those
    of the run's own model, to the last bit.

    Raises:
      UserError: no exported model there, a run that has a newer checkpoint than its export, damaged
        files, or weights that do not fit the model.
    """
    return embed_with(load_pretrained(folder))


def embed_with(pretrained: Pretrained) -> Callable[[ArrayLike], tuple[jax.Array, jax.Array]]:
    """Return embed(x) -> (z, c), compiled, of a model in memory."""
    embed = make_model(pretrained.module).embed
    return functools.partial(jax.jit(embed), pretrained.variables)


def load_pretrained(folder: str | Path) -> Pretrained:
    """Return the module and variables in a folder that `save` wrote, or in a run's `exported`.

    Raises:
      UserError: as `load`.
    """
    run, folder = None, Path(folder).expanduser()
    if not (folder / WEIGHTS).exists() and (folder / EXPORTED / WEIGHTS).exists():
        run, folder = folder, folder / EXPORTED
    if not (folder / WEIGHTS).exists():
        raise UserError(
            f"{folder} has no {WEIGHTS}: give an exported folder, or export the run with "
            f"python -m experiments.export --workdir {folder}"
        )
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if config["format"] != FORMAT:
            raise UserError(f"{folder / CONFIG} is of the format {config['format']!r}: {FORMAT!r}")
        described, given, about = (config[key] for key in ("model", "input", "about"))
        shape = tuple(int(size) for size in given["shape"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder / CONFIG} cannot be read ({type(error).__name__}: {error}): export again"
        ) from error
    newest = _newest_step(run)
    if newest > about.get("step", newest):
        raise UserError(
            f"{folder} is of step {about['step']} and the run now at step {newest}: export it "
            f"again with python -m experiments.export --workdir {run}, or give {folder}"
        )
    module = build(described)
    flat = read_weights(folder / WEIGHTS)
    check_entries(flat, _entries(module, shape, flat), str(folder / WEIGHTS))
    variables = jax.tree.map(jnp.asarray, unflatten_dict(flat, sep="/"))
    return Pretrained(module, variables, given, about)


def _newest_step(run: Path | None) -> int:
    """Return the step of a run's newest checkpoint, by its folder's name; 0 if there is none."""
    names = [path.name for path in run.glob("checkpoints/*")] if run else []
    return max((int(name) for name in names if name.isdecimal()), default=0)


def _entries(
    module: nn.Module, shape: tuple[int, ...], found: Mapping[str, np.ndarray]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the entries that a module has, those of predictors only if the weights have some."""
    has_predictor = any(name.startswith("params/predictor") for name in found)
    init = functools.partial(module.init, method="__call__" if has_predictor else "embed")
    x = jax.ShapeDtypeStruct((1, *shape), np.float32)
    flat: Any = flatten_dict(jax.eval_shape(init, jax.random.key(0), x), sep="/")
    return flat
