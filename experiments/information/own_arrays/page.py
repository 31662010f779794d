"""The page of two arrays: what can be claimed, every estimator, the null, the line over 1 / n."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from cpc.report.draw import (
    BLUE,
    GRAY,
    GREEN,
    INK,
    ORANGE,
    RED,
    add_legend,
    add_shared_legend,
    label,
    make_figure,
)
from cpc.report.engine import Figure, Section, Table, show, write_page
from cpc.report.provenance import made_section
from cpc.results import Score
from experiments.information.figures import COLORS, MARKERS, NAMES
from experiments.information.own_arrays.findings import DIVERGED, certifiable, nats
from experiments.information.own_arrays.fit import FRACTIONS, Reading

LABELS = (("lower", "lower bounds", BLUE), ("upper", "upper, if its model holds", GREEN),
          ("no", "estimates, no bounds", ORANGE))  # fmt: skip
HOW = (
    "The rows were put in a random order and cut into quarters. In each of four rotations one half "
    "trains, a quarter chooses the step at which training is best (early stopping), and the last "
    "is read: each row once, by networks that never saw it.",
    "Intervals are Student's, 95 %, over disjoint batches of held-out rows; of KSG and CCA over "
    "ten disjoint parts of the rows. They are for these networks and independent rows; that "
    "rotations share rows for training is not in them. Of the null it is the range of one more "
    "shuffle, each trained anew.",
    "The line over 1 / n: each rotation trained with all, half and a quarter of its rows, read on "
    "the same held-out rows; its interval is Student's over the four rotations. It says what these "
    "networks would read of more rows, which of a lower bound is still one.",
)
ESTIMATES = (
    "Points: held-out values with 95 % intervals. Gray: with y shuffled. Red ticks: the ceiling, "
    "where there is one in sight. What may be claimed is by color."
)
LINE = (
    "Means over rotations with n, n / 2 and n / 4 rows, and the straight line through them to "
    "infinitely many: open marks with 95 % intervals."
)


def write_study(
    folder: pathlib.Path,
    names: tuple[str, str],
    shape: tuple[int, int, int],
    readings: Sequence[Reading],
    sentences: Sequence[str],
    environment: Any,
    config: Any,
) -> pathlib.Path:
    """Write information.html, .md and .json of what was found."""
    num_rows, dim_x, dim_y = shape
    lead = f"x: {names[0]}, {dim_x} columns; y: {names[1]}, {dim_y} columns; {num_rows:,} rows."
    figures = [
        Figure("estimates", estimates_figure(readings), "Estimates", ESTIMATES),
        Figure("line", line_figure(readings, num_rows), "The line over 1 / n", LINE),
    ]
    return write_page(
        folder,
        "information",
        "What two arrays tell of each other",
        lead,
        sections=[
            Section("", sentences),
            Section("Estimates", figures=figures[:1], tables=[reading_table(readings, num_rows)]),
            Section("What more data would change", figures=figures[1:]),
            Section("How it was measured", HOW),
            made_section(environment, config.to_dict()),
        ],
        also=["md", "json"],
    )


def title_of(reading: Reading) -> str:
    """Return the estimator, and its critic if it is one of two."""
    name = NAMES[reading.estimator]
    return f"{name}, {reading.critic}" if reading.critic in ("separable", "joint") else name


def reading_table(readings: Sequence[Reading], num_rows: int) -> Table:
    """Return a row for each reading."""
    import pandas as pd

    rows = [
        {
            "estimator": title_of(one),
            "claim": one.label,
            "ceiling": "none" if one.ceiling is None else show(one.ceiling, ".2f"),
            "nats": nats(one.found),
            "y shuffled": nats(one.null) if one.null else "",
            "more data would add": nats(one.gain) if one.gain else "",
            "at 1 / n = 0": nats(one.limit) if one.limit else "",
        }
        for one in readings
    ]
    note = (
        "Nats, with 95 % intervals. If there are two critics, only the one with the higher InfoNCE "
        "on the rows that choose the step is trained on shuffled and on fewer rows. Where there is "
        "no ceiling, no sure lower bound from "
        f"{num_rows:,} rows can pass 2 ln n + 5 = {certifiable(num_rows):.1f} nats (McAllester & "
        "Stratos 2020)."
    )
    return Table("Estimates", pd.DataFrame(rows), note)


def to_scores(readings: Sequence[Reading], data: str, config: Any, num_rows: int) -> list[Score]:
    """Return readings as the scores of a run directory; what diverged is left out."""
    return [
        Score(
            "information",
            data,
            "row",
            "x, y",
            f"{one.estimator}, {one.critic}",
            "nats",
            one.found.value,
            one.found.low,
            one.found.high,
            None if one.null is None else one.null.value,
            seed=config.seed,
            num_train=num_rows // 2,
            num_test=num_rows,
            setting=one.label,
        )
        for one in readings
        if abs(one.found.value) < DIVERGED
    ]


def estimates_figure(readings: Sequence[Reading]) -> Any:
    """Draw every reading with its interval, null and ceiling: one a line."""
    shown = [one for one in readings if abs(one.found.value) < DIVERGED]
    figure, (axes,) = make_figure(1, width=8.6, row_height=1.4 + 0.27 * len(shown))
    seen = [value for one in shown for value in one.found if abs(value) < DIVERGED]
    low, high = min([0.0, *seen]), max([0.1, *seen])
    room = 0.12 * (high - low)
    for begin, words, color in LABELS:
        for place, one in enumerate(shown):
            if not one.label.startswith(begin):
                continue
            found, null = one.found, one.null
            if null is not None:
                axes.plot(null[1:], [place] * 2, color=GRAY, linewidth=5, alpha=0.6, zorder=1)
            if one.ceiling is not None:
                axes.plot(one.ceiling, place, "|", color=RED, markersize=10)
            axes.plot(found[1:], [place] * 2, color=color, linewidth=1.6)
            axes.plot(found.value, place, "o", color=color, markersize=5, label=words)
    axes.plot([], [], color=GRAY, linewidth=5, alpha=0.6, label="y shuffled")
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(shown)), [title_of(one) for one in shown], color=INK, fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlim(max(low - room, -2.0), high + room)
    label(axes, "nats", "", "")
    add_shared_legend(figure, [axes])
    return figure


def line_figure(readings: Sequence[Reading], num_rows: int) -> Any:
    """Draw the line over 1 / n of each reading that has one: bounds left, estimates right."""
    figure, panels = make_figure(2, row_height=3.9)
    at = 1 / np.array(FRACTIONS) / num_rows
    drawn = [one for one in readings if one.limit and max(map(abs, one.line)) < DIVERGED]
    for axes, is_bound in zip(panels, (True, False), strict=True):
        here = [one for one in drawn if one.label.startswith("lower") == is_bound]
        for number, one in enumerate(here):
            color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
            limit: Any = one.limit
            slope, _ = np.polyfit(at, one.line, 1)
            axes.plot([0, at[-1]], limit.value + slope * np.array([0, at[-1]]), color=color, lw=1)
            axes.plot(at, one.line, marker, color=color, markersize=4, label=title_of(one))
            axes.plot([0, 0], limit[1:], color=color, linewidth=1.2)
            axes.plot(0, limit.value, marker, color=color, markerfacecolor="white", markersize=6)
        axes.set_xlim(-0.04 * at[-1], 1.05 * at[-1])
        axes.set_xticks([0, *at], ["0", "1/n", "2/n", "4/n"])
        values = [value for one in here for value in one.line]
        if values:  # an interval or a line that runs away is cut off
            top = max(values) + 0.5 * (max(values) - min(0.0, *values)) + 0.1
            axes.set_ylim(max(min(values) - 0.1, -1.0), top)
        label(axes, "1 / rows", "nats", "lower bounds" if is_bound else "estimates")
        add_legend(axes, ncols=2, loc="upper right")
    return figure
