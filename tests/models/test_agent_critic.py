"""Values of an agent: from its memory, or by layers of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.models.agent import Agent, DenseEncoder, Heard


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(), (8, 4)])
def test_a_critic_of_its_own_leaves_the_policy_alone(widths):
    agent = Agent(3, DenseEncoder((6, 5)), "gru", 7, 2, critic_widths=widths)
    x = jax.random.normal(jax.random.key(0), (4, 2, 3, 2))
    heard = Heard(x, jnp.zeros((4, 2), jnp.int32), jnp.zeros((4, 2), bool))
    params = agent.init(jax.random.key(1), heard, agent.begin(2))["params"]

    def values(params, x):
        return agent.apply({"params": params}, heard._replace(observation=x), agent.begin(2)).values

    gradients, of_x = jax.grad(lambda *args: values(*args)[-1].sum(), (0, 1))(params, x)
    moved = {name for name in gradients if any(g.any() for g in jax.tree.leaves(gradients[name]))}
    assert moved == ({"critic"} if widths else {"critic", "cell", "encoder"})
    # What was seen before counts by the memory alone.
    assert bool(of_x[:-1].any()) == (not widths)
    assert of_x[-1].any()
    shapes = [leaf.shape for leaf in jax.tree.leaves(params["critic"]) if leaf.ndim == 2]
    assert shapes == ([(6, 8), (8, 4), (4, 1)] if widths else [(7, 1)])
    np.testing.assert_array_equal(values(params, x).shape, (4, 2))
