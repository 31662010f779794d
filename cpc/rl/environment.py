"""Environments as pure functions, batches of environments, and rollouts of a policy."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from cpc.types import PyTree, UserError


class Outcome(NamedTuple):
    """The result of one step in an environment."""

    observation: Array
    reward: Float[Array, ""]
    is_last: Bool[Array, ""]
    """Whether the episode ends with this observation, so that no reward follows."""


class Environment(NamedTuple):
    """A Markov decision process, which can be partially observed."""

    reset: Callable[[Array], tuple[PyTree, Array]]
    """reset(key) returns the state and the first observation of an episode."""
    step: Callable[[Array, PyTree, Int[Array, ""]], tuple[PyTree, Outcome]]
    """step(key, state, action) returns the next state and the outcome."""
    num_actions: int
    observation_shape: tuple[int, ...]
    facts: Callable[[PyTree], dict[str, Array]] = lambda state: {}
    """facts(state) returns hidden facts by name, for probes of the agent's memory. A fact is an
    integer from 0, or -1 if it is visible or does not apply. Agents do not observe facts."""


def auto_reset(environment: Environment) -> Environment:
    """Return an environment that resets automatically at the end of each episode.

    The outcome of the last step in an episode contains the first observation of the next episode,
    so predictions, returns and memory must not cross `is_last`. Every step also computes a reset.
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
    """Batch `num` environments into one, whose states, actions and outcomes have a leading axis b.

    Environments reset automatically as in `auto_reset`, which computes a reset per environment and
    step although few episodes end. If `num_resets` is given, only this number of resets is computed
    per step, and environments whose episodes end use them in turn (optimistic resets in Craftax).
    If more episodes end, some environments start from the same hidden state.
    """
    few = num if num_resets is None else num_resets
    if not 1 <= few <= num:
        raise UserError(f"num_resets must be in 1..{num}, the number of environments (got {few})")
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

        states, observation = jax.tree.map(
            lambda new, old: _select(outcome.is_last, new[turn], old),
            begun,
            (states, outcome.observation),
        )
        return states, outcome._replace(observation=observation)

    return environment._replace(reset=reset_all, step=step_each if num_resets is None else step_few)


def _select(mask, new, old):
    return jnp.where(mask.reshape(-1, *(1,) * (old.ndim - 1)), new, old)


class Worlds(NamedTuple):
    """The states of b environments and of their agent, which continue from rollout to rollout."""

    states: PyTree
    observation: Float[Array, "b ..."]
    previous: Int[Array, " b"]
    """The action that led to the observation."""
    is_first: Bool[Array, " b"]
    memory: PyTree
    """The agent's memory of the current episode."""
    episode_return: Float[Array, " b"]
    """Sum of the rewards in the current episode so far."""
    episode_length: Int[Array, " b"]


class Rollout(NamedTuple):
    """The data of t steps in b environments."""

    observation: Float[Array, "t b *o"]
    previous: Int[Array, "t b"]
    is_first: Bool[Array, "t b"]
    age: Int[Array, "t b"]
    """Number of steps since the episode began."""
    action: Int[Array, "t b"]
    reward: Float[Array, "t b"]
    is_last: Bool[Array, "t b"]
    log_prob: Float[Array, "t b"]
    value: Float[Array, "t b"]
    episode_return: Float[Array, "t b"]
    """Return of the episode that ends with this step, or 0 at other steps."""
    episode_length: Int[Array, "t b"]
    facts: dict[str, Int[Array, "t b"]]
    """Hidden facts of the environments, for probes of the memory."""


#: act(observation (1, b, *o), previous (1, b), is_first (1, b), memory) returns logits
#: (1, b, actions), values (1, b) and the next memory.
Act = Callable[[Array, Array, Array, PyTree], tuple[Array, Array, PyTree]]


def begin(environment: Environment, memory: PyTree, num: int, rng: Array, stagger: int) -> Worlds:
    """Start `num` environments at different steps of their first episodes.

    Environment i takes i * stagger // num random steps. Otherwise, episodes of equal length would
    always start and end together, and all observations of a step would have the same age.
    """
    of_reset, of_steps = jax.random.split(rng)
    states, observation = environment.reset(of_reset)
    wanted = jnp.arange(num) * stagger // num

    def step(carry, now):
        states, observation, is_first = carry
        i, key = now
        of_action, of_step = jax.random.split(key)
        action = jax.random.randint(of_action, (num,), 0, environment.num_actions, jnp.int32)
        after, outcome = environment.step(of_step, states, action)
        found = (after, outcome.observation, outcome.is_last)
        pick = partial(_select, i < wanted)
        return jax.tree.map(pick, found, (states, observation, is_first)), None

    start = states, observation, jnp.ones(num, bool)
    steps = jnp.arange(stagger), jax.random.split(of_steps, stagger)
    (states, observation, _), _ = lax.scan(step, start, steps)
    zeros = jnp.zeros(num, jnp.float32)
    is_first = jnp.ones(num, bool)  # from the agent's view, all episodes start here
    none = jnp.zeros(num, jnp.int32)
    return Worlds(states, observation, none, is_first, memory, zeros, none)


def roll_out(
    environment: Environment, act: Act, worlds: Worlds, rng: Array, num_steps: int
) -> tuple[Worlds, Rollout]:
    """Run a policy for `num_steps` steps in a batch of environments from `side_by_side`.

    Actions are sampled from the softmax of the policy's logits.
    """

    def step(worlds: Worlds, key: Array) -> tuple[Worlds, Any]:
        of_action, of_step = jax.random.split(key)
        logits, value, memory = act(
            worlds.observation[None], worlds.previous[None], worlds.is_first[None], worlds.memory
        )
        log_probs = jax.nn.log_softmax(logits[0].astype(jnp.float32))
        action = jax.random.categorical(of_action, log_probs).astype(jnp.int32)
        states, outcome = environment.step(of_step, worlds.states, action)
        total, length = worlds.episode_return + outcome.reward, worlds.episode_length + 1
        done = Rollout(
            worlds.observation,
            worlds.previous,
            worlds.is_first,
            worlds.episode_length,
            action,
            outcome.reward,
            outcome.is_last,
            jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0],
            value[0],
            jnp.where(outcome.is_last, total, 0.0),
            jnp.where(outcome.is_last, length, 0),
            jax.vmap(environment.facts)(worlds.states),
        )
        seen = outcome.observation, action, outcome.is_last
        total = jnp.where(outcome.is_last, 0.0, total)
        length = jnp.where(outcome.is_last, 0, length)
        return Worlds(states, *seen, memory, total, length), done

    return lax.scan(step, worlds, jax.random.split(rng, num_steps))
