"""Commands other than training that are killed and repeated."""

import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpc.data import pack_folder, read_all
from tests.commands import run_anyhow
from tests.endurance.kills import finished_run, flags_for, judge, read_end
from tests.endurance.tries import CRASHED, HUNG, LIMIT_SECONDS, SILENT, SURVIVED, Try


def tries(rng: np.random.Generator, folder: Path) -> Iterator[Try]:
    """Yield kills of embed, export, sweep, reproduce, and of one of two packing processes."""
    run, sounds = finished_run()
    embed = ("experiments.embed", f"--workdir={run}", f"--input={sounds}")
    tiny = flags_for("sound", folder)
    exported = ("model.safetensors", "config.json")
    #: Words of each command, and a reader of its output.
    commands: dict[str, tuple[Callable[[Path], Sequence[str]], Callable[[Path], Any]]] = {
        "embed": (lambda to: (*embed, f"--output={to}/"),
                  lambda to: {path.name: path.read_bytes() for path in to.glob("**/*.npy")}),
        "export": (lambda to: ("experiments.export", f"--workdir={run}", f"--output={to}"),
                   lambda to: {name: (to / name).read_bytes() for name in exported}),
        "sweep": (lambda to: ("experiments.sweep", *tiny, f"--workdir={to}", "--grid=seed=0,1"),
                  lambda to: [read_end(to / name) for name in ("seed=0", "seed=1")]),
        "reproduce": (
            lambda to: ("experiments.reproduce", "--figure=3", "--scale=smoke", f"--workdir={to}"),
            lambda to: [read_end(path.parent) for path in sorted(to.glob("*/metrics.jsonl"))]),
    }  # fmt: skip
    wholes: dict[str, tuple[Any, float]] = {}
    order = [str(name) for name in rng.permutation([*commands, "pack"])]
    for number, name in enumerate(itertools.cycle(order)):
        if name == "pack":
            yield kill_one_of_two(rng, sounds, folder / f"pack-{number}")
            continue
        words, read_back = commands[name]
        if name not in wholes:
            began = time.monotonic()
            done = run_anyhow(*words(folder / f"{name}-whole"))
            assert done.returncode == 0, done.stdout + done.stderr
            wholes[name] = read_back(folder / f"{name}-whole"), time.monotonic() - began
        want, seconds = wholes[name]
        moment = round(float(rng.uniform(0, seconds)), 3)
        to = folder / f"{name}-{number}"
        signals = [(moment, signal.SIGKILL)]
        done = run_anyhow(*words(to), signals=signals, limit=240.0)
        outcome, said = judge(done, SURVIVED, "")
        for _ in range(30):  # wait for cells that outlive the sweep
            done = run_anyhow(*words(to), limit=240.0)
            if done.returncode != 2 or "still runs" not in done.stderr:
                break
            time.sleep(1.0)
        outcome, said = judge(done, outcome, said)
        if outcome == SURVIVED and (done.returncode or read_back(to) != want):
            outcome, said = SILENT, f"status {done.returncode}: {done.stderr[-300:]}"
        yield Try(f"{name} killed after {moment} s", outcome, said)
        shutil.rmtree(to, ignore_errors=True)


def kill_one_of_two(rng: np.random.Generator, sounds: Path, path: Path) -> Try:
    children = [fork(sounds, path) for _ in range(2)]
    moment = float(rng.uniform(0, 0.1))
    time.sleep(moment)
    os.kill(children[0], signal.SIGKILL)
    os.waitpid(children[0], 0)
    what, end = f"pack by two, one killed after {moment:.4f} s", time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(children[1], os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(children[1], signal.SIGKILL)
        os.waitpid(children[1], 0)
        return Try(what, HUNG)
    if os.waitstatus_to_exitcode(status):
        return Try(what, CRASHED, f"the other ended with {status}")
    right = read(sounds, path.with_name("whole-pack"))
    outcome = SURVIVED if read(sounds, path) == right else SILENT
    shutil.rmtree(path, ignore_errors=True)
    return Try(what, outcome)


def fork(sounds: Path, path: Path) -> int:
    child = os.fork()
    if child == 0:
        try:
            pack_folder(sounds, path, lambda text: None)
            os._exit(0)
        except BaseException:
            os._exit(1)
    return child


def read(sounds: Path, path: Path) -> list:
    packed = pack_folder(sounds, path, lambda text: None)
    return [(packed.names[i], read_all(packed, i).tobytes()) for i in range(len(packed))]
