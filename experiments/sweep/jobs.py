"""Run cells: checked before, one command in a folder, the others going on if one fails."""

import contextlib
import pathlib
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TextIO

from cpc.files import SWEEP_LOCK, read_object, try_lock
from cpc.types import UserError
from experiments import status
from experiments.command import cli, names, run_dir
from experiments.command.config import Config, with_settings
from experiments.kinds.registry import kind_of, pipeline_of
from experiments.sweep.cells import Cell, flag_text
from experiments.sweep.launchers import Job, Launch


def check_cell(config: Config, cell: Cell) -> None:
    """Check a cell's config before any cell runs, as far as that needs no data and no device."""
    kind = kind_of(config)
    try:
        pipeline_of(config).interpret(kind, with_settings(config, cell.settings))
    except UserError as error:
        raise UserError(f"the cell {cell.name}: {error}") from None


@contextlib.contextmanager
def lock_folder(folder: pathlib.Path, what: str) -> Iterator[TextIO]:
    """Open a folder of cells for one command at a time: a sweep's, or a reproduction's."""
    if (folder / "config.json").exists():
        raise UserError(f"{folder} holds a single run: choose another --workdir for the {what}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / SWEEP_LOCK).open("w")
    except OSError as error:
        raise UserError(
            f"cannot write to the folder of the {what} {folder} ({error.strerror}): choose another "
            "--workdir, or free space there"
        ) from error
    with lock:
        if try_lock(lock) is False:
            raise UserError(
                f"another {what} of {folder}, or a cell of it, still runs: wait for its end, or "
                "stop it"
            )
        yield lock


def make_job(
    config_file: str | pathlib.Path,
    cell: Cell,
    folder: pathlib.Path,
    device: str = "auto",
) -> Job:
    """Return the command that makes a cell alone, in a folder of its name."""
    sets = [f"--config.{key}={flag_text(value)}" for key, value in cell.settings.items()]
    command = [*names.call("train"), "--config", names.show_config(config_file)]
    command += [*sets, *([] if device == "auto" else ["--device", device])]
    path = folder / cell.name
    return Job(cell.name, path, [*command, "--workdir", str(path)])


def read_plan(path: pathlib.Path) -> dict[str, Any] | None:
    """Return the recorded plan of a folder of cells; None, and a printed word, if it is damaged."""
    problems: list[str] = []
    recorded = read_object(path, problems)
    print(*(f"{problem}\n" for problem in problems), sep="", end="")
    return recorded


def run_jobs(
    jobs: Sequence[Job],
    begin: Callable[[Sequence[Job]], tuple[Launch, int]],
    num_signals: Callable[[], int],
    after: Callable[[], None],
) -> None:
    """Run the cells that are not done; a cell that fails is recorded, and the others go on.

    `begin(jobs)` returns the launch function and the number of cells that it takes at a time;
    `after()` is called when a cell has ended.
    """
    wanted = [job for job in jobs if not status.is_done(job.folder)]
    done = len(jobs) - len(wanted)
    print(f"cells: {len(jobs)}, done: {done}")
    if not wanted:
        after()
        return
    for job in wanted:
        job.folder.mkdir(parents=True, exist_ok=True)
        if run_dir.read_failure(job.folder):
            (job.folder / run_dir.STATE).unlink()
    launch_one, num_parallel = begin(wanted)
    with ThreadPoolExecutor(num_parallel) as pool:
        futures = [pool.submit(run_job, job, launch_one, num_signals) for job in wanted]
        for future in as_completed(futures):
            if sentence := future.result():
                done += 1
                print(f"[{done}/{len(jobs)}] {sentence}\n", end="", flush=True)
                after()


def run_job(job: Job, launch_one: Launch, num_signals: Callable[[], int]) -> str:
    """Run one cell; returns what became of it, or nothing if the sweep was stopped before."""
    if num_signals():
        return ""
    print(f"starts {job.name}: {job.log}\n", end="", flush=True)  # one write: others print too
    try:
        length = job.log.stat().st_size if job.log.exists() else 0
        code = launch_one(job)
        error = describe_end(code, job.log, length)
    except OSError as problem:
        code, error = 1, f"cannot start: {problem}"
    if status.is_done(job.folder):
        return f"done   {job.name}"
    if num_signals():
        return f"stopped {job.name}"
    command = shlex.join(job.command)
    run_dir.record_state(job.folder, "failed", status=code, error=error, command=command)
    return f"FAILED {job.name}: {error}"


def describe_end(code: int, log: pathlib.Path, length: int) -> str:
    """Return the error in what a log has beyond a length, or its last line; and a signal."""
    text = log.read_bytes()[length:].decode(errors="replace")
    lines = [line.strip() for line in text.splitlines()[-200:] if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    words = (errors or lines or [""])[-1]
    if code >= 0:
        return words or "it said nothing"
    name = {number.value: number.name for number in signal.Signals}.get(-code, f"signal {-code}")
    return f"killed by {name}; its last words: {words}" if words else f"killed by {name}"


def end(folder: pathlib.Path, stopped: bool) -> None:
    """Print the table and where the results are; exit with 1 if a cell is not done."""
    rows = status.read_all(folder)
    print(status.describe(rows, shutil.get_terminal_size((120, 24)).columns))
    page = folder / "comparison.html"
    if page.exists():
        print(f"comparison: {page}")
    if stopped:
        cli.fail(f"interrupted; to resume: {names.command_line()}", 130)
    if any(row.state != "finished" for row in rows):
        sys.exit(1)
