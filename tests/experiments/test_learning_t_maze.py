"""An agent learns the T-maze if it has a memory, and only then."""

import jax
import jax.numpy as jnp
import pytest

from configs import rl_t_maze
from cpc import rl
from experiments.command.config import with_settings
from experiments.kinds.rl.step import make_task


def last_returns(config, num_launches, num_counted):
    """Mean return of the episodes of the last rollouts, by seed."""
    task = make_task(config)

    @jax.jit
    @jax.vmap
    def train(seed):
        def launch(state, _):
            return task.launch(state), None

        state, _ = jax.lax.scan(launch, task.init(seed), None, num_launches - num_counted)
        state = state._replace(metrics=jax.tree.map(jnp.zeros_like, state.metrics))
        sums = jax.lax.scan(launch, state, None, num_counted)[0].metrics
        return sums["episode_return"] / sums["episodes"]

    return train(jnp.arange(2))


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["gru", "none"])
def test_memory_is_worth_a_half(monkeypatch, memory):
    monkeypatch.setattr(rl, "make_environment", lambda name: rl.make_t_maze(2, max_steps=9))
    settings = {
        "model.memory": memory,
        "policy.unroll": 10,
        "optim.learning_rate": 5e-3,
        "cpc.weight": 0.0,
    }
    config = with_settings(rl_t_maze.get_config(), settings)
    returns = last_returns(config, num_launches=180, num_counted=20)
    if memory == "none":
        assert (returns > 0.35).all()
        assert (returns < 0.65).all()
    else:
        assert (returns > 0.95).all()
