"""Several processes as one run: found, joined, waited for, and missed when one is gone."""

import contextlib
import json
import math
import os
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
#: A machine that is not heard of for so long is gone.
SILENCE_SECONDS = 30.0
#: What failed here waits so long for the watchdog to say that another process has ended.
VERDICT_SECONDS = 5.0


class Cluster(NamedTuple):
    """Who we are, of how many, and where process 0 is."""

    address: str
    number: int
    own: int
    """This process, from 0."""
    local_devices: list[int] | None


class _Watchdog:
    """`watch.py` beside this process."""

    def __init__(self, cluster: Cluster, *seconds: float):
        host, _, port = cluster.address.rpartition(":")
        self._messages, log = tempfile.mkstemp(prefix=f"cpc-process-{cluster.own}-", suffix=".log")
        words = (host.strip("[]"), port, cluster.own, cluster.number, log, *seconds)
        self._program = subprocess.Popen(
            [sys.executable, "-S", watch.__file__, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        assert self._program.stdin
        assert self._program.stdout
        self._to, self._from = self._program.stdin, self._program.stdout
        answer = self._from.readline().strip()
        word, _, address = answer.partition(" ")
        if word != "go":
            self._program.communicate()
            os.unlink(log)  # noqa: PTH108
            raise UserError(answer or "the watchdog beside this process could not start")
        #: Where process 0 listens, if not on all interfaces.
        shown = f"[{address}]" if ":" in address else address
        self.address = f"{shown}:{port}" if address else None
        self._doing, self._longest, self._arrived = "busy 0", 0.0, math.inf
        self._all_here, self._leaves = threading.Event(), threading.Event()
        self._heart = threading.Thread(target=self._send_heartbeats, daemon=True)
        self._heart.start()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._from:
            if line.strip() == "lost":  # it has said so already
                sys.stdout.flush()
                os._exit(LOST)
            self._all_here.set()
        if not self._leaves.is_set():
            sys.stderr.write("error: the watchdog beside this process has ended\n")
            sys.stdout.flush()
            os._exit(LOST)

    def _send_heartbeats(self) -> None:
        # A thread, so that the loop never waits for the pipe, and so that a program that waits can
        # be told from one that is stopped.
        while not self._leaves.wait(watch.HEARTBEAT_SECONDS):
            self._send(f"{self._doing} {self._longest:.2f}")

    def _send(self, line: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._to.fileno(), f"{line}\n".encode())

    def report_step(self, step: int, num_waits: int) -> None:
        now = time.monotonic()
        self._longest = max(self._longest, now - self._arrived)
        self._arrived = now if num_waits > 0 else math.inf
        if num_waits > 1:
            self._doing = f"at {step}"

    def report_busy(self, step: int) -> None:
        self._doing, self._arrived = f"busy {step}", math.inf

    def redirect_native_messages(self) -> None:
        """Keep the terminal for Python; pages of C++ trace go to a file."""
        sys.stderr.flush()
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
        os.dup2(self._messages, 2)
        os.close(self._messages)

    def wait(self, identity: Mapping[str, Any]) -> None:
        self._all_here.clear()
        self._send(f"waits {json.dumps(identity)}")
        self._all_here.wait()

    def leave(self) -> None:
        self._leaves.set()
        self._heart.join()
        self._send("bye")
        self._to.close()
        self._program.wait()


_watchdogs: list[_Watchdog] = []


def find_cluster() -> Cluster | None:
    """Return the processes that this one belongs to; None if it is alone.

    They are named by JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or are those
    that JAX detects: it knows Slurm, Open MPI, TPU pods and Kubernetes.

    Raises:
        UserError: the variables do not fit together, or a cluster cannot be read.
    """
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    number, index = _read_number("JAX_NUM_PROCESSES"), _read_number("JAX_PROCESS_ID")
    if number == 1:
        return None
    local = None
    if None in (address, number, index):
        address, number, index, local = _detect(address, number, index)
    if (address, number, index) == (None, None, None) or number == 1:
        return None
    if address is None or number is None or index is None:
        raise UserError(
            "of JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID some are set and "
            "some are not: set all three on each process, or none"
        )
    if not 0 <= index < number:
        raise UserError(f"JAX_PROCESS_ID is {index}: of {number} processes it is 0 to {number - 1}")
    if not address.rpartition(":")[0] or not address.rpartition(":")[2].isdecimal():
        raise UserError(
            f"JAX_COORDINATOR_ADDRESS is {address!r}: write host:port, as in node7:1234"
        )
    return Cluster(address, number, index, None if local is None else list(local))


def _read_number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        raise UserError(f"{name} is {text!r}: it must be a whole number")
    return int(text)


def _detect(address, number, index):
    try:
        # What `jax.distributed.initialize` asks; there is no public way to ask without starting.
        from jax._src.clusters import ClusterEnv

        detect = ClusterEnv.auto_detect_unset_distributed_params
    except (ImportError, AttributeError):
        warnings.warn(
            f"JAX {jax.__version__} does not say here which cluster it finds: this process is one "
            "of several only if JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID say "
            "so",
            stacklevel=2,
        )
        return address, number, index, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a Kubernetes pod need not be a cluster
            return detect(address, number, index, None, None, 60)
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
    """Join the other processes, if there are any; call it before anything else asks JAX.

    From then on a process that ends, or whose machine is not heard of for 30 s, ends
    the others with a sentence and status 3. So does one that hangs in training for `hang_seconds`,
    or ten times the longest that any stayed at a step, if that is more; or that is stopped for so
    long, whatever it does; or for which `identify` returns another identity, as another config.
    C++ messages go to a file, which that sentence names if it contains anything.

    Raises:
        UserError: not all processes come within `join_seconds`.
    """
    cluster = find_cluster()
    if cluster is None or _watchdogs:
        return
    watchdog = _Watchdog(cluster, join_seconds, SILENCE_SECONDS, hang_seconds)
    _watchdogs.append(watchdog)
    watchdog.redirect_native_messages()
    watchdog.wait(identify())
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        cluster.address,
        cluster.number,
        cluster.own,
        cluster.local_devices,
        cluster_detection_method="deactivate",
        coordinator_bind_address=watchdog.address,
        initialization_timeout=int(join_seconds),
        # The watchdog is quicker, and says who; and at the end process 0 may write its report for
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
    still compile, the second shows how long steps take: before it nobody can say what is too long.
    """
    for watchdog in _watchdogs:
        watchdog.report_step(step, num_waits)


def report_busy(step: int) -> None:
    """Tell the watchdog that what comes now, at this step, may take any time."""
    for watchdog in _watchdogs:
        watchdog.report_busy(step)


def wait_for_all(name: str, identity: Mapping[str, Any] | None = None) -> None:
    """Wait until every process has come here; as long as it takes.

    If they come with different identities, such as digests of their data, all of them end with a
    sentence that names the difference.
    """
    if _watchdogs:
        _watchdogs[0].wait(identity or {})
    elif jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def is_first() -> bool:
    """Return whether this process writes files and speaks: process 0, or the only one."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def run_on_first(function: Callable[..., Any], *args: Any) -> Any:
    """Return `function(*args)`, called on process 0 with its own copies of replicated arrays.

    The others wait, and get None: no device of theirs takes part.
    """
    if jax.process_count() == 1:
        return function(*args)
    result = function(*jax.tree.map(_own_copy, args)) if is_first() else None
    wait_for_all(getattr(function, "__name__", "work of process 0"))
    return result


def _own_copy(leaf: Any) -> Any:
    return leaf.addressable_data(0) if isinstance(leaf, jax.Array) else leaf


def gather_rows(batch: PyTree) -> PyTree:
    """Return the rows of all processes, one after the other, on each of them."""
    if jax.process_count() == 1:
        return batch
    return multihost_utils.process_allgather(batch, tiled=True)


def leave_processes() -> None:
    """Tell the others that this process ends as it should."""
    for watchdog in _watchdogs:
        watchdog.leave()
    _watchdogs.clear()


def leave_failing(status: int) -> None:
    """End at once, where waiting for the others would last for ever; they are told."""
    if _watchdogs:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def await_verdict() -> None:
    """Wait a little: what failed here may have failed because another process ended.

    Then the watchdog ends this process with a sentence about the other one.
    """
    if _watchdogs:
        time.sleep(VERDICT_SECONDS)
