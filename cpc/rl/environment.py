"""An environment: two pure functions and two sizes; `jax.vmap` makes many of one."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cpc.types import PyTree


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
