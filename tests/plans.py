"""Plans and problems of small configs, as the commands make them."""

import dataclasses
import functools
import inspect
import itertools
from typing import Any

from experiments.kinds.registry import CONTRASTIVE
from experiments.training.contrastive import interpret
from experiments.training.plan import Branch, Geometry, Plan, make_plan
from experiments.training.problem import Problem


def plan_of(config) -> Plan:
    """The plan of a config of any kind."""
    return interpret(CONTRASTIVE[config.kind], config)


def plan_of_offsets(config, offsets, num_latents=32, width=8) -> Plan:
    """The plan of a config whose one branch predicts these offsets, whatever the data."""
    geometry = Geometry(num_latents, width, (Branch("forward", offsets),))
    return make_plan(config, geometry)


def problem_of(config, data) -> Problem:
    """The problem of a config and data that are there already."""
    return CONTRASTIVE[config.kind].make_problem(plan_of(config), data)


def meaning(made):
    """What a function was made of, so that two that do the same are equal."""
    if isinstance(made, functools.partial):
        return meaning(made.func), made.keywords
    if isinstance(made, tuple):
        return tuple(map(meaning, made))
    made = inspect.unwrap(made) if callable(made) else made  # of the checks of shapes in tests
    name = getattr(made, "__qualname__", "")
    if "<locals>" in name and made.__closure__:
        return name, [meaning(cell.cell_contents) for cell in made.__closure__]
    return name or made


def fields(made, path="") -> dict[str, Any]:
    """What a module is: its class, and those of its parts, with all that they are made with."""
    if isinstance(made, functools.partial):
        named = {**dict(enumerate(made.args)), **made.keywords}
        return {path: made.func.__name__} | fields(named, path)
    if dataclasses.is_dataclass(made):
        own = {one.name: getattr(made, one.name) for one in dataclasses.fields(made)}
        parts = {name: value for name, value in own.items() if name not in ("parent", "name")}
        return {path: type(made).__name__} | fields(parts, path)
    if not isinstance(made, dict):
        return {path: made}
    parts = [fields(value, f"{path}.{name}".lstrip(".")) for name, value in made.items()]
    return dict(itertools.chain.from_iterable(part.items() for part in parts))


if __name__ == "__main__":  # of the configs of these names, in a process that has no device yet
    import importlib
    import sys

    from jax._src import xla_bridge

    for config_name in sys.argv[1:]:
        named = importlib.import_module(f"configs.{config_name}").get_config()
        sys.stdout.write(f"{plan_of(named)}\n")
    assert not xla_bridge._backends, xla_bridge._backends
