"""A run's model as a folder to share: weights, description, and a model card.

    cpc export --workdir runs/voices [--output exported/] [--s3prl]

`cpc.models.load(folder)` gives its embed function back. A run that reaches its last step is
exported by itself. --s3prl writes Python beside it that makes a model of sound an upstream of
s3prl.
"""

from absl import flags

from experiments.command import cli
from experiments.export.folder import run

if __name__ == "__main__":
    OUTPUT = flags.DEFINE_string(
        "output", None, "Folder to write; by default exported/ in the run's directory."
    )
    S3PRL = flags.DEFINE_bool("s3prl", False, "Also write expert.py and hubconf.py, for s3prl.")
    STEP = cli.define_step()
    cli.run(lambda: run(cli.WORKDIR.value, OUTPUT.value, STEP.value, S3PRL.value))
