"""The hidden ball: a naive twin and information of all histories."""

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.rl import ball_information, make_hidden_ball
from cpc.rl.hidden_ball import COLUMNS, ROWS, VARIANTS, Fall
from cpc.types import UserError


def path_of(column, velocity):
    path = [column]
    for _ in range(ROWS - 1):
        if not 0 <= column + velocity < COLUMNS:
            velocity = -velocity
        column += velocity
        path.append(column)
    return path


def picture(variant, row, column, paddle):
    ball = np.zeros((ROWS, COLUMNS))
    if row in VARIANTS[variant]:
        ball[row, column] = 1
    return np.append(ball.ravel(), np.arange(COLUMNS) == paddle)


def state_of(column, velocity, paddle):
    return Fall(*(jnp.int32(value) for value in (0, column, velocity, paddle)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_episode_equals_the_naive_twin(variant):
    step = jax.jit(make_hidden_ball(variant).step)
    rng = np.random.default_rng(0)
    for _ in range(12):
        column, velocity = int(rng.integers(COLUMNS)), int(rng.integers(-1, 2))
        paddle = int(rng.integers(COLUMNS))
        path, state = path_of(column, velocity), state_of(column, velocity, paddle)
        for row in range(1, ROWS + 1):
            action = int(rng.integers(3))
            state, outcome = step(jax.random.key(0), state, jnp.int32(action))
            paddle = min(max(paddle + action - 1, 0), COLUMNS - 1)
            assert bool(outcome.is_last) == (row == ROWS)
            if row == ROWS:
                assert outcome.reward == 0
                break
            wanted = (1 if paddle == path[row] else -1) if row == ROWS - 1 else 0
            assert float(outcome.reward) == wanted
            assert (outcome.observation == picture(variant, row, path[row], paddle)).all()


def test_balls_and_paddles_start_anywhere():
    _, seen = jax.vmap(make_hidden_ball().reset)(jax.random.split(jax.random.key(0), 2000))
    first_row, paddles = np.asarray(seen)[:, :COLUMNS], np.asarray(seen)[:, -COLUMNS:]
    for places in (first_row, paddles):
        assert (places.sum(1) == 1).all()
        assert np.abs(places.mean(0) - 1 / COLUMNS).max() < 0.03


def test_facts_are_hidden():
    environment = make_hidden_ball("seen_again")
    state = state_of(3, 1, 0)
    for row, column in enumerate(path_of(3, 1)):
        facts = {name: int(value) for name, value in environment.facts(state).items()}
        hides = row not in VARIANTS["seen_again"]
        assert facts["ball"] == (column if hides else -1)
        assert facts["row"] == (row if hides else -1)
        assert (facts["velocity"] >= 0) == hides
        state, _ = environment.step(jax.random.key(0), state, jnp.int32(1))
    with pytest.raises(UserError, match=r"seen_agian.*seen_again"):
        make_hidden_ball("seen_agian")
    with pytest.raises(UserError, match=r"offset .*got 10"):
        ball_information("seen_again", 10)


def entropy(items):
    counts = np.array(list(collections.Counter(items).values()))
    return -(counts / counts.sum() * np.log(counts / counts.sum())).sum()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("offset", [1, 7, 9])
def test_information_equals_all_histories(variant, offset):
    """Computed from all observation histories of a state."""
    pairs = []
    for column in range(COLUMNS):
        for velocity in (-1, 0, 1):
            path = path_of(column, velocity)
            drawn = [(r, path[r]) if r in VARIANTS[variant] else None for r in range(ROWS)]
            pairs += [(tuple(drawn[: r + 1]), drawn[r + offset]) for r in range(ROWS - offset)]
    histories, targets = zip(*pairs, strict=True)
    wanted = entropy(histories) + entropy(targets) - entropy(pairs)
    assert math.isclose(ball_information(variant, offset), wanted, abs_tol=1e-9)
