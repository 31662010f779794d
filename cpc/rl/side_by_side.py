"""Many environments as one, also if a reset is too expensive at every step."""

import jax
import jax.numpy as jnp

from cpc.rl.environment import Environment, auto_reset
from cpc.types import UserError


def side_by_side(environment: Environment, num: int, num_resets: int | None = None) -> Environment:
    """Return `num` environments as one: states, actions and outcomes have a leading axis b.

    Episodes begin by themselves, as in `auto_reset`, which computes a reset per environment and
    step, though few end. With `num_resets`, only that many are computed, and the environments that
    end use them in turn. If more end at the same step, some begin with the same hidden state, and
    differ by their actions and keys from there on. (Craftax calls this optimistic, and lets any two
    share.)

    Args:
      environment: its episodes do not begin by themselves.
      num: number of environments.
      num_resets: episodes begun per step, by default one per environment.

    Raises:
      UserError: there is no environment; fewer resets than 1, or more than environments.
    """
    few = num if num_resets is None else num_resets
    if not 1 <= few <= num:
        raise UserError(
            f"{num} environments with {few} resets a step: give at least one of each, and "
            "no more resets than environments"
        )
    reset = jax.vmap(environment.reset)

    def reset_all(key):
        return reset(jax.random.split(key, num))

    def step_each(key, states, actions):
        return jax.vmap(auto_reset(environment).step)(jax.random.split(key, num), states, actions)

    def step_few(key, states, actions):
        of_step, of_reset = jax.random.split(key)
        keys = jax.random.split(of_step, num)
        states, outcome = jax.vmap(environment.step)(keys, states, actions)
        begun = reset(jax.random.split(of_reset, few))
        turn = (jnp.cumsum(outcome.is_last) - 1) % few

        def begin_again(new, old):
            is_last = outcome.is_last.reshape(num, *(1,) * (old.ndim - 1))
            return jnp.where(is_last, new[turn], old)

        states, observation = jax.tree.map(begin_again, begun, (states, outcome.observation))
        return states, outcome._replace(observation=observation)

    return environment._replace(reset=reset_all, step=step_each if num_resets is None else step_few)
