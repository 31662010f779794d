r"""Many runs of one config: grids, single cells, seeds; a table and a page of them together.

    cpc sweep --config audio_voices --workdir runs/sweep \
        --grid config.negatives.rule=batch,own_sequence \
        --grid config.negatives.temperature=0.05,0.1 --seeds 3

The cells are the product of all --grid, and beside it each --cell; all with every seed. One factor
at a time:

    cpc sweep --config image_fashion_mnist --workdir runs/factors \
        --cell "" --cell "near: --config.model.num_offsets=1" \
        --cell "--config.model.norm=layer --config.optim.learning_rate=1e-3"

--config.key=value sets what all cells share; in a cell or grid key=value will do. A value with
commas stands in brackets: --grid "probe.tasks=('phones',),('phones','speakers')".

To find the best of many cells, --rounds 3 trains all for a ninth of num_steps, the best third for a
third, and the best ninth for all, ranked by a probe on the config's test set: keep the one that you
report out of it (data.train_list and data.test_list of audio).

Each cell is a run directory below --workdir, which the command that --dry-run prints makes alone.
The same command again skips what is done, resumes what is not, and tries again what failed. Ctrl-C
stops all cells, each of which saves. While it runs: cpc status WORKDIR. After
each cell: comparison.html, .md and .json. Exit status: 0, or 1 if a cell failed.
"""

import contextlib
import functools
import json
import pathlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from absl import flags
from ml_collections import config_flags

from configs.keys import Keys
from cpc.files import plain, write_sealed
from cpc.types import UserError
from experiments import compare
from experiments.command import cli, run_dir
from experiments.command.config import Config, load_config
from experiments.kinds.registry import CONTRASTIVE, kind_of
from experiments.sweep import halving
from experiments.sweep.cells import Cell, differences, make_cells
from experiments.sweep.jobs import (
    check_cell,
    end,
    lock_folder,
    make_job,
    read_plan,
    run_jobs,
)
from experiments.sweep.launchers import (
    Job,
    count_signals,
    fill_template,
    import_submitit,
    make_local,
    make_slurm,
)

GRID = flags.DEFINE_multi_string(
    "grid", [], "config.key=value,value: one axis of the product; may be repeated."
)
CELL = flags.DEFINE_multi_string(
    "cell",
    [],
    "'name: --config.key=value ...': one cell, with or without a name; '' is the config "
    "as it is; may be repeated.",
)
SEEDS = flags.DEFINE_integer("seeds", None, "So many seeds of each cell, from the config's on.")
JOBS = flags.DEFINE_integer("jobs", 1, "Cells at a time, sharing this machine's cores and GPUs.")
PROCESSES = flags.DEFINE_integer("processes", 1, "Local: processes that make each cell together.")
DRY_RUN = flags.DEFINE_boolean("dry-run", False, "Print every command and end.")
LAUNCHER = flags.DEFINE_enum(
    "launcher", "local", ["local", "slurm"], "slurm: an array of jobs, through submitit."
)
SLURM = flags.DEFINE_string(
    "slurm",
    "timeout_min=240 gpus_per_node=1",
    "Options of submitit: nodes, slurm_partition, tasks_per_node (one a GPU, or one a node), ...",
)
TEMPLATE = flags.DEFINE_enum(
    "template", None, ["gke", "skypilot"], "Print a file that runs the cells there, and end."
)
ROUNDS = flags.DEFINE_integer(
    "rounds", 1, "Successive halving: each round has the best third of the cells, thrice as long."
)
RANK_BY = flags.DEFINE_string(
    "rank-by",
    None,
    "task/features whose score ranks a round's cells. Default: the first task on c or z.",
)
PAPER = flags.DEFINE_string(
    "paper", None, "json file, name of a cell -> text, for one more column."
)


def main(config_flag: flags.FlagHolder) -> None:
    """Plan, run what is not done, compare."""
    config = config_flag.value
    if config is None:
        raise UserError("--config is required, e.g. --config audio_voices")
    if JOBS.value < 1:
        raise UserError(f"--jobs is {JOBS.value}: it is a number of cells at a time, 1 or more")
    if PROCESSES.value < 1:
        raise UserError(f"--processes is {PROCESSES.value}: it is a number for a cell, 1 or more")
    cells = make_cells(config, GRID.value, CELL.value, SEEDS.value)
    rank_by = check_rounds(config)
    first = of_round(config, cells, ROUNDS.value - 1)
    for cell in first:
        check_cell(config, cell)
    file = config_flags.get_config_filename(flags.FLAGS["config"])
    folder = pathlib.Path(cli.WORKDIR.value or default_workdir(file)).expanduser()
    jobs = make_jobs(config, first, folder)
    if TEMPLATE.value:
        print(fill_template(TEMPLATE.value, jobs), end="")
        return
    if DRY_RUN.value:
        print("\n".join(shlex.join(job.command) for job in jobs))
        return
    if LAUNCHER.value == "slurm":
        import_submitit()  # a machine without it gets its sentence before anything is written
    paper = read_paper(make_cells(config, GRID.value, CELL.value, None))
    print(f"workdir: {folder}")
    with open_sweep(folder, config, first) as lock, count_signals() as num_signals:
        begin = begin_local(lock, num_signals)
        if LAUNCHER.value == "slurm":
            begin = begin_slurm(folder, num_signals)
        has_page = config.kind in CONTRASTIVE  # others' runs have no curves in common
        for left in reversed(range(ROUNDS.value)):
            compare_all = functools.partial(compare_cells, folder, jobs, paper)
            now = jobs[-len(cells) :]  # what failed in a round before is not tried again in this
            run_jobs(now, begin, num_signals, compare_all if has_page else lambda: None)
            if num_signals() or not left:
                break
            cells, lines = halving.keep_best(cells, now, *rank_by)
            print("\n".join(lines))
            jobs = [*jobs, *make_jobs(config, of_round(config, cells, left - 1), folder)]
        stopped = num_signals() > 0
    end(folder, stopped)


def check_rounds(config: Config) -> tuple[str, str]:
    """Return the task and features that rank cells; nothing where all cells are trained."""
    if ROUNDS.value < 1:
        raise UserError(f"--rounds is {ROUNDS.value}: it is a number of rounds, 1 or more")
    if ROUNDS.value == 1:
        if RANK_BY.value:
            raise UserError("--rank-by ranks the cells of a round: set --rounds, too")
        return "", ""
    if TEMPLATE.value or PAPER.value:
        raise UserError("--template and --paper know all cells beforehand: leave --rounds out")
    return halving.check_rank_by(config, RANK_BY.value)


def of_round(config: Config, cells: Sequence[Cell], rounds_left: int) -> Sequence[Cell]:
    """Return the cells as they are in a round; in a sweep without rounds, as they are."""
    return cells if ROUNDS.value == 1 else halving.shorten(config, cells, rounds_left)


def default_workdir(config_file: str) -> str:
    """Return where a sweep is made if no --workdir says it.

    >>> default_workdir("configs/audio_voices.py")
    'runs/audio_voices-sweep'
    """
    return f"runs/{pathlib.Path(config_file).stem}-sweep"


def read_paper(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the paper's column, by names of cells without their seeds."""
    paper, names = compare.read_paper(PAPER.value), [cell.name for cell in cells]
    for name in paper:
        if name not in names:
            raise UserError(f"--paper names {name}, which is no cell; cells are {', '.join(names)}")
    return paper


def make_jobs(config: Config, cells: Sequence[Cell], folder: pathlib.Path) -> list[Job]:
    """Return the command of each cell."""
    flag = flags.FLAGS["config"]
    shared = config_flags.get_override_values(flag)
    file = config_flags.get_config_filename(flag)
    return [
        make_job(
            file,
            cell._replace(settings={**shared, **cell.settings}),
            folder,
            cli.DEVICE.value,
        )
        for cell in cells
    ]


@contextlib.contextmanager
def open_sweep(folder: pathlib.Path, config: Config, cells: Sequence[Cell]) -> Iterator[TextIO]:
    """Record what is swept, or find that the folder holds the same."""
    wanted = {
        "config": json.loads(config.to_json()),
        "grid": GRID.value,
        "cell": CELL.value,
        "seeds": SEEDS.value,
        "rounds": [ROUNDS.value, RANK_BY.value],
        "command": cli.command_line(),
        "cells": json.loads(json.dumps({cell.name: cell.settings for cell in cells})),
    }
    path = folder / "sweep.json"
    with lock_folder(folder, "sweep") as lock:
        if (recorded := read_plan(path)) is not None:
            check_same_sweep(recorded, wanted, folder, kind_of(config).KEYS)
        write_sealed(path, wanted)
        yield lock


def check_same_sweep(
    recorded: Any, wanted: dict[str, Any], folder: pathlib.Path, keys: Keys
) -> None:
    """Check that a folder holds the same sweep; one sentence says what differs."""
    if isinstance(recorded, dict) and "reproduction" in recorded:
        raise UserError(f"{folder} holds a reproduction, no sweep: choose another --workdir")
    try:
        theirs = [Cell(name, settings) for name, settings in recorded["cells"].items()]
        base = plain(load_config(recorded["config"], keys))
        found = [words for _, words in run_dir.differences(base, wanted["config"])]
    except (TypeError, KeyError, AttributeError):
        raise UserError(f"{folder / 'sweep.json'} is damaged: choose another --workdir") from None
    if recorded.get("rounds", [1, None]) != wanted["rounds"]:
        found.append("its --rounds or --rank-by")
    found += differences(theirs, [Cell(*cell) for cell in wanted["cells"].items()])
    if found:
        raise UserError(
            f"{folder} holds another sweep ({'; '.join(found)}): choose another --workdir, or "
            "give that sweep's command"
        )


def begin_local(lock: TextIO, num_signals: Callable[[], int]) -> Callable:
    """Return what runs cells here; they hold the lock, lest one starts twice after a kill."""
    keep, number = [lock.fileno()], PROCESSES.value
    return lambda jobs: (make_local(JOBS.value, num_signals, keep, number), JOBS.value)


def begin_slurm(folder: pathlib.Path, num_signals: Callable[[], int]) -> Callable:
    """Return what hands in all cells to SLURM at once."""
    return lambda jobs: (make_slurm(jobs, folder, SLURM.value, num_signals), len(jobs))


def compare_cells(folder: pathlib.Path, jobs: Sequence[Job], paper: dict[str, str]) -> None:
    """Write the page of all cells, as far as they are."""
    if not any((job.folder / "config.json").exists() for job in jobs):
        return
    from experiments import comparison  # seconds, which a start need not wait

    try:
        comparison.write_comparison([(job.name, job.folder) for job in jobs], folder, paper)
    except (UserError, OSError) as error:
        print(f"no comparison: {error}")


if __name__ == "__main__":
    CONFIG = cli.define_config()
    cli.run(lambda: main(CONFIG))
