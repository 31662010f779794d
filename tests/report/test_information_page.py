"""The page of estimates: every claim and number on it, and estimates that diverged."""

import json
import re

import pytest

from cpc.report.information_figures import consistency_figure, staircase_figure, tasks_figure
from cpc.report.information_page import write_information_report

CLAIM = {"ceiling": 4.16, "label": "lower bound"}
STAIRS = [
    {"task": "gaussian", "critic": "joint", "estimator": name, "truth": truth, "value": value,
     "bias": None if value is None else value - truth, "spread": None, **CLAIM}
    for name, values in (("info_nce", (1.8, 3.1)), ("nwj", (1.9, None)))
    for truth, value in zip((2.0, 4.0), values, strict=True)
]  # fmt: skip
RECORDS = [
    {"step": 10 * i, "split": "train", "truth": 2.0 * i, "gaussian/joint/info_nce": 1.5 * i,
     "gaussian/joint/info_nce/std": 0.1, "gaussian/joint/nwj": None if i == 2 else -1e30,
     "gaussian/joint/nwj/std": None}
    for i in (1, 2)
]  # fmt: skip
TASKS = [
    {"task": task, "critic": "any", "estimator": name, "truth": 0.4, "value": value,
     "bias": None if value is None else value - 0.4, "spread": 0.1, **CLAIM}
    for task in ("one", "two")
    for name, value in (("ksg", 0.41), ("cca", None), ("info_nce", 1.4))
]  # fmt: skip
LAWS = [
    {"law": law, "rows": rows, "estimator": "nwj", "value": value, "ratio": value, **CLAIM}
    for law in ("rows", "processing", "independence")
    for rows, value in ((7, 1.0), (28, None))
]


def write(folder, protocol, records, table):
    (folder / "config.json").write_text(json.dumps({"protocol": protocol}))
    (folder / "environment.json").write_text(json.dumps({"command": "a <command>"}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "table.json").write_text(json.dumps(table))
    return write_information_report(folder).read_text()


@pytest.mark.parametrize(("protocol", "records", "table", "words"), [
    ("staircase", RECORDS, STAIRS, ("3.10 ± – (−0.90)", "diverged", "4.16", "lower bound")),
    ("tasks", [], TASKS, ("0.41 ± 0.10 (+0.01)", "diverged", "one", "KSG")),
    ("consistency", [], LAWS, ("1.00 (1.00)", "diverged", "7 rows", "NWJ")),
])  # fmt: skip
def test_every_number_is_on_the_page(tmp_path, protocol, records, table, words):
    page = re.sub('base64,[^"]*', "", write(tmp_path, protocol, records, table))
    for word in (*words, "a &lt;command&gt;"):
        assert word in page
    assert "nan" not in page
    assert "None" not in page
    assert list((tmp_path / "figures").glob("*.png"))


def test_a_line_that_diverged_leaves_the_others_readable():
    figure = staircase_figure(RECORDS, STAIRS, "gaussian")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["InfoNCE", "NWJ"]
    first, second = figure.axes
    assert first.get_ylim() == second.get_ylim()
    lines = {line.get_label(): line for line in first.lines}
    assert lines["joint critic"].get_ydata().tolist() == [1.5, 3.0]
    assert lines["joint critic"].get_xdata().tolist() == [5.0, 15.0], "the middle of each window"
    assert lines["ceiling"].get_ydata()[0] == 4.16


def test_nothing_recorded_is_no_figure():
    assert staircase_figure([], [], "gaussian") is None
    assert tasks_figure([]) is None
    assert consistency_figure([]) is None
