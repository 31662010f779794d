"""How fast environments are by themselves: a random policy, and no network.

    python -m experiments.bench.environments t_maze gymnax:CartPole-v1

Names of `cpc.rl.outside`; without any, our own. Seconds are of the processor, over all its cores.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
from absl import flags
from jaxtyping import Array

from cpc.rl import Environment, side_by_side
from cpc.rl.outside import OWN, make_environment
from experiments.command import cli

NUM = flags.DEFINE_integer("num", 64, "Environments at once.", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 1000, "Steps of each.", lower_bound=1)
RESETS = flags.DEFINE_integer("resets", None, "Episodes begun at each step; by default num.")


class Speed(NamedTuple):
    """What a random policy took, and earned."""

    compile_seconds: float
    steps_per_second: float
    reward_per_step: float


def random_policy(
    environment: Environment, num: int, num_steps: int, num_resets: int | None = None
) -> Callable[[Array], tuple[Array, Array]]:
    """Return play(key), compiled: a random policy in num environments that begin by themselves.

    It returns the sums of the rewards and, without which none would be drawn, of the observations.
    """
    many = side_by_side(environment, num, num_resets)

    @jax.jit
    def play(key):
        of_reset, of_steps = jax.random.split(key)
        states, _ = many.reset(of_reset)

        def step(states, key):
            of_actions, of_step = jax.random.split(key)
            actions = jax.random.randint(of_actions, (num,), 0, environment.num_actions)
            states, outcome = many.step(of_step, states, actions)
            return states, (outcome.reward.sum(), outcome.observation.sum())

        _, (rewards, drawn) = jax.lax.scan(step, states, jax.random.split(of_steps, num_steps))
        return rewards.sum(), drawn.sum()

    return play


def measure(
    environment: Environment, num: int, num_steps: int, num_resets: int | None = None
) -> Speed:
    """Return the speed of num environments side by side, which begin again by themselves."""
    play = random_policy(environment, num, num_steps, num_resets)
    seconds, rewards = [], 0.0
    for seed in range(2):  # the first compiles
        start = time.process_time()
        rewards = float(jax.block_until_ready(play(jax.random.key(seed)))[0])
        seconds.append(time.process_time() - start)
    steps = num * num_steps
    return Speed(seconds[0] - seconds[1], steps / max(seconds[1], 1e-9), rewards / steps)


def main(names: list[str]) -> None:
    """Print a row for each environment."""
    environments = {name: make_environment(name) for name in names or OWN}
    print(f"{'':32} observation   steps/s  compile s  reward a step")
    for name, environment in environments.items():
        speed = measure(environment, NUM.value, STEPS.value, RESETS.value)
        shape = "x".join(map(str, environment.observation_shape))
        print(
            f"{name:32} {shape:>11} {speed.steps_per_second:9,.0f} {speed.compile_seconds:10.1f} "
            f"{speed.reward_per_step:14.4f}"
        )


if __name__ == "__main__":
    cli.run(main, takes_folders=True, shared=())
