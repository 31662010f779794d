"""A run's model as a folder to share: weights, description, and a model card.

    python -m experiments.export --workdir runs/voices [--output exported/]

`cpc.models.load(folder)` gives its embed function back. A run that reaches its last step is
exported by itself, where the package safetensors is installed.
"""

from absl import flags

from experiments.command import cli
from experiments.export.folder import run

if __name__ == "__main__":
    OUTPUT = flags.DEFINE_string(
        "output", None, "Folder to write; by default exported/ in the run's directory."
    )
    STEP = cli.define_step()
    cli.run(lambda: run(cli.WORKDIR.value, OUTPUT.value, STEP.value))
