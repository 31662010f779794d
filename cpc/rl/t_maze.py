"""A T-maze in pixels, where a cue at the start indicates which way to turn at the end."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from cpc.rl.environment import Environment, Outcome
from cpc.types import UserError

#: Actions, of which UP and DOWN turn at the junction.
BACK, FORWARD, UP, DOWN = range(4)
#: Channels of the picture.
AGENT, CUE, FLOOR = range(3)


class Maze(NamedTuple):
    """The state of the maze."""

    x: Int[Array, ""]
    """Number of cells from the start. The junction is the last cell."""
    arm: Int[Array, ""]
    """0 in the corridor, -1 after a turn up, and 1 after a turn down."""
    cue: Int[Array, ""]
    """The arm with the reward, either -1 or 1."""
    time: Int[Array, ""]
    """Number of steps since the start."""


def make_t_maze(length: int = 6, *, max_steps: int = 24, seen_again: bool = False) -> Environment:
    r"""Return a T-maze (Bakker 2002), observed from above with a cue that is shown only once.

        |          #       a corridor of `length` steps, then a turn
        +  # # # # #
        |          #

    The cue is lit above or below the start, but only in an episode's first picture. A turn into the
    arm in the cue's direction, up or down, has reward 1, and a turn into the other arm 0. The
    expected return is 1 with memory and at most 0.5 without it. An episode ends with any action in
    an arm, or after `max_steps` steps. If `seen_again` is true, the arm in the cue's direction is
    lit after the turn, so that only memory can predict this picture.

    Actions are `BACK`, `FORWARD`, `UP` and `DOWN`, and moving into a wall has no effect.
    Observations have shape (3, length + 1, 3), for rows y, columns x, and the channels `AGENT`,
    `CUE` and `FLOOR`, with values 0 and 1.

    >>> environment = make_t_maze(length=2)
    >>> state, picture = environment.reset(jax.random.key(0))
    >>> picture[..., FLOOR]
    Array([[0., 0., 1.],
           [1., 1., 1.],
           [0., 0., 1.]], dtype=float32)
    """
    if length < 1 or max_steps < length + 2:
        raise UserError(
            f"a T-maze of length {length} with max_steps {max_steps} cannot be solved: set length "
            "to 1 or more, and max_steps to length + 2 or more"
        )

    def reset(key):
        cue = jnp.where(jax.random.bernoulli(key, jnp.float32(0.5)), 1, -1)
        state = Maze(*(jnp.asarray(value, jnp.int32) for value in (0, 0, cue, 0)))
        return state, draw(state)

    def step(key, state, action):
        del key
        move = jnp.array([-1, 1, 0, 0], jnp.int32)[action]
        turn = jnp.array([0, 0, -1, 1], jnp.int32)[action]
        in_corridor = state.arm == 0
        arm = jnp.where(in_corridor & (state.x == length), turn, state.arm)
        x = jnp.where(in_corridor, jnp.clip(state.x + move, 0, length), state.x)
        after = Maze(x, arm, state.cue, state.time + 1)
        reward = (in_corridor & (arm == state.cue)).astype(jnp.float32)
        is_last = ~in_corridor | (after.time >= max_steps)
        return after, Outcome(draw(after), reward, is_last)

    def draw(state):
        picture = jnp.zeros((3, length + 1, 3), jnp.float32)
        picture = picture.at[1, :, FLOOR].set(1.0).at[:, length, FLOOR].set(1.0)
        picture = picture.at[1 + state.arm, state.x, AGENT].set(1.0)
        is_lit = (state.time == 0) | (seen_again & (state.arm != 0))
        return picture.at[1 + state.cue, state.x, CUE].set(jnp.where(is_lit, 1.0, 0.0))

    def facts(state):
        is_hidden = (state.time > 0) & (state.arm == 0)
        return {"cue": jnp.where(is_hidden, (state.cue + 1) // 2, -1)}

    return Environment(reset, step, 4, (3, length + 1, 3), facts)
