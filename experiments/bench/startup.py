"""A start as a user has it, in a process of its own: from nothing to the end of the first step.

`python -m experiments.bench.startup --workdir DIR` trains one step by DIR's config.json, with the
audio experiment's own code, and leaves in DIR what it took; the bench runs it.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from configs.audio import KEYS
from cpc.files import read_json, write_json
from cpc.types import UserError
from experiments.bench.process import peak_bytes
from experiments.command import cli, cluster, run_dir
from experiments.command.config import Config
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import load_data
from experiments.kinds.registry import read_contrastive
from experiments.training import step as training
from experiments.training.contrastive import interpret

#: Everything that training needs is imported by now.
IMPORTED_SECONDS = time.time()


def main() -> None:
    """Train one step; the record of it is on disk as soon as the device has done it."""
    workdir = pathlib.Path(cli.WORKDIR.value or "")
    _, config = read_contrastive(workdir)
    mesh = cluster.start(cli.DEVICE.value)
    with run_dir.open_run(str(workdir), config, KEYS, mesh):
        data = load_data(config, print)
        loaded = time.time()
        problem = audio.make_problem(interpret(audio, config), data)
        training.train(workdir, problem, lambda variables, step: [], mesh)
    stamps = {
        "imported": IMPORTED_SECONDS,
        "loaded": loaded,
        "stepped": (workdir / "metrics.jsonl").stat().st_mtime,
        "peak_bytes": peak_bytes(),
    }
    write_json(workdir / "stamps.json", stamps)


def measure_start(config: Config, device: str) -> dict[str, float]:
    """Start twice, the second time with everything compiled; figures of the second."""
    start_once(config, device)
    return start_once(config, device)


def start_once(config: Config, device: str) -> dict[str, float]:
    """Seconds from the start of a process to the end of its first step, and its peak memory."""
    config = config.copy_and_resolve_references()
    config.num_steps = config.log_every = 1
    config.optim.warmup_steps = 0
    config.eval_every = config.save_every = config.evaluate.num_windows = 0
    with tempfile.TemporaryDirectory() as name:
        workdir = pathlib.Path(name)
        write_json(workdir / "config.json", json.loads(config.to_json()))
        command = [sys.executable, "-m", "experiments.bench.startup"]
        began = time.time()
        done = subprocess.run(
            [*command, f"--workdir={workdir}", f"--device={device}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise UserError(f"the start to be timed failed: {done.stderr.strip()}")
        stamps: dict[str, Any] = read_json(workdir / "stamps.json")
    return {
        "seconds": stamps["stepped"] - began,
        "import_seconds": stamps["imported"] - began,
        "data_seconds": stamps["loaded"] - stamps["imported"],
        "peak_megabytes": stamps["peak_bytes"] / 1e6,
    }


if __name__ == "__main__":
    cli.run(main)
