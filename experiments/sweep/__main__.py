r"""Train many runs of one config over grids, single cells and seeds, and compare them.

    cpc sweep --config audio_voices --workdir runs/sweep \
        --grid config.negatives.rule=batch,own_sequence \
        --grid config.negatives.temperature=0.05,0.1 --seeds 3

The cells are the product of all --grid flags and, in addition, each --cell, all with every seed. To
vary one factor at a time:

    cpc sweep --config image_fashion_mnist --workdir runs/factors \
        --cell "" --cell "near: model.num_offsets=1" \
        --cell "model.norm=layer optim.learning_rate=1e-3"

--config.key=value sets a key of all cells. --grid cells.py reads a Python file with
GRID = {"probe.tasks": [("phones",), ("phones", "speakers")]}, or
CELLS = {"near": {"model.num_offsets": 1}}, or both. Use a file for values with commas or spaces.

To find the best of many cells, --rounds 3 trains all cells for a ninth of num_steps, the best third
for a third, and the best ninth for all steps, ranked by a probe on the test set of the config.
Report results on another test set (for audio, set data.train_list and data.test_list).

Each cell is a run directory below --workdir, and --dry-run prints the command that trains it alone.
The same command again skips finished cells, resumes others, and retries failed ones. Ctrl-C saves
and stops all cells. `cpc status WORKDIR` shows their state. comparison.html, .md and .json are
updated after each cell. The exit status is 1 if a cell failed, otherwise 0.
"""

import functools
import pathlib
import shlex
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from cpc.files import flatten, plain
from cpc.types import UserError
from experiments import status
from experiments.command import cli, names, run_dir
from experiments.sweep import jobs as running
from experiments.sweep.cells import Cell, check_rank_by, keep_best, make_cells, shorten
from experiments.sweep.jobs import Job

GRID = flags.DEFINE_multi_string(
    "grid", [], "Axis of the product, as config.key=value,value, or a .py file. May be repeated."
)
CELL = flags.DEFINE_multi_string(
    "cell", [], "Cell, as 'name: key=value ...' or 'key=value ...'; '' is the unchanged config."
)
SEEDS = flags.DEFINE_integer(
    "seeds", None, "Number of seeds per cell, starting from the config's.", 1
)
JOBS = flags.DEFINE_integer("jobs", 1, "Number of parallel cells, which share cores and GPUs.", 1)
DRY_RUN = flags.DEFINE_bool("dry-run", False, "Print the command of every cell and exit.")
LAUNCHER = flags.DEFINE_enum(
    "launcher", "local", ["local", "slurm"], "This machine, or an array of jobs through submitit."
)
SLURM = flags.DEFINE_string(
    "slurm",
    "timeout_min=240 gpus_per_node=1",
    "Options of submitit: nodes, slurm_partition, tasks_per_node (one per GPU or per node), ...",
)
ROUNDS = flags.DEFINE_integer(
    "rounds", 1, "Number of rounds, each with the best third of cells and three times the steps.", 1
)
RANK_BY = flags.DEFINE_string(
    "rank-by", None, "task/features whose score ranks cells. Default: the first task on c or z."
)


def main(config_flag: flags.FlagHolder) -> None:
    """Plan the cells, run the unfinished ones, and compare all."""
    config = config_flag.value
    if config is None:
        raise UserError("--config is required, e.g. --config audio_voices")
    cells, num_rounds = make_cells(config, GRID.value, CELL.value, SEEDS.value), ROUNDS.value
    if RANK_BY.value and num_rounds == 1:
        raise UserError("--rank-by applies only to rounds: also set --rounds, e.g. --rounds 3")
    rank_by = check_rank_by(config, RANK_BY.value) if num_rounds > 1 else ("", "")
    first = shorten(config, cells, num_rounds - 1) if num_rounds > 1 else cells
    for cell in first:
        running.check_cell(config, cell)
    file = config_flags.get_config_filename(flags.FLAGS["config"])
    default = f"runs/{pathlib.Path(file).stem}-sweep"
    folder = pathlib.Path(cli.WORKDIR.value or default).expanduser()
    jobs = make_jobs(first, folder)
    if DRY_RUN.value:
        print("\n".join(shlex.join(job.command) for job in jobs))
        return
    print(f"workdir: {folder}")
    plan = {
        "config": plain(config),
        "rounds": str([num_rounds, RANK_BY.value]),
        "cells": {cell.name: str(plain(cell.settings)) for cell in first},
    }
    merge = functools.partial(merge_plans, plan, folder)
    with (
        running.lock_folder(folder, "sweep", merge) as lock,
        running.count_signals() as num_signals,
    ):
        # Cells inherit the lock, so that none is started twice after a kill of this command.
        local = running.make_local(JOBS.value, num_signals, [lock.fileno()])

        def begin(jobs):
            if LAUNCHER.value == "local":
                return local, JOBS.value
            return running.make_slurm(jobs, folder, SLURM.value, num_signals), len(jobs)

        for left in reversed(range(num_rounds)):
            now = jobs[-len(cells) :]  # failures of earlier rounds are not retried
            running.run_jobs(
                now, begin, num_signals, functools.partial(compare_cells, folder, jobs)
            )
            if num_signals() or not left:
                break
            cells, lines = keep_best(cells, [job.folder for job in now], *rank_by)
            print("\n".join(lines))
            jobs = [*jobs, *make_jobs(shorten(config, cells, left - 1), folder)]
        stopped = num_signals() > 0
    running.end(folder, stopped)


def make_jobs(cells: Sequence[Cell], folder: pathlib.Path) -> list[Job]:
    """Return the job of each cell, with the settings of the command line."""
    flag = flags.FLAGS["config"]
    file, shared = config_flags.get_config_filename(flag), config_flags.get_override_values(flag)
    whole = [Cell(name, {**shared, **settings}) for name, settings in cells]
    return [running.make_job(file, cell, folder, cli.DEVICE.value) for cell in whole]


def merge_plans(plan: dict[str, Any], folder: pathlib.Path, recorded: Any) -> dict[str, Any]:
    """Return the plan of a sweep to record. Raises UserError if a folder contains another plan."""
    known = plan if recorded is None else {key: recorded.get(key, {}) for key in plan}
    if "reproduction" in (recorded or {}):
        raise UserError(f"{folder} contains a reproduction: choose another --workdir for the sweep")
    if found := run_dir.differences(flatten(known), flatten(plan)):
        raise UserError(
            f"{folder} contains another sweep ({'; '.join(words for _, words in found)}): choose "
            "another --workdir, or repeat the command of that sweep"
        )
    return {**plan, "command": names.command_line()}


def compare_cells(folder: pathlib.Path, jobs: Sequence[Job]) -> None:
    """Write the comparison page of all cells that have started."""
    started = [job for job in jobs if "probe" in status.read(job.folder / "config.json")]
    if not started:  # runs of other kinds lack common curves
        return
    from experiments.compare.page import write_comparison  # slow: it imports matplotlib

    try:
        write_comparison([(job.name, job.folder) for job in jobs], folder)
    except (UserError, OSError) as error:
        print(f"the comparison is not written: {error}")


if __name__ == "__main__":
    CONFIG = cli.define_config()
    cli.run(lambda: main(CONFIG))
