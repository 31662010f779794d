"""Runs that are killed at random moments, and started again, end as if they never were."""

import atexit
import functools
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile

from cpc.results.score import read_records
from tests.command_server import HUNG as STATUS_HUNG
from tests.commands import ONE_DEVICE, run_anyhow
from tests.endurance.tries import CRASHED, HUNG, SILENT, SURVIVED, Try

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
NUM_STEPS = 20
TINY = (
    "--config=configs/audio_synthetic.py", f"--config.num_steps={NUM_STEPS}",
    "--config.log_every=2", "--config.eval_every=10", "--config.save_every=4",
    "--config.data.batch_size=4", "--config.data.window_samples=2560", "--config.model.width=8",
    "--config.model.num_offsets=2", "--config.model.context_width=8",
    "--config.evaluate.num_windows=8", "--config.optim.warmup_steps=2", "--config.probe.tasks=()",
)  # fmt: skip
#: Each carries another state through a stop.
CONFIGS = {
    "base": (),
    "queue and average": ("--config.negatives.queue=64", "--config.optim.ema_decay=0.9"),
    "launches and batch norm": ("--config.steps_per_launch=2", "--config.model.norm=batch"),
    "parts, momentum, learned temperature": (
        "--config.optim.accumulate=2", "--config.negatives.momentum=0.9",
        "--config.negatives.queue=64", "--config.negatives.temperature=0.2",
        "--config.negatives.temperature_rule=learned",
    ),
    "packed files": ("--config.data.source=folder",),
}  # fmt: skip
#: What two runs of one config cannot share.
CLOCK = ("steps_per_second", "seconds")


@functools.cache
def finished_run() -> tuple[Path, Path]:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sounds, run = write_sounds(folder / "sounds"), folder / "run"
    tasks = "--config.probe.tasks=('speakers',)", "--config.probe.features=('c','mfcc')"
    files = "--config.data.source=folder", f"--config.data.path={sounds}"
    _, done = run_once((*TINY, *tasks, *files), run, folder / "cache", ())
    assert done.returncode == 0, done.stdout + done.stderr
    return run, sounds


def tries(rng: np.random.Generator, folder: Path) -> Iterator[Try]:
    """Yield a try for each signal that arrived, when the run that it was sent to has ended."""
    sounds = write_sounds(folder / "sounds")
    references: dict[str, tuple] = {}
    number = 0
    while True:
        name = list(CONFIGS)[rng.integers(len(CONFIGS))]
        flags = (*TINY, *CONFIGS[name])
        if name == "packed files":
            flags = (*flags, f"--config.data.path={sounds}")
        if name not in references:
            began = time.monotonic()
            end, done = run_once(flags, folder / "whole", folder / "cache", ())
            references[name] = (end, time.monotonic() - began)
            if not isinstance(end, tuple):
                yield Try(f"{name}, undisturbed", CRASHED, done.stdout + done.stderr)
            shutil.rmtree(folder / "whole")
        want, seconds = references[name]
        number += 1
        # A cache of its own, so that packs, too, are cut short; but what is compiled is shared.
        workdir, cache = folder / f"run-{number}", folder / f"cache-{number}"
        cache.mkdir()
        (cache / "compiled").symlink_to(folder / "cache" / "compiled")
        sent, outcome, said = [], SURVIVED, ""
        for _ in range(int(rng.integers(1, 5))):
            how = SIGNALS[rng.integers(len(SIGNALS))]
            moment = round(float(rng.uniform(0, seconds)), 3)
            signals = [(moment, how)]
            if how == signal.SIGINT and rng.random() < 0.5:
                signals.append((0.05, how))
            _, done = run_once(flags, workdir, cache, signals)
            if done.returncode == 0 and "report:" in done.stdout:
                break
            sent.append(f"{how.name} after {moment} s")
            outcome, said = judge(done, outcome, said)
        end, done = run_once(flags, workdir, cache, ())
        outcome, said = judge(done, outcome, said)
        if outcome == SURVIVED and end != want:
            outcome, said = SILENT, "records or the last state differ"
        for one in sent:
            yield Try(f"{name}: {one} (of {', '.join(sent)})", outcome, said)
        shutil.rmtree(workdir, ignore_errors=True)
        shutil.rmtree(cache, ignore_errors=True)


def run_once(flags: Sequence[str], workdir: Path, cache: Path, signals: Sequence):
    how = {**ONE_DEVICE, "CPC_DATA": str(cache)}
    done = run_anyhow(
        "experiments.train", *flags, f"--workdir={workdir}", how=how, signals=signals, limit=120.0
    )
    return (read_end(workdir) if "report:" in done.stdout else None), done


def judge(done, outcome: str, said: str) -> tuple[str, str]:
    """Return the worse of what came before and of how a command has ended."""
    text = done.stdout + done.stderr
    if done.returncode == STATUS_HUNG:
        return HUNG, text[-500:]
    if "Traceback" in text:
        return CRASHED, text[text.index("Traceback") :][-2000:]
    return outcome, said


def read_end(workdir: Path) -> tuple:
    records = [
        {name: value for name, value in record.items() if name not in CLOCK}
        for record in read_records(workdir, [])
    ]
    last = max(
        (p for p in workdir.glob("checkpoints/*") if p.name.isdecimal()), key=lambda p: int(p.name)
    )
    meta = json.loads((last / "meta" / "metadata").read_text())
    return records, meta["leaves"]


def write_sounds(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    for speaker in "ab":
        (folder / speaker).mkdir(parents=True)
        for number in range(8):
            sound = rng.normal(0, 0.1, 8000 + 500 * number).clip(-1, 1)
            soundfile.write(folder / speaker / f"{speaker}{number}.wav", sound, 16000)
    return folder
