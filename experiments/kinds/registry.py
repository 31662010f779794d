"""The kinds of configs that there are, each a module."""

import pathlib
from typing import Any

from cpc.types import UserError
from experiments.command.config import Config, find_kind, load_config
from experiments.command.run_dir import read_config, writer_of
from experiments.information import consistency, staircase, tasks
from experiments.kinds.audio import kind as audio
from experiments.kinds.image import kind as image
from experiments.kinds.rl import run as rl
from experiments.kinds.series import kind as series
from experiments.kinds.text import kind as text
from experiments.kinds.words import run as words
from experiments.training.problem import Contrastive, Kind

#: Kinds of data that a contrastive model learns from. A new one is a folder, and a line here.
CONTRASTIVE: dict[str, Contrastive] = {
    "audio": audio,
    "image": image,
    "series": series,
    "text": text,
}
#: All kinds by the value of `config.kind`.
KINDS: dict[str, Kind] = {
    **CONTRASTIVE,
    "words": words,
    "rl": rl,
    "mi_staircase": staircase,
    "mi_tasks": tasks,
    "mi_consistency": consistency,
}


def kind_of(config: Any) -> Kind:
    """Return the kind of a config."""
    if config is None:
        raise UserError("--config is required, e.g. --config audio_voices")
    name = config.get("kind")
    if name not in KINDS:
        raise UserError(f"the config's kind is {name!r}: choose one of {', '.join(KINDS)}")
    return KINDS[name]


def read_contrastive(workdir: pathlib.Path) -> tuple[Contrastive, Config]:
    """Return the kind of data of a recorded run, and its config."""
    recorded = read_config(workdir)
    if recorded is None:
        raise UserError(
            f"{workdir / 'config.json'} does not exist: pass the directory of a run with --workdir"
        )
    kind = find_kind(recorded)
    found = CONTRASTIVE.get(kind)
    if found is None:
        but = f", but one of {kind}, which this command does not take" if kind else ""
        raise UserError(f"{workdir} holds no run of {', '.join(CONTRASTIVE)}{but}")
    return found, load_config(recorded, found.KEYS, writer_of(workdir))
