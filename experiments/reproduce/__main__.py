r"""The paper's tables and figures, made again: sweeps of ordinary runs, and a page of both.

    python -m experiments.reproduce --table 2 --scale small --data voices
    python -m experiments.reproduce --figure 3 --scale smoke --workdir runs/smoke
    python -m experiments.reproduce --all --scale paper --workdir runs/paper \
        --audio data.path=LibriSpeech/train-clean-100 --audio data.phones=aligned_phones.txt

Tables 1 to 4; figures 2, 3 and 5; and what the paper lacks: open (a cell for each choice that the
paper leaves open) and bound (log N - L by the number of negatives, and against the probes), as
--table open and --table bound.

smoke: does everything run, in minutes, on sound that is made up. small: the orders of the rows on
the demo's voices, everything in about an hour on 2 cores (58 minutes were measured, --jobs 2).
paper: the paper's sizes.

Writes all cells, and reproduction.html, .md and .json, into --workdir: runs/reproduced-SCALE-DATA,
unless another is named. Tables share cells: another --table into the same --workdir adds what is
missing. The same command again resumes. While it runs: python -m experiments.status WORKDIR.
"""

import argparse
import contextlib
import os
import pathlib
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from cpc import report
from cpc.types import UserError
from experiments import launch, status
from experiments.launch import Config
from experiments.reproduce.bound import measure_bound
from experiments.reproduce.cells import (
    DATA,
    DEFAULT_DATA,
    PARTS,
    SCALES,
    Planned,
    as_cells,
    base_config,
    cells_of,
    config_of,
    describe_open,
    describe_size,
    estimate_seconds,
    parse_settings,
    plan_cells,
)
from experiments.sweep.cells import Cell, differences, flag_text
from experiments.sweep.jobs import check_cell, end, kind_of, lock_folder, run_jobs
from experiments.sweep.launchers import Job, count_signals, make_local

#: N of the table of the bound, in powers of 2.
BOUND_SIZES = {"smoke": range(5, 11), "small": range(5, 17), "paper": range(5, 17)}
ELSEWHERE = {
    "table 5": "it is of text, which is not reproduced",
    "figure 1": "it is a drawing of the method",
    "figure 4": "it is a drawing of the method",
    "figure 6": "it is of reinforcement learning, which is not reproduced",
}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    words = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "experiments.reproduce", description=__doc__, formatter_class=words
    )
    parser.add_argument("--table", action="append", default=[], help="1, 2, 3, 4, open or bound")
    parser.add_argument("--figure", action="append", default=[], help="2, 3 or 5")
    parser.add_argument("--all", action="store_true", help="every table and figure")
    parser.add_argument("--scale", default="small", help=", ".join(SCALES))
    parser.add_argument("--data", help=f"{', '.join(DATA)}; each scale has its own by default")
    parser.add_argument(
        "--workdir",
        type=pathlib.Path,
        help="directory of all cells and the page; runs/reproduced-SCALE-DATA by default",
    )
    parser.add_argument("--seeds", type=int, default=1, help="so many seeds of each cell")
    parser.add_argument(
        "--jobs", type=int, default=1, help="cells at a time, sharing cores and GPUs"
    )
    add = {"action": "append", "default": [], "metavar": "KEY=VALUE"}
    parser.add_argument("--audio", **add, help="a key of all audio cells, such as data.path=...")
    parser.add_argument("--image", **add, help="a key of all image cells, such as data.path=...")
    parser.add_argument("--device", default="auto", help="auto, cpu, gpu or tpu")
    parser.add_argument("--dry-run", action="store_true", help="print every command and end")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Plan, say how large it is, run what is not done, lay it beside the paper."""
    options = parse(argv)
    parts = find_parts(options)
    scale, data = choose("scale", options.scale, SCALES), options.data
    data = choose("data", data or DEFAULT_DATA[scale], DATA)
    for name in ("seeds", "jobs"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} is {getattr(options, name)}: it must be 1 or more")
    user = {
        kind: parse_settings(base_config(kind, scale, data)[0], getattr(options, kind))
        for kind in ("audio", "image")
    }
    planned = plan_cells(cells_of(parts, scale), scale, data, user, options.seeds)
    for cell in planned:
        config = config_of(cell, scale, data)
        check_cell(config, Cell(cell.name, {}))
        check_prepared(config)
        check_window(cell.name, config)
    folder = options.workdir or pathlib.Path("runs") / f"reproduced-{scale}-{data}"
    folder = folder.expanduser()
    jobs = [make_job(cell, folder, options.device) for cell in planned]
    if options.dry_run:
        print("\n".join(shlex.join(job.command) for job in jobs))
        return
    plan = {
        "scale": scale,
        "data": data,
        "user": user,
        "parts": parts,
        "seeds": options.seeds,
        **describe(planned, scale, data, options.jobs),
        "open": describe_open(scale, data, user),
    }
    print(f"workdir: {folder}\n{plan['size']}.\n{plan['hardware']}.", flush=True)
    with open_folder(folder, plan, planned) as lock, count_signals() as num_signals:

        def begin(jobs):
            return make_local(options.jobs, num_signals, [lock.fileno()]), options.jobs

        run_jobs(jobs, begin, num_signals, lambda: write_page(folder))
        stopped = num_signals() > 0
        if "bound" in parts and not stopped:
            write_bound(folder, jobs, BOUND_SIZES[scale])
        write_page(folder)
    print(f"page: {folder / 'reproduction.html'}")
    end(folder, stopped)


def find_parts(options: argparse.Namespace) -> list[str]:
    """What is asked for, as keys of `PARTS`."""
    if options.all:
        return list(PARTS)
    asked = [t if t in ("open", "bound") else f"table {t}" for t in options.table]
    asked += [f"figure {f}" for f in options.figure]
    if not asked:
        raise UserError("nothing is asked for: give --table 2, --figure 3 or --all")
    for part in asked:
        if part not in PARTS:
            why = f": {ELSEWHERE[part]}" if part in ELSEWHERE else ""
            raise UserError(
                f"there is no {part} here{why}; choose from --table 1, 2, 3, 4, open, bound and "
                "--figure 2, 3, 5"
            )
    return [part for part in PARTS if part in asked]


def choose(name: str, given: str, known: Mapping[str, Any]) -> str:
    """One of some words."""
    if given not in known:
        raise UserError(f"--{name} is {given!r}: choose one of {', '.join(known)}")
    return given


def check_prepared(config: Config) -> None:
    """Files that a cell reads are there; what a package holds is fetched by the cell itself."""
    options = config.data
    kind = kind_of(config)
    if options.source not in ("folder", "librispeech_tfds", "tfds"):
        return
    card = "audio_librispeech" if kind == "audio" else "image_imagenet"
    where = f"configs/{card}.py says where the paper's come from"
    keys = ["path"]
    if kind == "audio":
        keys += ["train_list", "test_list", "phones"]
    for key in keys:
        path = pathlib.Path(options[key]).expanduser()
        needed = key == "path" or (key == "phones" and "phones" in config.probe.tasks)
        if needed and not options[key]:
            raise UserError(
                f"the data of {kind} are not prepared: give --{kind} data.{key}=...; {where}"
            )
        if options[key] and not path.exists():
            raise UserError(
                f"the data of {kind} are not prepared: data.{key} is {path}, which is not there; "
                f"{where}"
            )


def check_window(name: str, config: Config) -> None:
    """A window holds a positive for every offset."""
    if kind_of(config) != "audio":
        return
    num_latents, furthest = config.data.window_samples // 160, config.model.num_offsets
    if furthest >= num_latents:
        raise UserError(
            f"the cell {name} predicts {furthest} latents ahead in windows of {num_latents}: raise "
            "data.window_samples"
        )


def make_job(cell: Planned, folder: pathlib.Path, device: str) -> Job:
    """The command that makes a cell alone."""

    def near(path: pathlib.Path | str) -> str:
        relative = os.path.relpath(path)
        return str(path) if relative.startswith("..") else relative

    sets = [f"--config.{key}={flag_text(value)}" for key, value in cell.settings.items()]
    path = folder / cell.name
    command = [near(sys.executable), "-m", f"experiments.{cell.kind}"]
    command += ["--config", near(cell.config), *sets]
    command += [] if device == "auto" else ["--device", device]
    return Job(cell.name, path, [*command, "--workdir", str(path)])


def describe(planned: Sequence[Planned], scale: str, data: str, num_jobs: int) -> dict[str, str]:
    """Size, hardware and time, beforehand."""
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
        recorded = launch.read_json(path) if path.exists() else None
        launch.write_json(path, joined(recorded, plan, planned, folder))
        yield lock


def joined(
    recorded: Any, plan: dict[str, Any], planned: Sequence[Planned], folder: pathlib.Path
) -> dict[str, Any]:
    """The plan together with a recorded one, of which it is a part or a continuation."""
    cells = {cell.name: cell.settings for cell in as_cells(planned)}
    wanted = {"reproduction": plan, "cells": cells, "command": launch.command_line()}
    if recorded is None:
        return wanted
    there = recorded.get("reproduction") if isinstance(recorded, dict) else None
    if there is None:
        raise UserError(f"{folder} holds a sweep, no reproduction: choose another --workdir")
    found = [
        f"{key} is {there.get(key)!r} there and {plan[key]!r} here"
        for key in ("scale", "data", "user")
        if plain(there.get(key)) != plain(plan[key])
    ]
    shared = [name for name in cells if name in recorded["cells"]]
    found += differences(
        [Cell(name, trained(recorded["cells"][name])) for name in shared],
        [Cell(name, trained(cells[name])) for name in shared],
    )
    if found:
        raise UserError(
            f"{folder} holds another reproduction ({'; '.join(found)}): choose another --workdir, "
            "or give that one's options"
        )
    parts = [part for part in PARTS if part in {*there["parts"], *plan["parts"]}]
    seeds = max(there["seeds"], plan["seeds"])
    scale, data = plan["scale"], plan["data"]
    whole = plan_cells(cells_of(parts, scale), scale, data, plan["user"], seeds)
    more = {"parts": parts, "seeds": seeds, **describe(whole, scale, data, 1)}
    return {**wanted, "reproduction": {**plan, **more}, "cells": {**recorded["cells"], **cells}}


def trained(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a training depends on: a run's probes may change between two starts."""
    return {key: plain(value) for key, value in settings.items() if not key.startswith("probe.")}


def plain(tree: Any) -> Any:
    """As json reads it back.

    >>> plain({"tasks": ("phones",)})
    {'tasks': ['phones']}
    """
    if isinstance(tree, Mapping):
        return {key: plain(value) for key, value in tree.items()}
    return [plain(one) for one in tree] if isinstance(tree, list | tuple) else tree


def write_bound(folder: pathlib.Path, jobs: Sequence[Job], sizes: range) -> None:
    """Of the first seed of the base, unless it is there."""
    path, job = folder / "bound.json", next(job for job in jobs if job.name.startswith("mixed,"))
    if path.exists() or not status.is_done(job.folder):
        return
    try:
        launch.write_json(path, measure_bound(job.folder, sizes))
    except UserError as error:
        print(f"no bound by the number of negatives: {error}")


def write_page(folder: pathlib.Path) -> None:
    """The page of the cells, as far as they are."""
    try:
        report.write_reproduction(folder)
    except (UserError, OSError) as error:
        print(f"no page: {error}")


if __name__ == "__main__":
    try:
        main()
    except UserError as problem:
        launch.fail(str(problem))
