"""Time from process start to the end of the first training step.

The bench runs `python -m experiments.bench.start --workdir DIR`, which trains one step of
DIR/config.json with the code of the audio experiment, and writes its times to DIR.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from cpc.files import read_json, write_json
from cpc.types import UserError
from experiments.bench.timing import Row, peak_bytes
from experiments.command import cli, cluster, run_dir
from experiments.command.config import Config, with_settings
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import load_data
from experiments.kinds.registry import read_contrastive
from experiments.training import step as training
from experiments.training.contrastive import interpret

#: Time after all imports for training.
IMPORTED_SECONDS = time.time()


def main() -> None:
    """Train one step, whose record is written as soon as the device has finished it."""
    workdir = pathlib.Path(cli.WORKDIR.value or "")
    _, config = read_contrastive(workdir)
    mesh = cluster.start(cli.DEVICE.value)
    with run_dir.open_run(str(workdir), config, mesh):
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


def start_rows(config: Config, device: str) -> list[Row]:
    """Start twice, and return rows for the second start, which uses the compilation cache."""
    start_once(config, device)
    start = start_once(config, device)
    peak = start.pop("peak_megabytes")
    text = "{:.1f} s, of which imports {:.1f} s and data {:.1f} s".format(*start.values())
    memory, words = {"megabytes": peak}, f"{peak:,.0f} MB resident"
    return [
        Row("second start to first step", start, text, "seconds <= 5"),
        Row("peak memory of that process", memory, words, "megabytes <= 1500"),
    ]


def start_once(config: Config, device: str) -> dict[str, float]:
    """Return the seconds from the start of a process to its first step, and its peak memory."""
    short = {"num_steps": 1, "log_every": 1, "optim.warmup_steps": 0, "eval_every": 0}
    config = with_settings(config, {**short, "save_every": 0, "evaluate.num_windows": 0})
    with tempfile.TemporaryDirectory() as name:
        workdir = pathlib.Path(name)
        write_json(workdir / "config.json", json.loads(config.to_json()))
        flags = [f"--workdir={workdir}", f"--device={device}"]
        command = [sys.executable, "-m", "experiments.bench.start", *flags]
        began = time.time()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(f"the timed start failed: {done.stderr.strip()}")
        stamps: dict[str, Any] = read_json(workdir / "stamps.json")
    return {
        "seconds": stamps["stepped"] - began,
        "import_seconds": stamps["imported"] - began,
        "data_seconds": stamps["loaded"] - stamps["imported"],
        "peak_megabytes": stamps["peak_bytes"] / 1e6,
    }


if __name__ == "__main__":
    cli.run(main)
