"""Launchers of sweep cells: local processes, SLURM jobs and cluster scripts."""

import fcntl
import os
import signal
import sys
import threading
import time
from unittest import mock

import pytest

from cpc.types import UserError
from experiments.sweep import jobs as launchers

PATIENT = """
import signal, sys, time
def stop(number, frame):
    print("saved", flush=True)
    {end}
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("end", "num_signals", "status"), [("sys.exit(0)", 1, 0), ("", 2, -9)])
def test_first_signal_is_forwarded_and_second_kills(tmp_path, end, num_signals, status):
    signals = []
    job = launchers.Job("a", tmp_path, [sys.executable, "-c", PATIENT.format(end=end)])

    def press():
        for word in ("ready", "saved")[:num_signals]:
            while not job.log.exists() or word not in job.log.read_text():
                time.sleep(0.02)
            signals.append(word)

    thread = threading.Thread(target=press)
    thread.start()
    assert launchers.make_local(1, lambda: len(signals), [])(job) == status
    thread.join()
    assert job.log.read_text() == "ready\nsaved\n"


def test_cores_are_shared_and_the_lock_is_held(tmp_path):
    code = "import os; print(*sorted(os.sched_getaffinity(0)))"
    cores = sorted(os.sched_getaffinity(0))
    hands = launchers.deal(cores, 2)
    assert launchers.deal([*range(7)], 3) == [[0, 1, 2], [3, 4], [5, 6]]
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wait = f"import time; time.sleep(0.3); {code}"
        launch = launchers.make_local(2, lambda: 0, [lock.fileno()])
        job = launchers.Job("a", tmp_path, [sys.executable, "-c", wait])
        thread = threading.Thread(target=launch, args=(job,))
        thread.start()
        while not job.log.exists():
            time.sleep(0.01)
        time.sleep(0.1)
    # As if the parent had been killed: the child still holds the lock.
    with (tmp_path / "lock").open("w") as again:
        with pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        thread.join()
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert [int(core) for core in job.log.read_text().split()] == (hands[0] or cores)


def test_gpus_are_shared(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / name).mkdir(parents=True)
    assert launchers.find_gpus(str(tmp_path / "gpus")) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert launchers.find_gpus(str(tmp_path / "gpus")) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-a,7")
    launch = launchers.make_local(2, lambda: 0)
    for name in "abc":
        job = launchers.Job(name, tmp_path, ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"])
        assert launch(job) == 0
    assert (tmp_path / "log.txt").read_text() == "3\nGPU-a\n3\n"


def test_missing_slurm_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    for module in (None, object()):
        monkeypatch.setitem(sys.modules, "submitit", module)
        with pytest.raises(UserError, match=r"needs submitit .pip install .* and the sbatch"):
            launchers.make_slurm([], tmp_path, "", lambda: 0)


@pytest.mark.parametrize(("results", "num_signals", "status", "log"), [
    ([[0, -9]], 0, -9, ""), ([], 1, 143, ""),
    (RuntimeError("no node"), 0, 1, "the job 17_0 ended as TIMEOUT: no node\n"),
])  # fmt: skip
def test_slurm_jobs_are_waited_for(tmp_path, results, num_signals, status, log):
    job = mock.Mock(job_id="17_0", state="TIMEOUT")
    job.done.return_value, job.results.side_effect = not num_signals, results
    path = tmp_path / "log.txt"
    path.touch()
    assert launchers.await_slurm(job, path, lambda: num_signals) == status
    assert (path.read_text(), job.cancel.called) == (log, bool(num_signals))


@pytest.mark.parametrize(("process", "name"), [("0", "log.txt"), ("1", "log.1.txt")])
def test_slurm_job_that_just_ended_is_requeued(tmp_path, monkeypatch, process, name):
    command, log = ["sh", "-c", "echo word; exit 5"], str(tmp_path / "log.txt")
    monkeypatch.setenv("SLURM_PROCID", process)
    job = launchers.Requeued()
    assert (job(command, log), (tmp_path / name).read_text()) == (5, "word\n")
    delayed = job.checkpoint(command, log)
    assert isinstance(delayed.function, launchers.Requeued)
    assert delayed.args == (command, log)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Install an sbatch that keeps the script of an array job."""
    script = "for last; do :; done\ncp $last {}\necho 'Submitted batch job 17'"
    for name in ("sbatch", "srun"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script.format(tmp_path / 'script')}")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "script"


def test_cells_are_a_slurm_array(tmp_path, slurm):
    jobs = [launchers.Job(name, tmp_path / name, [sys.executable, "--version"]) for name in "ab"]
    launchers.make_slurm(jobs, tmp_path, "timeout_min=7 slurm_partition=gpu", lambda: 0)
    for line in ("--partition=gpu", "--time=7", "--array=0-1%2"):
        assert f"#SBATCH {line}\n" in slurm.read_text()


@pytest.mark.parametrize("options", ["timeout_min", "timeout_min=x", "slurm_partitoin=gpu"])
def test_unknown_slurm_options_are_rejected(tmp_path, slurm, options):
    with pytest.raises(UserError, match=options.split("=")[0]):
        launchers.make_slurm([launchers.Job("a", tmp_path, [])], tmp_path, options, lambda: 0)
    assert not slurm.exists()


def test_preempted_slurm_job_saves(tmp_path):
    job, log = launchers.Requeued(), tmp_path / "log.txt"
    command = [sys.executable, "-c", PATIENT.format(end="sys.exit(0)")]
    thread = threading.Thread(target=job, args=(command, str(log)))
    thread.start()
    while not log.exists() or log.read_text() != "ready\n":
        time.sleep(0.02)
    os.kill(job.process.pid, signal.SIGUSR2)  # SLURM signals all processes of a job
    job.checkpoint(command, str(log))
    assert log.read_text() == "ready\nsaved\n"
    thread.join()
