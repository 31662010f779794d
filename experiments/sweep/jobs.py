"""Execution of cells on this machine, or as an array of SLURM jobs through submitit.

The local executor of submitit is not used, because it starts all jobs at once without assigning
cores or GPUs, and cancels with a SIGINT to a single process. A cell must receive one signal as a
process group to save once, and must hold the lock of the sweep until it ends.
"""

import contextlib
import os
import pathlib
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple, TextIO, TypeAlias

import numpy as np

from cpc.files import SWEEP_LOCK, read_object, try_lock, write_sealed
from cpc.types import UserError
from experiments import status
from experiments.command import cli, names, run_dir
from experiments.command.config import Config, with_settings
from experiments.kinds.registry import kind_of, pipeline_of
from experiments.sweep.cells import Cell, flag_text

POLL_SECONDS = 0.2


class Job(NamedTuple):
    """A cell with its folder and its command."""

    name: str
    folder: pathlib.Path
    command: list[str]

    @property
    def log(self) -> pathlib.Path:
        """The file with the command's output."""
        return self.folder / "log.txt"


#: Function that runs a job to its end and returns its exit status.
Launch: TypeAlias = Callable[[Job], int]


def check_cell(config: Config, cell: Cell) -> Any:
    """Validate the config of a cell without data or devices, and return its plan."""
    kind = kind_of(config)
    try:
        return pipeline_of(config).interpret(kind, with_settings(config, cell.settings))
    except UserError as error:
        raise UserError(f"the cell {cell.name}: {error}") from None


@contextlib.contextmanager
def lock_folder(
    folder: pathlib.Path, what: str, merge: Callable[[Any], dict[str, Any]]
) -> Iterator[TextIO]:
    """Lock a folder of cells and write merge(recorded plan or None) as its plan."""
    if (folder / "config.json").exists():
        raise UserError(f"{folder} contains a single run: choose another --workdir for the {what}")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / SWEEP_LOCK).open("w") as lock:
        if try_lock(lock) is False:
            raise UserError(
                f"another {what} of {folder}, or one of its cells, still runs: wait, or stop it"
            )
        problems: list[str] = []
        recorded = read_object(folder / "sweep.json", problems)
        print(*(f"{problem}\n" for problem in problems), sep="", end="")
        write_sealed(folder / "sweep.json", merge(recorded))
        yield lock


def make_job(
    config_file: str | pathlib.Path, cell: Cell, folder: pathlib.Path, device: str = "auto"
) -> Job:
    """Return the job that trains a cell in a folder with the cell's name."""
    settings = [f"--config.{key}={flag_text(value)}" for key, value in cell.settings.items()]
    command = [*names.call("train"), "--config", names.show_config(config_file)]
    command += [*settings, *([] if device == "auto" else ["--device", device])]
    path = folder / cell.name
    return Job(cell.name, path, [*command, "--workdir", str(path)])


def run_jobs(
    jobs: Sequence[Job],
    begin: Callable[[Sequence[Job]], tuple[Launch, int]],
    num_signals: Callable[[], int],
    after: Callable[[], None],
) -> None:
    """Run the unfinished cells, and record failed cells without ending the sweep.

    `begin(jobs)` returns the launch function and the number of parallel cells. `after()` is called
    after each cell.
    """
    wanted = [job for job in jobs if not status.is_done(job.folder)]
    done = len(jobs) - len(wanted)
    print(f"cells: {len(jobs)}, done: {done}")
    if not wanted:
        after()
        return
    for job in wanted:
        job.folder.mkdir(parents=True, exist_ok=True)
        if run_dir.read_failure(job.folder):  # of an earlier try
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
    """Run one cell, and return a line on how it ended, or "" if the sweep stopped before it."""
    if num_signals():
        return ""
    print(f"starts {job.name}: {job.log}\n", end="", flush=True)  # one write among threads
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
    """Describe a cell's end: the last error or line in `log` after `length` bytes, any signal."""
    text = log.read_bytes()[length:].decode(errors="replace")
    lines = [line.strip() for line in text.splitlines()[-200:] if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    last = (errors or lines or [""])[-1]
    if code >= 0:
        return last or "no output"
    name = {number.value: number.name for number in signal.Signals}.get(-code, f"signal {-code}")
    return f"killed by {name}" + f"; last line: {last}" * bool(last)


def end(folder: pathlib.Path, stopped: bool) -> None:
    """Print the table and path of the sweep's results, and exit with 1 if a cell is unfinished."""
    rows = status.read_all(folder)
    print(status.describe(rows))
    if (page := folder / "comparison.html").exists():
        print(f"comparison: {page}")
    if stopped:
        cli.fail(f"interrupted; to resume: {names.command_line()}", 130)
    if any(row.state != "finished" for row in rows):
        sys.exit(1)


@contextlib.contextmanager
def count_signals() -> Iterator[Callable[[], int]]:
    """Yield a function that counts SIGINT and SIGTERM, neither of which ends the process."""
    received: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    with contextlib.ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM) if is_main else ():
            former = signal.signal(number, lambda n, frame: received.append(n))
            stack.callback(signal.signal, number, former)
        yield lambda: len(received)


def make_local(
    num_parallel: int, num_signals: Callable[[], int], keep: Sequence[int] = ()
) -> Launch:
    """Return a function that runs cells as local processes, each on its own cores and GPUs.

    The first signal is forwarded, so that the cell saves, and a second signal kills the cell.
    `keep` are file descriptors that the processes hold open, such as the descriptor of a lock.
    """
    free: queue.SimpleQueue[tuple[list[int], list[str]]] = queue.SimpleQueue()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []  # Linux
    gpus = find_gpus()
    gpus = gpus[: len(gpus) - len(gpus) % num_parallel]  # the same number of GPUs for each cell
    for share in zip(deal(cores, num_parallel), deal(gpus, num_parallel), strict=True):
        free.put(share)

    def launch(job: Job) -> int:
        cores, gpus = share = free.get()
        devices = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        try:
            with job.log.open("ab") as log:
                process = subprocess.Popen(
                    job.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **devices},
                    start_new_session=True,  # so that only `wait` forwards Ctrl-C
                    pass_fds=tuple(keep),
                )
            if cores:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(process.pid, cores)
            return wait(process, num_signals)
        finally:
            free.put(share)

    return launch


def wait(process: subprocess.Popen, num_signals: Callable[[], int]) -> int:
    """Forward signals until a process ends, and return its exit status."""
    num_sent = 0
    while process.poll() is None:
        if num_signals() > num_sent:
            num_sent += 1
            os.killpg(process.pid, signal.SIGTERM if num_sent == 1 else signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return process.returncode


def deal(items: Sequence[Any], num_parallel: int) -> list[list[Any]]:
    """Return the cores or GPUs for each cell, or empty lists if all cells share all of them.

    >>> deal(["0", "1", "2", "3"], 2), deal(["0"], 2), deal([0, 1], 1)
    ([['0', '1'], ['2', '3']], [[], []], [[]])
    """
    if num_parallel == 1 or len(items) < num_parallel:
        return [[]] * num_parallel
    return [part.tolist() for part in np.array_split(items, num_parallel)]


def find_gpus(driver: str = "/proc/driver/nvidia/gpus") -> list[str]:
    """Return the names of the GPUs that are visible to child processes."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    return [str(number) for number, _ in enumerate(pathlib.Path(driver).glob("*"))]


def make_slurm(
    jobs: Sequence[Job], folder: pathlib.Path, options: str, num_signals: Callable[[], int]
) -> Launch:
    """Submit an array of SLURM jobs, which are requeued after preemption or a time-out."""
    submitit = None
    with contextlib.suppress(ImportError):
        import submitit  # pyright: ignore[reportMissingImports]
    if submitit is None or shutil.which("sbatch") is None:
        raise UserError(
            "--launcher slurm needs submitit (pip install 'cpc-jax[slurm]') and the sbatch of a "
            "SLURM cluster's login node: install or find both, or remove --launcher"
        )
    pairs = (part.partition("=") for part in options.split())
    parsed = {name: int(value) if value.isdecimal() else value for name, _, value in pairs}
    executor = submitit.AutoExecutor(folder=folder / "slurm", cluster="slurm")
    try:
        executor.update_parameters(name="sweep", slurm_array_parallelism=len(jobs), **parsed)
    except (AssertionError, NameError, TypeError, ValueError) as error:  # of a wrong option
        raise UserError(
            f"--slurm {options!r} is invalid ({str(error).splitlines()[0]}): correct --slurm"
        ) from error
    with executor.batch():
        submitted = {
            job.name: executor.submit(Requeued(), job.command, str(job.log)) for job in jobs
        }
    print(f"submitted {len(jobs)} jobs; this command waits for them, and squeue lists them")
    return lambda job: await_slurm(submitted[job.name], job.log, num_signals)


def await_slurm(submitted: Any, log: pathlib.Path, num_signals: Callable[[], int]) -> int:
    """Return the exit status of a submitit job at its end. A signal cancels the job."""
    while not submitted.done():
        if num_signals():
            submitted.cancel()
            return 128 + signal.SIGTERM
        time.sleep(1)
    try:
        return next((code for code in submitted.results() if code), 0)
    except Exception as error:  # raised by submitit, with the end of the job's log
        with log.open("a") as file:
            file.write(f"the job {submitted.job_id} ended as {submitted.state}: {error}\n")
        return 1


class Requeued:
    """A command as a submitit job, which saves and returns to the queue when preempted."""

    process: subprocess.Popen | None = None

    def __call__(self, command: list[str], log: str) -> int:
        """Run the command to its end and return its status."""
        rank, path = os.environ.get("SLURM_PROCID", "0"), pathlib.Path(log)
        with (path if rank == "0" else path.with_suffix(f".{rank}.txt")).open("ab") as file:
            # SLURM signals all processes of a job. USR2 is meant for submitit, and would kill the
            # cell before it has saved.
            protected = ["bash", "-c", 'trap "" USR2; exec "$@"', "cell", *command]
            self.process = subprocess.Popen(protected, stdout=file, stderr=subprocess.STDOUT)
        # A signal delivered to another thread, such as one of OpenBLAS, does not interrupt
        # `Popen.wait`, and Python runs handlers only in this thread, so the process is polled.
        return wait(self.process, lambda: 0)

    def checkpoint(self, command: list[str], log: str) -> Any:
        """Let the command save, and return the submission for the next start.

        This signal handler may interrupt `wait`, which then holds the lock for reaping the child,
        so the child is not reaped. A command that is about to start has nothing to save.
        """
        import submitit  # pyright: ignore[reportMissingImports]

        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(ChildProcessError):  # the child was already reaped
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(Requeued(), command, log)
