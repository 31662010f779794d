r"""Estimators of mutual information, trained where the truth is known, or where laws hold.

    python -m experiments.mutual_information --config configs/mi_staircase.py --workdir runs/stairs
    python -m experiments.mutual_information --config configs/mi_tasks.py --workdir runs/tasks
    python -m experiments.mutual_information --config configs/mi_consistency.py --workdir runs/laws

Any key of the config can be set, and the same command again resumes:

    python -m experiments.mutual_information --config configs/mi_staircase.py \
        --workdir runs/long --config.steps_per_level=4000
"""

from configs.information import KEYS
from cpc.types import UserError
from experiments.command import cli, cluster, run_dir
from experiments.command.config import Config, check_config
from experiments.mutual_information import consistency, methods, staircase, tasks

PROTOCOLS = {"staircase": staircase.run, "tasks": tasks.run, "consistency": consistency.run}


def run(config: Config, workdir: str | None, device: str = "auto") -> None:
    """Check, measure, report."""
    if config is None:
        raise UserError("no --config is given: name one, such as configs/mi_staircase.py")
    check(config)
    mesh = cluster.start(device)
    with run_dir.open_run(workdir, config, KEYS[config.protocol], mesh) as folder:
        if PROTOCOLS[config.protocol](config, folder, mesh):
            from experiments.mutual_information.page import (
                write_information_report,  # matplotlib takes seconds
            )

            print(f"table: {folder / 'table.json'}")
            print(f"report: {write_information_report(folder)}")


def check(config: Config) -> None:
    """Check all of a config that needs neither data nor devices."""
    if config.get("protocol") not in PROTOCOLS:
        raise UserError(
            f"protocol is {config.get('protocol')!r}: choose one of {', '.join(PROTOCOLS)}, as "
            "configs/mi_staircase.py and its neighbors do"
        )
    check_config(config, KEYS[config.protocol])
    for key in ("widths", "joint_widths"):
        if not config[key]:
            raise UserError(f"the config's {key} is {config[key]}: name a width or more")
    if "read_every" in config and config.num_steps % config.read_every:
        raise UserError(
            f"the config's read_every is {config.read_every}: it must divide num_steps, "
            f"{config.num_steps}"
        )
    methods.make_methods(config)
    if config.protocol == "staircase":
        staircase.check(config)


if __name__ == "__main__":
    CONFIG = cli.define_config()
    cli.run(lambda: run(CONFIG.value, cli.WORKDIR.value, cli.DEVICE.value))
