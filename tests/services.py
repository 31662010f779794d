"""A fake module with the common interface of wandb and trackio."""

import contextlib
import pathlib
import sys
import tempfile
import types
from importlib.machinery import ModuleSpec

from cpc.train import ProgressWriter
from experiments.training import loop


def fake_service(name="trackio", fails=()):
    """Return a module that records its calls and raises in the functions named by `fails`."""
    module = types.ModuleType(name)
    module.calls = []
    module.__spec__ = ModuleSpec(name, None)

    def make(function):
        def call(*values, **options):
            module.calls.append((function, values, options))
            if function in fails:
                raise ConnectionError(f"no {function}\nand more lines")

        return call

    for function in ("init", "log", "finish"):
        setattr(module, function, make(function))
    return module


@contextlib.contextmanager
def installed(module):
    sys.modules[module.__name__] = module  # patch.dict would drop new imports
    try:
        yield module
    finally:
        del sys.modules[module.__name__]


def services_of(config):
    """Return the calls of a service when a training with this config starts, writes and ends."""
    state = types.SimpleNamespace(step=0, metrics={"strict": 0})
    with tempfile.TemporaryDirectory() as folder, installed(fake_service()) as module:
        console = ProgressWriter(1)
        path = pathlib.Path(folder) / "first"
        with loop.open_training(path, state, console, config) as (_, sinks, _):
            for writer in sinks.writers:
                writer.write({"step": 2, "split": "test", "bound": [1.5]})
    return [(name, values, options.get("step")) for name, values, options in module.calls]
