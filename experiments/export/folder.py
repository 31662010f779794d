"""A run's model as a folder to share: weights, description, and a model card."""

import pathlib

from cpc import models
from cpc.types import UserError
from experiments.export.s3prl import write_expert
from experiments.kinds.registry import read_contrastive, take_model
from experiments.training.model_card import CARD, share


def run(workdir: str | None, output: str | None, step: str | None, for_s3prl: bool = False) -> None:
    """Write the folder and say where it is."""
    if not workdir:
        raise UserError("--workdir is required, e.g. --workdir runs/voices")
    path = pathlib.Path(workdir).expanduser()
    folder = pathlib.Path(output).expanduser() if output else path / models.EXPORTED
    if (folder / CARD).exists() and not (folder / "config.json").exists():
        raise UserError(f"{folder} has a {CARD} of something else: choose another --output")
    kind, _ = read_contrastive(path)
    pretrained = take_model(path, step)
    try:
        if for_s3prl:
            write_expert(folder, kind.NAME)
        share(kind, path, folder, pretrained)
    except OSError as error:
        raise UserError(
            f"cannot write to {folder} ({error.strerror or error}): choose another --output, or "
            "free space there"
        ) from error
    print(f"exported: {folder}, step {pretrained.about['step']:,}")
