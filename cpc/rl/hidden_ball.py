"""The game of Catch with a ball that is hidden while it falls, so that the agent needs memory."""

import itertools
import math
from collections import Counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from cpc.rl.environment import Environment, Outcome
from cpc.types import UserError

#: Number of rows in the picture, and of steps in an episode.
ROWS = 10
#: Number of columns in the picture, and of paddle positions.
COLUMNS = 9
#: Number of top rows in which the ball is visible in every variant.
SEEN = 2
#: Rows in which the ball is visible in each variant.
VARIANTS = {
    "seen_again": (*range(SEEN), ROWS - 1),
    "never_seen": tuple(range(SEEN)),
    "always_visible": tuple(range(ROWS)),
}
#: Actions that move the paddle one column to the left, keep it, or move it to the right.
LEFT, STAY, RIGHT = range(3)


class Fall(NamedTuple):
    """Positions of the ball and the paddle."""

    row: Int[Array, ""]
    column: Int[Array, ""]
    velocity: Int[Array, ""]
    """Columns per step, -1, 0 or 1. The walls reverse the velocity."""
    paddle: Int[Array, ""]


def make_hidden_ball(variant: str = "seen_again") -> Environment:
    """Return the game of Catch with a ball that is only visible in some rows, set by `variant`.

    A ball falls from one of 9 columns with a random velocity, one row per step, and bounces off the
    walls. The step into the last row has reward 1 if the paddle is below the ball and -1 otherwise.
    The following step ends the episode, so that the last row is observed. The paddle moves at most
    one column per step. A random policy has an expected return of -7/9. The ball is visible in the
    first two rows, and later depending on the variant:

        seen_again      The ball is visible in the last row, so memory predicts a later picture.
        never_seen      The ball stays hidden in the last row, so memory predicts no picture.
        always_visible  The ball is visible in all rows, so no memory is needed.

    Observations have shape (10 x 9 + 9,) and contain the flattened picture of the ball, followed by
    the one-hot position of the paddle. Actions are `LEFT`, `STAY` and `RIGHT`.

    >>> environment = make_hidden_ball()
    >>> _, picture = environment.reset(jax.random.key(0))
    >>> picture.shape, float(picture.sum())
    ((99,), 2.0)
    """
    if variant not in VARIANTS:
        raise UserError(f"variant {variant!r} does not exist: choose one of {', '.join(VARIANTS)}")
    is_drawn = jnp.isin(jnp.arange(ROWS), jnp.array(VARIANTS[variant]))

    def reset(key):
        keys = jax.random.split(key, 3)
        state = Fall(
            jnp.zeros((), jnp.int32),
            jax.random.randint(keys[0], (), 0, COLUMNS, jnp.int32),
            jax.random.randint(keys[1], (), -1, 2, jnp.int32),
            jax.random.randint(keys[2], (), 0, COLUMNS, jnp.int32),
        )
        return state, draw(state)

    def step(key, state, action):
        del key
        column, velocity = fall(state.column, state.velocity)
        paddle = jnp.clip(state.paddle + jnp.asarray(action, jnp.int32) - 1, 0, COLUMNS - 1)
        is_last = state.row == ROWS - 1
        after = Fall(jnp.minimum(state.row + 1, ROWS - 1), column, velocity, paddle)
        lands = (after.row == ROWS - 1) & ~is_last
        reward = jnp.where(lands, jnp.where(paddle == column, 1.0, -1.0), 0.0).astype(jnp.float32)
        return after, Outcome(draw(after), reward, is_last)

    def draw(state):
        ball = jnp.zeros((ROWS, COLUMNS), jnp.float32)
        ball = ball.at[state.row, state.column].set(is_drawn[state.row].astype(jnp.float32))
        paddle = jax.nn.one_hot(state.paddle, COLUMNS, dtype=jnp.float32)
        return jnp.concatenate([ball.ravel(), paddle])

    def facts(state):
        hides = ~is_drawn[state.row]
        return {
            "ball": jnp.where(hides, state.column, -1),
            "velocity": jnp.where(hides, state.velocity + 1, -1),
            "row": jnp.where(hides, state.row, -1),
        }

    return Environment(reset, step, 3, (ROWS * COLUMNS + COLUMNS,), facts)


def fall(column: Int[Array, ""], velocity: Int[Array, ""]) -> tuple[Array, Array]:
    """Return the column and velocity of the ball after it has fallen by one row."""
    moved = column + velocity
    hits = (moved < 0) | (moved >= COLUMNS)
    return jnp.where(hits, column - velocity, moved), jnp.where(hits, -velocity, velocity)


def ball_information(variant: str, offset: int) -> float:
    """Return the information, in nats, that the past has about the picture `offset` steps later.

    I = H(T) - H(T | row, column, velocity) is a mutual information, where T is the ball's visible
    position, or none if it is hidden. It is over all rows from which `offset` steps stay within
    the episode. The velocity is unknown in the first row. As the paddle is not included, estimates
    from whole observations may exceed I.

    The last picture is predictable from the second row on, and partly from the first row:

    >>> [round(ball_information("seen_again", offset), 2) for offset in (1, 7, 8, 9)]
    [1.06, 1.36, 1.78, 1.18]
    >>> ball_information("never_seen", 8)
    0.0
    """
    if not 0 < offset < ROWS:
        raise UserError(f"offset must be between 1 and {ROWS - 1} (got {offset})")
    pairs = []
    for start, column, velocity in itertools.product(
        range(ROWS - offset), range(COLUMNS), (-1, 0, 1)
    ):
        x, speed, path = column, velocity, []
        for _ in range(ROWS):
            path.append((x, speed))
            moved = x + speed
            x, speed = (moved, speed) if 0 <= moved < COLUMNS else (x - speed, -speed)
        known = (start, *path[start]) if start else (start, column)
        row = start + offset
        pairs.append((known, (row, path[row][0]) if row in VARIANTS[variant] else None))
    all_known, all_drawn = zip(*pairs, strict=True)
    return _entropy(all_drawn) + _entropy(all_known) - _entropy(pairs)


def _entropy(items):
    shares = [count / len(items) for count in Counter(items).values()]
    return -sum(share * math.log(share) for share in shares)
