"""What is said of an evaluation in which episodes end, or none does."""

import types

import numpy as np

from configs import rl
from experiments.kinds.rl.evaluate import describe


def watched(*ends):
    is_last = np.zeros((6, 2), bool)
    for time, column, *_ in ends:
        is_last[time, column] = True
    returns, lengths = np.zeros((6, 2)), np.zeros((6, 2), int)
    for time, column, total, length in ends:
        returns[time, column], lengths[time, column] = total, length
    rollout = types.SimpleNamespace(is_last=is_last, episode_return=returns, episode_length=lengths)
    return types.SimpleNamespace(rollout=rollout)


def test_only_whole_episodes_are_counted():
    config = rl.get_config()
    config.cpc.weight = 0.0
    assert describe(config, watched()) == []
    # An environment's first episode began before the evaluation.
    assert describe(config, watched((3, 0, 9.0, 4))) == []
    ends = [(0, 0, 9.0, 4), (2, 0, 1.0, 2), (1, 1, 9.0, 4), (5, 1, 4.0, 4)]
    assert describe(config, watched(*ends)) == [{"return": 2.5, "episode_length": 3.0}]


def test_short_episodes_do_not_count_more_often_than_long_ones(capsys):
    """Of each environment as many; where one has none, nothing is said of the others alone."""
    config = rl.get_config()
    config.cpc.weight = 0.0
    short = [(0, 0, 9.0, 4), (2, 0, 1.0, 2), (4, 0, 1.0, 2)]
    found = describe(config, watched(*short, (1, 1, 9.0, 4), (5, 1, 4.0, 4)))
    assert found == [{"return": 2.5, "episode_length": 3.0}]
    assert describe(config, watched(*short, (1, 1, 9.0, 4))) == []
    assert "raise evaluate.num_steps" in capsys.readouterr().out
