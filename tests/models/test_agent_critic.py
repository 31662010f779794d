"""Values of an agent: from its memory, or by layers of their own."""

import jax
import jax.numpy as jnp
import pytest
from random_variables import noise, random_variables

from cpc.models.agent import Agent, AgentInput, DenseEncoder


@pytest.mark.parametrize("widths", [(), (8, 4)])
def test_a_critic_of_its_own_leaves_the_policy_alone(widths):
    agent = Agent(3, DenseEncoder((6, 5)), "gru", 7, 2, critic_widths=widths)
    x = noise(4, 2, 3, 2)
    heard = AgentInput(x, jnp.zeros((4, 2), jnp.int32), jnp.zeros((4, 2), bool))

    params = random_variables(agent, heard, agent.begin(2))["params"]

    def last(params, x):
        heard_x = heard._replace(observation=x)
        values = agent.apply({"params": params}, heard_x, agent.begin(2)).values
        return values[-1].sum(), values

    (gradients, of_x), values = jax.jit(jax.grad(last, (0, 1), has_aux=True))(params, x)
    moved = {name for name in gradients if any(g.any() for g in jax.tree.leaves(gradients[name]))}
    assert moved == ({"critic"} if widths else {"critic", "cell", "encoder"})
    # Earlier observations count by the memory alone.
    assert bool(of_x[:-1].any()) == (not widths)
    assert of_x[-1].any()
    shapes = [leaf.shape for leaf in jax.tree.leaves(params["critic"]) if leaf.ndim == 2]
    assert shapes == ([(6, 8), (8, 4), (4, 1)] if widths else [(7, 1)])
    assert values.shape == (4, 2)
