"""Runs that are killed at random and resumed end like uninterrupted runs."""

import atexit
import functools
import itertools
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from tests.command_server import HUNG as STATUS_HUNG
from tests.commands import ONE_DEVICE, flags_of, run_anyhow
from tests.endurance.tries import CRASHED, HUNG, SILENT, SURVIVED, Try
from tests.experiments import test_series, test_text
from tests.fake_run import untimed_records

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
NUM_STEPS = 20
STEPS = {
    "num_steps": NUM_STEPS, "log_every": 2, "eval_every": 10, "save_every": 4,
    "optim.warmup_steps": 2, "probe.tasks": (),
}  # fmt: skip
#: Small settings by kind; `{data}` is the folder of the training data.
KINDS = {
    "sound": {
        "": "audio_synthetic", **STEPS, "data.batch_size": 4, "data.window_samples": 2560,
        "model.width": 8, "model.num_offsets": 2, "model.context_width": 8,
        "evaluate.num_windows": 8,
    },
    "images": {
        "": "image_fashion_mnist", **STEPS, "data.source": "folder",
        "data.path": "{data}/pictures", "data.batch_size": 4, "model.encoder": "small",
        "model.width": 8, "model.context_width": 8, "model.context_layers": 1,
        "model.num_offsets": 2, "evaluate.num_images": 4, "negatives.queue": 32,
    },
    "series": {"": "series_ar1", **test_series.TINY, **STEPS},
    "text": {"": "text_sentences", **test_text.TINY, **STEPS},
    "words": {
        "": "text_words", "epochs": 4, "steps_per_launch": 4, "log_launches": 1, "save_launches": 2,
        "data.source": "folder", "data.path": "{data}/texts", "data.min_count": 1,
        "data.form": "lines", "data.test_fraction": 0.2, "data.positions": 64, "model.width": 8,
    },
    "agents": {
        "": "rl_hidden_ball", "num_env_steps": 960, "log_rollouts": 1, "save_rollouts": 1,
        "environment.num": 8, "model.widths": (8,), "model.memory_width": 8, "policy.unroll": 12,
        "cpc.num_offsets": 3, "evaluate.num_steps": 24,
    },
    "estimators": {
        "": "mi_staircase", "levels": (1.0, 2.0), "dim": 2, "batch_size": 16, "log_every": 2,
        "steps_per_level": 20, "save_every": 4, "maps": ("cubic",), "critics": ("separable",),
        "widths": (8,), "embedding": 4, "estimators": ("info_nce", "js", "club"),
    },
}  # fmt: skip
#: A kind and further settings; each has a different state to resume.
CONFIGS = {
    "queue and average": ("sound", {"negatives.queue": 64, "optim.ema_decay": 0.9}),
    "launches and batch norm": ("sound", {"steps_per_launch": 2, "model.norm": "batch"}),
    "parts, momentum, learned temperature": ("sound", {
        "optim.accumulate": 2, "negatives.momentum": 0.9, "negatives.queue": 64,
        "negatives.temperature": 0.2, "negatives.temperature_rule": "learned",
    }),
    "packed files": ("sound", {"data.source": "folder", "data.path": "{data}/sounds"}),
    **{kind: (kind, {}) for kind in KINDS},
}  # fmt: skip


@functools.cache
def finished_run() -> tuple[Path, Path]:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_data(folder)
    probes = {"probe.tasks": "('speakers',)", "probe.features": "('c','mfcc')"}
    flags, run = [*flags_for("packed files", folder), *flags_of(probes)], folder / "run"
    _, done = run_once(flags, run, folder / "cache", ())
    assert done.returncode == 0, done.stdout + done.stderr
    return run, folder / "sounds"


def tries(rng: np.random.Generator, folder: Path) -> Iterator[Try]:
    """Yield an attempt per delivered signal after its run has ended."""
    write_data(folder)
    references: dict[str, tuple] = {}
    for number in itertools.count(1):
        name = list(CONFIGS)[rng.integers(len(CONFIGS))]
        flags = flags_for(name, folder)
        if name not in references:
            began = time.monotonic()
            end, done = run_once(flags, folder / "whole", folder / "cache", ())
            references[name] = (end, time.monotonic() - began)
            if not isinstance(end, tuple):
                yield Try(f"{name}, undisturbed", CRASHED, done.stdout + done.stderr)
            shutil.rmtree(folder / "whole")
        want, seconds = references[name]
        # An own cache, so that packing is also interrupted, but with shared compiled programs.
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


def flags_for(name: str, data: Path) -> list[str]:
    kind, more = CONFIGS[name]
    settings = {**KINDS[kind], **more}
    config = settings.pop("")
    given = {key: str(value).replace("{data}", str(data)) for key, value in settings.items()}
    return [f"--config=configs/{config}.py", *flags_of(given)]


def run_once(flags: Sequence[str], workdir: Path, cache: Path, signals: Sequence):
    how = {**ONE_DEVICE, "CPC_DATA": str(cache)}
    done = run_anyhow(
        "experiments.train", *flags, f"--workdir={workdir}", how=how, signals=signals, limit=120.0
    )
    return (read_end(workdir) if "report:" in done.stdout else None), done


def judge(done, outcome: str, said: str) -> tuple[str, str]:
    """Return the worse of the previous outcome and that of a command."""
    text = done.stdout + done.stderr
    if done.returncode == STATUS_HUNG:
        return HUNG, text[-500:]
    if "Traceback" in text:
        return CRASHED, text[text.index("Traceback") :][-2000:]
    return outcome, said


def read_end(workdir: Path) -> tuple:
    last = max(
        (p for p in workdir.glob("checkpoints/*") if p.name.isdecimal()), key=lambda p: int(p.name)
    )
    meta = json.loads((last / "meta" / "metadata").read_text())
    return untimed_records(workdir), meta["leaves"]


def write_data(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in "ab":
        (folder / "sounds" / name).mkdir(parents=True)
        for number in range(8):
            sound = rng.normal(0, 0.1, 8000 + 500 * number).clip(-1, 1)
            soundfile.write(folder / "sounds" / name / f"{name}{number}.wav", sound, 16000)
        for split in ("train", "test"):
            (folder / "pictures" / split / name).mkdir(parents=True)
            for number in range(8):
                picture = Image.fromarray(rng.integers(0, 256, (28, 28), np.uint8))
                picture.save(folder / "pictures" / split / name / f"{number}.png")
    (folder / "texts").mkdir()
    words = rng.choice(list("abcdefgh"), (2000, 6))
    (folder / "texts" / "text.txt").write_text("\n".join(map(" ".join, words)))
