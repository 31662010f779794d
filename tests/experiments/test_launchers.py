"""Where cells run: processes of this machine, jobs of SLURM, files for clusters."""

import fcntl
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest
import yaml

from cpc.types import UserError
from experiments.sweep.launchers import (
    Job,
    Requeued,
    deal,
    find_gpus,
    import_submitit,
    make_local,
    make_slurm,
    make_waiting,
)

ROOT = pathlib.Path(__file__).parents[2]

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
def test_the_first_signal_is_passed_on_and_the_second_kills(tmp_path, end, num_signals, status):
    signals = []
    job = Job("a", tmp_path, [sys.executable, "-c", PATIENT.format(end=end)])

    def signal_when(word):
        while word not in (job.log.read_text() if job.log.exists() else ""):
            time.sleep(0.02)
        signals.append(word)

    def press():
        for word in ("ready", "saved")[:num_signals]:
            signal_when(word)

    thread = threading.Thread(target=press)
    thread.start()
    assert make_local(1, lambda: len(signals), [])(job) == status
    thread.join()
    assert job.log.read_text() == "ready\nsaved\n"


def test_cores_are_dealt_out_and_the_lock_is_held(tmp_path):
    code = "import os; print(*sorted(os.sched_getaffinity(0)))"
    cores = sorted(os.sched_getaffinity(0))
    hands = deal(cores, 2)
    if len(cores) > 1:
        assert [core for hand in hands for core in hand] == cores
    assert deal(cores, len(cores) + 1) == [[]] * (len(cores) + 1)
    assert deal([*range(7)], 3) == [[0, 1], [2, 3], [4, 5, 6]]
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wait = f"import time; time.sleep(0.3); {code}"
        launch = make_local(2, lambda: 0, [lock.fileno()])
        job = Job("a", tmp_path, [sys.executable, "-c", wait])
        thread = threading.Thread(target=launch, args=(job,))
        thread.start()
        while not job.log.exists():
            time.sleep(0.01)
        time.sleep(0.1)
    # The parent's file is closed, as if it had been killed; the child still holds the lock.
    with (tmp_path / "lock").open("w") as again:
        with pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        thread.join()
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert [int(core) for core in job.log.read_text().split()] == (hands[0] or cores)


def test_gpus_are_dealt_out(tmp_path, monkeypatch):
    """Cells at a time see different ones; where there are too few, each sees all."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / name).mkdir(parents=True)
    assert find_gpus(str(tmp_path / "gpus")) == ["0", "1"]
    assert find_gpus(str(tmp_path / "none")) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_gpus(str(tmp_path / "gpus")) == []

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-a,7")
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    launch = make_local(2, lambda: 0)
    for name in "abc":
        assert launch(Job(name, tmp_path, [sys.executable, "-c", code])) == 0
    assert (tmp_path / "log.txt").read_text() == "3\nGPU-a\n3\n"


def test_slurm_without_slurm_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match="needs submitit: pip install"):
        import_submitit()
    monkeypatch.setitem(sys.modules, "submitit", object())
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="this machine has no sbatch"):
        import_submitit()


class FakeJob:
    """As submitit has them."""

    job_id, state = "17_0", "TIMEOUT"

    def __init__(self, outcome, is_done=True):
        self.outcome, self.is_done, self.is_cancelled = outcome, is_done, False

    def done(self):
        return self.is_done

    def cancel(self):
        self.is_cancelled = True

    def results(self):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def test_jobs_of_slurm_are_waited_for(tmp_path):
    jobs = [Job(name, tmp_path / name, []) for name in "abc"]
    for job in jobs:
        job.folder.mkdir()
    running = FakeJob([0], is_done=False)
    submitted = {"a": FakeJob([0, -9]), "b": FakeJob(RuntimeError("no node")), "c": running}
    assert make_waiting(submitted, lambda: 0)(jobs[0]) == -9
    assert make_waiting(submitted, lambda: 0)(jobs[1]) == 1
    assert jobs[1].log.read_text() == "the job 17_0 ended as TIMEOUT: no node\n"
    assert make_waiting(submitted, lambda: 1)(jobs[2]) == 128 + signal.SIGTERM
    assert running.is_cancelled


def test_a_job_of_slurm_writes_its_log(tmp_path, monkeypatch):
    command = [sys.executable, "-c", "import sys; print('word'); sys.exit(5)"]
    assert Requeued()(command, str(tmp_path / "log.txt")) == 5
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert Requeued()(command, str(tmp_path / "log.txt")) == 5
    assert (tmp_path / "log.txt").read_text() == "word\n"
    assert (tmp_path / "log.1.txt").read_text() == "word\n"


#: The five commands of SLURM that submitit calls, by the name under which this one is called.
SLURM = """#!{python}
import os, pathlib, re, shutil, signal, subprocess, sys
name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
here = pathlib.Path({folder!r})
def start(task):
    variables = dict(SLURM_JOB_ID="17", SLURM_ARRAY_JOB_ID="17", SLURM_ARRAY_TASK_ID=task)
    with (here / "slurm.log").open("ab") as log:
        subprocess.Popen(["bash", here / "script"], env=os.environ | variables,
                         stdin=subprocess.DEVNULL, stdout=log, stderr=log)
if name == "sbatch":
    shutil.copy(words[-1], here / "script")
    for task in range(int(re.search(r"--array=0-(\\d+)", (here / "script").read_text())[1]) + 1):
        start(str(task))
    print("Submitted batch job 17")
elif name == "srun":
    os.setsid()
    (here / ("step_" + os.environ["SLURM_ARRAY_TASK_ID"])).write_text(str(os.getpid()))
    python = words.index({python!r})
    os.execv(words[python], words[python:])
elif name == "scontrol":
    assert words[0] == "requeue", words
    (here / "requeued").write_text(words[1])
    start(words[1].split("_")[1])
elif name == "sacct":
    print("JobID|State|NodeList\\n17_0|RUNNING|here\\n17_1|RUNNING|here")
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A cluster of this machine alone; returns the folder in which it keeps what happened."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    for name in ("sbatch", "srun", "scontrol", "sacct"):
        command = folder / name
        command.write_text(SLURM.format(python=sys.executable, folder=str(folder)))
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.chdir(ROOT)
    return folder


@pytest.mark.slow
def test_an_array_of_slurm_runs_every_cell_and_requeues_the_preempted(tmp_path, slurm):
    """A cell that SLURM takes away saves, comes back to the queue, and goes on."""
    saving = PATIENT.format(end="pathlib.Path(sys.argv[1]).touch(); sys.exit(0)")
    again = "import pathlib, sys\nif pathlib.Path(sys.argv[1]).exists(): sys.exit(3)\n"
    codes = {"a": "print('word')", "b": again + saving}
    jobs = [
        Job(name, tmp_path / name, [sys.executable, "-c", code, str(tmp_path / "saved")])
        for name, code in codes.items()
    ]
    for job in jobs:
        job.folder.mkdir()
    launch = make_slurm(jobs, tmp_path, "timeout_min=7 slurm_partition=gpu", lambda: 0)
    script = (slurm / "script").read_text()
    for line in ("--partition=gpu", "--time=7", "--array=0-1%2"):
        assert f"#SBATCH {line}\n" in script

    until = time.monotonic() + 60
    while not (jobs[1].log.exists() and jobs[1].log.read_text() == "ready\n"):
        assert time.monotonic() < until, (slurm / "slurm.log").read_text()
        time.sleep(0.05)
    for number in (signal.SIGCONT, signal.SIGUSR2):  # to every process of the step, as SLURM does
        os.killpg(int((slurm / "step_1").read_text()), number)
    assert [launch(job) for job in jobs] == [0, 3]
    assert [job.log.read_text() for job in jobs] == ["word\n", "ready\nsaved\n"]
    assert (slurm / "requeued").read_text() == "17_1"


@pytest.mark.parametrize("options", ["timeout_min", "slurm_partitoin=gpu", "nonsense=1"])
def test_options_that_slurm_has_not(tmp_path, slurm, options):
    with pytest.raises(UserError, match=options.split("=")[0]):
        make_slurm([Job("a", tmp_path, [])], tmp_path, options, lambda: 0)
    assert not (slurm / "script").exists()


def test_a_job_that_has_just_ended_is_requeued_too(tmp_path):
    """Its process is reaped; nothing waits for it for ever."""
    job, command, log = Requeued(), [sys.executable, "-c", ""], str(tmp_path / "log.txt")
    assert job(command, log) == 0
    delayed = job.checkpoint(command, log)
    assert isinstance(delayed.function, Requeued)
    assert delayed.args == (command, log)


def templates(folder, commands):
    """The scripts that the guide shows for Kubernetes and SkyPilot, and the folder they run in."""
    (folder / "runs").mkdir()
    (folder / "runs" / "commands.txt").write_text("".join(f"{one}\n" for one in commands))
    guide = (ROOT / "docs" / "howto" / "cluster.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    job, task = (yaml.safe_load(block) for block in blocks)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "JAX_NUM_PROCESSES", "value": "1"}]
    (script,) = container["args"]
    return script, task["run"]


@pytest.mark.parametrize(
    ("end", "status"), [("exit 3", 3), ("for i in {1..900}; do sleep 0.01; done", 143)]
)
def test_a_pod_that_is_taken_away_has_not_completed(tmp_path, monkeypatch, end, status):
    """Its cell, which gets the signal, ends with 0 all the same."""
    cell = tmp_path / "cell"
    cell.write_text(f"trap 'echo saved; exit 0' TERM\necho ready\n{end}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    script, _ = templates(tmp_path, [f"bash {cell}"])
    with subprocess.Popen(["bash", "-c", script], text=True, stdout=subprocess.PIPE) as pod:
        try:
            assert pod.stdout.readline() == "ready\n"
            if status == 143:
                pod.terminate()
            assert pod.communicate(timeout=20)[0] == ("saved\n" if status == 143 else "")
        finally:
            pod.kill()
    assert pod.returncode == status


def test_templates_run_each_cell_once(tmp_path):
    def shell(script, **variables):
        return subprocess.run(
            ["bash", "-c", script], env={**os.environ, **variables}, cwd=tmp_path,
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    pod, task = templates(tmp_path, [shlex.join(["echo", f"--x=('{n}', 1)"]) for n in "abc"])
    assert shell(pod, JOB_COMPLETION_INDEX="1") == "--x=('b', 1)\n"
    first, second = (shell(task, SKYPILOT_NODE_RANK=rank, SKYPILOT_NUM_NODES="2") for rank in "01")
    assert first == "--x=('a', 1)\n--x=('c', 1)\n"
    assert second == "--x=('b', 1)\n"


def test_a_job_that_has_just_begun_saves_too(tmp_path, monkeypatch):
    """The signal may come while the process that it is for is still being started."""
    job, log = Requeued(), tmp_path / "log.txt"
    command = [sys.executable, "-c", PATIENT.format(end="sys.exit(0)")]

    class Slow(subprocess.Popen):
        def __init__(self, *args, **keywords):
            super().__init__(*args, **keywords)
            while log.read_text() != "ready\n":
                time.sleep(0.02)
            job.checkpoint(command, str(log))

    other = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(subprocess, "Popen", Slow)
    assert job(command, str(log)) == 0
    assert log.read_text() == "ready\nsaved\n"
    assert other.poll() is None, "a child that is no cell was ended, too"
    other.kill()
    other.wait()
