"""Malicious exports: sealed models with arbitrary config values."""

import itertools
import shutil

import numpy as np

from cpc import models
from cpc.files import read_json, write_sealed
from tests.endurance.kills import finished_run
from tests.endurance.tries import attempt

VALUES = (
    None, True, 0, -1, 1, 2**31, 10**12, 0.5, 1e300, "", "x", "float16", "int8", "../..",
    "ConvEncoder", "__import__('os').system('true')", [], [1], [[]], {}, {"type": "x"},
    {"type": ["x"]}, [0] * 999,
)  # fmt: skip


def tries(rng, folder):
    """Yield exports with one config value changed or removed."""
    exported = finished_run()[0] / "exported"
    x = np.random.default_rng(0).normal(size=(1, 2560)).astype(np.float32)
    for number in itertools.count(1):
        config, target = read_json(exported / "config.json"), folder / f"export-{number}"
        places = list(entries(config))
        path, holder, name = places[rng.integers(len(places))]
        holder[name] = value = VALUES[rng.integers(len(VALUES))]
        if rng.random() < 0.15:
            holder.pop(name)
            value = "gone"
        shutil.copytree(exported, target)
        write_sealed(target / "config.json", config)
        what = f"{path} = {str(value)[:60]!r}"
        yield attempt(what, lambda said, target=target: models.load(target)(x))
        shutil.rmtree(target)


def entries(value, path=""):
    for name in value if isinstance(value, dict) else range(len(value)):
        yield f"{path}{name}", value, name
        if isinstance(value[name], dict | list):
            yield from entries(value[name], f"{path}{name}.")
