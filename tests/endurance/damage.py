"""Damaged files of a run: read correctly or reported."""

import itertools
import json
import os
import shutil
from functools import partial

import jax
import numpy as np

from configs import audio
from cpc import models
from cpc.files import flatten
from cpc.results import read_run
from cpc.train import best_step, restore_params
from experiments.command.run_dir import read_config
from experiments.kinds.registry import read_contrastive
from experiments.training.contrastive import write_page
from tests.endurance.commands import pack
from tests.endurance.kills import finished_run
from tests.endurance.tries import attempt

#: Files that are not read, or whose damage the system detects.
UNREAD = ("report.html", "README.md", "run.lock", "state.json", "log.txt", "skipped.txt",
          "labels.tsv")  # fmt: skip
#: Fields that a page may lack without a message if a file is deleted.
LACKS = {
    "metrics.jsonl": ("metrics", "offsets", "scores"), "scores.json": ("scores", "outcomes"),
    "scores.npz": ("outcomes",), "config.json": ("config",),
    "environment.json": ("environment",), "audit.json": ("audit",),
}  # fmt: skip


def harm(rng, path):
    """Damage a file, most often by a flipped bit, and return a description."""
    content = path.read_bytes()
    where, bit = int(rng.integers(max(1, len(content)))), int(rng.integers(8))
    flipped = bytes(byte ^ 1 << bit for byte in content[where : where + 1])
    kinds = {
        f"bit {bit} of byte {where} flipped": content[:where] + flipped + content[where + 1 :],
        f"cut after {where} bytes": content[:where],
        "emptied": b"",
        "100 bytes longer": content + rng.bytes(100),
        "all noise": rng.bytes(len(content)),
        "deleted": None,
    }
    said = str(rng.choice(list(kinds), p=np.array([4, 1, 1, 1, 1, 1]) / 9))
    before = path.stat()
    if (harmed := kinds[said]) is None:
        path.unlink()
    else:
        path.write_bytes(harmed)
        if rng.random() < 0.7:  # bit rot keeps modification times
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return said


def tries(rng, folder):
    """Yield attempts on copies of a run, its export and its packed recordings."""
    whole, sounds = finished_run()
    pack(sounds, folder / "pack")
    x = np.random.default_rng(0).normal(size=(1, 2560)).astype(np.float32)
    #: Folder, pattern of files to damage, and reader.
    uses = {
        "checkpoints": (whole, "checkpoints/**/*", lambda path, said: restore_params(
            path / "checkpoints", log=said.append)[0]),
        "best": (whole, "checkpoints/*/meta/*", use_best),
        "records": (whole, "**/*", use_records),
        "config": (whole, "config.json", use_config),
        "exported": (whole / "exported", "**/*", lambda path, said: models.load(path)(x)),
        "pack": (folder / "pack", "**/*", lambda path, said: pack(sounds, path)),
    }  # fmt: skip
    rights = {name: use(path, []) for name, (path, _, use) in uses.items()}
    for number in itertools.count(1):
        name = list(uses)[int(rng.integers(len(uses)))]
        source, pattern, use = uses[name]
        copy = folder / f"copy-{number}"
        shutil.copytree(source, copy)  # with modification times
        found = [p for p in sorted(copy.glob(pattern)) if p.is_file() and p.name not in UNREAD]
        if name == "records":
            others = {"checkpoints", "exported", "tensorboard", "figures"}
            found = [path for path in found if not others & {*path.parts}]
        path = found[int(rng.integers(len(found)))]
        what = f"{name}: {path.relative_to(copy)} {harm(rng, path)}"
        yield attempt(what, partial(use, copy), partial(is_right, rights[name], path))
        if name == "records" and number % 5 == 0:
            yield attempt(f"{what}, page", partial(show, copy))
        shutil.rmtree(copy)


def is_right(right, harmed, found):
    lacking = () if harmed.exists() else LACKS.get(harmed.name, ())
    if lacking and isinstance(right, dict):
        return all(found[name] == right[name] for name in right if name not in lacking)
    if jax.tree.structure(found) != jax.tree.structure(right):
        return False
    return all(map(np.array_equal, jax.tree.leaves(found), jax.tree.leaves(right)))


def use_best(path, said):
    best = best_step(path / "checkpoints")
    steps = [int(p.name) for p in (path / "checkpoints").iterdir() if p.name.isdecimal()]
    restore_params(path / "checkpoints", log=said.append)
    try:
        for step in steps:
            restore_params(path / "checkpoints", step)
    except Exception as error:
        said.append(str(error))
    return best


def use_config(path, said):
    config = flatten(read_config(path))
    return json.dumps({name: config[name] for name in flatten(audio.KEYS)}, sort_keys=True)


def use_records(path, said):
    run = read_run(path)
    said += run.problems
    scores = run.scores.drop(columns="outcomes").to_json()
    outcomes = [None if o is None else np.asarray(o.sums).tolist() for o in run.scores["outcomes"]]
    plain = {"outcomes": outcomes, "config": run.config, "environment": run.environment}
    return {
        "metrics": run.metrics.to_json(), "offsets": run.offsets.to_json(), "scores": scores,
        **{name: json.dumps(value) for name, value in {**plain, "audit": run.audit}.items()},
    }  # fmt: skip


def show(path, said):
    write_page(read_contrastive(path)[0], path)
