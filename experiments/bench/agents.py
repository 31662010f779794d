"""An agent's rollouts and updates beside a random policy, and what contrastive prediction adds."""

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from configs import rl_hidden_ball, rl_t_maze
from cpc import rl
from experiments.bench.environments import random_policy
from experiments.bench.table import Row, Target
from experiments.command.config import Config, with_settings
from experiments.kinds.rl import step

WITHOUT = "without CPC"
#: What is measured, and the settings of each.
ARMS: dict[str, dict[str, Any]] = {
    WITHOUT: {"cpc.weight": 0.0},
    "CPC": {},
    "CPC of 2 environments": {"cpc.num_environments": 2},
    "CPC of all environments": {"cpc.num_environments": 0},
    "CPC, given actions": {"cpc.given_actions": True},
}
#: An update with the loss of CPC takes at most so much more than one without.
MOST_ADDED = 0.25


class Seconds(NamedTuple):
    """What calls of each case took, round by round."""

    wall: dict[str, list[float]]
    cpu: dict[str, list[float]]
    """Of the processor, over all its cores."""


class Case(NamedTuple):
    """A task and its agents."""

    title: str
    config: Config
    num_seeds: int = 1
    """Agents trained at once."""


def agent_rows(num_rounds: int, num_updates: int) -> list[Row]:
    """Return rows of the hidden ball, of one agent and of ten at once, and of a maze in pixels."""
    ball = rl_hidden_ball.get_config()
    cases = [
        Case("hidden ball", ball),
        Case("hidden ball, 10 seeds at once", ball, 10),
        Case("T-maze in pixels", rl_t_maze.get_config()),
    ]
    return [row for case in cases for row in case_rows(case, num_rounds, num_updates)]


def case_rows(case: Case, num_rounds: int, num_updates: int) -> list[Row]:
    """Return rows of the random policy, and of updates with and without CPC.

    An update is a rollout and the step on it. All take turns, so that a machine that slows down
    does so for each; ratios are medians over rounds.
    """
    config, num_seeds = case.config, case.num_seeds
    environment = rl.make_environment(config.environment.name)
    num, num_steps = num_seeds * config.environment.num, num_updates * config.policy.unroll
    play = random_policy(environment, num, num_steps)
    calls = {"random policy": functools.partial(play, jax.random.key(0))} | {
        name: advance(with_settings(config, settings), num_seeds, num_updates)
        for name, settings in ARMS.items()
    }
    seconds = time_rounds(calls, num_rounds)
    return [row_of(name, case.title, num * num_steps, num_updates, seconds) for name in calls]


def advance(config: Config, num_seeds: int, num_updates: int) -> Callable[[], Any]:
    """Return a function that makes so many updates of each agent.

    One as a run makes them, a launch each; several as a study does, all in one program.
    """
    task = step.make_task(config)
    if num_seeds == 1:
        state = jax.jit(task.init)(jnp.uint32(0))
        launch, num_calls = jax.jit(task.launch, donate_argnums=0), num_updates
    else:
        state = jax.jit(jax.vmap(task.init))(jnp.arange(num_seeds, dtype=jnp.uint32))
        num_calls = 1

        @functools.partial(jax.jit, donate_argnums=0)
        def launch(states):
            return jax.lax.scan(
                lambda s, _: (jax.vmap(task.launch)(s), None), states, length=num_updates
            )[0]

    def call():
        nonlocal state
        for _ in range(num_calls):
            state = launch(state)
        return state

    return call


def time_rounds(cases: Mapping[str, Callable[[], Any]], num_rounds: int) -> Seconds:
    """Time a call of each case in each round, after one that compiles."""
    seconds = Seconds({name: [] for name in cases}, {name: [] for name in cases})
    for number in range(num_rounds + 1):
        for name, call in cases.items():
            begin, cpu_begin = time.perf_counter(), time.process_time()
            jax.block_until_ready(call())
            if number:
                seconds.wall[name].append(time.perf_counter() - begin)
                seconds.cpu[name].append(time.process_time() - cpu_begin)
    return seconds


def row_of(name: str, title: str, steps: int, num_updates: int, seconds: Seconds) -> Row:
    """Return the row of a case: its rate and, if it is not the base, what it adds to that."""
    rate = steps / statistics.median(seconds.wall[name])
    cpu_rate = steps / statistics.median(seconds.cpu[name])
    figures = {
        "env_steps_per_second": rate,
        "env_steps_per_cpu_second": cpu_rate,
        "of_random_policy": ratio(seconds.wall, "random policy", name),
    }
    text = f"{rate:,.0f} env steps/s, {cpu_rate:,.0f} a second of CPU"
    target = None
    if name in ARMS:
        figures["seconds_per_update"] = statistics.median(seconds.wall[name]) / num_updates
        text += f", {figures['of_random_policy']:.4f} of a random policy's"
    if name.startswith("CPC"):
        figures["added"] = ratio(seconds.wall, name, WITHOUT) - 1
        figures["added_cpu"] = ratio(seconds.cpu, name, WITHOUT) - 1
        text += f"; adds {100 * figures['added']:.0f} % to an update"
        text += f" ({100 * figures['added_cpu']:.0f} % of CPU)"
        target = Target("added", MOST_ADDED, at_least=False)
    return Row(f"{title}: {name}", figures, text, target)


def ratio(seconds: Mapping[str, list[float]], above: str, below: str) -> float:
    """Return the median over rounds of the time of one case over another's."""
    pairs = zip(seconds[above], seconds[below], strict=True)
    return statistics.median(a / b for a, b in pairs)
