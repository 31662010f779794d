"""The bench of agents: what an update adds is by rounds, and its rows are of what a run makes."""

import time

import jax
import numpy as np
import pytest

from configs import rl_hidden_ball
from experiments.bench import agents
from experiments.bench.table import Target, describe
from experiments.command.config import with_settings

TINY = {
    "environment.num": 4, "model.widths": (8,), "model.memory_width": 8, "policy.unroll": 6,
    "cpc.num_offsets": 2, "cpc.num_environments": 0,
}  # fmt: skip


def test_what_is_added_is_the_median_over_rounds():
    """A machine that is ten times as slow in one round does not change a ratio."""
    wall = {"random policy": [0.1, 1.0, 0.1], agents.WITHOUT: [1.0, 10.0, 1.0],
            "CPC": [1.2, 12.0, 1.3]}  # fmt: skip
    seconds = agents.Seconds(wall, {name: [2 * s for s in own] for name, own in wall.items()})
    rows = {name: agents.row_of(name, "ball", 3000, 30, seconds) for name in wall}
    assert rows["CPC"].figures["added"] == pytest.approx(0.2)
    assert rows["CPC"].target == Target("added", agents.MOST_ADDED, at_least=False)
    assert rows["CPC"].is_met()
    assert "target" not in describe(rows[agents.WITHOUT])
    figures = rows[agents.WITHOUT].figures
    assert figures["env_steps_per_second"] == pytest.approx(3000)
    assert figures["env_steps_per_cpu_second"] == pytest.approx(1500)
    assert figures["seconds_per_update"] == pytest.approx(1 / 30)
    assert figures["of_random_policy"] == pytest.approx(0.1)
    assert "20 % to an update" in rows["CPC"].text


@pytest.mark.slow
def test_updates_are_those_of_runs_and_of_studies():
    """One after the other, and for all seeds in one program: the same numbers for seed 0."""
    config = with_settings(rl_hidden_ball.get_config(), TINY)
    one, two = (agents.advance(config, seeds, 3)() for seeds in (1, 2))
    assert int(one.step) == 3
    assert two.step.tolist() == [3, 3]
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params), strict=True):
        np.testing.assert_allclose(a, b[0], atol=1e-5)
        assert (np.asarray(b[0]) != np.asarray(b[1])).any() or not np.asarray(b).any()


@pytest.mark.slow
def test_rows(monkeypatch):
    weights = []

    def advance(config, num_seeds, num_updates):
        weights.append(config.cpc.weight)
        return lambda: time.sleep(0.001)

    monkeypatch.setattr(agents, "advance", advance)
    config = with_settings(rl_hidden_ball.get_config(), TINY)
    rows = agents.case_rows(agents.Case("ball", config), num_rounds=2, num_updates=2)
    assert [weight > 0 for weight in weights] == [False] + 4 * [True]
    names = ["random policy", *agents.ARMS]
    assert [row.name for row in rows] == [f"ball: {name}" for name in names]
    assert all(row.figures["env_steps_per_second"] > 0 for row in rows)
    steps = 2 * 4 * 6  # of all environments
    rate = rows[1].figures["env_steps_per_second"]
    assert rate * rows[1].figures["seconds_per_update"] == pytest.approx(steps / 2)
