"""What an environment is: two pure functions and two sizes; `jax.vmap` makes many of one."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cpc.types import PyTree


class Outcome(NamedTuple):
    """What one step of an environment brings."""

    observation: Array
    reward: Float[Array, ""]
    is_last: Bool[Array, ""]
    """Whether the episode ends with this observation, after which there is no reward."""


class Environment(NamedTuple):
    """A decision process that may show its state in part only."""

    reset: Callable[[Array], tuple[PyTree, Array]]
    """reset(key) -> state and first observation of an episode."""
    step: Callable[[Array, PyTree, Int[Array, ""]], tuple[PyTree, Outcome]]
    """step(key, state, action) -> the next state, and what it brings."""
    num_actions: int
    observation_shape: tuple[int, ...]
    facts: Callable[[PyTree], dict[str, Array]] = lambda state: {}
    """facts(state) -> what a memory might keep, by name: whole numbers from 0 on, and -1 where what
    is seen says it or there is none. For probes; agents do not get it."""


def auto_reset(environment: Environment) -> Environment:
    """Return the environment that begins its next episode by itself.

    The outcome of an episode's last step has the first observation of the next: no prediction, no
    return and no memory goes across it. Both are computed at every step, so that it is for
    environments whose reset is cheap.
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
