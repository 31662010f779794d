"""Tests of `cpc reproduce`: its cells, errors and records."""

import functools
import json

import pytest

from configs import audio_voices_paper
from cpc.files import flatten
from cpc.types import UserError
from experiments.command.run_dir import record_state
from experiments.reproduce import __main__ as folder
from experiments.reproduce import cells as cells_
from experiments.reproduce.cells import DATA, OPEN, PARTS, SCALES
from experiments.reproduce.claims import CHANCE, TABLES, TASKS
from experiments.sweep.cells import Cell
from experiments.sweep.jobs import check_cell, lock_folder
from tests.commands import run
from tests.experiments.test_reproduction import write_cell
from tests.fake_run import draw_nothing


def planned(*names, scale="small", data="voices", seeds=1):
    return cells_.plan_cells(names, scale, data, {}, seeds)


def differing(name, base="mixed", **options):
    a, b = (flatten(cell.config) for cell in planned(base, name, **options))
    keys = {key for key in a if a[key] != b[key]}
    return {key: b[key] for key in keys if not key.startswith("probe.")}


def test_every_row_of_the_page_has_a_cell_and_is_measured_at_some_scale():
    made = set()
    for scale in SCALES:
        for cell in planned("mixed", "image", "image-gru", "text", scale=scale, data="synthetic"):
            asked = cell.config.probe
            made |= {(cell.name.split(",")[0], word) for word in (*asked.features, *asked.tasks)}
    cells = {cell for part in PARTS.values() for cell in part}
    assert {row.cell for table in TABLES for row in table.rows} <= cells
    for table in TABLES:
        assert {row.cell for row in table.rows} <= set(PARTS[f"table {table.number}"])
        for row in table.rows if table.number != "2" else ():
            assert (row.cell, row.features) in made or row.features == CHANCE, row
        labels = {row.label for row in table.rows}
        pairs = [pair for claim in table.claims for pair in claim.pairs]
        assert {label for low, _, high in pairs for label in (low, high)} <= labels


def test_a_cell_is_the_first_but_for_its_row():
    for k, name in cells_.STEPS.items():
        assert differing(name) == ({} if k == 12 else {"model.num_offsets": k})
    assert differing("steps-20") == {"model.num_offsets": 20}
    assert differing("same") == {"data.one_speaker": True}
    assert differing("mixed-excl") == {"negatives.rule": "excluding_sequence"}
    assert differing("same-excl") == differing("same") | differing("mixed-excl")
    assert differing("current") == {"negatives.rule": "own_sequence"}
    assert differing("image-gru", base="image") == {"model.context": "gru"}
    for variant, (alone, helped) in cells_.AGENTS.items():
        assert differing(alone, base=helped) == {"cpc.weight": 0.0}
        own = {} if variant == "seen_again" else {"environment.name": f"hidden_ball:{variant}"}
        assert differing(helped, base="ball-seen") == own
    assert {task.variant for task in TASKS} == set(cells_.AGENTS)
    assert [cell.settings["seed"] for cell in planned("mixed", seeds=3)] == [0, 1, 2]


def test_tables_of_sound_are_trained_by_a_recipe_that_learns():
    """The first row is audio_voices_paper except for the probes."""
    recipe, (cell,) = flatten(audio_voices_paper.get_config()), planned("mixed")
    known = flatten(cell.config)
    assert not [key for key in known if known[key] != recipe[key] and "probe." not in key]
    tables = planned(*cells_.cells_of(("table 1", "table 2"), "small"), seeds=SCALES["small"].seeds)
    words = cells_.describe_cells(tables, "small", 1)
    assert "27, each of 5,500 steps" in words["size"]
    assert words["hardware"] == "Hardware: 2 CPU cores, about 13.5 h"


@pytest.mark.parametrize(
    ("scale", "data"), [*cells_.DEFAULT_DATA.items(), *(("small", data) for data in DATA)]
)
def test_every_cell_has_a_config_that_can_be_run(scale, data):
    names = cells_.cells_of(tuple(PARTS), scale)
    assert ("open-norm" in names) == (scale != "smoke")
    for cell in planned(*names, scale=scale, data=data):
        plan = check_cell(cell.config, Cell(cell.name, {}))
        if cell.kind != "rl":
            assert plan.geometry.num_offsets < plan.geometry.num_latents


@pytest.mark.parametrize("scale", SCALES)
def test_a_cell_varies_what_is_open(scale):
    rows = cells_.describe_open(scale, cells_.DEFAULT_DATA[scale], {})
    for row, one in zip(rows, OPEN, strict=True):
        assert row["choice"]
        assert ("=" in row["change"]) == bool(one.cell)  # or in words why nothing varies it
        assert row["change"] not in row["choice"] or not one.cell


@pytest.mark.parametrize("one", [one for one in OPEN if one.cell and one.kind == "audio"])
def test_a_cell_varies_what_is_open_whatever_the_user_sets(one):
    user = {"audio": dict(one.settings)}
    (cell,) = cells_.plan_cells([one.cell], "small", "voices", user, 1)
    assert all(cell.settings[key] != value for key, value in one.settings.items())
    check_cell(cells_.base_config("audio", "small", "voices")[0], Cell(cell.name, cell.settings))


def test_dry_run(capsys, tmp_path):
    assert folder.find_parts(["2", "open"], ["3"], False) == ["table 2", "figure 3", "open"]
    assert folder.find_parts([], [], True) == list(PARTS)
    with pytest.raises(UserError, match="--table"):
        folder.find_parts([], [], False)
    folder.reproduce(
        ["table 2"], seeds=2, dry_run=True, device="cpu", workdir=str(tmp_path / "x"),
        settings={"audio": ["num_steps=170", "config.optim.clip_norm=2"]},
    )  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 * 2
    for words in ("-m cpc train --config", "--config.num_steps=170 ", "--device cpu",
                  "--config.optim.clip_norm=2.0 "):  # fmt: skip
        assert all(words in line for line in lines)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("parts", "options", "words"), [
    (PARTS, {"settings": {"audio": ["num_steps"]}}, "key=value"),
    (PARTS, {"settings": {"audio": ["negatives.rule=batch"]}}, r"negatives\.rule"),
    (PARTS, {"settings": {"audio": ["data.window_samples=2000"]}}, r"model\.num_offsets"),
    (["bound"], {"settings": {"audio": ["model.horizon=24"]}}, r"model\.horizon .*got 24"),
    (["table 2"], {"data": "librispeech", "settings": {"audio": ["data.path=/no/where"]}},
     "/no/where"),
    (["table 3"], {"scale": "paper"}, r"--image data\.path="),
])  # fmt: skip
def test_mistakes(parts, options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words):
        folder.reproduce(list(parts), **options)
    assert not list(tmp_path.iterdir())


def plan(scale="small", parts=("table 2",), **more):
    words = {"size": "", "hardware": "", "open": [], "seeds": 1, "jobs": 1, "user": {}}
    return {"scale": scale, "data": "voices", "parts": list(parts), **words, **more}


def record(path, own, cells):
    """Record a plan in a folder; returns all that it holds then."""
    with hold(path, own, cells):
        return json.loads((path / "sweep.json").read_text())


def hold(path, own, cells):
    merge = functools.partial(cells_.merge_plans, own, cells, path)
    return lock_folder(path, "reproduction", merge)


def test_runs_that_nobody_asked_for_are_not_counted(tmp_path):
    record(tmp_path, plan(jobs=4), planned("mixed"))
    more = plan(parts=["figure 3"], seeds=3, jobs=4)
    recorded = record(tmp_path, more, planned("steps-20", seeds=3))
    assert len(recorded["cells"]) == 4
    assert recorded["reproduction"]["parts"] == ["table 2", "figure 3"]
    assert "Runs of audio (voices_paper): 4" in recorded["reproduction"]["size"]
    assert "shared by 4 cells at a time" in recorded["reproduction"]["hardware"]
    # Probes may change, as in a run, for example to add untrained z to all cells.
    (cell,) = planned("mixed")
    former = cell._replace(settings={**cell.settings, "probe.features": ("c", "mfcc")})
    record(tmp_path / "b", plan(), [former])
    recorded = record(tmp_path / "b", plan(), [cell])["cells"]["mixed,seed=0"]
    assert recorded["probe.features"] == list(cell.settings["probe.features"])


def test_a_folder_with_something_else(tmp_path):
    cells = planned("mixed")
    record(tmp_path, plan(), cells)

    def refused(words, own=None, given=cells):
        with pytest.raises(UserError, match=words):
            record(tmp_path, own or plan(), given)

    refused("scale was 'small' and is 'paper'", plan("paper"))
    other = cells[0]._replace(settings={**cells[0].settings, "num_steps": 1})
    refused("mixed,seed=0 has other settings", given=[other])
    with hold(tmp_path, plan(), cells):
        refused("still runs")
    for name, words in (("sweep.json", "contains a sweep"), ("config.json", "a single run")):
        (tmp_path / name).write_text(json.dumps({"cells": {}}))
        refused(words)


def test_a_figure_of_runs_that_are_there(tmp_path, monkeypatch):
    draw_nothing(monkeypatch)
    for name in cells_.cells_of(("figure 3",), "smoke"):
        path = write_cell(tmp_path, name)
        record_state(path, "finished")
        (path / "report.html").write_text("")
    monkeypatch.setattr(folder, "run_jobs", lambda *_: None)
    folder.reproduce(["figure 3"], "smoke", workdir=str(tmp_path))
    found = json.loads((tmp_path / "reproduction.json").read_text())
    (curve,) = (one for one in found["sections"] if one["title"].startswith("Figure 3"))
    assert [row["offset"] for row in curve["tables"][0]["rows"]] == list(range(1, 21))
    assert "synthetic" in found["title"]


def test_a_mistake_is_a_sentence(tmp_path):
    words = ["--all", "--dry-run", f"--workdir={tmp_path / 'x'}", "--audio=num_step=3"]
    said = run("experiments.reproduce", *words, status=2).stderr
    assert said.count("\n") == 1
    assert "num_steps" in said
    assert not list(tmp_path.iterdir())
