r"""Estimators of mutual information, trained where the truth is known, or where laws hold.

    cpc mutual_information --config mi_staircase --workdir runs/stairs
    cpc mutual_information --config mi_tasks --workdir runs/tasks
    cpc mutual_information --config mi_consistency --workdir runs/laws

Any key of the config can be set, and the same command again resumes:

    cpc mutual_information --config mi_staircase \
        --workdir runs/long --config.steps_per_level=4000
"""

from experiments.command import cli
from experiments.mutual_information.run import run

if __name__ == "__main__":
    CONFIG = cli.define_config()
    cli.run(lambda: run(CONFIG.value, cli.WORKDIR.value, cli.DEVICE.value))
