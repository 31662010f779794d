"""A model in a folder to share: model.safetensors and config.json, and the way back."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cpc.models.cpc import Model, make_model
from cpc.models.description import build, describe
from cpc.models.weights import check_entries, flatten, nest, read_weights, write_weights
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
    """"kind" (audio or pictures) and "shape" of one x, such as a training window; of audio also
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
    write_weights(folder / WEIGHTS, flatten(variables))
    config = {"format": FORMAT, "model": describe(module), "input": given, "about": about}
    part = folder / f"{CONFIG}.part"
    part.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    part.replace(path)
    return folder


def load(folder: str | Path) -> Callable[[ArrayLike], tuple[jax.Array, jax.Array]]:
    """embed(x) -> (z, c), compiled, of a folder that `save` wrote, or of a run.

    A run is exported when it has reached its last step, and by `python -m experiments.export`.
    x is (b, s) of audio and (b, i, j, y, x, ch) of the patches of pictures; the numbers are those
    of the run's own model, to the last bit.

    Raises:
      UserError: no exported model there, a run that has a newer checkpoint than its export, damaged
        files, or weights that do not fit the model.
    """
    return embed_with(load_pretrained(folder))


def embed_with(pretrained: Pretrained) -> Callable[[ArrayLike], tuple[jax.Array, jax.Array]]:
    """embed(x) -> (z, c), compiled."""
    embed = make_model(pretrained.module).embed
    return functools.partial(jax.jit(embed), pretrained.variables)


def load_pretrained(folder: str | Path) -> Pretrained:
    """The module and the variables of a folder that `save` wrote, or of a run's `exported`.

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
    variables = jax.tree.map(jnp.asarray, nest(flat))
    return Pretrained(module, variables, given, about)


def _newest_step(run: Path | None) -> int:
    """The newest checkpoint of a run, by its folder's name; 0 if there is none."""
    names = [path.name for path in run.glob("checkpoints/*")] if run else []
    return max((int(name) for name in names if name.isdecimal()), default=0)


def module_of(model: Model) -> nn.Module:
    """The module that `make_model` was given."""
    # A Model hides flax from the experiments; what is shared has to name it all the same.
    return inspect.getclosurevars(inspect.unwrap(model.embed)).nonlocals["module"]


def _entries(
    module: nn.Module, shape: tuple[int, ...], found: Mapping[str, np.ndarray]
) -> dict[str, jax.ShapeDtypeStruct]:
    """The entries that a module has; without its predictors if the weights are without them."""
    has_predictor = any(name.startswith("params/predictor") for name in found)
    init = functools.partial(module.init, method="__call__" if has_predictor else "embed")
    x = jax.ShapeDtypeStruct((1, *shape), np.float32)
    return flatten(jax.eval_shape(init, jax.random.key(0), x))
