"""A run's model as a folder to share: weights, description, and a model card.

    python -m experiments.export --workdir runs/voices [--output exported/]

`cpc.models.load(folder)` gives its embed function back. A run that reaches its last step is
exported by itself, where the package safetensors is installed.
"""

import pathlib

from absl import flags

from cpc import models
from cpc.types import UserError
from experiments import audio, image, launch, training
from experiments.share import CARD, describe, kind_of, share


def run(workdir: str | None, output: str | None, step: int | None) -> None:
    """Write the folder and say where it is."""
    if not workdir:
        raise UserError("no --workdir is given: name the directory of a run, such as runs/voices")
    path = pathlib.Path(workdir).expanduser()
    folder = pathlib.Path(output).expanduser() if output else path / models.EXPORTED
    if (folder / CARD).exists() and not (folder / "config.json").exists():
        raise UserError(f"{folder} has a {CARD} of something else: choose another --output")
    pretrained = read_run(path, step)
    try:
        share(path, folder, pretrained)
    except OSError as error:
        raise UserError(
            f"cannot write to {folder} ({error.strerror or error}): choose another --output, or "
            "free space there"
        ) from error
    print(f"exported: {folder}, step {pretrained.about['step']:,}")


def read_run(workdir: pathlib.Path, step: int | None = None) -> models.Pretrained:
    """The model of a run's checkpoint, the newest by default."""
    config = launch.read_config(workdir)
    kind = kind_of(config, workdir)
    if not any(workdir.glob("checkpoints/*")):
        raise UserError(
            f"{workdir} has no checkpoints: train it first with python -m "
            f"experiments.{'audio' if kind == 'audio' else 'image'} --workdir {workdir}"
        )
    variables, step = training.read_variables(workdir, step)
    if kind == "audio":
        model = audio.build_model(config.model)
    else:
        model = image.build_model(config, image.choose_offsets(config))
    return describe(config, workdir, model, variables, step)


if __name__ == "__main__":
    OUTPUT = flags.DEFINE_string(
        "output", None, "Folder to write; by default exported/ in the run's directory."
    )
    STEP = flags.DEFINE_integer("step", None, "Checkpoint to export; the newest by default.")
    launch.run(lambda: run(launch.WORKDIR.value, OUTPUT.value, STEP.value))
