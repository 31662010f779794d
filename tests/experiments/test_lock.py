"""One process at a time in a run directory, and none that has died stands in the way."""

import errno
import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time

import pytest

from cpc.files import seal
from cpc.types import UserError
from experiments.command import lock

HOLDER = """
import pathlib, sys, time
from experiments.command import lock
with lock.hold(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_and_told_whose_it_is(tmp_path, holder):
    assert lock.is_held(tmp_path)
    said = f"in use by process {holder.pid} on {platform.node()}"
    with pytest.raises(UserError, match=said), lock.hold(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert lock.is_held(tmp_path) is False
    with lock.hold(tmp_path):  # a lock of the dead is free at once
        assert lock.is_held(tmp_path)
    assert (tmp_path / lock.LOCK).read_text() == ""


def left_by(folder, host, pid=1, started=0.0, **job):
    (folder / lock.LOCK).write_text(
        json.dumps(seal({"host": host, "pid": pid, "started": started, **job}))
    )


@pytest.mark.parametrize(
    ("job", "restart", "waits"), [("7", "1", 0), ("7", None, 1), ("8", "1", 1)]
)
def test_a_requeued_job_does_not_wait_for_itself(
    tmp_path, monkeypatch, capsys, job, restart, waits
):
    """On another machine; the restart count tells it from another command of the same job."""
    monkeypatch.setattr(lock, "SILENCE_SECONDS", 0.1)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    if restart:
        monkeypatch.setenv("SLURM_RESTART_COUNT", restart)
    left_by(tmp_path, "elsewhere", job="7", restart=None)
    assert lock.is_held(tmp_path) is None
    with lock.hold(tmp_path):  # another machine that shows no sign is dead
        assert lock.is_held(tmp_path)
    assert capsys.readouterr().out.count("process 1 on elsewhere: waiting") == waits


def test_another_machine_that_moves_the_time_of_its_lock_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "SILENCE_SECONDS", 5.0)
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.2)
    left_by(tmp_path, "elsewhere", 7)
    done = threading.Event()
    thread = threading.Thread(target=lock._beat, args=(tmp_path / lock.LOCK, done))
    thread.start()
    with pytest.raises(UserError, match="in use by process 7 on elsewhere"), lock.hold(tmp_path):
        pass
    done.set()
    thread.join()


def test_where_there_are_no_locks_the_recorded_process_counts(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        lock.hold(tmp_path),
        pytest.raises(UserError, match=f"in use by process {os.getpid()}"),
        lock.hold(tmp_path),
    ):
        pass
    left_by(tmp_path, platform.node(), os.getpid(), started=1.0)  # the number was given anew
    with lock.hold(tmp_path):
        pass


@pytest.mark.parametrize("content", [b"", b"\xff{"])
def test_readers_and_damaged_locks_hold_nobody_up(tmp_path, monkeypatch, content):
    """And who holds a lock moves its time."""
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.05)
    (tmp_path / lock.LOCK).write_bytes(content)
    assert lock.is_held(tmp_path) is False
    with lock.hold(tmp_path):
        assert lock.is_held(tmp_path)
        first = (tmp_path / lock.LOCK).stat().st_mtime_ns
        time.sleep(0.3)
        assert (tmp_path / lock.LOCK).stat().st_mtime_ns > first
