"""Environments and a policy in turns: what comes of it is data that depend on the parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from cpc.rl.environment import Environment
from cpc.types import PyTree


class Worlds(NamedTuple):
    """Where b environments and their agent stand between two rollouts."""

    states: PyTree
    observation: Float[Array, "b ..."]
    previous: Int[Array, " b"]
    """The action that led here."""
    is_first: Bool[Array, " b"]
    memory: PyTree
    """What the agent has kept of the episode."""
    episode_return: Float[Array, " b"]
    """Of the episode up to now."""
    episode_length: Int[Array, " b"]


class Rollout(NamedTuple):
    """Steps (t, b) of b environments."""

    observation: Float[Array, "t b *o"]
    previous: Int[Array, "t b"]
    is_first: Bool[Array, "t b"]
    age: Int[Array, "t b"]
    """Steps since the episode began."""
    action: Int[Array, "t b"]
    reward: Float[Array, "t b"]
    is_last: Bool[Array, "t b"]
    log_prob: Float[Array, "t b"]
    value: Float[Array, "t b"]
    episode_return: Float[Array, "t b"]
    """Of the episode that ends with this step; 0 elsewhere."""
    episode_length: Int[Array, "t b"]
    facts: dict[str, Int[Array, "t b"]]
    """What a memory might keep, as the environments say."""


#: act(observation (1, b, *o), previous (1, b), is_first (1, b), memory) -> logits (1, b, actions),
#: values (1, b), memory.
Act = Callable[[Array, Array, Array, PyTree], tuple[Array, Array, PyTree]]


def begin(environment: Environment, memory: PyTree, num: int, rng: Array, stagger: int) -> Worlds:
    """Return `num` environments that have gone different ways into their first episodes.

    Environment i has taken i * stagger // num random steps: episodes of one length would otherwise
    begin and end together for ever, and what is seen at one time would be of one place in them.

    Args:
        environment: `num` of them, of `side_by_side`.
        memory: the empty memory of so many environments.
        num: how many.
        rng: for all that is drawn.
        stagger: steps of a usual episode.
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
        moves = i < wanted
        pick = lambda new, old: jnp.where(  # noqa: E731
            moves.reshape(-1, *(1,) * (old.ndim - 1)), new, old
        )
        found = (after, outcome.observation, outcome.is_last)
        return jax.tree.map(pick, found, (states, observation, is_first)), None

    start = states, observation, jnp.ones(num, bool)
    steps = jnp.arange(stagger), jax.random.split(of_steps, stagger)
    (states, observation, _), _ = lax.scan(step, start, steps)
    zeros = jnp.zeros(num, jnp.float32)
    return Worlds(
        states,
        observation,
        jnp.zeros(num, jnp.int32),
        jnp.ones(num, bool),  # to the agent, all of them
        memory,
        zeros,
        zeros.astype(jnp.int32),
    )


def roll_out(
    environment: Environment, act: Act, worlds: Worlds, rng: Array, num_steps: int
) -> tuple[Worlds, Rollout]:
    """Let the policy act for so many steps in each environment.

    Args:
        environment: as many as stand there, of `side_by_side`.
        act: the policy; actions are drawn from the softmax of its logits.
        worlds: where the environments stand.
        rng: for actions and environments.
        num_steps: t.
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
        after = Worlds(
            states,
            outcome.observation,
            action,
            outcome.is_last,
            memory,
            jnp.where(outcome.is_last, 0.0, total),
            jnp.where(outcome.is_last, 0, length),
        )
        return after, done

    return lax.scan(step, worlds, jax.random.split(rng, num_steps))
