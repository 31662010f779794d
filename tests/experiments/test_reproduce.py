"""The command that makes the paper's tables again: what it runs, refuses and records."""

import fcntl
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from cpc.report.claims import CHANCE, TABLES
from cpc.types import UserError
from experiments.launch import flatten
from experiments.reproduce import __main__ as reproduce
from experiments.reproduce import bound
from experiments.reproduce import cells as cells_
from experiments.reproduce.cells import DATA, OPEN, PARTS, SCALES, Planned
from experiments.sweep.cells import Cell
from experiments.sweep.jobs import check_cell

ROOT = pathlib.Path(__file__).parents[2]


def planned(*names, scale="small", data="voices", seeds=1):
    return cells_.plan_cells(names, scale, data, {}, seeds)


def differing(name, base="mixed", **options):
    a, b = (
        dict(flatten(cells_.config_of(cell, "small", "voices")))
        for cell in planned(base, name, **options)
    )
    keys = {key for key in a if a[key] != b[key]}
    return {key: b[key] for key in keys if not key.startswith("probe.")}


def test_every_row_of_the_page_has_a_cell():
    cells = {cell for part in PARTS.values() for cell in part}
    assert {row.cell for table in TABLES for row in table.rows} <= cells
    for table in TABLES:
        assert {row.cell for row in table.rows} <= set(PARTS[f"table {table.number}"])
        labels = {row.label for row in table.rows}
        assert all(set(pair) <= labels for claim in table.claims for pair in claim.pairs)


def test_every_row_of_the_page_is_measured_at_some_scale():
    made = set()
    for scale in SCALES:
        for cell in planned("mixed", "image", "image-gru", scale=scale, data="synthetic"):
            asked = cells_.config_of(cell, scale, "synthetic").probe
            made |= {(cell.name.split(",")[0], word) for word in (*asked.features, *asked.tasks)}
    for table in TABLES:
        for row in table.rows if table.number != "2" else ():
            assert (row.cell, row.features) in made or row.features == CHANCE, row


def test_a_cell_is_the_first_but_for_its_row():
    assert differing("steps-2") == {"model.num_offsets": 2}
    assert differing("steps-20") == {"model.num_offsets": 20}
    assert differing("same") == {"data.one_speaker": True}
    assert differing("same-excl") == {
        "data.one_speaker": True, "negatives.rule": "excluding_sequence",
    }  # fmt: skip
    assert differing("current") == {"negatives.rule": "own_sequence"}
    assert differing("image-gru", base="image") == {"model.context": "gru"}
    assert [cell.settings["seed"] for cell in planned("mixed", seeds=3)] == [0, 1, 2]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("data", DATA)
def test_every_cell_has_a_config_that_can_be_run(scale, data):
    names = cells_.cells_of(tuple(PARTS), scale)
    assert ("open-norm" in names) == (scale != "smoke")
    for cell in planned(*names, scale=scale, data=data):
        config = cells_.config_of(cell, scale, data)
        check_cell(config, Cell(cell.name, {}))
        reproduce.check_window(cell.name, config)


@pytest.mark.parametrize("scale", SCALES)
def test_a_cell_varies_what_is_open(scale):
    data = cells_.DEFAULT_DATA[scale]
    rows = cells_.describe_open(scale, data, {})
    assert [row["what"] for row in rows] == [one.what for one in OPEN]
    for row, one in zip(rows, OPEN, strict=True):
        assert row["choice"]
        assert row["change"]
        assert ("=" in row["change"]) == bool(one.cell)  # or in words why nothing varies it
        assert row["change"] not in row["choice"] or not one.cell
    base, groups = planned("mixed", "open-groups", scale=scale, data=data)
    assert groups.settings["negatives.groups"] != base.settings.get("negatives.groups", 1)


def test_everything_small_takes_an_hour_at_most():
    cells = planned(*cells_.cells_of(tuple(PARTS), "small"))
    assert cells_.estimate_seconds(cells, "small") <= 3600
    assert cells_.estimate_seconds(cells, "paper") is None
    said = reproduce.describe(cells, "small", "voices", 1)
    assert "400 steps of 8 windows of 1.28 s" in said["size"]
    assert said["hardware"].startswith("Hardware: 2 fast CPU cores")
    assert "; time: about 60 min" in said["hardware"]
    assert "never measured" in reproduce.describe(cells, "paper", "voices", 1)["hardware"]


def test_dry_run(capsys, tmp_path):
    argv = ["--table", "2", "--scale", "small", "--seeds", "2", "--dry-run", "--device", "cpu"]
    reproduce.main([*argv, "--workdir", str(tmp_path / "x"), "--audio", "num_steps=70"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 * 2
    assert all("-m experiments.audio --config" in line for line in lines)
    assert all("--config.num_steps=70 " in line and "--device cpu" in line for line in lines)
    assert not (tmp_path / "x").exists()


def test_the_folder_is_named_by_scale_and_data(capsys):
    reproduce.main(["--table", "2", "--scale", "small", "--data", "voices", "--dry-run"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("--workdir runs/reproduced-small-voices/mixed,seed=0")


def test_the_folder_is_said_first(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "run_jobs", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):  # as no cell is done
        reproduce.main(["--figure", "3", "--scale", "smoke"])
    said = capsys.readouterr().out
    assert said.startswith("workdir: runs/reproduced-smoke-synthetic\n")
    assert "page: runs/reproduced-smoke-synthetic/reproduction.html" in said


@pytest.mark.parametrize(("argv", "words"), [
    ([], "nothing is asked for"),
    (["--table", "7"], "there is no table 7 here; choose from"),
    (["--table", "5"], "no table 5 here: it is of text"),
    (["--figure", "6"], "it is of reinforcement learning"),
    (["--figure", "bound"], "there is no figure bound"),
    (["--all", "--scale", "huge"], "--scale is 'huge': choose one of smoke, small, paper"),
    (["--all", "--data", "timit"], "--data is 'timit': choose one of synthetic"),
    (["--all", "--workdir", "x", "--seeds", "0"], "--seeds is 0"),
    (["--all", "--workdir", "x", "--audio", "num_step=3"], "did you mean num_steps"),
    (["--all", "--workdir", "x", "--audio", "num_steps"], "sets nothing"),
    (["--all", "--workdir", "x", "--audio", "negatives.rule=batch"], "what the cells differ in"),
    (["--all", "--workdir", "x", "--audio", "data.window_samples=2000"], "ahead in windows of 12"),
    (["--table", "2", "--workdir", "x", "--data", "librispeech"], r"give --audio data\.path="),
    (["--table", "2", "--workdir", "x", "--data", "librispeech", "--audio", "data.path=/no/where"],
     "data.path is /no/where, which is not there"),
    (["--table", "2", "--workdir", "x", "--data", "librispeech", "--audio", "data.path=/"],
     r"give --audio data\.phones="),
    (["--table", "3", "--workdir", "x", "--image", "data.source=folder"], r"--image data\.path="),
    (["--table", "3", "--workdir", "x", "--scale", "paper"], r"--image data\.path="),
])  # fmt: skip
def test_mistakes(argv, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words):
        reproduce.main(argv)
    assert not list(tmp_path.iterdir())


def plan(scale="small", parts=("table 2",), **more):
    words = {"size": "", "hardware": "", "open": [], "seeds": 1, "user": {}}
    return {"scale": scale, "data": "voices", "parts": list(parts), **words, **more}


def test_another_table_joins_the_folder(tmp_path):
    with reproduce.open_folder(tmp_path, plan(), planned("mixed", "steps-2")):
        pass
    with reproduce.open_folder(tmp_path, plan(parts=["figure 3"]), planned("steps-20")):
        pass
    recorded = json.loads((tmp_path / "sweep.json").read_text())
    assert list(recorded["cells"]) == ["mixed,seed=0", "steps-2,seed=0", "steps-20,seed=0"]
    assert recorded["reproduction"]["parts"] == ["table 2", "figure 3"]
    assert "Runs of audio (voices): 10" in recorded["reproduction"]["size"]


def test_probes_may_change_between_two_starts(tmp_path):
    """As those of a run may, and as they did when untrained z was added to all cells."""
    (cell,) = planned("mixed")
    former = cell._replace(settings={**cell.settings, "probe.features": ("c", "mfcc")})
    for one in (former, cell):
        with reproduce.open_folder(tmp_path, plan(), [one]):
            pass
    recorded = json.loads((tmp_path / "sweep.json").read_text())["cells"]["mixed,seed=0"]
    assert recorded["probe.features"] == list(cell.settings["probe.features"])


def test_a_folder_with_something_else(tmp_path):
    cells = planned("mixed")
    with reproduce.open_folder(tmp_path, plan(), cells):
        pass
    with (
        pytest.raises(UserError, match="scale is 'small' there and 'paper' here"),
        reproduce.open_folder(tmp_path, plan("paper"), cells),
    ):
        pass
    other = [cells[0]._replace(settings={**cells[0].settings, "num_steps": 1})]
    with (
        pytest.raises(UserError, match="other settings: mixed,seed=0"),
        reproduce.open_folder(tmp_path, plan(), other),
    ):
        pass
    with (tmp_path / "sweep.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (
            pytest.raises(UserError, match="still runs"),
            reproduce.open_folder(tmp_path, plan(), cells),
        ):
            pass
    (tmp_path / "sweep.json").write_text(json.dumps({"cells": {}}))
    with (
        pytest.raises(UserError, match="holds a sweep, no reproduction"),
        reproduce.open_folder(tmp_path, plan(), cells),
    ):
        pass
    (tmp_path / "config.json").write_text("{}")
    with (
        pytest.raises(UserError, match="holds a single run"),
        reproduce.open_folder(tmp_path, plan(), cells),
    ):
        pass


def test_a_cells_command_is_the_experiments_own(tmp_path):
    cell = Planned("x,seed=0", "audio", ROOT / "configs" / "audio_voices.py", {"probe.tasks": ()})
    job = reproduce.make_job(cell, tmp_path, "auto")
    assert job.command[-2:] == ["--workdir", str(tmp_path / "x,seed=0")]
    assert "--config.probe.tasks=()" in job.command
    assert "--device" not in job.command


def test_latents_of_each_recording_come_first():
    pool = [(u, np.full((4, 2), u, float)) for u in (0, 1, 0, 2, 1)]
    latents, number = bound.gather(iter(pool), 20)
    assert number == 3
    assert sorted(latents[:3, 0].tolist()) == [0, 1, 2]
    assert np.bincount(latents[:, 0].astype(int)).tolist() == [8, 8, 4]
    again, _ = bound.gather(iter(pool), 20)
    np.testing.assert_array_equal(latents, again)
    assert len(bound.gather(iter(pool), 2)[0]) == 2


def test_bound_by_n_is_that_of_a_double_loop():
    rng = np.random.default_rng(0)
    b, t, d, n = 3, 5, 4, 7
    z, latents = rng.standard_normal((b, t, d)), rng.standard_normal((n - 1, d))
    predictions = 2 * rng.standard_normal((b, t, 2, d))
    arrays = [a.astype(np.float32) for a in (z, predictions, latents)]
    rows = bound.estimates(*arrays, is_bound=True)
    for row, k in zip(rows, (1, 2), strict=True):
        windows = []
        for i in range(b):
            values = []
            for j in range(t - k):
                query = predictions[i, j, k - 1]
                scores = np.array([query @ z[i, j + k], *(latents @ query)])
                values.append(np.log(n) - np.log(np.exp(scores).sum()) + scores[0])
            windows.append(np.mean(values))
        assert (row["offset"], row["n"], row["is_bound"]) == (k, n, True)
        assert row["value"] == pytest.approx(np.mean(windows), rel=1e-5)
        assert row["high"] - row["value"] == pytest.approx(
            4.30265 * np.std(windows, ddof=1) / 3**0.5, rel=1e-4
        )


@pytest.mark.slow
def test_a_figure_from_nothing(tmp_path):
    folder = tmp_path / "smoke"
    command = [sys.executable, "-m", "experiments.reproduce", "--figure", "3", "--scale", "smoke"]
    for done in (0, 1):
        made = subprocess.run(
            [*command, "--workdir", str(folder), "--device", "cpu"],
            capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stdout + made.stderr
        assert f"cells: 1, done: {done}" in made.stdout
    record = json.loads((folder / "reproduction.json").read_text())
    assert record["figure_3"]["offsets"] == list(range(1, 21))
    assert record["plan"]["data"] == "synthetic"
    assert "Figure 3" in (folder / "reproduction.html").read_text()
