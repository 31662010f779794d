"""Two processes on one machine: training, failures and resume."""

import functools
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from cpc.results import read_scores
from cpc.train import restore_params
from tests.commands import ONE_DEVICE, QUICK_COMPILATION

ROOT = pathlib.Path(__file__).parents[2]
COMMAND = ("experiments.train", "--config", "configs/audio_synthetic.py")
KEYS = {
    "num_steps": 30, "log_every": 10, "eval_every": 0, "save_every": 2, "data.batch_size": 4,
    "data.window_samples": 2560, "model.width": 16, "model.context_width": 16,
    "model.num_offsets": 2, "evaluate.num_windows": 0, "probe.tasks": "('speakers',)",
    "probe.features": "('c',)", "optim.warmup_steps": 2,
    "optim.learning_rate": 1e-4,  # differences stay at rounding level
}  # fmt: skip


def start(workdir, index=0, number=1, port=0, devices=1, hang_seconds=300, keys=KEYS):
    environment = {
        **os.environ, **ONE_DEVICE, "JAX_NUM_PROCESSES": str(number), "JAX_PROCESS_ID": str(index),
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "CPC_JOIN_SECONDS": "60",
        "CPC_HANG_SECONDS": str(hang_seconds),
        "XLA_FLAGS": f"{QUICK_COMPILATION} --xla_force_host_platform_device_count={devices}",
    }  # fmt: skip
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    return subprocess.Popen(
        [sys.executable, "-m", *COMMAND, "--workdir", str(workdir), *flags], cwd=ROOT,
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def start_two(workdir, others=(), keys=KEYS, **how):
    """Start two processes; `others` are keys of the second."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    both = (keys, {**keys, **dict(others)})
    return [start(workdir, i, 2, port, keys=own, **how) for i, own in enumerate(both)]


def finish(*processes):
    try:
        texts = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *text) for p, text in zip(processes, texts, strict=True)]


def wait_until(condition, process):
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def params_of(workdir):
    read, _, step = restore_params(workdir / "checkpoints")
    assert step == KEYS["num_steps"]
    return read["params"]


@pytest.mark.nightly
def test_two_processes_train_one_run(tmp_path):
    """If one is killed, the other ends; both or one alone resume to the same parameters."""
    killed = start_two(tmp_path / "two")
    wait_until((tmp_path / "two" / "checkpoints" / "2").exists, killed[0])
    killed[1].kill()
    began = time.monotonic()
    (status, _, errors), _ = finish(*killed)
    assert time.monotonic() - began < 30
    assert (status, errors.count("\n") < 8) == (3, True)
    assert "error: process 1 of 2 has ended" in errors
    shutil.copytree(tmp_path / "two", tmp_path / "alone")

    first, second = finish(*start_two(tmp_path / "two"))
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert "resuming from step" in first[1]
    assert second[1].replace("\n", "") == "" or "Gloo" in second[1], "process 0 alone speaks"
    ends = finish(start(tmp_path / "alone"), start(tmp_path / "one", devices=2))
    assert [end[0] for end in ends] == [0, 0], ends
    assert "resuming from step" in ends[0][1]

    want = params_of(tmp_path / "one")
    assert {score.task for score in read_scores(tmp_path / "two")} == {"speakers"}
    for name in ("two", "alone"):
        near = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
        jax.tree.map(near, params_of(tmp_path / name), want)


def test_processes_with_different_configs_end(tmp_path):
    others = {"seed": 1, "model.width": 8, "data.num_threads": 1}
    for status, _, errors in finish(*start_two(tmp_path / "run", others)):
        assert (status, errors.count("\n"), "num_threads" in errors) == (3, 1, False)
        for words in ("process 1 of 2", "seed: 0 there, 1 here", "model.width: 16 there, 8 here"):
            assert words in errors
    assert not (tmp_path / "run").exists()


#: Runs until stopped, two steps per launch.
ENDLESS = {**KEYS, "num_steps": 10**6, "log_every": 10**6, "save_every": 50, "steps_per_launch": 2}


@pytest.mark.nightly
def test_signal_or_hang_of_one_process(tmp_path):
    """SIGTERM to one: both save. SIGSTOP to one: the other names it."""
    checkpoints = tmp_path / "checkpoints"
    pair = start_two(tmp_path, hang_seconds=10, keys=ENDLESS)
    wait_until((checkpoints / "50").exists, pair[0])
    pair[1].terminate()
    first, second = finish(*pair)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert "stopped by preemption; to resume: " in first[1]
    step = max(int(path.name) for path in checkpoints.iterdir())
    assert step > 50

    pair = start_two(tmp_path, hang_seconds=10, keys=ENDLESS)
    wait_until((checkpoints / str(step + 100 - step % 50)).exists, pair[0])
    pair[1].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    first, second = finish(*pair)
    assert time.monotonic() - began < 60
    assert f"resuming from step {step:,}" in first[1]
    assert (first[0], second[0]) == (3, -signal.SIGKILL)
    assert "error: process 1 of 2 gave no sign of life for " in first[2]
    assert first[2].count("\n") < 8
