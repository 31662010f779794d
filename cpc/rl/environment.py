"""An environment: two pure functions and two sizes. Many of one side by side."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cpc.types import PyTree, UserError


class Outcome(NamedTuple):
    """The outcome of one step of an environment."""

    observation: Array
    reward: Float[Array, ""]
    is_last: Bool[Array, ""]
    """Whether the episode ends with this observation, after which there is no reward."""


class Environment(NamedTuple):
    """A decision process, possibly partially observed."""

    reset: Callable[[Array], tuple[PyTree, Array]]
    """reset(key) -> state and first observation of an episode."""
    step: Callable[[Array, PyTree, Int[Array, ""]], tuple[PyTree, Outcome]]
    """step(key, state, action) -> the next state and the outcome."""
    num_actions: int
    observation_shape: tuple[int, ...]
    facts: Callable[[PyTree], dict[str, Array]] = lambda state: {}
    """facts(state) -> hidden facts by name, for probes of a memory: whole numbers from 0 on, or -1
    if the observation shows the fact or there is none. Agents do not see them."""


def auto_reset(environment: Environment) -> Environment:
    """Return the environment that begins its next episode by itself.

    The outcome of an episode's last step has the first observation of the next, so that no
    prediction, return or memory crosses it. A step and a reset are computed at every step.
    """

    def step(key, state, action):
        of_step, of_reset = jax.random.split(key)
        state, outcome = environment.step(of_step, state, action)
        begun = environment.reset(of_reset)
        state, observation = jax.tree.map(
            lambda new, old: jnp.where(outcome.is_last, new, old),
            begun,
            (state, outcome.observation),
        )
        return state, outcome._replace(observation=observation)

    return environment._replace(step=step)


def side_by_side(environment: Environment, num: int, num_resets: int | None = None) -> Environment:
    """Return `num` environments as one: states, actions and outcomes have a leading axis b.

    Episodes begin by themselves, as in `auto_reset`, which computes a reset per environment and
    step, though few end. With `num_resets`, only that many are computed, and the environments that
    end use them in turn. If more end at the same step, some begin with the same hidden state, and
    differ by their actions and keys from there on. (Craftax calls this optimistic, and lets any two
    share.)
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
