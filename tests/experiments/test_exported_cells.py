"""Cells that are trained in one process and exported, and the verdicts on their exports."""

import jax
import numpy as np
import pandas as pd
import pytest

from cpc import models
from cpc.train import make_mesh
from cpc.types import UserError
from experiments.kinds.audio import kind as audio
from experiments.reproduce import cells, judge, train
from experiments.reproduce.statistics import read_reproduction, read_results
from experiments.training.contrastive import interpret
from experiments.training.step import make_step
from tests.fake_run import draw_nothing

SETTINGS = ("data.window_samples=3840", "data.batch_size=4", "model.width=8", "log_every=5",
            "model.context_width=8", "evaluate.num_windows=8")  # fmt: skip
PROBE = ("probe.features=('c','mfcc')", "probe.tasks=('phones',)", "probe.hidden_width=0",
         "probe.hours=0.005")  # fmt: skip


def trained_alone(config, mesh):
    """The weights of a cell by a plain loop over a step of its own."""
    data = audio.load_data(config, lambda text: None)
    problem = audio.make_problem(interpret(audio, config), data)
    state, step, _ = make_step(problem, mesh)
    for number in range(config.num_steps):
        state = step(state, problem.draw(number))
    return state.params["model"]


def test_exported_cells_are_those_of_their_own_training_and_are_judged(tmp_path, monkeypatch):
    draw_nothing(monkeypatch)
    mesh, shared, train_cell = make_mesh(devices=jax.devices()[:1]), [], train.train_cell
    monkeypatch.setattr(train.cluster, "start", lambda device: mesh)

    def watched(problem, programs, *rest):
        train_cell(problem, programs, *rest)
        shared.append({key: step._cache_size() for key, (step, _) in programs.items()})

    monkeypatch.setattr(train, "train_cell", watched)
    planned = train.record_cells(tmp_path, ("mixed", "same"), SETTINGS, "smoke", 1)
    train.train_cells(planned, tmp_path, [], "cpu")
    assert [[*one.values()] for one in shared] == [[1]] * 2  # one program, compiled once
    train.train_cells(planned, tmp_path, [], "cpu")
    assert len(shared) == 2, "what is finished is not trained again"
    last = tmp_path / "same,seed=0" / "exported-20"
    alone = trained_alone(planned[-1].config, mesh)
    (last / "README.md").unlink()  # as if the process was cut
    train.train_cells(planned[1:], tmp_path, [10], "cpu")
    found = models.load_pretrained(last).variables["params"]
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype("f2")), found, alone)

    judge.judge(str(tmp_path), PROBE, "cpu")
    table = pd.read_csv(tmp_path / "exports.csv", header=None)
    assert table[0].isin(["mixed", "same"]).sum() == 3
    reproduction = read_reproduction(tmp_path)
    (negatives,) = (one for one in read_results(reproduction) if "whose" in one.table.title)
    assert negatives.rows.seeds.tolist() == [1, 1, 0, 0, 0]
    assert (tmp_path / "reproduction.html").exists()
    metrics = reproduction.runs["same"][0].metrics
    test = metrics[metrics.split == "test"]
    assert test.step.tolist() == [10, 20]
    assert np.isfinite(test.loss).all()
    monkeypatch.setattr(judge, "make_probe", None)
    judge.judge(str(tmp_path), PROBE, "cpu")  # nothing is left to probe
    with pytest.raises(UserError, match=r"a key of the training \(got num_steps=2\)"):
        judge.judge(str(tmp_path), ("num_steps=2",), "cpu")
    with pytest.raises(UserError, match="the data changed"):
        judge.judge(str(tmp_path), ("data.test_fraction=0.3",), "cpu")
    with pytest.raises(UserError, match=r"past the last step 20 \(got 21\)"):
        train.train_cells(planned, tmp_path, [10, 21], "cpu")


def test_parts_hold_every_cell_once():
    for number, n in ((27, 3), (5, 3), (2, 4)):
        parts = [train.take_part(range(number), f"{i}/{n}") for i in range(1, n + 1)]
        assert [cell for part in parts for cell in part] == [*range(number)]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for part in ("4/3", "x"):
        with pytest.raises(UserError, match=f"--part is not i/n .*got {part}"):
            train.take_part([], part)


def test_only_seed_and_speakers_share_a_program():
    configs = {
        cell.name: cell.config
        for cell in cells.plan_cells([*cells.TABLE_2], "small", "voices", {}, 2)
    }
    keys = {name: train.program_key(config) for name, config in configs.items()}
    assert keys["mixed,seed=0"] == keys["mixed,seed=1"] == keys["same,seed=0"]
    assert keys["mixed-excl,seed=0"] == keys["same-excl,seed=1"]
    assert len(set(keys.values())) == 7
