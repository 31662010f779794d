"""The bench of environments counts what a random policy earns."""

import jax.numpy as jnp
import pytest

from cpc.rl import Environment, Outcome
from experiments.bench.environments import measure
from tests import commands


def test_measure():
    """Reward 1 for the second of two actions, in episodes of 3 steps, and none after."""

    def step(key, state, action):
        reward = jnp.where(state <= 2, action, 0).astype(jnp.float32)
        return state + 1, Outcome(jnp.ones(2), reward, state == 2)

    environment = Environment(lambda key: (jnp.int32(0), jnp.ones(2)), step, 2, (2,))
    speed = measure(environment, num=20, num_steps=100)
    assert speed.reward_per_step == pytest.approx(0.5, abs=0.05)
    assert speed.steps_per_second > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t_maze:seen_again", "t_mase"])
def test_command(name):
    status = 2 if name == "t_mase" else 0
    done = commands.run(
        "experiments.bench.environments", name, "--num=2", "--steps=5", status=status
    )
    said = done.stderr if status else done.stdout
    assert ("did you mean t_maze" if status else "t_maze:seen_again") in said
    assert ("3x7x3" in said) == (status == 0)
