"""Figure 6 in a reproduction: its cells, what becomes of its claims, its section of the page."""

import json

import numpy as np
import pytest

from cpc.files import flatten
from experiments.reproduce import agents, page, read
from experiments.reproduce.cells import AGENTS, FIGURE_6, config_of, plan_cells
from experiments.reproduce.verdicts import HELD, MISSING, REFUTED, UNTOLD

PLAN = {
    "scale": "small", "data": "voices", "seeds": 3, "size": "18 runs", "hardware": "2 cores",
    "parts": ["figure 6"], "open": [],
}  # fmt: skip
POINTS = 11
NOISE = (-0.02, 0.0, 0.03)


def write_run(folder, cell, seed, level, last=POINTS):
    """A run whose returns rise by 0.2 around a level: `level` is the area under its curve."""
    path = folder / f"{cell},seed={seed}"
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"kind": "rl", "seed": seed}))
    records = [
        {
            "step": 20 * i, "num_steps": 20 * POINTS, "split": "train", "seconds": 1.0 * i,
            "frames": 6400 * i, "return": level + 0.2 * ((i - 1) / (POINTS - 1) - 0.5),
        }
        for i in range(1, last + 1)
    ]  # fmt: skip
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


def learned_of(folder, gains, seeds=3, last=POINTS):
    """Each task, of which CPC's area is higher by so much, but for what is of a seed alone."""
    cells = [f"{cell},seed={seed}" for cell in FIGURE_6 for seed in range(seeds)]
    folder.mkdir(exist_ok=True)
    recorded = {"reproduction": PLAN, "cells": {name: {} for name in cells}}
    (folder / "sweep.json").write_text(json.dumps(recorded))
    for variant, gain in gains.items():
        without, with_cpc = AGENTS[variant]
        for seed in range(seeds):
            own = 10 * NOISE[seed]  # of both arms: it cancels
            write_run(folder, without, seed, -0.5 + own)
            write_run(folder, with_cpc, seed, -0.5 + own + gain + NOISE[seed], last)
    return {one.task.variant: one for one in agents.read_learned(read.read_reproduction(folder))}


@pytest.mark.parametrize(("gain", "seen", "visible"), [
    (0.3, HELD, REFUTED), (0.0, UNTOLD, HELD), (-0.3, REFUTED, REFUTED), (0.09, HELD, UNTOLD),
])  # fmt: skip
def test_claims(tmp_path, gain, seen, visible):
    """Helps is higher by an interval above 0, does not matter by one that lies within 0.1."""
    found = learned_of(tmp_path, dict.fromkeys(AGENTS, gain))
    verdicts = [found[variant].verdict for variant in AGENTS]
    assert verdicts == [seen, visible, visible]
    one = found["seen_again"]
    assert one.seeds == 3
    assert one.over.value == pytest.approx(gain + np.mean(NOISE))
    half = 4.302653 * np.std(NOISE, ddof=1) / 3**0.5  # Student's, of the pairs alone
    assert one.over.high - one.over.value == pytest.approx(half)
    assert one.areas[0].value == pytest.approx(-0.5 + 10 * np.mean(NOISE))


def test_what_one_seed_or_a_training_that_goes_on_tells(tmp_path):
    alone = learned_of(tmp_path / "one", {"seen_again": 0.3}, seeds=1)
    assert (alone["seen_again"].verdict, alone["seen_again"].seeds) == (UNTOLD, 1)
    assert alone["never_seen"].verdict == MISSING
    unfinished = learned_of(tmp_path / "goes-on", {"seen_again": 0.3}, last=POINTS - 1)
    assert (unfinished["seen_again"].verdict, unfinished["seen_again"].seeds) == (MISSING, 0)
    nothing = read.read_reproduction(tmp_path / "goes-on")._replace(runs={})
    assert agents.agents_section(nothing).sentences == ["Not measured."]


@pytest.mark.slow
def test_the_page(tmp_path):
    learned_of(tmp_path, {"seen_again": 0.3, "always_visible": 0.0, "never_seen": 0.3})
    page.write_reproduction(tmp_path)
    found = json.loads((tmp_path / "reproduction.json").read_text())
    sections = {section["title"]: section for section in found["sections"]}
    (table,) = sections[agents.TITLE]["tables"]
    assert [row["verdict"] for row in table["rows"]] == [HELD, HELD, REFUTED]
    assert (tmp_path / "figures" / "agents.png").exists()
    text = (tmp_path / "reproduction.md").read_text()
    assert "Did not hold: agents: nor where memory is needed" in text
    assert "+0.30 (+0.24 to +0.37)" in text


def test_cells_differ_in_task_and_weight_alone():
    planned = plan_cells(list(FIGURE_6), "small", "voices", {}, 1)
    configs = [flatten(config_of(cell, "small", "voices")) for cell in planned]
    differing = {key for one in configs for key in one if one[key] != configs[0][key]}
    assert differing == {"environment.name", "cpc.weight"}
    for (variant, pair), without, with_cpc in zip(
        AGENTS.items(), configs[::2], configs[1::2], strict=True
    ):
        assert [cell.name.split(",")[0] for cell in planned if variant in str(cell)] == list(pair)
        assert without["cpc.weight"] == 0 < with_cpc["cpc.weight"]
        assert with_cpc["environment.name"] == f"hidden_ball:{variant}"
