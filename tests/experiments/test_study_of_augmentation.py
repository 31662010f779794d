"""The ablation of augmentation: its cells, their commands, and the page of their runs."""

import json

import pytest

from configs import audio_voices
from cpc.files import read_json, write_sealed
from cpc.types import UserError
from experiments.command.config import with_settings
from experiments.studies import augmentation as study
from experiments.sweep.jobs import check_cell, make_job
from tests import commands
from tests.small_run import write_run


def test_the_cells_are_sides_and_effects_with_every_seed():
    cells = study.plan_cells([], {"num_steps": 700}, 3)
    assert len(cells) == 3 * (4 + 5)
    config = audio_voices.get_config()
    seen = set()
    for cell in cells:
        check_cell(config, cell)
        made = with_settings(config, cell.settings)
        seen.add((made.augment.side, made.augment.effects, made.seed))
        assert made.num_steps == 700
    assert len(seen) == len(cells)
    assert ("past", ("band_reject",), 2) in seen
    with pytest.raises(UserError, match="--only is 'echo': choose from none, past"):
        study.plan_cells(["echo"], {}, 1)


def test_the_command_of_a_cell_sets_its_keys(tmp_path):
    (cell,) = study.plan_cells(["past-pitch"], study.QUICK, 1)
    words = make_job(audio_voices.__file__, cell, tmp_path).command
    assert "--config.augment.side=past" in words
    assert "--config.augment.effects=('pitch',)" in words
    assert words[-1] == str(tmp_path / "past-pitch,seed=0")


def fake_cells(folder, nats):
    for name, of_seeds in nats.items():
        settings = study.CELLS[name]
        for seed, value in enumerate(of_seeds):
            path = write_run(folder / f"{name},seed={seed}", seed=seed, nats=value)
            config = read_json(path / "config.json")
            sections = {"augment": {key.split(".")[1]: v for key, v in settings.items()}}
            write_sealed(path / "config.json", config | sections)


def test_the_page_says_what_differs_by_more_than_seeds(tmp_path):
    fake_cells(
        tmp_path,
        {"none": (1.0, 1.1, 0.9), "past": (1.5, 1.62, 1.4), "past-pitch": (1.2, 0.9, 1.1)},
    )
    study.write_study(tmp_path)
    text = (tmp_path / "augmentation.md").read_text()
    assert "better than without augmentation: past: pitch, noise, reverb +0.51" in text
    assert "1 of 2 cannot be told from it" in text
    assert "| nothing | 1.00 (0.75 to 1.25) |" in text
    tables = json.loads((tmp_path / "augmentation.json").read_text())["sections"]
    assert len(tables) >= 3


def test_a_page_without_the_base_compares_nothing(tmp_path):
    study.write_study(tmp_path)
    assert not (tmp_path / "augmentation.html").exists()
    fake_cells(tmp_path, {"past": (1.5, 1.6)})
    study.write_study(tmp_path)
    assert "not there yet" in (tmp_path / "augmentation.md").read_text()


@pytest.mark.slow
def test_commands_are_printed_and_mistakes_are_a_sentence():
    module = "experiments.studies.augmentation"
    done = commands.run(module, "--dry-run", "--only=none", "--config.num_steps=900", "--seeds=2")
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 2
    assert all("--config.num_steps=900" in line and "audio_voices.py" in line for line in lines)
    done = commands.run(module, "--dry-run", "--config.augment.snr_low_db=50", status=2)
    assert "must ascend" in done.stderr


@pytest.mark.slow
def test_the_quick_ablation_runs_and_is_skipped_the_second_time(tmp_path):
    words = ["--workdir", tmp_path, "--quick", "--only=none", "--only=past-dropout"]
    commands.run("experiments.studies.augmentation", *words)
    assert "dropout" in (tmp_path / "augmentation.md").read_text()
    again = commands.run("experiments.studies.augmentation", *words)
    assert "cells: 2, done: 2" in again.stdout
