"""A fake of the part of torch that reads checkpoints; torch is not in the test environment."""

import argparse
import contextlib
import sys
import types

import numpy as np


class Tensor:
    def __init__(self, array):
        self.array = np.asarray(array)

    def detach(self):
        return self

    def float(self):
        return Tensor(self.array.astype(np.float32))

    def numpy(self):
        return self.array


def install(monkeypatch, content):
    """Make torch importable, with a torch.load that returns or raises the content.

    Arrays in nested dictionaries become tensors.
    """
    allowed = []

    @contextlib.contextmanager
    def safe_globals(kinds):
        allowed.extend(kinds)
        yield
        allowed.clear()

    def load(path, *, map_location, weights_only):
        assert (map_location, weights_only, allowed) == ("cpu", True, [argparse.Namespace])
        if isinstance(content, Exception):
            raise content
        return tensors(content)

    made = types.ModuleType("torch")
    made.load, made.serialization = load, types.SimpleNamespace(safe_globals=safe_globals)
    monkeypatch.setitem(sys.modules, "torch", made)


def tensors(content):
    if isinstance(content, dict):
        return {name: tensors(one) for name, one in content.items()}
    return Tensor(content) if isinstance(content, np.ndarray) else content


def released_weights():
    """Return weights with the names of CPC_audio's released model, of width 8."""
    rng, width = np.random.default_rng(0), 8
    entries = {}
    for i, kernel in enumerate((10, 8, 4, 4, 4)):
        shape = (width, width if i else 1, kernel)
        entries[f"gEncoder.conv{i}.weight"] = rng.normal(size=shape) / np.sqrt(shape[1] * kernel)
        entries[f"gEncoder.conv{i}.bias"] = np.zeros(width)
        for kind, value in (("weight", 1.0), ("bias", 0.0)):
            entries[f"gEncoder.batchNorm{i}.{kind}"] = np.full((1, width, 1), value)
    for i in range(2):
        for kind, shape in (("weight_ih", (32, 8)), ("weight_hh", (32, 8)), ("bias_ih", (32,)),
                            ("bias_hh", (32,))):  # fmt: skip
            entries[f"gAR.baseNet.{kind}_l{i}"] = 0.5 * rng.normal(size=shape)
    return {name: array.astype("f4") for name, array in entries.items()}
