"""Where the cells of a sweep run: on this machine, or as an array of SLURM jobs."""

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

from cpc.types import UserError

POLL_SECONDS = 0.2


class Job(NamedTuple):
    """A cell that is to run."""

    name: str
    folder: pathlib.Path
    command: list[str]

    @property
    def log(self) -> pathlib.Path:
        """What the command says."""
        return self.folder / "log.txt"


#: Runs a job to its end; returns its exit status.
Launch: TypeAlias = Callable[[Job], int]


@contextlib.contextmanager
def count_signals() -> Iterator[Callable[[], int]]:
    """Yield the number of SIGINT and SIGTERM that came; none of them ends the process."""
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
    """Processes of this machine; each cell has its share of the cores and of the GPUs.

    The first signal is passed on, so that the cell saves; a second one kills. `keep` are file
    descriptors that the processes hold open, such as that of a lock. Several processes of a cell
    find each other as `cpc.train.distributed.find_cluster` says.
    """
    shares: queue.SimpleQueue[tuple[list[int], dict[str, str]]] = queue.SimpleQueue()
    gpus = share_gpus(find_gpus(), num_parallel)
    for share in zip(share_cores(num_parallel), gpus, strict=True):
        shares.put(share)

    def launch(job: Job) -> int:
        share, processes = shares.get(), []
        cores, devices = share
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
                    with contextlib.suppress(ProcessLookupError):  # it ended already
                        os.sched_setaffinity(process.pid, cores)
            return wait(processes, num_signals)
        finally:
            shares.put(share)

    return launch


def loopback(num_processes: int) -> list[dict[str, str]]:
    """The variables by which the processes of a cell find each other.

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
    """Of several processes the first writes the log itself."""
    return log if rank == 0 else log.with_name(f"{log.stem}.{rank}{log.suffix}")


def wait(processes: Sequence[subprocess.Popen], num_signals: Callable[[], int]) -> int:
    """Until all processes end; signals are passed on. Returns the first status that is not 0."""
    passed = 0
    while alive := [process for process in processes if process.poll() is None]:
        if num_signals() > passed:
            passed += 1
            for process in alive:
                os.killpg(process.pid, signal.SIGTERM if passed == 1 else signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return next((process.returncode for process in processes if process.returncode), 0)


def share_cores(num_parallel: int) -> list[list[int]]:
    """Cores of each process; empty where all are for all: one process, or fewer cores than those.

    >>> share_cores(1)
    [[]]
    """
    if num_parallel == 1 or not hasattr(os, "sched_setaffinity"):
        return [[]] * num_parallel
    cores = sorted(os.sched_getaffinity(0))
    return [
        cores[i::num_parallel] if len(cores) >= num_parallel else [] for i in range(num_parallel)
    ]


def find_gpus(driver: str = "/proc/driver/nvidia/gpus") -> list[str]:
    """Names of the GPUs that CUDA would show a process of this one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    return [str(number) for number, _ in enumerate(pathlib.Path(driver).glob("*"))]


def share_gpus(gpus: Sequence[str], num_parallel: int) -> list[dict[str, str]]:
    """The variable that shows each process its GPUs; none where all are for all, as with cores.

    All get as many: a batch that divides by the devices of one cell divides by those of the others.

    >>> share_gpus(["0", "1", "2", "3", "4"], 2)
    [{'CUDA_VISIBLE_DEVICES': '0,1'}, {'CUDA_VISIBLE_DEVICES': '2,3'}]
    >>> share_gpus(["0"], 2)
    [{}, {}]
    """
    if num_parallel == 1 or len(gpus) < num_parallel:
        return [{}] * num_parallel
    each = len(gpus) // num_parallel
    shares = (gpus[i * each : (i + 1) * each] for i in range(num_parallel))
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares]


def make_slurm(
    jobs: Sequence[Job], folder: pathlib.Path, options: str, num_signals: Callable[[], int]
) -> Launch:
    """One array of SLURM jobs, requeued when they are preempted or run out of time.

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
    """Waits for jobs of submitit; a signal cancels those that have not ended."""

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
    """The library, or a sentence about how to get it."""
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
    """Numbers and words by name.

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
        self._process: subprocess.Popen | None = None

    def __call__(self, command: list[str], log: str) -> int:
        """Run to the end; of several processes the first writes the log."""
        path = log_of(pathlib.Path(log), int(os.environ.get("SLURM_PROCID", "0")))
        with path.open("ab") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
            return self._process.wait()

    def checkpoint(self, command: list[str], log: str) -> Any:
        """What submitit asks for before the job is taken away."""
        import submitit  # pyright: ignore[reportMissingImports]

        if self._process is not None:
            self._process.terminate()
            # This is a signal's handler, called from within `wait` above: another `wait` would be
            # for the lock that that one holds. If it has reaped the process, there is none.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(Requeued(), command, log)


def template(kind: str, jobs: Sequence[Job]) -> str:
    """A file for a cluster that runs all cells; python is that of the image."""
    commands = [shlex.join(["python", *job.command[1:]]) for job in jobs]
    text, indent, end = (GKE, 16, " & ;;") if kind == "gke" else (SKYPILOT, 4, " ;;")
    cases = [f"{number}) {command}{end}" for number, command in enumerate(commands)]
    return text.format(number=len(jobs), cases=f"\n{' ' * indent}".join(cases))


GKE = """\
# kubectl apply -f sweep.yaml   (one pod a cell; a pod that is taken away comes back and resumes)
# Change: image (with this repository at /cpc), service account, bucket, accelerator.
apiVersion: batch/v1
kind: Job
metadata:
  name: cpc-sweep
spec:
  completionMode: Indexed
  completions: {number}
  parallelism: {number}
  backoffLimitPerIndex: 10
  podFailurePolicy:
    rules:
      - action: Ignore  # a pod that is taken away is none of the ten
        onPodConditions:
          - type: DisruptionTarget
  template:
    metadata:
      annotations:
        gke-gcsfuse/volumes: "true"
    spec:
      restartPolicy: Never
      serviceAccountName: SERVICE_ACCOUNT
      terminationGracePeriodSeconds: 90
      nodeSelector:
        cloud.google.com/gke-accelerator: nvidia-l4
        cloud.google.com/gke-spot: "true"
      containers:
        - name: cell
          image: REGION-docker.pkg.dev/PROJECT/REPOSITORY/cpc:latest
          workingDir: /cpc
          resources:
            limits:
              nvidia.com/gpu: 1
          env:
            - name: JAX_NUM_PROCESSES  # JAX would take all pods of the Job for one cluster
              value: "1"
          command: ["bash", "-c"]
          args:
            - |
              # A cell that was stopped has saved and says 0, but its index is not completed.
              trap 'kill $!; wait $!; exit 143' TERM
              case $JOB_COMPLETION_INDEX in
                {cases}
              esac
              wait $!
          volumeMounts:
            - name: runs
              mountPath: /cpc/runs
      volumes:
        - name: runs
          csi:
            driver: gcsfuse.csi.storage.gke.io
            volumeAttributes:
              bucketName: BUCKET
"""

SKYPILOT = """\
# sky jobs launch sweep.yaml   (the cells are dealt out to the nodes; spot machines resume)
# Change: accelerators, number of nodes, bucket.
name: cpc-sweep
num_nodes: 1
workdir: .
resources:
  accelerators: L4:1
  use_spot: true
file_mounts:
  ~/sky_workdir/runs:
    source: s3://BUCKET
    mode: MOUNT
setup: |
  pip install -e '.[cuda]'
run: |
  run() {{ case $1 in
    {cases}
  esac; }}
  status=0
  for ((i = SKYPILOT_NODE_RANK; i < {number}; i += SKYPILOT_NUM_NODES)); do
    run $i || status=1
  done
  exit $status
"""
