"""Locks of run directories: exclusive, and free after the holder died."""

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


def test_second_process_is_rejected_with_the_holder(tmp_path, holder):
    assert lock.is_held(tmp_path)
    said = f"in use by process {holder.pid} on {platform.node()}"
    with pytest.raises(UserError, match=said), lock.hold(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert lock.is_held(tmp_path) is False
    with lock.hold(tmp_path):  # the lock of a dead process is free
        assert lock.is_held(tmp_path)
    assert (tmp_path / lock.RUN_LOCK).read_text() == ""


def write_lock(folder, host, pid=1, started=0.0, **job):
    (folder / lock.RUN_LOCK).write_text(
        json.dumps(seal({"host": host, "pid": pid, "started": started, **job}))
    )


@pytest.mark.parametrize(("job", "restart", "waits"), [("7", 1, 0), ("7", "", 1), ("8", 1, 1)])
def test_requeued_job_does_not_wait_for_itself(tmp_path, monkeypatch, capsys, job, restart, waits):
    """The restart count tells it from another command of the same job."""
    monkeypatch.setattr(lock, "SILENCE_SECONDS", 0.1)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart))
    write_lock(tmp_path, "elsewhere", job="7", restart="")
    assert lock.is_held(tmp_path) is None
    with lock.hold(tmp_path):  # no heartbeat from the other machine
        assert lock.is_held(tmp_path)
    assert capsys.readouterr().out.count("process 1 on elsewhere: waiting") == waits


def test_lock_with_heartbeat_from_another_machine_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "SILENCE_SECONDS", 5.0)
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.2)
    write_lock(tmp_path, "elsewhere", 7)
    done = threading.Event()
    thread = threading.Thread(target=lock._beat, args=(tmp_path / lock.RUN_LOCK, done))
    thread.start()
    with pytest.raises(UserError, match="in use by process 7 on elsewhere"), lock.hold(tmp_path):
        pass
    done.set()
    thread.join()


def test_recorded_process_counts_without_file_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        lock.hold(tmp_path),
        pytest.raises(UserError, match=f"in use by process {os.getpid()}"),
        lock.hold(tmp_path),
    ):
        pass
    write_lock(tmp_path, platform.node(), os.getpid(), started=1.0)  # a reused process id
    with lock.hold(tmp_path):
        pass


def test_damaged_locks_are_free_and_holders_send_heartbeats(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.05)
    (tmp_path / lock.RUN_LOCK).write_bytes(b"\xff{")
    assert lock.is_held(tmp_path) is False
    with lock.hold(tmp_path):
        assert lock.is_held(tmp_path)
        first = (tmp_path / lock.RUN_LOCK).stat().st_mtime_ns
        time.sleep(0.3)
        assert (tmp_path / lock.RUN_LOCK).stat().st_mtime_ns > first
