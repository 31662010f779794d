"""Runs that are killed at random and resumed end like uninterrupted runs."""

import atexit
import functools
import itertools
import json
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np

from experiments.information import staircase
from tests import command_server
from tests.commands import ONE_DEVICE, flags_of, run_anyhow
from tests.endurance.folders import picture, sound
from tests.endurance.tries import CRASHED, HUNG, SILENT, SURVIVED, Try
from tests.experiments import test_audio, test_mutual_information, test_rl, test_series, test_text
from tests.fake_run import untimed_records

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
STEPS = {
    "num_steps": 20, "log_every": 2, "eval_every": 10, "save_every": 4,
    "optim.warmup_steps": 2, "probe.tasks": (),
}  # fmt: skip
SOUND = {"": "audio_synthetic", **test_audio.TINY, **STEPS}
#: Config and settings of runs with different states to resume; `{data}` is a folder.
RUNS = {
    "sound": SOUND,
    "queue and average": {**SOUND, "negatives.queue": 64, "optim.ema_decay": 0.9},
    "launches and batch norm": {**SOUND, "steps_per_launch": 2, "model.norm": "batch"},
    "parts, momentum, learned temperature": {
        **SOUND, "optim.accumulate": 2, "negatives.momentum": 0.9, "negatives.queue": 64,
        "negatives.temperature": 0.2, "negatives.temperature_rule": "learned",
    },
    "packed files": {**SOUND, "data.source": "folder", "data.path": "{data}/sounds"},
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
    "agents": {"": "rl_hidden_ball", **test_rl.TINY, "num_env_steps": 960},
    "estimators": {
        "": "mi_staircase", **test_mutual_information.SMALL[staircase], "steps_per_level": 20,
    },
}  # fmt: skip


@functools.cache
def finished_run():
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_data(folder)
    probes = {"probe.tasks": "('speakers',)", "probe.features": "('c','mfcc')"}
    flags = [*flags_for("packed files", folder), *flags_of(probes)]
    done = train(flags, folder / "run", folder / "cache")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run", folder / "sounds"


def tries(rng, folder):
    """Yield an attempt per delivered signal after its run has ended."""
    write_data(folder)
    references = {}
    for number in itertools.count(1):
        name = list(RUNS)[rng.integers(len(RUNS))]
        flags = flags_for(name, folder)
        if name not in references:
            whole, began = folder / f"whole-{name}", time.monotonic()
            done = train(flags, whole, folder / "cache")
            if not is_finished(done):
                yield Try(f"{name}, undisturbed", CRASHED, done.stdout + done.stderr)
                continue
            references[name] = read_end(whole), time.monotonic() - began
        want, seconds = references[name]
        # An own cache, so that packing is also interrupted, but with shared compiled programs.
        workdir, cache = folder / f"run-{number}", folder / f"cache-{number}"
        cache.mkdir()
        (cache / "compiled").symlink_to(folder / "cache" / "compiled")
        sent, one = [], Try(name, SURVIVED)
        for _ in range(int(rng.integers(1, 5))):
            how, moment = SIGNALS[rng.integers(3)], round(float(rng.uniform(0, seconds)), 3)
            again = [(0.05, how)] if how == signal.SIGINT and rng.random() < 0.5 else []
            done = train(flags, workdir, cache, [(moment, how), *again])
            if is_finished(done):
                break
            sent.append(f"{how.name} after {moment} s")
            one = judge(done, one)
        done = train(flags, workdir, cache)
        one = judge(done, one)
        if one.outcome == SURVIVED and not (is_finished(done) and read_end(workdir) == want):
            one = one._replace(outcome=SILENT, said="records or the last state differ")
        for each in sent:
            yield one._replace(what=f"{name}: {each} (of {', '.join(sent)})")
        shutil.rmtree(workdir, ignore_errors=True)
        shutil.rmtree(cache, ignore_errors=True)


def flags_for(name, data):
    settings = {key: str(value).replace("{data}", str(data)) for key, value in RUNS[name].items()}
    return [f"--config=configs/{settings.pop('')}.py", *flags_of(settings)]


def train(flags, workdir, cache, signals=()):
    how, flags = {**ONE_DEVICE, "CPC_DATA": str(cache)}, [*flags, f"--workdir={workdir}"]
    return run_anyhow("experiments.train", *flags, how=how, signals=signals, limit=240.0)


def is_finished(done):
    return done.returncode == 0 and "report:" in done.stdout


def judge(done, one):
    """Return the worse of the previous outcome and that of a command."""
    text = done.stdout + done.stderr
    if done.returncode == command_server.HUNG:
        return one._replace(outcome=HUNG, said=text[-500:])
    if "Traceback" in text:
        return one._replace(outcome=CRASHED, said=text[text.index("Traceback") :][-2000:])
    return one


def read_end(workdir):
    steps = [int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdecimal()]
    meta = json.loads((workdir / f"checkpoints/{max(steps)}/meta/metadata").read_text())
    return untimed_records(workdir), meta["leaves"]


def write_data(folder):
    rng, files = np.random.default_rng(0), {}
    for name, number in itertools.product("ab", range(8)):
        files[f"sounds/{name}/{name}{number}.wav"] = sound(rng, "wav", 0.5 + number / 32)
        for split in ("train", "test"):
            files[f"pictures/{split}/{name}/{number}.png"] = picture(rng, "PNG", 28)
    words = rng.choice(list("abcdefgh"), (2000, 6))
    files["texts/text.txt"] = "\n".join(map(" ".join, words)).encode()
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
