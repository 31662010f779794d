"""Plans and problems of small configs, and comparable descriptions of functions."""

import functools
import inspect

import numpy as np

from cpc.data import make_synthetic, phone_chain
from experiments.kinds.audio.data import AudioData, Phones
from experiments.kinds.registry import CONTRASTIVE
from experiments.training.contrastive import interpret
from experiments.training.plan import Branch, Geometry, Plan, make_plan
from experiments.training.problem import Problem


def plan_of(config) -> Plan:
    return interpret(CONTRASTIVE[config.kind], config)


def plan_of_offsets(config, offsets, num_latents=32, width=8) -> Plan:
    """Return a plan with one branch that predicts these offsets."""
    geometry = Geometry(num_latents, width, (Branch("forward", offsets),))
    return make_plan(config, geometry)


def problem_of(config, data) -> Problem:
    return CONTRASTIVE[config.kind].make_problem(plan_of(config), data)


def speech(num_speakers, utterances_per_speaker, seconds) -> AudioData:
    """Return synthetic speech of four phones with labels, for training and test."""
    sizes = {"utterances_per_speaker": utterances_per_speaker, "seconds": seconds}
    made = make_synthetic(num_speakers=num_speakers, **sizes, chain=phone_chain(4), seed=0)
    phones = {"synthetic": Phones(made.labels, made.label_names)}
    return AudioData(made.recordings, made.recordings, phones)


def check_shares(monkeypatch, module, make_draw):
    """Check that each of two processes draws its half of a batch of 6."""
    whole = make_draw()(2)
    monkeypatch.setattr(module.jax, "process_count", lambda: 2)
    for process in (0, 1):
        monkeypatch.setattr(module.jax, "process_index", lambda p=process: p)
        for name, value in make_draw()(2).items():
            np.testing.assert_array_equal(value, whole[name][3 * process : 3 * process + 3])


def meaning(made):
    """Return a description of a function that is equal for functions that do the same."""
    if isinstance(made, functools.partial):
        return meaning(made.func), made.keywords
    if isinstance(made, tuple):
        return tuple(map(meaning, made))
    made = inspect.unwrap(made) if callable(made) else made  # unwrap shape checks
    name = getattr(made, "__qualname__", "")
    if "<locals>" in name and made.__closure__:
        return name, [meaning(cell.cell_contents) for cell in made.__closure__]
    return name or made


if __name__ == "__main__":  # print the plans of configs, in a process without a device
    import importlib
    import sys

    from jax._src import xla_bridge

    for config_name in sys.argv[1:]:
        named = importlib.import_module(f"configs.{config_name}").get_config()
        sys.stdout.write(f"{plan_of(named)}\n")
    assert not xla_bridge._backends, xla_bridge._backends
