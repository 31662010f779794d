"""The pages of estimates: of a run whose truth, or law, is known, and of two arrays."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cpc.files import read_json
from cpc.report.engine import Figure, Section, Table, figure_of, show, write_page
from cpc.report.provenance import made_section
from cpc.results import Frame, Run, Score, read_run
from cpc.types import UserError
from experiments.information import figures
from experiments.information.findings import DIVERGED, certifiable, format_nats, title_of
from experiments.information.rotations import Reading

#: Title of the page of each kind, and how to read its figures.
PAGES = {
    "mi_staircase": (
        "The staircase: estimators train while the information rises",
        "Ink: the truth. Dashed: the ceiling of batches of this size. Gray: the exact log ratio, "
        "the best that training can reach. Shaded: one standard deviation from batch to batch. "
        "Values above the truth come from estimators that are not bounds, or from few batches.",
    ),
    "mi_tasks": (
        "Benchmark tasks of known information",
        "Color: the mean over seeds; blue is below the truth, red above. KSG and CCA train "
        "nothing. Student's tasks have no correlation: CCA misses the dependence, or follows a "
        "few far points. No task here is near the ceiling of InfoNCE.",
    ),
    "mi_consistency": (
        "Self-consistency on images",
        "Left: y keeps the top rows of the image x; information must grow with them. Middle: a "
        "copy of y with fewer rows adds nothing. Right: two independent images hold twice the "
        "information of one. At its ceiling an estimator breaks the last law.",
    ),
}
#: Titles of the staircase's tasks.
MAPS = {"gaussian": "Correlated Gaussians", "cubic": "Correlated Gaussians, y cubed"}


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
    sections = [
        Section("", run.problems),
        Section("Figures", figures=drawn),
        Section("Numbers", tables=tables),
        made_section(run.environment, run.config),
    ]
    title = PAGES[kind][0]
    return write_page(workdir, "report", title, str(workdir.resolve()), sections=sections)


def read_table(path: Path) -> Frame:
    """Return the estimates of a run, one per row; those that diverged are NaN."""
    table = pd.DataFrame(read_json(path))
    names = [name for name in ("value", "bias", "spread", "ratio", "ceiling") if name in table]
    return table.astype(dict.fromkeys(names, float))


def staircase_parts(run: Run, table: Frame) -> tuple[list[Figure], list[Table]]:
    """Return a figure and a table for each task, the exact critic in both."""
    drawn, tables = [], []
    note = "Value ± spread from batch to batch, and bias, over the last half of each level."
    for task in table.task[table.task != "any"].unique():
        figure = figures.staircase_figure(run.train, table, task)
        drawn += figure_of(f"staircase_{task}", figure, MAPS[task], PAGES["mi_staircase"][1])
        here = table[table.task.isin([task, "any"])]
        shown = show_readings(here, lambda row: f"{row.truth:g} nats", show_estimate)
        tables.append(Table(MAPS[task], shown, note))
    return drawn, tables


def tasks_parts(run: Run, table: Frame) -> tuple[list[Figure], list[Table]]:
    """Return the chart of all tasks, and its numbers."""
    shown = show_readings(table, lambda row: row.task, show_estimate)
    by_task = shown.drop(columns=["claim", "ceiling"]).set_index("estimator").T
    by_task.insert(0, "truth", table.groupby("task").truth.first().map("{:.3f}".format))
    claims = "; ".join(f"{row.estimator}: {row.claim}" for row in shown.itertuples())
    note = f"Mean ± standard deviation over seeds, and bias, nats. {claims}."
    figure = figures.tasks_figure(table)
    drawn = figure_of("tasks", figure, "Estimates and the truth", PAGES["mi_tasks"][1])
    return drawn, [Table("Estimates", by_task.rename_axis("task").reset_index(), note)]


def consistency_parts(run: Run, table: Frame) -> tuple[list[Figure], list[Table]]:
    """Return the figure of the three laws, and the numbers under each."""
    tables = []
    for law, title, _ in figures.LAWS:
        shown = show_readings(table[table.law == law], lambda row: f"{row.rows} rows", show_ratio)
        note = "Ratio of estimates, and the estimate itself in nats."
        tables.append(Table(title[0].upper() + title[1:], shown, note))
    figure, title = figures.consistency_figure(table), "Three laws that information obeys"
    return figure_of("consistency", figure, title, PAGES["mi_consistency"][1]), tables


def show_readings(
    table: Frame, column_of: Callable[[Any], str], text_of: Callable[[Any], str]
) -> Frame:
    """Return a row for each estimator and critic: its claim, its ceiling, a column a setting."""
    rows = [
        {
            "estimator": title,
            "claim": here.label.iloc[0],
            "ceiling": show_ceiling(here.ceiling.iloc[0]),
            **{column_of(row): text_of(row) for row in here.itertuples()},
        }
        for title, here in figures.by_reading(table).items()
    ]
    return pd.DataFrame(rows).fillna("")


def show_ceiling(nats: float | None) -> str:
    """Return a ceiling in nats, or "none"."""
    return "none" if nats is None or not math.isfinite(nats) else show(nats, ".2f")


def show_known(nats: float) -> str:
    """Return a value, or "diverged"."""
    return show(nats, ".2f") if abs(nats) < DIVERGED else "diverged"


def show_estimate(row: Any) -> str:
    """Return a value, its spread and its bias."""
    if not abs(row.value) < DIVERGED:
        return "diverged"
    return f"{show(row.value, '.2f')} ± {show(row.spread, '.2f')} ({show(row.bias, '+.2f')})"


def show_ratio(row: Any) -> str:
    """Return a ratio of estimates, and the estimate above its line."""
    if not math.isfinite(row.ratio):
        return "diverged"
    return f"{show(row.ratio, '.2f')} ({show(row.value, '.2f')})"


PARTS = {
    "mi_staircase": staircase_parts,
    "mi_tasks": tasks_parts,
    "mi_consistency": consistency_parts,
}

#: How two arrays are measured, and how to read the figures.
HOW = (
    "In each of four rotations half of the rows trains, a quarter chooses the step (early "
    "stopping), and a quarter is read: each row once, by networks that never saw it.",
    "Intervals are Student's, 95 %, over disjoint batches of held-out rows; for KSG and CCA over "
    "ten disjoint parts of the rows; for the null, the range of one more shuffle. They hold for "
    "these networks and independent rows, and ignore that rotations share rows for training.",
    "The line over 1 / n: each rotation trained with all, half and a quarter of its rows, read on "
    "the same held-out rows. Its end is what these networks would read with more rows; of a lower "
    "bound that is still one.",
)
ESTIMATES = (
    "Points: held-out values with 95 % intervals. Gray: with y shuffled. Red ticks: the ceiling, "
    "if there is one in sight. Colors: what may be claimed."
)


def write_arrays_report(
    folder: Path,
    lead: str,
    readings: Sequence[Reading],
    sentences: Sequence[str],
    num_rows: int,
) -> Path:
    """Write information.html, .md and .json with the readings of two arrays."""
    run, figure = read_run(folder), figures.estimates_figure(readings)
    sections = [
        Section("", sentences),
        Section(
            "Estimates",
            figures=[Figure("estimates", figure, "Estimates", ESTIMATES)],
            tables=[reading_table(readings, num_rows)],
        ),
        Section("How it was measured", HOW),
        made_section(run.environment, run.config),
    ]
    title = "What two arrays tell about each other"
    return write_page(folder, "information", title, lead, sections=sections, also=["md", "json"])


def reading_table(readings: Sequence[Reading], num_rows: int) -> Table:
    """Return a row for each reading."""
    rows = [
        {
            "estimator": title_of(one),
            "claim": one.label,
            "ceiling": show_ceiling(one.ceiling),
            "nats": format_nats(one.found),
            "y shuffled": format_nats(one.null) if one.null else "",
            "n / 4, n / 2, n": ", ".join(show_known(nats) for nats in one.line[::-1]),
            "more data would add": format_nats(one.gain) if one.gain else "",
            "at 1 / n = 0": format_nats(one.limit) if one.limit else "",
        }
        for one in readings
    ]
    note = (
        "Nats, with 95 % intervals. Of two critics, only the one with the higher InfoNCE on the "
        "rows that choose the step is trained on shuffled and on fewer rows. No sure lower bound "
        f"from {num_rows:,} rows can pass 2 ln n + 5 = {certifiable(num_rows):.1f} nats."
    )
    return Table("Estimates", pd.DataFrame(rows), note)


def to_scores(readings: Sequence[Reading], data: str, seed: int, num_rows: int) -> list[Score]:
    """Return readings as the scores of a run directory, except those that diverged."""
    return [
        Score(
            "information",
            data,
            "row",
            "x, y",
            f"{one.estimator}, {one.critic}",
            "nats",
            *one.found,
            None if one.null is None else one.null.value,
            seed=seed,
            num_train=num_rows // 2,
            num_test=num_rows,
            setting=one.label,
        )
        for one in readings
        if abs(one.found.value) < DIVERGED
    ]
