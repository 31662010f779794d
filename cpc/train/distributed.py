"""Several processes as one run: find, join and wait for each other."""

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

#: Status of a process that ends because another has.
LOST = 3
#: A machine that has not been heard of for this long is gone.
SILENCE_SECONDS = 30.0
#: After an error, the watchdog has this long to report that another process has ended.
VERDICT_SECONDS = 5.0


class Cluster(NamedTuple):
    """The place of this process among several."""

    address: str  # of process 0
    number: int
    own: int  # index of this process
    local_devices: list[int] | None


class _Watchdog:
    """The program `watch.py` next to this process, and what it gets to know."""

    def __init__(self, cluster: Cluster, *seconds: float):
        """Start the program, wait until all processes have come, and redirect C++ messages."""
        host, _, port = cluster.address.rpartition(":")
        messages, log = tempfile.mkstemp(prefix=f"cpc-process-{cluster.own}-", suffix=".log")
        words = (host.strip("[]"), port, cluster.own, cluster.number, log, *seconds)
        self.program: Any = subprocess.Popen(
            [sys.executable, "-S", watch.__file__, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        answer = self.program.stdout.readline().strip()
        if answer != "go":
            self.program.communicate()
            os.unlink(log)  # noqa: PTH108
            raise UserError(answer or "the watchdog next to this process could not start")
        sys.stderr.flush()
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)  # the terminal is kept for Python
        os.dup2(messages, 2)
        os.close(messages)
        self.state, self.longest, self.arrived = "busy 0", 0.0, math.inf
        self.all_here, self.leaves = threading.Event(), threading.Event()
        self.heart = threading.Thread(target=self._send_heartbeats, daemon=True)
        self.heart.start()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.program.stdout:
            if line.strip() == "lost":  # the watchdog has said why
                break
            self.all_here.set()
        else:
            if self.leaves.is_set():
                return
            sys.stderr.write("error: the watchdog next to this process has ended\n")
        sys.stdout.flush()
        os._exit(LOST)

    def _send_heartbeats(self) -> None:
        # A thread, so that the loop never waits for the pipe, and a waiting program does not look
        # stopped.
        while not self.leaves.wait(watch.HEARTBEAT_SECONDS):
            self.send(f"{self.state} {self.longest:.2f}")

    def send(self, line: str) -> None:
        """Send a line; what becomes of a watchdog that has ended is found by `_listen`."""
        with contextlib.suppress(OSError):
            os.write(self.program.stdin.fileno(), f"{line}\n".encode())


#: That of this process, if it is one of several.
_watchdogs: list[_Watchdog] = []


def find_cluster() -> Cluster | None:
    """Return the cluster of this process; None if it is alone.

    It is described by JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or detected by
    JAX, which knows Slurm, Open MPI, TPU pods and Kubernetes.
    """
    address, local = os.environ.get("JAX_COORDINATOR_ADDRESS"), None
    number, index = _read_number("JAX_NUM_PROCESSES"), _read_number("JAX_PROCESS_ID")
    if number != 1 and None in (address, number, index):
        address, number, index, local = _detect(address, number, index)
    if number == 1 or (address, number, index) == (None, None, None):
        return None
    if address is None or number is None or index is None:
        raise UserError(
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID are not all set: set "
            "them all on each process, or none"
        )
    if not 0 <= index < number:
        raise UserError(f"JAX_PROCESS_ID is {index}: of {number} processes it is 0 to {number - 1}")
    if not re.fullmatch(r".+:\d+", address):
        raise UserError(
            f"JAX_COORDINATOR_ADDRESS is {address!r}: write host:port, as in node7:1234"
        )
    return Cluster(address, number, index, None if local is None else list(local))


def _read_number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is not None and not text.isdecimal():
        raise UserError(f"{name} is {text!r}: it must be a whole number")
    return None if text is None else int(text)


def _detect(address, number, index):
    try:
        # There is no public way to ask JAX without starting.
        from jax._src.clusters import ClusterEnv

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a Kubernetes pod need not be a cluster
            return ClusterEnv.auto_detect_unset_distributed_params(
                address, number, index, None, None, 60
            )
    except Exception as error:  # each kind of cluster fails in its own ways
        raise UserError(
            f"the cluster that this process is in cannot be read ({error}): set "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or JAX_NUM_PROCESSES=1 "
            "to run alone"
        ) from error


def join_processes(
    join_seconds: float = 120.0,
    hang_seconds: float = 300.0,
    identify: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Join the other processes, if there are any; call it before anything else uses JAX.

    From then on all end with a sentence and status 3 if one of them ends, is on a machine that is
    not heard of for 30 s, is stopped for `hang_seconds`, or hangs in training for that long or ten
    times the longest step, or if its `identify` returns another identity, as of another config.
    C++ messages go to a file, which that sentence names if it contains anything.
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
        # The watchdog is quicker and names the process, and process 0 may write its report for
        # long. JAX would abort the processes that wait for a stopped one before that one is named.
        heartbeat_timeout_seconds=24 * 3600,
        shutdown_timeout_seconds=24 * 3600,
    )
    if jax.default_backend() == "cpu" and jax.local_device_count() > 1:
        raise UserError(
            f"{jax.local_device_count()} CPU devices are in each of {cluster.number} processes, "
            "which can wait for each other for ever: take "
            "--xla_force_host_platform_device_count out of XLA_FLAGS"
        )


def report_step(step: int, num_waits: int) -> None:
    """Tell the watchdog that the loop is at this step, and not for long; never waits.

    `num_waits`: how often the loop has waited for the device. The first wait may be for others that
    still compile, and the second shows how long steps take.
    """
    now = time.monotonic()
    for watchdog in _watchdogs:
        watchdog.longest = max(watchdog.longest, now - watchdog.arrived)
        watchdog.arrived = now if num_waits > 0 else math.inf
        if num_waits > 1:
            watchdog.state = f"at {step}"


def report_busy(step: int) -> None:
    """Tell the watchdog that work at this step, such as an evaluation, may take any time."""
    for watchdog in _watchdogs:
        watchdog.state, watchdog.arrived = f"busy {step}", math.inf


def wait_for_all(name: str, identity: Mapping[str, Any] | None = None) -> None:
    """Wait until every process has come here, as long as it takes.

    If they come with different identities, such as digests of their data, all of them end with a
    sentence that names the difference.
    """
    for watchdog in _watchdogs:
        watchdog.all_here.clear()
        watchdog.send(f"waits {json.dumps(identity or {})}")
        watchdog.all_here.wait()
    if not _watchdogs and jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def is_first() -> bool:
    """Return whether this process writes files and prints: process 0, or the only one."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def run_on_first(function: Callable[..., Any], *args: Any) -> Any:
    """Return `function(*args)` of process 0, on its copies of replicated arrays; None elsewhere."""
    if jax.process_count() == 1:
        return function(*args)
    own = jax.tree.map(
        lambda leaf: leaf.addressable_data(0) if isinstance(leaf, jax.Array) else leaf, args
    )
    result = function(*own) if is_first() else None
    wait_for_all("work of process 0")
    return result


def gather_rows(batch: PyTree) -> PyTree:
    """Return the rows of all processes, one after the other, on each of them."""
    if jax.process_count() == 1:
        return batch
    return multihost_utils.process_allgather(batch, tiled=True)


def leave_processes() -> None:
    """Tell the others that this process ends as it should."""
    for watchdog in _watchdogs:
        watchdog.leaves.set()
        watchdog.heart.join()
        watchdog.send("bye")
        watchdog.program.stdin.close()
        watchdog.program.wait()
    _watchdogs.clear()


def leave_failing(status: int) -> None:
    """End at once instead of waiting for the others, which notice it."""
    if _watchdogs:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def await_verdict() -> None:
    """Give the watchdog time to end this process, if an error is due to one that ended."""
    if _watchdogs:
        time.sleep(VERDICT_SECONDS)
