"""The model of a run or of an exported folder, and the kind of data that it is of."""

import pathlib

import jax
import jax.numpy as jnp

from configs.keys import make_config
from cpc import models
from cpc.types import UserError
from experiments.command.config import find_kind
from experiments.kinds.registry import CONTRASTIVE, read_contrastive
from experiments.training import step as training
from experiments.training.model_card import describe
from experiments.training.problem import Contrastive


def read_model(folder: pathlib.Path, step: str | None) -> models.Pretrained:
    """Return the model of a run's checkpoint, or of an exported folder, the run's own too."""
    exported = folder / models.EXPORTED
    if not any(folder.glob("checkpoints/*")) and (exported / models.WEIGHTS).exists():
        folder = exported
    if (folder / models.WEIGHTS).exists():
        if step is not None:
            raise UserError(f"{folder} was exported and has one step alone: leave out --step")
        return models.load_pretrained(folder)
    pretrained = take_model(folder, step)
    return pretrained._replace(variables=jax.tree.map(jnp.asarray, pretrained.variables))


def check_input(pretrained: models.Pretrained, workdir: str) -> Contrastive:
    """Return the kind of data of a model; its description may be of another version, or hostile."""
    given = pretrained.input
    kind = CONTRASTIVE.get(find_kind(given))
    if kind is None:
        raise UserError(f"the model in {workdir} is not of {', '.join(CONTRASTIVE)}: export again")
    lacks = sorted(kind.describe_input(make_config(kind.KEYS)).keys() - given)
    if lacks:
        raise UserError(f"the model in {workdir} does not say {', '.join(lacks)}: export again")
    return kind


def take_model(workdir: pathlib.Path, step: str | None) -> models.Pretrained:
    """Return the model of a run's checkpoint: of a step, the best, or by default the newest."""
    kind, config = read_contrastive(workdir)
    if not any(workdir.glob("checkpoints/*")):
        raise UserError(
            f"{workdir} has no checkpoints: train it first with cpc train --workdir {workdir}"
        )
    variables, number = training.read_variables(workdir, step)
    return describe(kind, workdir, config, kind.build_model(config), variables, number)
