"""Multi-process starts: cluster detection, roll call and watchdogs."""

import contextlib
import math
import queue
import re
import signal
import socket
import struct
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from cpc.train import (
    Checkpoints,
    distributed,
    is_first,
    join_processes,
    loop,
    open_checkpoints,
    run_on_first,
    wait_for_all,
    watch,
)
from cpc.types import UserError


@pytest.fixture
def describe(monkeypatch):
    def describe(*values):
        for name, value in zip(distributed.VARIABLES, values, strict=True):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)

    describe(None, None, None)
    return describe


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_single_process_needs_no_cluster(describe):
    assert distributed.find_cluster() is None
    describe("127.0.0.1:1", "1", "0")
    assert distributed.find_cluster() is None
    join_processes()
    wait_for_all("nothing")
    assert not jax.distributed.is_initialized()
    assert is_first()
    assert run_on_first(lambda x: x + 1, 2) == 3


def test_slurm_is_detected(describe, monkeypatch):
    """Process 1 of 2, with one local device, as JAX reads the variables."""
    slurm = {"JOB_ID": "7", "STEP_NODELIST": "node[3-4]", "NTASKS": "2", "PROCID": "1"}
    for name, value in {**slurm, "LOCALID": "0", "STEP_NUM_NODES": "2"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    found = distributed.find_cluster()
    assert found is not None
    assert found.address.startswith("node3:")
    assert (found.number, found.own, found.local_devices) == (2, 1, [0])


def test_explicit_variables_skip_detection(describe, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setitem(sys.modules, "jax._src.clusters", None)
    describe("node7:1234", "3", "2")
    assert distributed.find_cluster() == ("node7:1234", 3, 2, None)
    describe("node7:1234", "3", None)
    with pytest.raises(UserError, match="cannot be detected"):
        distributed.find_cluster()


def test_invalid_variables_are_reported(describe):
    for values in ("a:1", None, None), ("a:1", "2", "2"), ("a:1", "two", "0"), ("a", "2", "0"):
        describe(*values)
        with pytest.raises(UserError, match=f"JAX_PROCESS_ID must .*{re.escape(str([*values]))}"):
            distributed.find_cluster()


def test_missing_processes_are_reported_before_jax_aborts(describe):
    for index, words in (("1", "no process 0"), ("0", "not all of 2")):
        address = f"127.0.0.1:{free_port()}"
        describe(address, "2", index)
        with pytest.raises(UserError, match=f"{words}.* {address} within 0.3 s"):
            join_processes(join_seconds=0.3)
        assert not jax.distributed.is_initialized()
    with socket.create_server(("", 0)) as server:  # the port is in use
        describe(f"127.0.0.1:{server.getsockname()[1]}", "2", "0")
        with pytest.raises(UserError, match=r"cannot listen at .* choose another port"):
            join_processes(join_seconds=0.3)


def call_roll(number, *sayings, seconds=5.0):
    """Run process 0 of `number` against connections that behave like `sayings`.

    Return the address of each process that is present.
    """
    with (
        watch.listen("127.0.0.1", 0) as server,
        ThreadPoolExecutor() as pool,
        contextlib.ExitStack() as stack,
    ):
        address, end = server.getsockname(), watch.time.monotonic() + seconds
        roll = pool.submit(watch.call_roll, queue.SimpleQueue(), server, "here", number, end)
        for say in sayings:
            say(stack.enter_context(socket.create_connection(address, timeout=5)))
        return {index: peer.connection.getpeername() for index, peer in roll.result().items()}


def says(data):
    return lambda connection: connection.sendall(data)


def comes(index, number=2):
    return says(f"here {index} {number}\n".encode())


def resets(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_foreign_connections_are_ignored():
    lines = (
        bytes(range(256)) * 40, b"here" * 1000, b"GET / HTTP/1.1\r\nHost: node7\r\n\r\n",
        b"here 1\n", b"here abc\n", b"\n", b"here 0 2\n", b"here 5 2\n", b"here 1 3\n",
    )  # fmt: skip
    own = []

    def come(connection):
        comes(1)(connection)
        own.append(connection.getsockname())

    begin = watch.time.monotonic()
    odd = (resets, socket.socket.close, *map(says, lines))
    assert call_roll(2, *odd, *[says(b"")] * 100, come) == {1: own[0]}
    assert watch.time.monotonic() - begin < 3  # silent connections do not delay


def test_disconnected_process_is_missing_and_may_return():
    def come_and_go(connection):
        comes(1, 3)(connection)
        connection.close()
        watch.time.sleep(0.1)

    def come(connection):
        comes(1, 3)(connection)
        first.append(connection.getsockname())
        watch.time.sleep(0.1)

    first = []
    for number, missing, say in ((3, "processes 1, 2", come_and_go), (2, "process 1", says(b""))):
        with pytest.raises(watch.Ended, match=f"{missing} missing: not all of {number} "):
            call_roll(number, say, seconds=0.3)
    assert call_roll(3, come_and_go, comes(1, 3), comes(2, 3)).keys() == {1, 2}
    assert call_roll(3, come, comes(1, 3), comes(2, 3))[1] == first[0]


def test_local_launch_listens_only_on_loopback():
    for host in ("localhost", "127.0.0.1"):
        with watch.listen(host, free_port()) as server:
            assert server.getsockname()[0] == "127.0.0.1"
    with watch.listen("node7", free_port()) as server:
        assert server.getsockname()[0] in ("::", "0.0.0.0")


def test_launch_of_another_size_is_not_joined():
    with watch.listen("127.0.0.1", 0) as server, ThreadPoolExecutor() as pool:
        port, now = server.getsockname()[1], watch.time.monotonic()
        pool.submit(watch.call_roll, queue.SimpleQueue(), server, "here", 2, now + 5)
        with pytest.raises(watch.Ended, match="no process 0 that takes process 1 of 3 answers at"):
            watch.connect_to_first("127.0.0.1", port, 1, 3, now + 0.5)
        with watch.connect_to_first("127.0.0.1", port, 1, 2, now + 5) as connection:
            assert connection.gettimeout() is None


def at(step, moved=0.0, *, busy=False, longest=1.6, heard=999.5):
    return watch.Heartbeat(step, busy, longest, moved, heard)


def later(*heartbeats):
    """Return heartbeats of processes that last moved 4,000 s earlier."""
    return [one._replace(changed=one.changed or -4000.0) for one in heartbeats]


@pytest.mark.parametrize(("heartbeats", "sentence"), [
    # The others wait for the process behind.
    ([at(136, 690), at(120, 600)], "process 1 of 2 stayed at step 120 for 300 s (the longest"),
    ([at(136, 600), at(120, 690)], "process 1 of 2 stayed at step 120 for 300 s (the longest"),
    ([at(9), at(8), at(8)], "processes 1, 2 of 3 stayed at step 8"),
    ([at(136), at(120)], "wait before: 1.6 s), and others wait at step 136; all end: look at"),
    # Nobody is behind, or all wait in an evaluation.
    ([at(128), at(128, busy=True)], "process 0 of 2 stayed at step 128"),
    ([at(8), at(8)], "all processes stayed at step 8 for 300 s"),
    # One has moved, the one behind is busy, or waits were long before.
    ([at(136), at(120, 701)], ""), ([at(136, 701), at(120)], ""),
    ([at(136), at(120, busy=True)], ""), ([at(136), at(0, busy=True, longest=0.0)], ""),
    ([at(136, longest=110), at(120)], ""),
    ([at(136, longest=50), at(120)], "for 500 s (the longest wait before: 50.0 s)"),
    # A silent process may itself be stopped; after the limit it is the one to blame.
    ([at(136), at(120), at(136, heard=900)], ""),
    ([at(136), at(120), at(136, heard=699)], "process 2 of 3 gave no sign of life for 300 s"),
    ([at(136, 999), at(136, 999, heard=699)], "process 1 of 2 gave no sign of life"),
    ([at(8), at(8, busy=True, heard=699)], "since step 8"),
    # A busy process (starting, evaluating, saving) has an hour.
    (later(at(136), at(128, busy=True)), "process 1 of 2 stayed at step 128 for 3600 s"),
    (later(at(136), at(0, busy=True)), "process 1 of 2 stayed at step 0 for 3600 s"),
    # One has moved within the hour; all are busy.
    (later(at(136, -2500), at(128, busy=True)), ""),
    (later(at(128, busy=True), at(100, busy=True)), ""),
])  # fmt: skip
def test_hung_process_is_named(heartbeats, sentence):
    """Heartbeats at second 1000 with a limit of 300 s."""
    found = watch.find_hung(dict(enumerate(heartbeats)), len(heartbeats), 300.0, 1000.0)
    assert sentence in found
    assert bool(sentence) == bool(found)


def test_longest_step_excludes_compilation_and_evaluations(monkeypatch):
    watchdog = types.SimpleNamespace(state="busy 0", longest=0.0, arrived=math.inf)
    monkeypatch.setattr(distributed, "_watchdogs", [watchdog])
    times, found = iter([5, 90, 93, 95, 600, 601]), []
    monkeypatch.setattr(distributed.time, "monotonic", lambda: next(times))
    for step, num_waits in ((8, 0), (16, 1), (24, 2), (32, 3), (None, 0), (40, 4), (48, 5)):
        if step is None:
            distributed.report_busy(32)
        else:
            distributed.report_step(step, num_waits)
        found.append((watchdog.state, watchdog.longest))
    states = ("busy 0", "busy 0", "at 24", "at 32", "busy 32", "at 40", "at 48")
    assert found == list(zip(states, (0, 0, 3, 3, 3, 3, 3), strict=True))


def start_python(*words):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *words], **quiet)


def wait_for_end(programs):
    """Return errors and exit statuses of programs, which have a minute to end."""
    try:
        errors = [program.communicate(timeout=60)[1] for program in programs]
    finally:
        for program in programs:
            program.kill()
    return errors, [program.returncode for program in programs]


#: A program that only sends heartbeats to its watchdog.
PROGRAM = """
import subprocess, sys, time
file, port, index, word, log = sys.argv[1:]
words = [sys.executable, "-S", file, "127.0.0.1", port, index, "2", log, "30", "4", "2"]
pipe = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True).stdin
while True:
    pipe.write(f"{word} 0.1\\n".encode())
    pipe.flush()
    time.sleep(0.2)
"""


def test_watchdogs_end_hung_programs(tmp_path):
    """Process 1 lacks a batch for step 102; the empty log of process 1 is removed."""
    port, logs = str(free_port()), [tmp_path / "0.log", tmp_path / "1.log"]
    logs[0].write_text("pages of trace")
    logs[1].touch()
    programs = [
        start_python("-S", "-c", PROGRAM, watch.__file__, port, index, word, logs[int(index)])
        for index, word in (("0", "at 102"), ("1", "at 100"))
    ]
    errors, statuses = wait_for_end(programs)
    assert statuses == [-signal.SIGKILL] * 2
    sentence = "error: process 1 of 2 stayed at step 100 for 2 s (the longest wait before: 0.1 s)"
    assert all(error.startswith(sentence) and error.count("\n") == 1 for error in errors), errors
    assert [str(logs[0]) in error for error in errors] == [True, False]
    assert [path.exists() for path in logs] == [True, False]


@pytest.mark.parametrize(("identities", "said"), [
    ([{"seed": 0, "data": "a"}, {"seed": 0, "data": "a"}], []),
    ([{}, {}, {"model.width": 8}], ["process 2 of 3", "model.width: absent there, 8 here"]),
    ([{"a": 1, "b": 1, "c": "x", "d": 1}, {"c": "y" * 9999}], ["a: 1", "absent", "and 1 more"]),
])  # fmt: skip
def test_different_configs_are_described(identities, said):
    sentence = watch.describe_difference(dict(enumerate(identities)))
    assert bool(sentence) == bool(said)
    assert all(words in sentence for words in said), sentence
    assert len(sentence) < 400
    assert sentence.count(" there, ") <= watch.MAX_DIFFERENCES


#: A process that may kill its own watchdog.
WATCHED = """
import sys, time
from cpc.train import distributed
address, index, is_killed = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "killed"
watchdog = distributed._Watchdog(distributed.Cluster(address, 2, index, None), 60, 20, 60)
distributed._watchdogs.append(watchdog)
distributed.wait_for_all("", {"seed": 0})
print("both", file=sys.stderr)
if is_killed:
    time.sleep(0.5)
    watchdog.program.kill()
distributed.wait_for_all("")
"""


def test_lost_watchdog_ends_the_process():
    address = f"127.0.0.1:{free_port()}"
    processes = [
        start_python("-c", WATCHED, address, *words) for words in (("0", "killed"), ("1", ""))
    ]
    errors, statuses = wait_for_end(processes)
    assert statuses == [distributed.LOST] * 2
    assert errors[0] == "both\nerror: the watchdog of this process has ended\n"
    assert errors[1].startswith("both\nerror: process 0 of 2 has ended")


def test_preemption_is_checked_for_each_step_of_a_launch(tmp_path, monkeypatch):
    monkeypatch.setattr(Checkpoints, "is_preempted", lambda self, step: step == 13)
    with open_checkpoints(tmp_path) as checkpoint:
        reasons = [loop._preemption(checkpoint, step, 4) for step in (0, 4, 8, 12, 16)]
    assert reasons == ["", "", "", "", "preemption"]
