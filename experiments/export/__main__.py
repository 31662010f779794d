"""Export the model of a run to a folder with weights, a description and a model card.

    cpc export --workdir runs/voices [--output exported/] [--s3prl]

`cpc.models.load(folder)` returns the embed function of the model. A finished run has already
exported its model. --s3prl also writes two Python files that make an audio model an s3prl upstream.
"""

import pathlib

from absl import flags

from cpc import models
from cpc.files import write_text
from cpc.types import UserError
from experiments.command import cli
from experiments.kinds.registry import read_contrastive
from experiments.training.contrastive import CARD, share
from experiments.training.weights import take_model

EXPERT = pathlib.Path(__file__).with_name("expert_torch.py")
HUBCONF = '''"""Entry point for torch.hub, or for s3prl if this folder is in s3prl/upstream."""

dependencies = ["torch", "jax", "cpc"]

if __package__ in ("", "hubconf"):  # torch.hub calls this module "hubconf.py"
    from expert import UpstreamExpert as _UpstreamExpert
else:
    from .expert import UpstreamExpert as _UpstreamExpert


def cpc_jax(*args, **kwargs):
    """Return an upstream for the model in this folder or, if given, in the folder `ckpt`."""
    return _UpstreamExpert(*args, **kwargs)
'''


def run(workdir: str | None, output: str | None, step: str | None, for_s3prl: bool = False) -> None:
    """Export a run's model, and print the folder and the training step."""
    if not workdir:
        raise UserError("--workdir is required, e.g. --workdir runs/voices")
    path = pathlib.Path(workdir).expanduser()
    folder = pathlib.Path(output).expanduser() if output else path / models.EXPORTED
    if (folder / CARD).exists() and not (folder / "config.json").exists():
        raise UserError(f"{folder} contains an unrelated {CARD}: choose another --output")
    kind, config = read_contrastive(path)
    pretrained = take_model(kind, config, path, step)
    try:
        if for_s3prl:
            write_expert(folder, pretrained.input)
        share(kind, path, folder, pretrained)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write to {folder} ({reason}): choose another --output") from error
    print(f"exported: {folder}, step {pretrained.about['step']:,}")


def write_expert(folder: pathlib.Path, model_input: dict) -> None:
    """Write the two files that make an exported audio model an s3prl upstream."""
    if "sample_rate_hz" not in model_input:
        kind = model_input["kind"]
        raise UserError(f"--s3prl requires an audio model (got {kind}): remove --s3prl")
    write_text(folder / "expert.py", EXPERT.read_text())
    write_text(folder / "hubconf.py", HUBCONF)


if __name__ == "__main__":
    OUTPUT = flags.DEFINE_string(
        "output", None, "Folder to write to. Default: exported/ in the run directory."
    )
    S3PRL = flags.DEFINE_bool("s3prl", False, "Also write expert.py and hubconf.py for s3prl.")
    STEP = cli.define_step()
    cli.run(lambda: run(cli.WORKDIR.value, OUTPUT.value, STEP.value, S3PRL.value))
