"""Values of an agent: from its memory, or by layers of their own."""

import jax
import jax.numpy as jnp
import pytest
from random_variables import noise

from cpc.models.agent import Agent, DenseEncoder, Heard


@pytest.mark.parametrize("widths", [(), (8, 4)])
def test_a_critic_of_its_own_leaves_the_policy_alone(widths):
    agent = Agent(3, DenseEncoder((6, 5)), "gru", 7, 2, critic_widths=widths)
    x = noise(4, 2, 3, 2)
    heard = Heard(x, jnp.zeros((4, 2), jnp.int32), jnp.zeros((4, 2), bool))

    @jax.jit
    def run(x):
        params = agent.init(jax.random.key(1), heard, agent.begin(2))["params"]

        def values(params, x):
            heard_x = heard._replace(observation=x)
            return agent.apply({"params": params}, heard_x, agent.begin(2)).values

        gradients = jax.grad(lambda *args: values(*args)[-1].sum(), (0, 1))(params, x)
        return params, values(params, x), *gradients

    params, values, gradients, of_x = run(x)
    moved = {name for name in gradients if any(g.any() for g in jax.tree.leaves(gradients[name]))}
    assert moved == ({"critic"} if widths else {"critic", "cell", "encoder"})
    # Earlier observations count by the memory alone.
    assert bool(of_x[:-1].any()) == (not widths)
    assert of_x[-1].any()
    shapes = [leaf.shape for leaf in jax.tree.leaves(params["critic"]) if leaf.ndim == 2]
    assert shapes == ([(6, 8), (8, 4), (4, 1)] if widths else [(7, 1)])
    assert values.shape == (4, 2)
