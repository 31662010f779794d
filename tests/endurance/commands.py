"""Commands other than training that are killed and repeated."""

import itertools
import multiprocessing
import shutil
import signal
import time
from functools import partial

from cpc.data import pack_folder, read_all
from tests.commands import run_anyhow
from tests.endurance.kills import finished_run, flags_for, judge, read_end
from tests.endurance.tries import CRASHED, HUNG, LIMIT_SECONDS, SILENT, SURVIVED, Try


def read_cells(to):
    return [read_end(path.parent) for path in sorted(to.glob("*/metrics.jsonl"))]


def tries(rng, folder):
    """Yield kills of embed, export, sweep, reproduce, and of one of two packing processes."""
    run, sounds = finished_run()
    tiny = flags_for("sound", folder)
    #: Words of each command, a flag for its output, and a reader.
    commands = {
        "embed": ([f"--workdir={run}", f"--input={sounds}"], "--output={}/",
                  lambda to: {path.name: path.read_bytes() for path in to.glob("**/*.npy")}),
        "export": ([f"--workdir={run}"], "--output={}", lambda to: [
            (to / name).read_bytes() for name in ("model.safetensors", "config.json")]),
        "sweep": ([*tiny, "--grid=seed=0,1"], "--workdir={}", read_cells),
        "reproduce": (["--figure=3", "--scale=smoke"], "--workdir={}", read_cells),
    }  # fmt: skip
    wholes = {}
    for number, name in enumerate(itertools.cycle(map(str, rng.permutation([*commands, "pack"])))):
        to = folder / f"{name}-{number}"
        if name == "pack":
            yield kill_one_of_two(rng, sounds, to)
            continue
        words, flag, read_back = commands[name]
        call = partial(run_anyhow, f"experiments.{name}", *words, limit=240.0)
        if name not in wholes:
            began, whole = time.monotonic(), folder / f"{name}-whole"
            done = call(flag.format(whole))
            assert done.returncode == 0, done.stdout + done.stderr
            wholes[name] = read_back(whole), time.monotonic() - began
        want, seconds = wholes[name]
        moment = round(float(rng.uniform(0, seconds)), 3)
        one = Try(f"{name} killed after {moment} s", SURVIVED)
        one = judge(call(flag.format(to), signals=[(moment, signal.SIGKILL)]), one)
        for _ in range(30):  # wait for cells that outlive the sweep
            done = call(flag.format(to))
            if done.returncode != 2 or "still runs" not in done.stderr:
                break
            time.sleep(1.0)
        one = judge(done, one)
        if one.outcome == SURVIVED and (done.returncode or read_back(to) != want):
            said = f"status {done.returncode}: {done.stderr[-300:]}"
            one = one._replace(outcome=SILENT, said=said)
        yield one
        shutil.rmtree(to, ignore_errors=True)


def kill_one_of_two(rng, sounds, path):
    context, moment = multiprocessing.get_context("fork"), float(rng.uniform(0, 0.1))
    first, second = (context.Process(target=pack, args=(sounds, path)) for _ in range(2))
    for process in (first, second):
        process.start()
    time.sleep(moment)
    first.kill()
    second.join(LIMIT_SECONDS)
    what = f"pack by two, one killed after {moment:.4f} s"
    if second.exitcode is None:
        second.kill()
        return Try(what, HUNG)
    if second.exitcode:
        return Try(what, CRASHED, f"the other ended with {second.exitcode}")
    is_right = pack(sounds, path) == pack(sounds, path.with_name("whole-pack"))
    return Try(what, SURVIVED if is_right else SILENT)


def pack(sounds, path):
    packed = pack_folder(sounds, path, lambda text: None)
    names = zip(packed.names, packed.speakers, strict=True)
    return [(*name, read_all(packed, i).tobytes()) for i, name in enumerate(names)]
