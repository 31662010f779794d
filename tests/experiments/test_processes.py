"""Two processes on this machine: trained, killed, resumed; and on other numbers of them."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from cpc.train import restore_params

ROOT = pathlib.Path(__file__).parents[2]
KEYS = {
    "num_steps": 30,
    "log_every": 10,
    "eval_every": 0,
    "save_every": 2,
    "data.batch_size": 4,
    "data.window_samples": 2560,
    "model.width": 16,
    "model.context_width": 16,
    "model.num_offsets": 2,
    "evaluate.num_windows": 0,
    "probe.tasks": "()",
    "optim.warmup_steps": 2,
    "optim.learning_rate": 1e-4,  # rounding stays rounding
}


def start(workdir, index=0, number=1, port=0, devices=1):
    """A process of the command."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_PROCESSES": str(number),
        "JAX_PROCESS_ID": str(index),
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "CPC_JOIN_SECONDS": "60",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}" if devices > 1 else "",
    }
    keys = [f"--config.{key}={value}" for key, value in KEYS.items()]
    command = [sys.executable, "-m", "experiments.audio", "--workdir", str(workdir)]
    return subprocess.Popen(
        [*command, "--config", "configs/audio_synthetic.py", *keys],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def start_two(workdir):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return [start(workdir, index, 2, port) for index in (0, 1)]


def finish(*processes):
    """Status, output and errors of each; all are gone when this returns."""
    try:
        texts = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *text) for p, text in zip(processes, texts, strict=True)]


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def params_of(workdir):
    read, _, step = restore_params(workdir / "checkpoints")
    assert step == KEYS["num_steps"]
    return read["params"]


@pytest.mark.slow
def test_two_processes_are_one_run(tmp_path):
    """One is killed: the other says so at once. Both resume, or one alone: the same parameters."""
    killed = start_two(tmp_path / "two")
    wait_for(tmp_path / "two" / "checkpoints" / "2", killed[0])
    killed[1].kill()
    began = time.monotonic()
    (status, _, errors), _ = finish(*killed)
    assert time.monotonic() - began < 30
    assert status == 3
    assert errors.count("\n") < 8
    assert "error: process 1 of 2 has ended" in errors
    assert "resume from the last checkpoint" in errors
    shutil.copytree(tmp_path / "two", tmp_path / "alone")

    first, second = finish(*start_two(tmp_path / "two"))
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert "resuming from step" in first[1]
    assert second[1].replace("\n", "") == "" or "Gloo" in second[1], "process 0 alone speaks"
    ends = finish(start(tmp_path / "alone"), start(tmp_path / "one", devices=2))
    assert [end[0] for end in ends] == [0, 0], ends
    assert "resuming from step" in ends[0][1]

    want = params_of(tmp_path / "one")
    for name in ("two", "alone"):
        for path, got in _leaves(params_of(tmp_path / name)):
            np.testing.assert_allclose(got, _at(want, path), rtol=1e-4, atol=1e-5, err_msg=path)


def _leaves(tree, path=()):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, key))
        else:
            yield "/".join((*path, key)), value


def _at(tree, path):
    for key in path.split("/"):
        tree = tree[key]
    return tree
