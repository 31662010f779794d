"""The page of a run that estimated mutual information where the truth, or a law, is known."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.figure
import pandas as pd

from cpc.files import read_json
from cpc.report.engine import Figure, Section, Table, show, write_page
from cpc.report.provenance import made_section
from cpc.results import Frame, Run, read_run
from cpc.types import UserError
from experiments.information.figures import (
    LAWS,
    NAMES,
    by_reading,
    consistency_figure,
    staircase_figure,
    tasks_figure,
)

TITLES = {
    "mi_staircase": "The staircase: estimators train while the information rises",
    "mi_tasks": "Benchmark tasks of known information",
    "mi_consistency": "Self-consistency on images",
}
HOW_TO_READ = {
    "mi_staircase": (
        "Ink: the truth. Dashed: the ceiling, above which no batch of this size can read. Gray: "
        "the estimator with the exact log ratio, the best that training can hope for. Shaded: one "
        "standard deviation from batch to batch. A lower bound that lies low is honest; a value "
        "above the truth comes from an estimator that is no bound, or from few batches."
    ),
    "mi_tasks": (
        "Each cell is an estimate, the mean over seeds; blue lies below the truth, red above. "
        "KSG and CCA train nothing. Student's tasks have no correlation: CCA misses what is "
        "there, or chases a few far points. No task here is near the ceiling of InfoNCE."
    ),
    "mi_consistency": (
        "The truth is not known, but laws are. Left: y keeps the top rows of the image x; the "
        "information must grow with them. Middle: a copy of y with fewer rows adds nothing. Right: "
        "two independent images hold twice the information of one. An estimator at its "
        "ceiling breaks the last law, one of large variance any of them."
    ),
}

#: Of a figure its name, title and drawing; None where nothing is recorded that it could show.
Drawn = tuple[str, str, matplotlib.figure.Figure | None]


def write_information_report(workdir: str | Path) -> Path:
    """Write report.html and figures/*.png from metrics.jsonl and table.json of a run.

    Raises:
        UserError: the directory has no table.json, which a run writes at its end.
    """
    workdir = Path(workdir)
    if not (workdir / "table.json").exists():
        raise UserError(f"{workdir} has no table.json: run the command again to its end")
    run = read_run(workdir)
    kind = str(run.config.get("kind"))
    drawn, tables = PARTS[kind](run, read_table(workdir / "table.json"))
    figures = [
        Figure(name, figure, title, HOW_TO_READ[kind])
        for name, title, figure in drawn
        if figure is not None
    ]
    sections = [
        Section("", run.problems),
        Section("Figures", figures=figures),
        Section("Numbers", tables=tables),
        made_section(run.environment, run.config),
    ]
    return write_page(workdir, "report", TITLES[kind], str(workdir.resolve()), sections=sections)


def read_table(path: Path) -> Frame:
    """Return the estimates of a run, one a row; what diverged is NaN."""
    table = pd.DataFrame(read_json(path))
    for name in ("value", "bias", "spread", "ratio", "ceiling"):
        if name in table:
            table[name] = table[name].astype(float)
    if "critic" not in table:  # as runs recorded the laws when one critic was read
        table["critic"] = ""
    return table


def staircase_parts(run: Run, table: Frame) -> tuple[Sequence[Drawn], Sequence[Table]]:
    """Return a figure and a table for each task, the exact critic in both."""
    words = {"gaussian": "Correlated Gaussians", "cubic": "Correlated Gaussians, y cubed"}
    drawn, tables = [], []
    for task in table.task[table.task != "any"].unique():
        title = words.get(str(task), str(task))
        drawn.append((f"staircase_{task}", title, staircase_figure(run.train, table, task)))
        tables.append(level_table(title, table[table.task.isin([task, "any"])]))
    return drawn, tables


def level_table(title: str, table: Frame) -> Table:
    """Return a row for each estimator and critic, and a column for each level."""
    rows = [
        {
            "estimator": NAMES[name],
            "critic": critic,
            "claim": here.label.iloc[0],
            "ceiling": here.ceiling.iloc[0],
            **{f"{r.truth:g} nats": (r.value, r.spread, r.bias) for r in here.itertuples()},
        }
        for name in NAMES
        for critic, here in table[table.estimator == name].groupby("critic", sort=False)
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    formats = dict.fromkeys(frame.columns[4:], show_estimate) | {"ceiling": show_ceiling}
    note = "Value ± spread from batch to batch, and bias, over the last half of each level."
    return Table(title, frame, note, formats)


def show_ceiling(nats: float) -> str:
    """Return a ceiling in nats, or that there is none."""
    return show(nats, ".2f") if math.isfinite(nats) else "none"


def show_estimate(estimate: Any) -> str:
    """Return a value, its spread and its bias; nothing where a task was not read.

    >>> show_estimate((1.8, 0.2, -0.2)), show_estimate((math.nan, 0.2, math.nan))
    ('1.80 ± 0.20 (−0.20)', 'diverged')
    """
    if not isinstance(estimate, tuple):
        return ""
    value, spread, bias = estimate
    if not abs(value) < 100:
        return "diverged"
    return f"{show(value, '.2f')} ± {show(spread, '.2f')} ({show(bias, '+.2f')})"


def tasks_parts(run: Run, table: Frame) -> tuple[Sequence[Drawn], Sequence[Table]]:
    """Return the chart of all tasks, and its numbers."""
    readings = by_reading(table)
    frame = table.drop_duplicates("task").set_index("task")[["truth"]]
    for title, rows in readings.items():
        triples = zip(rows.task, rows.value, rows.spread, rows.bias, strict=True)
        frame[title] = pd.Series({task: tuple(triple) for task, *triple in triples})
    claims = "; ".join(f"{title}: {rows.label.iloc[0]}" for title, rows in readings.items())
    note = f"Mean ± standard deviation over seeds, and bias, nats. {claims}."
    formats = dict.fromkeys(readings, show_estimate) | {"truth": ".3f"}
    drawn = ("tasks", "Estimates beside the truth", tasks_figure(table))
    return [drawn], [Table("Estimates", frame.reset_index(), note, formats)]


def consistency_parts(run: Run, table: Frame) -> tuple[Sequence[Drawn], Sequence[Table]]:
    """Return the figure of the three laws, and the numbers under each."""
    tables = []
    for law, title, _ in LAWS:
        rows = [
            {
                "estimator": name,
                "claim": here.label.iloc[0],
                **{f"{row.rows} rows": (row.ratio, row.value) for row in here.itertuples()},
            }
            for name, here in by_reading(table[table.law == law]).items()
        ]
        frame = pd.DataFrame(rows)
        formats = dict.fromkeys(frame.columns[2:], show_ratio)
        note = "Ratio of estimates, and the estimate itself in nats."
        tables.append(Table(title[0].upper() + title[1:], frame, note, formats))
    drawn = ("consistency", "Three laws that information obeys", consistency_figure(table))
    return [drawn], tables


def show_ratio(estimate: Any) -> str:
    """Return a ratio, and the estimate that it was taken of.

    >>> show_ratio((1.02, 4.0)), show_ratio((math.nan, math.nan))
    ('1.02 (4.00)', 'diverged')
    """
    ratio, value = estimate
    return f"{show(ratio, '.2f')} ({show(value, '.2f')})" if math.isfinite(ratio) else "diverged"


PARTS = {
    "mi_staircase": staircase_parts,
    "mi_tasks": tasks_parts,
    "mi_consistency": consistency_parts,
}
