"""Registry of experiment kinds, with functions that read a run's kind and model."""

import pathlib
from typing import Any

from configs.keys import make_config
from cpc import models
from cpc.types import UserError
from experiments.command.config import Config, find_kind, load_config
from experiments.command.run_dir import read_config, writer_of
from experiments.information import consistency, staircase, tasks
from experiments.information import run as information
from experiments.kinds.audio import kind as audio
from experiments.kinds.image import kind as image
from experiments.kinds.rl import run as rl
from experiments.kinds.series import kind as series
from experiments.kinds.text import kind as text
from experiments.kinds.words import run as words
from experiments.training import contrastive, weights
from experiments.training.problem import Contrastive, Kind, Pipeline

#: Contrastive kinds of data. To add one, add a folder and a line here.
CONTRASTIVE: dict[str, Contrastive] = {
    "audio": audio,
    "image": image,
    "series": series,
    "text": text,
}
#: All kinds, keyed by `config.kind`.
KINDS: dict[str, Kind] = {
    **CONTRASTIVE,
    "words": words,
    "rl": rl,
    "mi_staircase": staircase,
    "mi_tasks": tasks,
    "mi_consistency": consistency,
}
#: Training pipelines for kinds that are not contrastive.
PIPELINES: dict[str, Pipeline] = {
    "words": words,
    "rl": rl,
    **dict.fromkeys(("mi_staircase", "mi_tasks", "mi_consistency"), information),
}


def kind_of(config: Any) -> Kind:
    """Return the kind of experiment that a config selects."""
    if config is None:
        raise UserError("--config is required, e.g. --config audio_voices")
    name = config.get("kind")
    if name not in KINDS:
        raise UserError(f"kind must be one of {', '.join(KINDS)} (got {name!r})")
    return KINDS[name]


def pipeline_of(config: Config) -> Pipeline:
    """Return the training pipeline for a config."""
    return PIPELINES.get(config.kind, contrastive)


def read_contrastive(workdir: pathlib.Path) -> tuple[Contrastive, Config]:
    """Read the kind and the config that a contrastive run recorded in `workdir`."""
    recorded = read_config(workdir)
    if recorded is None:
        raise UserError(f"{workdir / 'config.json'} does not exist: set --workdir to a run")
    name = find_kind(recorded)
    if name not in CONTRASTIVE:
        kinds = ", ".join(CONTRASTIVE)
        raise UserError(f"{workdir} is not a run of kind {kinds} (got {name!r}): pass another run")
    kind = CONTRASTIVE[name]
    return kind, load_config(recorded, kind.KEYS, writer_of(workdir))


def read_model(source: str, step: str | None) -> models.Pretrained:
    """Load a run's model, an exported folder, a repository, or a checkpoint of CPC_audio."""
    return weights.read_model(source, step, read_contrastive)


def check_input(pretrained: models.Pretrained, workdir: str) -> Contrastive:
    """Return the kind of experiment that a model belongs to.

    Raises a UserError if the saved description of its input is incomplete. The model may come from
    an older version or from an untrusted source.
    """
    trained = find_kind(pretrained.about.get("config"))  # may take the input of another kind
    kind = CONTRASTIVE.get(trained if trained in CONTRASTIVE else find_kind(pretrained.input))
    missing = f"a kind among {', '.join(CONTRASTIVE)}"
    if kind is not None:
        expected = kind.describe_input(make_config(kind.KEYS)).keys()
        missing = ", ".join(sorted(expected - pretrained.input))
    if kind is None or missing:
        raise UserError(f"the model in {workdir} lacks {missing}: export the model again")
    return kind
