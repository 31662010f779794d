"""Malicious exports: sealed models with arbitrary config values."""

import copy
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cpc import models
from cpc.files import read_json, write_sealed
from tests.endurance.kills import finished_run
from tests.endurance.tries import Try, attempt

VALUES = (
    None, True, 0, -1, 1, 2**31, 10**12, 0.5, 1e300, "", "x", "float16", "int8", "../..",
    "ConvEncoder", "__import__('os').system('true')", [], [1], [[]], {}, {"type": "x"},
    {"type": ["x"]}, [0] * 999,
)  # fmt: skip


def tries(rng: np.random.Generator, folder: Path) -> Iterator[Try]:
    """Yield exports with one changed config value."""
    exported = finished_run()[0] / "exported"
    config = read_json(exported / "config.json")
    x = np.random.default_rng(0).normal(size=(1, 2560)).astype(np.float32)
    for number in itertools.count(1):
        changed = copy.deepcopy(config)
        path, value = change(rng, changed)
        target = folder / f"export-{number}"
        shutil.copytree(exported, target)
        write_sealed(target / "config.json", changed)

        def use(said: list[str], target: Path = target) -> Any:
            return models.load(target)(x)

        yield attempt(f"{path} = {str(value)[:60]!r}", use, lambda found: True)
        shutil.rmtree(target)


def change(rng: np.random.Generator, config: dict[str, Any]) -> tuple[str, Any]:
    places = list(entries(config))
    path, holder, name = places[rng.integers(len(places))]
    if rng.random() < 0.15:
        holder.pop(name)
        return path, "gone"
    value = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
    holder[name] = value
    return path, value


def entries(value: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    for name in value if isinstance(value, dict) else range(len(value)):
        yield f"{path}{name}", value, name
        if isinstance(value[name], dict | list):
            yield from entries(value[name], f"{path}{name}.")
