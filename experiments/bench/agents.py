"""What an update of an agent costs, and what contrastive predictive coding adds to it.

    python -m experiments.bench.agents [--config configs/rl_hidden_ball.py]

Frames a second of rollout and update without CPC, with it under each rule, and given the actions,
beside what the environments alone do under a random policy; all in one run, the best of rounds that
take turns, since the machine may do other work.
"""

import statistics
import time

import jax
import jax.numpy as jnp

from cpc.rl import make_environment
from experiments.bench.environments import measure
from experiments.command import cli
from experiments.command.config import Config, with_settings
from experiments.rl import step

#: What is measured, and the keys that make it.
CASES = {
    "no CPC": {"cpc.weight": 0.0},
    "CPC, batch": {"cpc.rule": "batch"},
    "CPC, one_per_sequence": {"cpc.rule": "one_per_sequence"},
    "CPC, batch, given actions": {"cpc.rule": "batch", "cpc.given_actions": True},
}
ROUNDS, LAUNCHES = 7, 20


def run(config: Config) -> None:
    """Measure and print."""
    frames = config.environment.num * config.policy.unroll
    programs = {}
    for name, settings in CASES.items():
        task = step.make_task(with_settings(config, settings))
        state = jax.jit(task.init)(jnp.uint32(0))

        def many(state, task=task):
            return jax.lax.scan(lambda s, _: (task.launch(s), None), state, length=LAUNCHES)[0]

        programs[name] = jax.jit(many).lower(state).compile(), state
    times = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, (program, state) in programs.items():
            begin = time.perf_counter()
            jax.block_until_ready(program(state))
            times[name].append((time.perf_counter() - begin) / LAUNCHES)
    environment = make_environment(config.environment.name)
    alone = measure(environment, config.environment.num, 10_000).steps_per_second
    print(f"{config.environment.name}, {frames} frames an update")
    print(f"{'environments alone':28} {alone:12,.0f} frames/s")
    best = {name: min(found) for name, found in times.items()}
    for name, seconds in best.items():
        ratios = [a / b for a, b in zip(times[name], times["no CPC"], strict=True)]
        print(
            f"{name:28} {frames / seconds:12,.0f} frames/s   {1e3 * seconds:6.2f} ms an update   "
            f"{statistics.median(ratios):.2f} of one without"
        )


if __name__ == "__main__":
    CONFIG = cli.define_config("configs/rl_hidden_ball.py")
    cli.run(lambda: run(CONFIG.value), shared=("device",))
