"""A run's model as a folder to share: weights, description, and a model card.

    cpc export --workdir runs/voices [--output exported/] [--s3prl]

`cpc.models.load(folder)` gives its embed function back. A run that reaches its last step is
exported by itself. --s3prl writes Python beside it that makes a model of sound an upstream of
s3prl.
"""

import pathlib

from absl import flags

from cpc import models
from cpc.files import write_text
from cpc.types import UserError
from experiments.command import cli
from experiments.kinds.registry import read_contrastive, take_model
from experiments.training.contrastive import CARD, share

EXPERT = pathlib.Path(__file__).with_name("expert_torch.py")
HUBCONF = '''"""The entry of torch.hub, and of s3prl where this folder lies in s3prl/upstream."""

dependencies = ["torch", "jax", "cpc"]

if __package__ in ("", "hubconf"):  # torch.hub calls this module "hubconf.py"
    from expert import UpstreamExpert as _UpstreamExpert
else:
    from .expert import UpstreamExpert as _UpstreamExpert


def cpc_jax(*args, **kwargs):
    """Return the upstream of the model in this folder, or of another one, given as ckpt."""
    return _UpstreamExpert(*args, **kwargs)
'''


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
            write_expert(folder, pretrained.input)
        share(kind, path, folder, pretrained)
    except OSError as error:
        raise UserError(
            f"cannot write to {folder} ({error.strerror or error}): choose another --output, or "
            "free space there"
        ) from error
    print(f"exported: {folder}, step {pretrained.about['step']:,}")


def write_expert(folder: pathlib.Path, given: dict) -> None:
    """Write the two files that make an exported model of sound an upstream of s3prl."""
    if "sample_rate_hz" not in given:
        kind = given["kind"]
        raise UserError(f"s3prl is of speech, and this is a model of {kind}: leave out --s3prl")
    write_text(folder / "expert.py", EXPERT.read_text())
    write_text(folder / "hubconf.py", HUBCONF)


if __name__ == "__main__":
    OUTPUT = flags.DEFINE_string(
        "output", None, "Folder to write; by default exported/ in the run's directory."
    )
    S3PRL = flags.DEFINE_bool("s3prl", False, "Also write expert.py and hubconf.py, for s3prl.")
    STEP = cli.define_step()
    cli.run(lambda: run(cli.WORKDIR.value, OUTPUT.value, STEP.value, S3PRL.value))
