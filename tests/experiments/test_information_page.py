"""The page of estimates: numbers, claims and diverged estimates."""

import json

import pytest

from cpc.report.engine import cells
from cpc.results import read_run
from cpc.types import UserError
from experiments.information import page

CLAIM = {"ceiling": 4.16, "label": "lower <bound>"}
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
    {"law": law, "rows": rows, "critic": "joint", "estimator": "nwj", "value": value,
     "ratio": value, **CLAIM}
    for law in ("rows", "processing", "independence")
    for rows, value in ((7, 1.0), (28, None))
]  # fmt: skip


def write(folder, kind, records, table):
    (folder / "config.json").write_text(json.dumps({"kind": kind}))
    (folder / "environment.json").write_text(json.dumps({"command": "a <command>"}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "table.json").write_text(json.dumps(table))
    return read_run(folder), page.read_table(folder / "table.json")


@pytest.mark.parametrize(("kind", "records", "table", "shown"), [
    ("mi_staircase", RECORDS, STAIRS, [
        ["InfoNCE", "lower <bound>", "4.16", "1.80 ± – (−0.20)", "3.10 ± – (−0.90)"],
        ["NWJ", "lower <bound>", "4.16", "1.90 ± – (−0.10)", "diverged"],
    ]),
    ("mi_tasks", [], TASKS, [
        [task, "0.400", "1.40 ± 0.10 (+1.00)", "0.41 ± 0.10 (+0.01)", "diverged"]
        for task in ("one", "two")
    ]),
    ("mi_consistency", [], LAWS, [["NWJ", "lower <bound>", "4.16", "1.00 (1.00)", "diverged"]]),
])  # fmt: skip
def test_page_shows_every_number(tmp_path, kind, records, table, shown):
    run, frame = write(tmp_path, kind, records, table)
    drawn, tables = page.PAGES[kind][2](run, frame, "")
    assert all(cells(one) == shown for one in tables)
    written = page.write_information_report(tmp_path).read_text()
    assert "lower &lt;bound&gt;" in written
    assert "<command>" not in written
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {one.name for one in drawn}


def test_diverged_line_does_not_hide_the_others(tmp_path):
    run, table = write(tmp_path, "mi_staircase", RECORDS, STAIRS)
    first, second = page.staircase_figure(run.train, table, "gaussian").axes
    assert first.get_ylim() == second.get_ylim()
    lines = {line.get_label(): line for line in first.lines}
    assert lines["joint critic"].get_ydata().tolist() == [1.5, 3.0]
    assert lines["joint critic"].get_xdata().tolist() == [5.0, 15.0], "the middle of each window"
    assert lines["ceiling"].get_ydata()[0] == 4.16


def test_lost_records_have_no_figure_and_unfinished_runs_no_page(tmp_path):
    run, table = write(tmp_path, "mi_staircase", [], STAIRS)
    assert page.staircase_figure(run.train, table, "gaussian") is None
    (tmp_path / "table.json").unlink()
    with pytest.raises(UserError, match=r"table\.json"):
        page.write_information_report(tmp_path)
