"""A folder of cells: planned, checked, run, and laid beside the paper."""

import contextlib
import pathlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from cpc.files import flatten, plain, read_object, write_sealed
from cpc.types import UserError
from experiments import status
from experiments.command import cli
from experiments.command.config import Config, with_settings
from experiments.kinds.registry import CONTRASTIVE
from experiments.reproduce.bound import measure_bound
from experiments.reproduce.cells import (
    DEFAULT_DATA,
    KINDS,
    MIXED,
    PARTS,
    Planned,
    base_config,
    cells_of,
    config_of,
    describe_open,
    describe_size,
    estimate_seconds,
    parse_settings,
    plan_cells,
)
from experiments.reproduce.scales import SCALES
from experiments.sweep.cells import Cell
from experiments.sweep.jobs import check_cell, end, lock_folder, make_job, read_plan, run_jobs
from experiments.sweep.launchers import Job, count_signals, make_local

#: N of the table of the bound, in powers of 2.
BOUND_SIZES = {scale: range(5, 17) for scale in SCALES} | {"smoke": range(5, 11)}
ELSEWHERE = {
    "table 5": "it is of text, which is not reproduced",
    "figure 1": "it is a drawing of the method",
    "figure 4": "it is a drawing of the method",
}


def reproduce(
    parts: Sequence[str],
    scale: str = "small",
    data: str | None = None,
    workdir: str | None = None,
    settings: Mapping[str, Sequence[str]] | None = None,
    seeds: int = 1,
    jobs: int = 1,
    device: str = "auto",
    dry_run: bool = False,
) -> None:
    """Plan, say how large it is, run what is not done, lay it beside the paper.

    Args:
        parts: keys of `PARTS`.
        scale, data: keys of `SCALES` and `DATA`; each scale has its own data by default.
        workdir: of all cells and the page; runs/reproduced-SCALE-DATA by default.
        settings: "key=value" of all cells, by kind.
        seeds: so many of each cell.
        jobs: cells at a time.
        device: auto, cpu, gpu or tpu.
        dry_run: print every command and end.
    """
    data = data or DEFAULT_DATA[scale]
    user = {
        kind: parse_settings(base_config(kind, scale, data)[0], (settings or {}).get(kind, ()))
        for kind in KINDS
    }
    planned = plan_cells(cells_of(parts, scale), scale, data, user, seeds)
    for cell in planned:
        config = config_of(cell, scale, data)
        check_cell(config, Cell(cell.name, {}))
        check_prepared(cell, config)
        check_length(cell, config)
    folder = pathlib.Path(workdir or f"runs/reproduced-{scale}-{data}").expanduser()
    all_jobs = [
        make_job(cell.config, Cell(cell.name, cell.settings), folder, device) for cell in planned
    ]
    if dry_run:
        print("\n".join(shlex.join(job.command) for job in all_jobs))
        return
    plan = {
        "scale": scale,
        "data": data,
        "user": user,
        "parts": parts,
        "seeds": seeds,
        "jobs": jobs,
        **describe(planned, scale, data, jobs),
        "open": describe_open(scale, data, user),
    }
    print(f"workdir: {folder}\n{plan['size']}.\n{plan['hardware']}.", flush=True)
    with open_folder(folder, plan, planned) as lock, count_signals() as num_signals:

        def begin(_):
            return make_local(jobs, num_signals, [lock.fileno()]), jobs

        run_jobs(all_jobs, begin, num_signals, lambda: write_page(folder))
        stopped = num_signals() > 0
        if "bound" in parts and not stopped:
            write_bound(folder, all_jobs, BOUND_SIZES[scale])
        write_page(folder)
    print(f"page: {folder / 'reproduction.html'}")
    end(folder, stopped)


def find_parts(tables: Sequence[str], figures: Sequence[str], is_all: bool) -> list[str]:
    """Return what is asked for, as keys of `PARTS`."""
    if is_all:
        return list(PARTS)
    asked = [t if t in ("open", "bound") else f"table {t}" for t in tables]
    asked += [f"figure {f}" for f in figures]
    if not asked:
        raise UserError("nothing is asked for: give --table 2, --figure 3 or --all")
    for part in asked:
        if part not in PARTS:
            why = f": {ELSEWHERE[part]}" if part in ELSEWHERE else ""
            raise UserError(
                f"there is no {part} here{why}; choose from --table 1, 2, 3, 4, open, bound and "
                "--figure 2, 3, 5, 6"
            )
    return [part for part in PARTS if part in asked]


def check_prepared(cell: Planned, config: Config) -> None:
    """Refuse a cell whose files are not there; what a package holds is fetched by the cell."""
    if cell.kind not in CONTRASTIVE:  # an agent makes its own
        return
    if config.data.source not in ("folder", "librispeech_tfds", "tfds"):
        return
    where, known = f"{KINDS[cell.kind].card} says where the paper's come from", flatten(config)
    for name, key in flatten(CONTRASTIVE[cell.kind].KEYS).items():
        if not key.is_path:
            continue
        is_needed = name == "data.path" or (
            name == "data.phones" and "phones" in config.probe.tasks
        )
        if is_needed and not known[name]:
            raise UserError(
                f"the data of {cell.kind} are not prepared: give --{cell.kind} {name}=...; {where}"
            )
        if known[name] and not pathlib.Path(known[name]).expanduser().exists():
            raise UserError(
                f"the data of {cell.kind} are not prepared: {name} is {known[name]}, which is not "
                f"there; {where}"
            )


def check_length(cell: Planned, config: Config) -> None:
    """Refuse sequences that hold no positive for the furthest offset."""
    if cell.kind not in CONTRASTIVE:  # its command's check says so
        return
    geometry = CONTRASTIVE[cell.kind].geometry(config)
    num_latents, num_offsets = geometry.num_latents, geometry.num_offsets
    if num_offsets >= num_latents:
        raise UserError(
            f"the cell {cell.name} predicts {num_offsets} latents ahead in sequences of "
            f"{num_latents}: make them longer (data.window_samples)"
        )


def describe(planned: Sequence[Planned], scale: str, data: str, num_jobs: int) -> dict[str, str]:
    """Return size, hardware and time, beforehand."""
    seconds = estimate_seconds(planned, scale)
    time = "never measured"
    if seconds is not None:
        time = f"about {max(1, round(seconds / 60))} min, estimated from single steps"
    beside = f", shared by {num_jobs} cells at a time" if num_jobs > 1 else ""
    return {
        "size": describe_size(planned, scale, data),
        "hardware": f"Hardware: {SCALES[scale].hardware}{beside}; time: {time}",
    }


@contextlib.contextmanager
def open_folder(
    folder: pathlib.Path, plan: dict[str, Any], planned: Sequence[Planned]
) -> Iterator[TextIO]:
    """Record the plan beside what the folder already holds."""
    path = folder / "sweep.json"
    with lock_folder(folder, "reproduction") as lock:
        write_sealed(path, joined(read_plan(path), plan, planned, folder))
        yield lock


def joined(
    recorded: Any, plan: dict[str, Any], planned: Sequence[Planned], folder: pathlib.Path
) -> dict[str, Any]:
    """Return the plan together with a recorded one, of which it is a part or a continuation."""
    cells = {cell.name: cell.settings for cell in planned}
    wanted = {"reproduction": plan, "cells": cells, "command": cli.command_line()}
    if recorded is None:
        return wanted
    there = recorded.get("reproduction") if isinstance(recorded, dict) else None
    if there is None:
        raise UserError(f"{folder} holds a sweep, no reproduction: choose another --workdir")
    found = [
        f"{key} is {there.get(key)!r} there and {plan[key]!r} here"
        for key in ("scale", "data", "user")
        if there.get(key) != plain(plan[key])
    ]
    scale, data = plan["scale"], plan["data"]
    for cell in planned if not found else ():
        base, _ = base_config(cell.kind, scale, data)
        theirs = recorded["cells"].get(cell.name, cell.settings)
        if trained(base, theirs) != trained(base, cell.settings):
            found.append(f"other settings: {cell.name}")
    if found:
        raise UserError(
            f"{folder} holds another reproduction ({'; '.join(found)}): choose another --workdir, "
            "or give that one's options"
        )
    parts = [part for part in PARTS if part in {*there["parts"], *plan["parts"]}]
    seeds = max(there["seeds"], plan["seeds"])
    whole = plan_cells(cells_of(parts, scale), scale, data, plan["user"], seeds)
    cells = {**recorded["cells"], **cells}
    asked = [cell for cell in whole if cell.name in cells]  # another part may have fewer seeds
    more = {"parts": parts, "seeds": seeds, **describe(asked, scale, data, plan["jobs"])}
    return {**wanted, "reproduction": {**plan, **more}, "cells": cells}


def trained(base: Config, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a training depends on: probes may change between two starts."""
    whole = flatten(with_settings(base, settings))
    return {name: plain(value) for name, value in whole.items() if not name.startswith("probe.")}


def write_bound(folder: pathlib.Path, jobs: Sequence[Job], sizes: range) -> None:
    """Measure the bound by N of the first seed of the base, unless that is done."""
    path, job = folder / "bound.json", next(job for job in jobs if job.name.startswith(f"{MIXED},"))
    if read_object(path, []) or not status.is_done(job.folder):
        return
    try:
        write_sealed(path, measure_bound(job.folder, sizes))
    except UserError as error:
        print(f"no bound by the number of negatives: {error}")


def write_page(folder: pathlib.Path) -> None:
    """Write the page of the cells, as far as they are."""
    try:
        from experiments.reproduce.page import write_reproduction  # matplotlib takes seconds

        write_reproduction(folder)
    except (UserError, OSError) as error:
        print(f"no page: {error}")
