"""Where the cells of a sweep run: on this machine, or as an array of SLURM jobs.

SLURM is reached through submitit. Its executor for the local machine does not serve here: it starts
all jobs at once, deals out neither cores nor GPUs, and cancels by SIGINT to the job alone, while a
cell has to be told once to save, as a group, and to hold the sweep's lock as long as it lives.
"""

import contextlib
import os
import pathlib
import queue
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import psutil

from cpc.types import UserError

POLL_SECONDS = 0.2
#: A file for each cluster that is no SLURM; the words that a user changes are in capitals.
TEMPLATES = pathlib.Path(__file__).parent / "templates"


class Job(NamedTuple):
    """A cell that is to run."""

    name: str
    folder: pathlib.Path
    command: list[str]

    @property
    def log(self) -> pathlib.Path:
        """The file that gets what the command says."""
        return self.folder / "log.txt"


#: Runs a job to its end; returns its exit status.
Launch: TypeAlias = Callable[[Job], int]


@contextlib.contextmanager
def count_signals() -> Iterator[Callable[[], int]]:
    """Yield a count of the SIGINT and SIGTERM that came; none of them ends the process."""
    received: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main else ()
    former = [signal.signal(number, lambda n, frame: received.append(n)) for number in numbers]
    try:
        yield lambda: len(received)
    finally:
        for number, handler in zip(numbers, former, strict=True):
            signal.signal(number, handler)


def make_local(
    num_parallel: int,
    num_signals: Callable[[], int],
    keep: Sequence[int] = (),
    num_processes: int = 1,
) -> Launch:
    """Run cells as processes of this machine, each on cores and GPUs of its own.

    The first signal is passed on, so that the cell saves; a second one kills. `keep` are file
    descriptors that the processes hold open, such as that of a lock. Several processes of a cell
    find each other as `cpc.train.distributed.find_cluster` says.
    """
    free: queue.SimpleQueue[tuple[list[int], dict[str, str]]] = queue.SimpleQueue()
    gpus = deal_gpus(find_gpus(), num_parallel)
    for hand in zip(deal_cores(num_parallel), gpus, strict=True):
        free.put(hand)

    def launch(job: Job) -> int:
        hand, processes = free.get(), []
        cores, devices = hand
        try:
            for rank, variables in enumerate(loopback(num_processes)):
                with log_of(job.log, rank).open("ab") as log:
                    process = subprocess.Popen(
                        job.command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env={**os.environ, **devices, **variables},
                        start_new_session=True,  # Ctrl-C comes from here, once
                        pass_fds=tuple(keep),
                    )
                processes.append(process)
                if cores:
                    with contextlib.suppress(psutil.NoSuchProcess):  # it ended already
                        psutil.Process(process.pid).cpu_affinity(cores)
            return wait(processes, num_signals)
        finally:
            free.put(hand)

    return launch


def loopback(num_processes: int) -> list[dict[str, str]]:
    """Return the variables by which the processes of a cell find each other.

    >>> loopback(1)
    [{}]
    """
    if num_processes == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [
        {
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_NUM_PROCESSES": str(num_processes),
            "JAX_PROCESS_ID": str(rank),
        }
        for rank in range(num_processes)
    ]


def log_of(log: pathlib.Path, rank: int) -> pathlib.Path:
    """Return the log of one process of a cell: the first has the cell's own."""
    return log if rank == 0 else log.with_name(f"{log.stem}.{rank}{log.suffix}")


def wait(processes: Sequence[subprocess.Popen], num_signals: Callable[[], int]) -> int:
    """Pass signals on until all processes end; return the first status that is not 0."""
    passed = 0
    while alive := [process for process in processes if process.poll() is None]:
        if num_signals() > passed:
            passed += 1
            for process in alive:
                os.killpg(process.pid, signal.SIGTERM if passed == 1 else signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return next((process.returncode for process in processes if process.returncode), 0)


def deal_cores(num_parallel: int) -> list[list[int]]:
    """Return the cores of each cell, or no cores where all cells are free to use all of them.

    That is so for one cell at a time, for more cells than cores, and where the system has no
    affinity.

    >>> deal_cores(1)
    [[]]
    """
    process = psutil.Process()
    if num_parallel == 1 or not hasattr(process, "cpu_affinity"):
        return [[]] * num_parallel
    cores = sorted(process.cpu_affinity() or [])
    return [
        cores[i::num_parallel] if len(cores) >= num_parallel else [] for i in range(num_parallel)
    ]


def find_gpus(driver: str = "/proc/driver/nvidia/gpus") -> list[str]:
    """Return the names of the GPUs that CUDA would show a child of this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    return [str(number) for number, _ in enumerate(pathlib.Path(driver).glob("*"))]


def deal_gpus(gpus: Sequence[str], num_parallel: int) -> list[dict[str, str]]:
    """Return the variable that shows each cell its GPUs; none where all cells see all of them.

    All get as many: a batch that divides by the devices of one cell divides by those of the others.

    >>> deal_gpus(["0", "1", "2", "3", "4"], 2)
    [{'CUDA_VISIBLE_DEVICES': '0,1'}, {'CUDA_VISIBLE_DEVICES': '2,3'}]
    >>> deal_gpus(["0"], 2)
    [{}, {}]
    """
    if num_parallel == 1 or len(gpus) < num_parallel:
        return [{}] * num_parallel
    each = len(gpus) // num_parallel
    hands = (gpus[i * each : (i + 1) * each] for i in range(num_parallel))
    return [{"CUDA_VISIBLE_DEVICES": ",".join(hand)} for hand in hands]


def make_slurm(
    jobs: Sequence[Job], folder: pathlib.Path, options: str, num_signals: Callable[[], int]
) -> Launch:
    """Submit one array of SLURM jobs, requeued when they are preempted or run out of time.

    `options` are submitit's, such as "timeout_min=240 gpus_per_node=1 slurm_partition=gpu".
    """
    submitit = import_submitit()
    executor = submitit.AutoExecutor(folder=folder / "slurm", cluster="slurm")
    try:
        executor.update_parameters(
            name="sweep", slurm_array_parallelism=len(jobs), **parse_options(options)
        )
    except (NameError, TypeError, ValueError) as error:  # what submitit raises for a wrong option
        raise UserError(f"--slurm {options!r}: {str(error).splitlines()[0]}") from error
    with executor.batch():
        submitted = {
            job.name: executor.submit(Requeued(), job.command, str(job.log)) for job in jobs
        }
    print(f"submitted {len(jobs)} jobs; this command waits for them, squeue shows them")
    return make_waiting(submitted, num_signals)


def make_waiting(submitted: Mapping[str, Any], num_signals: Callable[[], int]) -> Launch:
    """Wait for jobs of submitit; a signal cancels those that have not ended."""

    def launch(job: Job) -> int:
        one = submitted[job.name]
        while not one.done():
            if num_signals():
                one.cancel()
                return 128 + signal.SIGTERM
            time.sleep(1)
        try:
            return next((code for code in one.results() if code), 0)
        except Exception as error:  # submitit's own, with the job's last words
            with job.log.open("a") as log:
                log.write(f"the job {one.job_id} ended as {one.state}: {error}\n")
            return 1

    return launch


def import_submitit() -> Any:
    """Return the library submitit, or say how to get it."""
    try:
        import submitit  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError("--launcher slurm needs submitit: pip install 'cpc-jax[slurm]'") from None
    from shutil import which

    if which("sbatch") is None:
        raise UserError(
            "--launcher slurm: this machine has no sbatch; give the command on a login node of a "
            "SLURM cluster, or leave --launcher out"
        )
    return submitit


def parse_options(text: str) -> dict[str, int | str]:
    """Return the options of submitit by name, digits as numbers.

    >>> parse_options("timeout_min=240 slurm_partition=gpu")
    {'timeout_min': 240, 'slurm_partition': 'gpu'}
    """
    options: dict[str, int | str] = {}
    for part in text.split():
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"--slurm has {part!r}: write key=value, such as timeout_min=240")
        options[key] = int(value) if value.isdecimal() else value
    return options


class Requeued:
    """A command as a job of submitit; preempted, it saves and comes back to the queue."""

    def __init__(self):
        self._others: Sequence[psutil.Process] = ()

    def __call__(self, command: list[str], log: str) -> int:
        """Run the command to its end and return its status."""
        path = log_of(pathlib.Path(log), int(os.environ.get("SLURM_PROCID", "0")))
        with path.open("ab") as file:
            # SLURM signals every process of a job. USR2 is submitit's, and would kill the cell
            # before it has saved.
            deaf = ["bash", "-c", 'trap "" USR2; exec "$@"', "cell", *command]
            self._others = psutil.Process().children()
            process = subprocess.Popen(deaf, stdout=file, stderr=subprocess.STDOUT)
        # Polled: a signal that the system hands to another thread, such as one of OpenBLAS, does
        # not interrupt `Popen.wait`, and Python runs handlers in this thread alone.
        return wait([process], lambda: 0)

    def checkpoint(self, command: list[str], log: str) -> Any:
        """Let the command save, and return what submitit shall run once it is back in the queue.

        This is a signal's handler, called at any point of `__call__`, perhaps before that has its
        process: so the system is asked which child is new. It is left to the interrupted call to
        reap, which may hold the lock for that; one that is reaped already is gone.
        """
        import submitit  # pyright: ignore[reportMissingImports]

        for child in set(psutil.Process().children()) - set(self._others):
            with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
                child.terminate()
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(Requeued(), command, log)


def fill_template(kind: str, jobs: Sequence[Job]) -> str:
    """Return the file with which a cluster of this kind runs all cells.

    The commands keep their arguments; their python is that of the cluster's image.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    commands = [shlex.join(["python", *job.command[1:]]) for job in jobs]
    return environment.get_template(f"{kind}.yaml.j2").render(commands=commands)
