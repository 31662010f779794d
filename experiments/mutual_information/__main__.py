r"""Estimators of mutual information, trained where the truth is known, or where laws hold.

    python -m experiments.mutual_information --config configs/mi_staircase.py --workdir runs/stairs
    python -m experiments.mutual_information --config configs/mi_tasks.py --workdir runs/tasks
    python -m experiments.mutual_information --config configs/mi_consistency.py --workdir runs/laws

Any key of the config can be set, and the same command again resumes:

    python -m experiments.mutual_information --config configs/mi_staircase.py \
        --workdir runs/long --config.steps_per_level=4000
"""

import configs.mi_consistency
import configs.mi_staircase
import configs.mi_tasks
from cpc.types import UserError
from experiments import launch
from experiments.launch import Config
from experiments.mutual_information import consistency, staircase, tasks

#: What runs, and the config that has all its keys.
PROTOCOLS = {
    "staircase": (staircase.run, configs.mi_staircase.get_config),
    "tasks": (tasks.run, configs.mi_tasks.get_config),
    "consistency": (consistency.run, configs.mi_consistency.get_config),
}
#: Numbers that must be above 0, in whichever config they are.
POSITIVE = (
    "steps_per_level", "num_steps", "batch_size", "dim", "learning_rate", "log_every", "read_every",
    "embedding", "smile_clip", "num_samples", "num_seeds", "num_neighbours", "num_pictures",
)  # fmt: skip


def run(config: Config, workdir: str | None, device: str = "auto") -> None:
    """Check, measure, report."""
    if config is None:
        raise UserError("no --config is given: name one, such as configs/mi_staircase.py")
    if config.get("protocol") not in PROTOCOLS:
        raise UserError(
            f"protocol is {config.get('protocol')!r}: choose one of {', '.join(PROTOCOLS)}, as "
            "configs/mi_staircase.py and its neighbours do"
        )
    main, reference = PROTOCOLS[config.protocol]
    launch.check_config(config, reference())
    check_numbers(config)
    mesh = launch.start(device)
    folder = launch.open_run(workdir, config, mesh)
    if main(config, folder, mesh):
        from cpc.report.information_page import write_information_report  # matplotlib takes seconds

        print(f"table: {folder / 'table.json'}")
        print(f"report: {write_information_report(folder)}")


def check_numbers(config: Config) -> None:
    """Numbers that can be meant."""
    for key in POSITIVE:
        if key in config and not config[key] > 0:
            raise UserError(f"the config's {key} is {config[key]}: it must be above 0")
    if config.batch_size < 2:
        raise UserError("the config's batch_size is 1: a pair needs others to be told from")
    if not 0 <= config.interpolation_weight <= 1:
        raise UserError(
            f"the config's interpolation_weight is {config.interpolation_weight}: it is 0 to 1"
        )
    for key in ("widths", "joint_widths"):
        if not config[key] or min(config[key]) < 1:
            raise UserError(f"the config's {key} is {config[key]}: name a width or more, above 0")
    if "read_every" in config and config.num_steps % config.read_every:
        raise UserError(
            f"the config's read_every is {config.read_every}: it must divide num_steps, "
            f"{config.num_steps}"
        )


if __name__ == "__main__":
    CONFIG = launch.define_config()
    launch.run(lambda: run(CONFIG.value, launch.WORKDIR.value, launch.DEVICE.value))
