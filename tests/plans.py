"""Plans and problems of small configs, as the commands make them."""

from experiments.kinds.registry import CONTRASTIVE
from experiments.training.contrastive import interpret
from experiments.training.plan import Branch, Geometry, Plan, make_plan
from experiments.training.problem import Problem


def plan_of(config) -> Plan:
    """The plan of a config of any kind."""
    return interpret(CONTRASTIVE[config.kind], config)


def plan_of_offsets(config, offsets, num_latents=32, width=8) -> Plan:
    """The plan of a config whose one branch predicts these offsets, whatever the data."""
    geometry = Geometry(num_latents, width, (Branch("forward", offsets),), is_window=False)
    return make_plan(config, geometry)


def problem_of(config, data) -> Problem:
    """The problem of a config and data that are there already."""
    return CONTRASTIVE[config.kind].make_problem(plan_of(config), data)
