"""Vectorized environments restart at the end of their episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.rl import Environment, Outcome, auto_reset, make_t_maze, side_by_side
from cpc.rl.t_maze import CUE
from cpc.types import UserError


def lottery():
    """The state is a random number from the reset; action 1 ends the episode."""

    def reset(key):
        ticket = jax.random.randint(key, (), 0, 2**30)
        return (ticket, jax.random.key(ticket)), jnp.full(2, ticket)

    def step(key, state, action):
        return state, Outcome(jnp.full(2, state[0]), jnp.float32(action), action == 1)

    return Environment(reset, step, 2, (2,))


def test_default_equals_auto_reset():
    """The cue is lit only in first observations, which follow the ends of episodes."""
    environment = make_t_maze(2, max_steps=5)
    many = side_by_side(environment, 6)
    states, pictures = many.reset(jax.random.key(0))
    assert pictures.shape == (6, *environment.observation_shape)
    one, num_ends = auto_reset(environment), 0

    @jax.jit
    def both(key, states, actions):
        expected = jax.vmap(one.step)(jax.random.split(key, 6), states, actions)
        return many.step(key, states, actions), expected

    for time in range(12):
        key = jax.random.key(time)
        actions = jax.random.randint(key, (6,), 0, 4)
        (states, outcome), expected = both(key, states, actions)
        jax.tree.map(np.testing.assert_array_equal, (states, outcome), expected)
        is_lit = outcome.observation[..., CUE].sum((-1, -2))
        np.testing.assert_array_equal(is_lit, outcome.is_last)
        num_ends += outcome.is_last.sum()
    assert num_ends >= 6 * (12 // 5)


@pytest.fixture(scope="module")
def six():
    many = side_by_side(lottery(), 6, num_resets=2)
    return many._replace(step=jax.jit(many.step))


@pytest.mark.parametrize("ends", [[], [1], [0, 4], [1, 2, 4], [0, 1, 2, 3, 4, 5]])
def test_ended_environments_share_resets_in_turn(ends, six):
    (before, _), _ = six.reset(jax.random.key(0))
    actions = jnp.zeros(6, jnp.int32).at[jnp.array(ends, jnp.int32)].set(1)
    states = (before, jax.vmap(jax.random.key)(before))
    (after, keys), outcome = six.step(jax.random.key(1), states, actions)
    np.testing.assert_array_equal(outcome.is_last, actions == 1)
    np.testing.assert_array_equal(outcome.reward, actions)
    np.testing.assert_array_equal(outcome.observation, jnp.stack([after, after], -1))
    np.testing.assert_array_equal(
        jax.random.key_data(keys), jax.random.key_data(jax.vmap(jax.random.key)(after))
    )
    goes_on = np.setdiff1d(np.arange(6), ends)
    np.testing.assert_array_equal(after[goes_on], before[goes_on])
    starts = [int(after[i]) for i in ends]
    assert not set(starts) & set(before.tolist())
    assert len(set(starts)) == min(len(ends), 2)  # two resets per step
    assert starts[::2] == starts[:1] * len(starts[::2])
    assert starts[1::2] == starts[1:2] * len(starts[1::2])


def test_starts_depend_on_the_key(six):
    states, _ = six.reset(jax.random.key(0))
    ends = jnp.ones(6, jnp.int32)
    found = [int(six.step(jax.random.key(seed), states, ends)[0][0][0]) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


def test_invalid_numbers_are_rejected():
    for num, num_resets in ((0, None), (4, 0), (4, 5)):
        with pytest.raises(UserError, match="num_resets must"):
            side_by_side(lottery(), num, num_resets)
