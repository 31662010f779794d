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
from experiments.command import cli, names, run_dir
from experiments.command.config import Config
from experiments.sweep import jobs as running
from experiments.sweep.cells import Cell, check_rank_by, keep_best, last_scores, make_cells, shorten
from experiments.sweep.jobs import Job, lock_folder, make_job, make_local

GRID = flags.DEFINE_multi_string(
    "grid", [], "Axis of the product, as config.key=value,value, or a .py file. May be repeated."
)
CELL = flags.DEFINE_multi_string(
    "cell", [], "Cell, as 'name: key=value ...' or 'key=value ...'; '' is the unchanged config."
)
SEEDS = flags.DEFINE_integer("seeds", None, "Number of seeds per cell, starting from the config's.")
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
    cells = make_cells(config, GRID.value, CELL.value, SEEDS.value)
    rank_by = check_rank_by(config, RANK_BY.value) if ROUNDS.value > 1 else ("", "")
    if RANK_BY.value and ROUNDS.value == 1:
        raise UserError("--rank-by applies only to rounds: also set --rounds, e.g. --rounds 3")
    first = of_round(config, cells, ROUNDS.value - 1)
    for cell in first:
        running.check_cell(config, cell)
    file = config_flags.get_config_filename(flags.FLAGS["config"])
    default = f"runs/{pathlib.Path(file).stem}-sweep"
    folder = pathlib.Path(cli.WORKDIR.value or default).expanduser()
    jobs = make_jobs(first, folder)
    if DRY_RUN.value:
        print("\n".join(shlex.join(job.command) for job in jobs))
        return
    if LAUNCHER.value == "slurm":
        running.import_submitit()  # fail before anything is written
    print(f"workdir: {folder}")
    merge = functools.partial(merge_plans, config, first, folder)
    with (
        lock_folder(folder, "sweep", merge) as lock,
        running.count_signals() as num_signals,
    ):
        # Cells inherit the lock, so that none is started twice after a kill of this command.
        local = make_local(JOBS.value, num_signals, [lock.fileno()])

        def begin(jobs):
            if LAUNCHER.value == "slurm":
                return running.make_slurm(jobs, folder, SLURM.value, num_signals), len(jobs)
            return local, JOBS.value

        has_page = "probe" in config  # runs of other kinds lack common curves
        for left in reversed(range(ROUNDS.value)):
            compare_all = functools.partial(compare_cells, folder, jobs)
            now = jobs[-len(cells) :]  # failures of earlier rounds are not retried
            running.run_jobs(now, begin, num_signals, compare_all if has_page else lambda: None)
            if num_signals() or not left:
                break
            scores = [last_scores(job.folder, *rank_by) for job in now]
            cells, lines = keep_best(cells, scores, *rank_by)
            print("\n".join(lines))
            jobs = [*jobs, *make_jobs(of_round(config, cells, left - 1), folder)]
        stopped = num_signals() > 0
    running.end(folder, stopped)


def of_round(config: Config, cells: Sequence[Cell], rounds_left: int) -> Sequence[Cell]:
    """Return the cells with a round's num_steps, or unchanged if the sweep has a single round."""
    return cells if ROUNDS.value == 1 else shorten(config, cells, rounds_left)


def make_jobs(cells: Sequence[Cell], folder: pathlib.Path) -> list[Job]:
    """Return the job of each cell."""
    flag = flags.FLAGS["config"]
    file, shared = config_flags.get_config_filename(flag), config_flags.get_override_values(flag)
    whole = [Cell(name, {**shared, **settings}) for name, settings in cells]
    return [make_job(file, cell, folder, cli.DEVICE.value) for cell in whole]


def merge_plans(
    config: Config, cells: Sequence[Cell], folder: pathlib.Path, recorded: Any
) -> dict[str, Any]:
    """Return the plan of a sweep, after checking that a recorded plan is the same."""
    wanted = {
        "config": plain(config),
        "rounds": [ROUNDS.value, RANK_BY.value],
        "command": names.command_line(),
        "cells": {cell.name: plain(cell.settings) for cell in cells},
    }
    if recorded is not None:
        check_same_sweep(recorded, wanted, folder)
    return wanted


def check_same_sweep(recorded: Any, wanted: dict[str, Any], folder: pathlib.Path) -> None:
    """Raise UserError with the differences if a folder contains another sweep."""
    if "reproduction" in recorded:
        raise UserError(f"{folder} contains a reproduction: choose another --workdir for the sweep")

    def settings(plan):
        cells = plan.get("cells") or {}
        texts = {f"the cell {name}": str(cells[name]) for name in cells}
        return {**flatten(plan.get("config", {})), **texts, "rounds": str(plan.get("rounds"))}

    if found := run_dir.differences(settings(recorded), settings(wanted)):
        raise UserError(
            f"{folder} contains another sweep ({'; '.join(words for _, words in found)}): choose "
            "another --workdir, or repeat the command of that sweep"
        )


def compare_cells(folder: pathlib.Path, jobs: Sequence[Job]) -> None:
    """Write the comparison page of all cells that have started."""
    if not any((job.folder / "config.json").exists() for job in jobs):
        return
    from experiments.compare.page import write_comparison  # slow: it imports matplotlib

    try:
        write_comparison([(job.name, job.folder) for job in jobs], folder)
    except (UserError, OSError) as error:
        print(f"the comparison is not written: {error}")


if __name__ == "__main__":
    CONFIG = cli.define_config()
    cli.run(lambda: main(CONFIG))
