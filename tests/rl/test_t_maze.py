"""The T-maze compared with a NumPy twin."""

import jax
import numpy as np
import pytest

from cpc.rl import make_t_maze
from cpc.rl.t_maze import AGENT, BACK, CUE, DOWN, FLOOR, FORWARD, UP
from cpc.types import UserError


class Twin:
    def __init__(self, cue, length, max_steps, seen_again):
        self.cue, self.length, self.max_steps, self.seen_again = cue, length, max_steps, seen_again
        self.x, self.y, self.time = 0, 1, 0

    def picture(self):
        picture = np.zeros((3, self.length + 1, 3))
        for x in range(self.length + 1):
            picture[1, x, FLOOR] = 1
        picture[0, -1, FLOOR] = picture[2, -1, FLOOR] = 1
        picture[self.y, self.x, AGENT] = 1
        row = {"up": 0, "down": 2}[self.cue]
        if self.time == 0:
            picture[row, 0, CUE] = 1
        if self.seen_again and self.y != 1:
            picture[row, -1, CUE] = 1
        return picture

    def step(self, action):
        self.time += 1
        if self.y != 1:
            return 0.0, True
        reward = 0.0
        if action == FORWARD and self.x < self.length:
            self.x += 1
        elif action == BACK and self.x > 0:
            self.x -= 1
        elif action in (UP, DOWN) and self.x == self.length:
            self.y = {UP: 0, DOWN: 2}[action]
            reward = float((action == UP) == (self.cue == "up"))
        return reward, self.time == self.max_steps


@pytest.mark.parametrize(("length", "max_steps", "seen_again"), [(1, 5, False), (3, 12, True)])
def test_equals_its_twin(length, max_steps, seen_again):
    environment = make_t_maze(length, max_steps=max_steps, seen_again=seen_again)
    step = jax.jit(environment.step)
    rng = np.random.default_rng(0)
    seen, cues = set(), []
    for seed in range(40):
        state, picture = environment.reset(jax.random.key(seed))
        twin = Twin("up" if int(state.cue) == -1 else "down", length, max_steps, seen_again)
        cues.append(twin.cue)
        is_last = False
        while not is_last:
            np.testing.assert_array_equal(picture, twin.picture())
            action = rng.choice(4, p=[0.1, 0.5, 0.2, 0.2])
            state, (picture, reward, is_last) = step(jax.random.key(0), state, action)
            assert (float(reward), bool(is_last)) == twin.step(action)
            seen.add((float(reward), bool(is_last), twin.y))
        np.testing.assert_array_equal(picture, twin.picture())
        assert picture.shape == environment.observation_shape
        assert picture.dtype == reward.dtype == "float32"
    assert 8 < cues.count("up") < 32
    # Both rewards, none, and episodes that ran out of time.
    assert {(1.0, False, 0), (1.0, False, 2), (0.0, False, 0), (0.0, False, 2)} <= seen
    assert (0.0, True, 1) in seen


def test_unsolvable_mazes_are_rejected():
    for length, max_steps in ((0, 9), (3, 4)):
        with pytest.raises(UserError, match="cannot be solved"):
            make_t_maze(length, max_steps=max_steps)
