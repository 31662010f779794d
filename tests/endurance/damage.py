"""Damaged files of a run: read correctly or reported."""

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs import audio
from cpc import models
from cpc.data import pack_folder, read_all
from cpc.files import flatten
from cpc.results import read_run
from cpc.train import best_step, restore_params
from experiments.command.run_dir import read_config
from experiments.kinds.registry import read_contrastive
from experiments.training.contrastive import write_page
from tests.endurance.kills import finished_run
from tests.endurance.tries import Try, attempt

#: Files that are not read, or whose damage the system detects.
UNREAD = ("report.html", "README.md", "run.lock", "state.json", "log.txt", "skipped.txt",
          "labels.tsv")  # fmt: skip


def harm(rng: np.random.Generator, path: Path) -> str:
    content = path.read_bytes()
    kind = rng.choice(["flip", "flip", "flip", "flip", "cut", "empty", "longer", "noise", "gone"])
    where, bit = int(rng.integers(max(1, len(content)))), int(rng.integers(8))
    if kind == "gone":
        path.unlink()
        return "deleted"
    if kind == "flip" and content:
        flipped = bytes([content[where] ^ 1 << bit])
        content = content[:where] + flipped + content[where + 1 :]
        said = f"bit {bit} of byte {where} flipped"
    elif kind in ("cut", "flip"):
        content, said = content[:where], f"cut after {where} bytes"
    elif kind == "empty":
        content, said = b"", "emptied"
    elif kind == "longer":
        content, said = content + rng.bytes(100), "100 bytes longer"
    else:
        content, said = rng.bytes(len(content)), "all noise"
    path.write_bytes(content)
    return said


def tries(rng: np.random.Generator, folder: Path) -> Iterator[Try]:
    """Yield attempts on copies of a run, its export and its packed recordings."""
    whole, sounds = finished_run()
    pack = folder / "pack"
    pack_folder(sounds, pack, lambda text: None)
    uses = {
        "checkpoints": (whole, use_checkpoints),
        "best": (whole, use_best),
        "records": (whole, use_records),
        "config": (whole, use_config),
        "exported": (whole / "exported", use_export),
        "pack": (pack, lambda path, said: use_pack(sounds, path, said)),
    }
    rights = {name: use(path, []) for name, (path, use) in uses.items()}
    for number in itertools.count(1):
        name = list(uses)[int(rng.integers(len(uses)))]
        source, use = uses[name]
        copy = folder / f"copy-{number}"
        shutil.copytree(source, copy)  # with modification times, which bit rot keeps
        path = choose_file(rng, name, copy)
        before = path.stat()
        said = harm(rng, path)
        if path.exists() and rng.random() < 0.7:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        what = f"{name}: {path.relative_to(copy)} {said}"
        yield attempt(what, partial(use, copy), is_same(rights[name], path))
        if name == "records" and number % 5 == 0:
            yield attempt(f"{what}, page", partial(show, copy), lambda found: True)
        shutil.rmtree(copy)


def choose_file(rng: np.random.Generator, name: str, copy: Path) -> Path:
    below = {"best": "checkpoints/*/meta/*", "config": "config.json"}
    below["checkpoints"] = "checkpoints/**/*"
    found = [path for path in sorted(copy.glob(below.get(name, "**/*"))) if path.is_file()]
    if name == "records":
        found = [p for p in found if p.parent.name not in ("exported", "tensorboard", "figures")]
        found = [p for p in found if "checkpoints" not in p.parts]
    found = [path for path in found if path.name not in UNREAD]
    return found[int(rng.integers(len(found)))]


#: Fields that a page may lack without a message if a file is deleted.
LACKS = {
    "metrics.jsonl": ("metrics", "offsets", "scores"), "scores.json": ("scores", "outcomes"),
    "scores.npz": ("outcomes",), "config.json": ("config",),
    "environment.json": ("environment",), "audit.json": ("audit",),
}  # fmt: skip


def is_same(right: Any, harmed: Path) -> Callable[[Any], bool]:
    lacking = () if harmed.exists() else LACKS.get(harmed.name, ())

    def compare(found: Any) -> bool:
        if not lacking or not isinstance(right, dict):
            return equal(found, right)
        return all(found[name] == right[name] for name in right if name not in lacking)

    return compare


def equal(a: Any, b: Any) -> bool:
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in pairs)


def use_checkpoints(path: Path, said: list[str]) -> Any:
    return restore_params(path / "checkpoints", log=said.append)[0]


def use_best(path: Path, said: list[str]) -> Any:
    best = best_step(path / "checkpoints")
    restore_params(path / "checkpoints", log=said.append)
    if not said:
        try:
            for step in (p.name for p in (path / "checkpoints").iterdir() if p.name.isdecimal()):
                restore_params(path / "checkpoints", int(step))
        except Exception as error:
            said.append(str(error))
    return best


def use_config(path: Path, said: list[str]) -> Any:
    config = flatten(read_config(path))
    return json.dumps({name: config[name] for name in flatten(audio.KEYS)}, sort_keys=True)


def use_records(path: Path, said: list[str]) -> Any:
    run = read_run(path)
    said += run.problems
    scores = run.scores.drop(columns="outcomes").to_json()
    outcomes = [None if o is None else np.asarray(o.sums).tolist() for o in run.scores["outcomes"]]
    return {
        "metrics": run.metrics.to_json(), "offsets": run.offsets.to_json(), "scores": scores,
        "outcomes": json.dumps(outcomes), "config": json.dumps(run.config),
        "environment": json.dumps(run.environment), "audit": json.dumps(run.audit),
    }  # fmt: skip


def show(path: Path, said: list[str]) -> Any:
    write_page(read_contrastive(path)[0], path)


def use_export(path: Path, said: list[str]) -> Any:
    x = np.random.default_rng(0).normal(size=(1, 2560)).astype(np.float32)
    return models.load(path)(x)


def use_pack(sounds: Path, path: Path, said: list[str]) -> Any:
    recordings = pack_folder(sounds, path, lambda text: None)
    samples = [read_all(recordings, i).tobytes() for i in range(len(recordings))]
    return list(recordings.names), list(recordings.speakers), [hash(one) for one in samples]
