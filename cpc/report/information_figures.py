"""Figures of estimates of mutual information: the staircase, benchmark tasks, consistency."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cpc.report.draw import (
    BLUE,
    GRAY,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    RED,
    add_shared_legend,
    label,
    make_figure,
)
from cpc.report.records import Record

#: Critics of the staircase: colour and words.
CRITICS = {
    "exact": (GRAY, "exact log ratio"),
    "separable": (BLUE, "separable critic"),
    "joint": (ORANGE, "joint critic"),
    "conditional": (GREEN, "Gaussian q(y|x)"),
}
NAMES = {
    "info_nce": "InfoNCE",
    "interpolated": "interpolated",
    "ml_cpc": "ML-CPC",
    "tuba": "TUBA",
    "nwj": "NWJ",
    "flo": "FLO",
    "js": "JS",
    "smile": "SMILE",
    "donsker_varadhan": "Donsker–Varadhan",
    "mine": "MINE",
    "club": "CLUB",
    "ksg": "KSG",
    "cca": "CCA",
}
COLOURS = (BLUE, ORANGE, GREEN, RED, "#7a4fc9", "#0e8fa3", "#a35a0e", INK)
MARKERS = "osD^vPX*"

Row = dict[str, Any]


def staircase_figure(records: list[Record], table: list[Row], task: str) -> Figure | None:
    """Every reading over the steps on one task: a panel an estimator, a line a critic.

    Shaded: one standard deviation from batch to batch. Truth in ink, ceiling dashed.
    """
    here = [row for row in table if row["task"] in (task, "any")]
    rows = {name: next(r for r in here if r["estimator"] == name) for name in present(here)}
    if not records or not rows:
        return None
    figure, panels = make_figure(len(rows), num_columns=4, width=11.0, row_height=2.5)
    steps = np.array([record["step"] for record in records])
    truth = np.array([record["truth"] for record in records])
    for axes, (estimator, row) in zip(panels, rows.items(), strict=True):
        for critic, (colour, words) in CRITICS.items():
            where = "any" if critic == "exact" else task
            draw_reading(axes, records, f"{where}/{critic}/{estimator}", colour, words)
        edges = np.r_[0, steps]  # a step's record closes its window
        axes.stairs(truth, edges, baseline=None, color=INK, linewidth=1.3, label="truth")
        if row["ceiling"] is not None:
            axes.axhline(row["ceiling"], color=RED, linestyle="--", linewidth=1, label="ceiling")
        axes.set_ylim(-0.4, 1.4 * truth.max())
        axes.set_xlim(0, steps[-1])
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        label(axes, "", "", NAMES[estimator])
        axes.annotate(
            row["label"], (0, 1), xytext=(4, -3), xycoords="axes fraction",
            textcoords="offset points", va="top", fontsize=7.5, color=MUTED,
        )  # fmt: skip
    for number, axes in enumerate(panels):
        axes.set_ylabel("" if number % 4 else "nats", fontsize=9.5, color=INK)
        axes.set_xlabel("step" if number + 4 >= len(panels) else "", fontsize=9.5, color=INK)
    add_shared_legend(figure, panels)
    return figure


def present(table: list[Row]) -> list[str]:
    """The estimators of a table, in the order of `NAMES`."""
    found = {row["estimator"] for row in table}
    return [name for name in NAMES if name in found]


def draw_reading(axes: Axes, records: list[Record], name: str, colour: str, words: str) -> None:
    """One line with its shade, if it was recorded."""
    half = records[0]["step"] / 2  # a record is the mean of the window that it closes
    points = [
        (r["step"] - half, r[name], r[f"{name}/std"])
        for r in records
        if r.get(name) is not None and np.isfinite(r[name])
    ]
    if not points:
        return
    steps, mean, std = np.clip(np.array(points, float).T, -1e6, 1e6)  # far outside the axes
    near = std < 1e2  # the shade of an estimate that diverged would hide all else
    axes.fill_between(steps, mean - std, mean + std, where=near, color=colour, alpha=0.18, lw=0)
    axes.plot(steps, mean, color=colour, linewidth=1.2, label=words)


def tasks_figure(table: list[Row]) -> Figure | None:
    """Tasks down, estimators across: the estimate in each cell, coloured by its distance."""
    if not table:
        return None
    tasks = list(dict.fromkeys(row["task"] for row in table))
    names = present(table)
    cells = {(row["task"], row["estimator"]): row for row in table}
    truths = [next(r["truth"] for r in table if r["task"] == task) for task in tasks]
    bias = np.array([[cells[task, name]["bias"] for name in names] for task in tasks], float)
    figure = Figure(
        figsize=(3.4 + 0.8 * (len(names) + 1), 1.7 + 0.24 * len(tasks)),
        layout="constrained",
        facecolor="white",
    )
    axes = figure.add_subplot()
    shown = np.ma.masked_invalid(np.c_[np.full(len(tasks), np.nan), bias])
    image = axes.imshow(shown, cmap="RdBu_r", vmin=-0.6, vmax=0.6, aspect="auto")
    for i, task in enumerate(tasks):
        axes.text(0, i, f"{truths[i]:.2f}", ha="center", va="center", fontsize=7.5, color=INK)
        for j, name in enumerate(names):
            value = cells[task, name]["value"]
            dark = abs(bias[i, j]) > 0.4
            text = "–" if value is None else f"{value:z.2f}".replace("-", "−")
            axes.text(
                j + 1, i, text, ha="center", va="center", fontsize=7.5,
                color="white" if dark else INK,
            )  # fmt: skip
    axes.set_yticks(range(len(tasks)), tasks, fontsize=7.5, color=INK)
    heads = ["truth", *(NAMES[name] for name in names)]
    axes.set_xticks(range(len(heads)), heads, fontsize=8, color=INK, rotation=30, ha="left")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(
        image, ax=axes, location="bottom", shrink=0.4, aspect=30, pad=0.02, extend="both"
    )
    bar.set_label("estimate − truth, nats", fontsize=8.5, color=INK)
    bar.ax.tick_params(labelsize=8)
    return figure


#: The laws of Song and Ermon (2020): key, title, what an estimator that obeys gives.
LAWS = (
    ("rows", "top rows: grows, as a share of all rows", None),
    ("processing", "a processed copy beside: stays at 1", 1.0),
    ("independence", "two independent pictures: 2", 2.0),
)


def consistency_figure(table: list[Row]) -> Figure | None:
    """The three self-consistency tests over the number of rows that y keeps."""
    if not table:
        return None
    figure, panels = make_figure(3, width=11.0, row_height=3.4)
    names = present(table)
    for axes, (law, title, ideal) in zip(panels, LAWS, strict=True):
        for number, name in enumerate(names):
            rows = [row for row in table if row["law"] == law and row["estimator"] == name]
            ratios = np.array([row["ratio"] for row in rows], float)
            axes.plot(
                [row["rows"] for row in rows],
                np.clip(ratios, -1e3, 1e3),
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=4,
                linewidth=1.2,
                label=NAMES[name],
            )
        if ideal is not None:
            axes.axhline(ideal, color=INK, linestyle=":", linewidth=1.3, label="the law")
        axes.set_ylim(0, 1.25 if ideal is None else 1.5 * ideal)
        axes.set_xticks(sorted({row["rows"] for row in table}))
        label(axes, "rows of the picture that y keeps", "ratio of estimates", title)
    add_shared_legend(figure, panels)
    return figure
