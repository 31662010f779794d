"""Support for runs with several processes: cluster detection, startup, barriers and failures."""

import contextlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jax.experimental import multihost_utils

from cpc.train import watch
from cpc.types import PyTree, UserError

#: Exit status of a process that ends because another process ended.
LOST = 3
#: Time without messages after which a machine counts as lost.
SILENCE_SECONDS = 30.0
#: Time that an error is delayed, so that the watchdog can report a lost process as its cause.
VERDICT_SECONDS = 5.0
VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


class Cluster(NamedTuple):
    """The processes of a run and the index of this process."""

    address: str  # host:port of process 0
    number: int  # number of processes
    own: int  # index of this process
    local_devices: list[int] | None


class _Watchdog:
    """A child process that runs `watch.py`, and the progress that this process reports to it."""

    def __init__(self, cluster: Cluster, *seconds: float):
        """Start the watchdog, wait for all processes, and redirect C++ messages to a file."""
        host, _, port = cluster.address.rpartition(":")
        messages, log = tempfile.mkstemp(prefix=f"cpc-process-{cluster.own}-", suffix=".log")
        arguments = (host.strip("[]"), port, cluster.own, cluster.number, log, *seconds)
        self.program: Any = subprocess.Popen(
            [sys.executable, "-S", watch.__file__, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        answer = self.program.stdout.readline().strip()
        if answer != "go":
            self.program.communicate()
            os.unlink(log)  # noqa: PTH108
            raise UserError(answer or "the watchdog of this process could not be started")
        sys.stderr.flush()
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)  # Python still writes to the terminal
        os.dup2(messages, 2)
        os.close(messages)
        self.state, self.longest, self.arrived = "busy 0", 0.0, math.inf
        self.all_waiting, self.is_leaving = threading.Event(), threading.Event()
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.program.stdout:
            if line.strip() == "lost":  # the watchdog has already printed the reason
                break
            self.all_waiting.set()
        else:
            if self.is_leaving.is_set():
                return
            sys.stderr.write("error: the watchdog of this process has ended\n")
        sys.stdout.flush()
        os._exit(LOST)

    def _send_heartbeats(self) -> None:
        # In a thread, so that the training loop never blocks on the pipe, and this process sends
        # heartbeats even while it waits.
        while not self.is_leaving.wait(watch.HEARTBEAT_SECONDS):
            self.send(f"{self.state} {self.longest:.2f}")

    def send(self, line: str) -> None:
        """Send a line. If the watchdog has ended, `_listen` handles that."""
        with contextlib.suppress(OSError):
            os.write(self.program.stdin.fileno(), f"{line}\n".encode())


#: The watchdog of this process; empty in single-process runs.
_watchdogs: list[_Watchdog] = []


def find_cluster() -> Cluster | None:
    """Return the cluster that this process belongs to, or None if the run has a single process.

    A cluster is configured by JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or
    detected by JAX, which supports Slurm, Open MPI, TPU pods and Kubernetes.
    """
    texts = [os.environ.get(name) for name in VARIABLES]
    wrong = UserError(
        f"{', '.join(VARIABLES)} must be host:port, a number of processes and an index below it "
        f"(got {texts}): set all three or none in each process"
    )
    if any(text is not None and not text.isdecimal() for text in texts[1:]):
        raise wrong
    number, index = (None if text is None else int(text) for text in texts[1:])
    address, local = texts[0], None
    if number != 1 and None in (address, number, index):
        address, number, index, local = _detect(address, number, index)
    if number == 1 or (address, number, index) == (None, None, None):
        return None
    if address is None or number is None or index is None:
        raise wrong
    if index >= number or not re.fullmatch(r".+:\d+", address):
        raise wrong
    return Cluster(address, number, index, None if local is None else list(local))


def _detect(address, number, index):
    try:
        # The public API of JAX can detect a cluster only while it also initializes it.
        from jax._src.clusters import ClusterEnv

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a Kubernetes pod need not be a cluster
            return ClusterEnv.auto_detect_unset_distributed_params(
                address, number, index, None, None, 60
            )
    except Exception as error:  # each cluster type raises its own errors
        raise UserError(
            f"the cluster cannot be detected ({error}): set {', '.join(VARIABLES)}, or only "
            "JAX_NUM_PROCESSES=1 for a single process"
        ) from error


def join_processes(
    join_seconds: float = 120.0,
    hang_seconds: float = 300.0,
    identify: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Join the other processes of a run, if any. Call this before any other use of JAX.

    From then on, if a process ends, hangs, has another identity, or is on a machine that sends
    nothing for 30 s, all processes end with an error message and status 3. C++ messages are written
    to a file. Unless it is empty, the error message names it.

    Args:
        join_seconds: time limit for all processes to start.
        hang_seconds: time after which a process counts as hung. If ten times the longest step is
            longer, that time is used.
        identify: returns the identity, values such as the config that all processes must share.
    """
    cluster = find_cluster()
    if cluster is None or _watchdogs:
        return
    _watchdogs.append(_Watchdog(cluster, join_seconds, SILENCE_SECONDS, hang_seconds))
    wait_for_all("identity", identify())
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    is_local = watch.is_loopback(cluster.address.rpartition(":")[0].strip("[]"))
    jax.distributed.initialize(
        *cluster,
        cluster_detection_method="deactivate",
        coordinator_bind_address=cluster.address if is_local else None,
        initialization_timeout=int(join_seconds),
        # The default timeouts of JAX would abort waiting processes before the watchdog names the
        # process that stopped, or while process 0 writes a report.
        heartbeat_timeout_seconds=24 * 3600,
        shutdown_timeout_seconds=24 * 3600,
    )
    if jax.default_backend() == "cpu" and jax.local_device_count() > 1:
        raise UserError(
            f"several CPU devices per process can deadlock (got {jax.local_device_count()}): "
            "remove --xla_force_host_platform_device_count from XLA_FLAGS"
        )


def report_step(step: int, num_waits: int) -> None:
    """Report to the watchdog, without blocking, the step that the training loop has reached.

    `num_waits` is how often the loop has waited for the device. The first wait may include
    compilation in other processes. Later waits measure the duration of a step.
    """
    now = time.monotonic()
    for watchdog in _watchdogs:
        watchdog.longest = max(watchdog.longest, now - watchdog.arrived)
        watchdog.arrived = now if num_waits > 0 else math.inf
        if num_waits > 1:
            watchdog.state = f"at {step}"


def report_busy(step: int) -> None:
    """Report to the watchdog that this process is busy, for example with an evaluation."""
    for watchdog in _watchdogs:
        watchdog.state, watchdog.arrived = f"busy {step}", math.inf


def wait_for_all(name: str, identity: Mapping[str, Any] | None = None) -> None:
    """Wait, without a time limit, until all processes have made this call.

    `identity` contains values that must be equal in all processes, such as digests of the data. If
    they differ, all processes end with an error message that names the difference.
    """
    for watchdog in _watchdogs:
        watchdog.all_waiting.clear()
        watchdog.send(f"waits {json.dumps(identity or {})}")
        watchdog.all_waiting.wait()
    if not _watchdogs and jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def is_first() -> bool:
    """Return whether this is process 0, the only one that writes files and prints."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def run_on_first(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in process 0 only and return its result, or None in other processes.

    Each replicated array in `args` is replaced by its copy on the process's first device.
    """
    if jax.process_count() == 1:
        return function(*args)
    own = jax.tree.map(
        lambda leaf: leaf.addressable_data(0) if isinstance(leaf, jax.Array) else leaf, args
    )
    result = function(*own) if is_first() else None
    wait_for_all("work of process 0")
    return result


def gather_rows(batch: PyTree) -> PyTree:
    """Return, in every process, the rows of all processes, concatenated in process order."""
    if jax.process_count() == 1:
        return batch
    return multihost_utils.process_allgather(batch, tiled=True)


def leave_processes() -> None:
    """Report to the other processes that this process ends normally."""
    for watchdog in _watchdogs:
        watchdog.is_leaving.set()
        watchdog.send("bye")
        watchdog.program.wait()
    _watchdogs.clear()


def leave_failing(status: int) -> None:
    """Exit at once if there are other processes, so that their watchdogs notice and end them."""
    if _watchdogs:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def await_verdict() -> None:
    """Wait, so that the watchdog can end this process if another one caused the current error."""
    if _watchdogs:
        time.sleep(VERDICT_SECONDS)
