"""The kinds of data that there are: `MODALITIES[config.kind]` is all that a command asks."""

import pathlib

from cpc.types import UserError
from experiments.audio.modality import AUDIO
from experiments.command.config import Config, find_kind, load_config
from experiments.command.run_dir import read_config, writer_of
from experiments.image.modality import IMAGE
from experiments.problem import Modality
from experiments.series.modality import SERIES
from experiments.text.modality import TEXT

#: A new kind is a folder beside these, and a line here.
MODALITIES: dict[str, Modality] = {
    "audio": AUDIO,
    "image": IMAGE,
    "series": SERIES,
    "text": TEXT,
}


def read_modality(workdir: pathlib.Path) -> tuple[Modality, Config]:
    """Return the modality of a recorded run, and its config.

    Raises:
        UserError: the directory holds no run of a known kind.
    """
    recorded = read_config(workdir)
    if recorded is None:
        raise UserError(
            f"{workdir / 'config.json'} does not exist: pass the directory of a run with --workdir"
        )
    kind = find_kind(recorded)
    modality = MODALITIES.get(kind)
    if modality is None:
        but = f", but one of {kind}, which this command does not take" if kind else ""
        raise UserError(f"{workdir} holds no run of {', '.join(MODALITIES)}{but}")
    return modality, load_config(recorded, modality.keys, writer_of(workdir))
