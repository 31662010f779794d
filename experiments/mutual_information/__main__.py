r"""Estimators of mutual information, trained where the truth is known, or where laws hold.

    python -m experiments.mutual_information --config configs/mi_staircase.py --workdir runs/stairs
    python -m experiments.mutual_information --config configs/mi_tasks.py --workdir runs/tasks
    python -m experiments.mutual_information --config configs/mi_consistency.py --workdir runs/laws

Any key of the config can be set, and the same command again resumes:

    python -m experiments.mutual_information --config configs/mi_staircase.py \
        --workdir runs/long --config.steps_per_level=4000
"""

from experiments.command import cli
from experiments.mutual_information.run import run

if __name__ == "__main__":
    CONFIG = cli.define_config()
    cli.run(lambda: run(CONFIG.value, cli.WORKDIR.value, cli.DEVICE.value))
