r"""Reproduce the paper's tables and figures by sweeps of ordinary runs, and write a results page.

    cpc reproduce --table 2 --scale small --data voices
    cpc reproduce --figure 3 --scale smoke --workdir runs/smoke
    cpc reproduce --all --scale paper --workdir runs/paper \
        --audio data.path=LibriSpeech/train-clean-100 --audio data.phones=aligned_phones.txt

Two tables are not in the paper: --table open has a cell for each choice that the paper leaves open,
and --table bound shows whether the strict bound predicts the probes. The size and estimated time
are printed before the first cell.

--scale smoke checks in minutes that everything runs, on synthetic sound. --scale small trains on
sound with the settings of configs/audio_voices_paper.py (5,500 steps) and three seeds. Tables 1 and
2 are 27 cells and take about 14 hours on 2 cores. --scale medium has the same sound, wider networks
for images, and longer training of agents and text. --scale paper has the paper's sizes and was
never run. To use a GPU for a few minutes, run cpc reproduce.train.

All cells, and reproduction.html, .md and .json, are written to --workdir (default:
runs/reproduced-SCALE-DATA). Repeat the command to resume; tables share cells, so another --table
only adds missing ones. For progress, run cpc status WORKDIR.
"""

import functools
import pathlib
import shlex
from collections.abc import Mapping, Sequence

from absl import flags

from cpc.types import UserError
from experiments.command import cli
from experiments.reproduce import cells
from experiments.reproduce.cells import Planned
from experiments.sweep.cells import Cell
from experiments.sweep.jobs import (
    check_cell,
    count_signals,
    end,
    lock_folder,
    make_job,
    make_local,
    run_jobs,
)
from experiments.training.plan import Geometry


def reproduce(
    parts: Sequence[str],
    scale: str = "small",
    data: str | None = None,
    workdir: str | None = None,
    settings: Mapping[str, Sequence[str]] = {},
    seeds: int | None = None,
    jobs: int = 1,
    device: str = "auto",
    dry_run: bool = False,
) -> None:
    """Plan the cells, print their size, run the missing cells, and write the page."""
    names = cells.cells_of(parts, scale)
    planned, plan = cells.plan_parts(parts, names, scale, data, settings, seeds, jobs)
    for cell in planned:
        checked = check_cell(cell.config, Cell(cell.name, {}))
        if "data" in cell.config:  # agents generate their data
            check_data(cell, checked.geometry)
    folder = pathlib.Path(workdir or f"runs/reproduced-{scale}-{plan['data']}").expanduser()
    planned_jobs = [make_job(c.file, Cell(c.name, c.settings), folder, device) for c in planned]
    if dry_run:
        print("\n".join(shlex.join(job.command) for job in planned_jobs))
        return
    print(f"workdir: {folder}\n{plan['size']}.\n{plan['hardware']}.", flush=True)
    merge = functools.partial(cells.merge_plans, plan, planned, folder)
    with lock_folder(folder, "reproduction", merge) as lock, count_signals() as num_signals:
        launch = make_local(jobs, num_signals, [lock.fileno()])
        run_jobs(planned_jobs, lambda _: (launch, jobs), num_signals, lambda: write_page(folder))
        write_page(folder)
    print(f"page: {folder / 'reproduction.html'}")
    end(folder, num_signals() > 0)


def find_parts(tables: Sequence[str], figures: Sequence[str], is_all: bool) -> list[str]:
    """Return the tables and figures, as keys of `PARTS`, that the flags select."""
    if is_all:
        return list(cells.PARTS)
    named = {*tables, *(f"table {t}" for t in tables), *(f"figure {f}" for f in figures)}
    if not named:
        raise UserError("no part is selected: pass --table 2, --figure 3 or --all")
    return [part for part in cells.PARTS if part in named]


def check_data(cell: Planned, geometry: Geometry) -> None:
    """Check that a cell's local data exist, and that its sequences are longer than its offsets.

    Packaged data need not exist, since cells download them.
    """
    source, path = cell.config.data.source, cell.config.data.path
    is_local = source in ("files", "folder", "librispeech_tfds", "tfds")
    if is_local and not (path and pathlib.Path(path).expanduser().exists()):
        raise UserError(
            f"the {cell.kind} data do not exist (data.path is {path!r}): pass --{cell.kind} "
            f"data.path=... as in the docstring of {cells.KINDS[cell.kind].paper.__name__}"
        )
    if geometry.num_offsets >= geometry.num_latents:
        raise UserError(
            f"cell {cell.name} predicts {geometry.num_offsets} latents ahead in sequences of "
            f"{geometry.num_latents}: lower model.num_offsets, or use longer sequences"
        )


def write_page(folder: pathlib.Path) -> None:
    """Write the page of the cells recorded so far."""
    try:
        from experiments.reproduce.page import write_reproduction  # matplotlib takes seconds

        write_reproduction(folder)
    except (UserError, OSError) as error:
        print(f"the page was not written: {error}")


if __name__ == "__main__":
    TABLE = flags.DEFINE_multi_enum(
        "table", [], ["1", "2", "3", "4", "5", "open", "bound"], "Table to reproduce."
    )
    FIGURE = flags.DEFINE_multi_enum("figure", [], ["2", "3", "5", "6"], "Figure to reproduce.")
    ALL = flags.DEFINE_bool("all", False, "Reproduce every table and figure.")
    SCALE = flags.DEFINE_enum("scale", "small", list(cells.SCALES), "Size of the cells.")
    DATASET = flags.DEFINE_enum(
        "data", None, list(cells.DATA), "Audio data. The default depends on the scale."
    )
    SEEDS = flags.DEFINE_integer(
        "seeds", None, "Seeds per cell. Default: 3 at small and medium, else 1.", lower_bound=1
    )
    JOBS = flags.DEFINE_integer("jobs", 1, "Number of cells that run at a time.", lower_bound=1)
    SETTINGS = {
        kind: flags.DEFINE_multi_string(kind, [], f"key=value for {kind} cells, e.g. data.path=...")
        for kind in cells.KINDS
    }
    DRY_RUN = flags.DEFINE_bool("dry-run", False, "Print every command and exit.")
    cli.run(
        lambda: reproduce(
            find_parts(TABLE.value, FIGURE.value, ALL.value), SCALE.value, DATASET.value,
            cli.WORKDIR.value, {kind: flag.value for kind, flag in SETTINGS.items()}, SEEDS.value,
            JOBS.value, cli.DEVICE.value, DRY_RUN.value,
        )
    )  # fmt: skip
