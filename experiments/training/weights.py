"""Reading the weights of trained models, and starting a run from given weights."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from configs.defaults import PARTS
from cpc import models
from cpc.files import flatten, plain, read_object, write_sealed
from cpc.models import description
from cpc.models.load import SUFFIXES, TORCH_SUFFIXES, expected_entries
from cpc.results import digest
from cpc.types import PyTree, UserError
from experiments.command.config import Config, find_kind, load_config, with_settings
from experiments.command.run_dir import START, differences, read_config, writer_of
from experiments.training import step as training
from experiments.training.problem import Contrastive, find_part

#: Properties of a model and its input that weights must share with a run.
SHARED = ("kind", "sample_rate_hz", "rate_hz", "stride")


class Start(NamedTuple):
    """Weights that a run starts from, and their record."""

    arrays: dict[str, np.ndarray]
    """Arrays that fit the run's model, by name."""
    record: dict[str, Any]
    """JSON data: the source, its step and digest, the arrays taken, the arrays that do not fit, and
    the fields in which the models differ."""
    words: str | None = None
    """Words of the source's vocabulary, separated by spaces, if it has one."""


def describe(
    kind: Contrastive,
    workdir: pathlib.Path,
    config: Config,
    model: models.Model,
    variables: Any,
    step: int,
) -> models.Pretrained:
    """Return a run's model with its input and config, in which paths are reduced to names."""
    values, keys = flatten(config), flatten(kind.KEYS).items()
    names = {name: pathlib.Path(values[name]).name for name, key in keys if key.is_path}
    about = {"step": step, "config": plain(with_settings(config, names))}
    return models.Pretrained(model.module, variables, kind.describe_input(config, workdir), about)


def take_model(
    kind: Contrastive, config: Config, workdir: pathlib.Path, step: str | None
) -> models.Pretrained:
    """Return a run's model at a given step, at the best step or, by default, at the newest step."""
    if not any(workdir.glob("checkpoints/*")):
        raise UserError(f"{workdir} has no checkpoints: train it with cpc train --workdir ...")
    variables, number = training.read_variables(workdir, step)
    return describe(kind, workdir, config, kind.build_model(config), variables, number)


def read_start(kind: Contrastive, config: Config, workdir: str | None) -> Start | None:
    """Read the weights in `start_from`; return None if it is empty or if there is a checkpoint."""
    if not config.start_from:
        return None
    saved = pathlib.Path(workdir).expanduser().glob("checkpoints/*") if workdir else ()
    if any(path.name.isdecimal() for path in saved):
        return None
    source = config.start_from

    def read_run(path: pathlib.Path) -> tuple[Contrastive, Config]:
        recorded = read_config(path)
        check_shared(source, {"kind": find_kind(recorded)}, {"kind": config.kind})
        return kind, load_config(recorded, kind.KEYS, writer_of(path))

    return fit_weights(kind, config, read_model(source, config.start_from_step or None, read_run))


def read_model(
    source: str, step: str | None, read_run: Callable[[pathlib.Path], tuple[Contrastive, Config]]
) -> models.Pretrained:
    """Load a run, an exported folder, a repository of the hub, or a checkpoint of CPC_audio.

    `read_run` returns the kind and the config of a run.
    """
    path = pathlib.Path(source).expanduser()
    if any(path.glob("checkpoints/*")):
        pretrained = take_model(*read_run(path), path, step)
        return pretrained._replace(variables=jax.tree.map(jnp.asarray, pretrained.variables))
    if step is not None:
        raise UserError(f"{source} is a model with a single step (got step {step}): omit the step")
    is_checkpoint = path.is_file() or path.suffix in (*SUFFIXES, *TORCH_SUFFIXES)
    return models.load_cpc_audio(path) if is_checkpoint else models.load_pretrained(source)


def check_shared(source: str, theirs: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise UserError if weights have another kind, sample rate or stride than the run."""
    for name in SHARED:
        if None not in (theirs.get(name), own.get(name)) and theirs[name] != own[name]:
            problem = f"{name} {theirs[name]}, and this run has {own[name]}"
            raise UserError(f"start_from {source} has {problem}: choose other weights or config")


def fit_weights(kind: Contrastive, config: Config, pretrained: models.Pretrained) -> Start:
    """Return the arrays of a model that have the name and shape of an array of a run's model.

    Raises UserError if none fits, or one of a part in `start_from_parts` or `freeze` does not.
    """
    module, given = kind.build_model(config).module, kind.describe_input(config)
    own_input, their_input = (
        {**one, "stride": getattr(getattr(network, "encoder", None), "stride", None)}
        for one, network in ((given, module), (pretrained.input, pretrained.module))
    )
    check_shared(config.start_from, their_input, own_input)
    found: Any = flatten_dict(pretrained.variables, sep="/")
    parts, needed = config.start_from_parts or PARTS, {*config.start_from_parts, *config.freeze}
    arrays, initialized = {}, []
    for name, entry in expected_entries(module, given["shape"]).items():
        part = find_part(name.split("/")[1])
        if part not in parts:
            continue
        if name in found and found[name].shape == entry.shape:
            arrays[name] = np.asarray(found[name], entry.dtype)
            continue
        shape = f"has shape {found[name].shape}" if name in found else "is missing"
        initialized.append(f"{name} {shape}, not {entry.shape}")
        if part in needed:
            raise UserError(
                f"start_from {config.start_from} does not fit the {part} ({initialized[-1]}): "
                f"remove {part} from start_from_parts and freeze, or change the model"
            )
    if not arrays:
        first = initialized[0] if initialized else "it has no arrays"
        problem = f"start_from {config.start_from} fits no part of the model ({first})"
        raise UserError(f"{problem}: choose other weights or another model")
    record = {
        "source": config.start_from,
        "step": pretrained.about.get("step"),
        "digest": digest(*(part for name in sorted(arrays) for part in (name, arrays[name]))),
        "taken": sorted(arrays),
        "initialized": initialized,
        "differing": differing_fields(pretrained.module, module),
    }
    return Start(arrays, record, pretrained.input.get("words"))


def differing_fields(theirs: Any, own: Any) -> list[str]:
    """Describe the fields in which two models differ, other than their precision and memory use.

    >>> differing_fields(models.GRU(8), models.GRU(8, dtype="bfloat16", num_layers=2))
    ['num_layers was 1 and is 2']
    """
    before, now = flatten(description.describe(theirs)), flatten(description.describe(own))
    found = differences(before, now)
    return [text for key, text in found if key.rpartition(".")[2] not in ("dtype", "remat")]


def merge(variables: PyTree, start: Start, own_words: str | None) -> PyTree:
    """Replace a model's initial variables by the weights to start from.

    Rows of embeddings are matched by word. Words that the source lacks keep their initial rows.
    """
    own: Any = flatten_dict(variables, sep="/")
    flat = {**own, **start.arrays}
    if start.words is not None and own_words is not None:
        known = {word: row for row, word in enumerate(start.words.split(" "))}
        rows = [(i, known[w]) for i, w in enumerate(own_words.split(" ")) if w in known]
        mine, theirs = np.array(rows).T
        for name in start.arrays:
            if name.endswith("/embedding"):
                flat[name] = own[name].at[mine].set(start.arrays[name][theirs])
    return unflatten_dict(flat, sep="/")


def record_start(folder: pathlib.Path, start: Start) -> None:
    """Record the weights that a run starts from, and print a summary.

    Raises UserError if an earlier start of the run recorded other weights.
    """
    record, before = start.record, read_object(folder / START, [])
    if before and before["digest"] != record["digest"]:
        problem = f"the weights in {record['source']} changed since {folder} started"
        raise UserError(f"{problem}: restore them or use a new --workdir")
    step = "" if record["step"] is None else f", step {record['step']:,}"
    print(f"start: {record['source']}{step}, {len(record['taken'])} arrays taken")
    for line in record["initialized"]:
        print(f"  initialized: {line}")
    for line in record["differing"]:
        print(f"  different: {line}")
    write_sealed(folder / START, record, is_durable=True)


def start_sentences(folder: pathlib.Path) -> list[str]:
    """Describe the weights that a run started from; return [] if they were random."""
    record = read_object(folder / START, [])
    if not record:
        return []
    step = "" if record["step"] is None else f" at step {record['step']:,}"
    source = pathlib.Path(record["source"])
    name = source.name if source.is_absolute() else record["source"]
    parts = sorted({find_part(one.split("/")[1]) for one in record["taken"]})
    return [
        f"The run started from {name}{step} (digest {record['digest']}): "
        f"{len(record['taken'])} arrays of {', '.join(parts)} were taken, and "
        f"{len(record['initialized'])} that do not fit were initialized at random."
    ]
