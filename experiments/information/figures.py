"""Figures of estimates of mutual information, where the truth is known and of two arrays."""

from collections.abc import Sequence

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
from cpc.results import Frame
from experiments.information.estimators import TITLES
from experiments.information.findings import DIVERGED, title_of
from experiments.information.rotations import Reading

#: Critics of the staircase: color and words.
CRITICS = {
    "exact": (GRAY, "exact log ratio"),
    "separable": (BLUE, "separable critic"),
    "joint": (ORANGE, "joint critic"),
    "conditional": (GREEN, "Gaussian q(y|x)"),
}
#: Labels of readings of two arrays: their beginning, words and color.
LABELS = (("lower", "lower bounds", BLUE), ("upper", "upper, if its model holds", GREEN),
          ("no", "estimates, no bounds", ORANGE))  # fmt: skip
COLORS = (BLUE, ORANGE, GREEN, RED, "#7a4fc9", "#0e8fa3", "#a35a0e", INK)
MARKERS = "osD^vPX*"
#: The laws of Song and Ermon (2020): key, title, and the ratio that an exact estimator has.
LAWS = (
    ("rows", "top rows: grows, as a share of all rows", None),
    ("processing", "a processed copy beside: stays at 1", 1.0),
    ("independence", "two independent images: 2", 2.0),
)


def by_reading(table: Frame) -> dict[str, Frame]:
    """Return the rows of each estimator by its title, in the order of `TITLES`.

    The title names the critic if an estimator was read with several.
    """
    found = {}
    for name, title in TITLES.items():
        rows = table[table.estimator == name]
        critics = rows.critic.unique()
        for critic in critics:
            key = f"{title}, {critic}" if len(critics) > 1 else title
            found[key] = rows[rows.critic == critic]
    return found


def staircase_figure(train: Frame, table: Frame, task: str) -> Figure | None:
    """Draw every reading over the steps on one task: a panel per estimator, a line per critic.

    Shaded: one standard deviation from batch to batch. Truth in ink, ceiling dashed.
    """
    here = table[table.task.isin([task, "any"])]
    names = [name for name in TITLES if name in set(here.estimator)]
    if not len(train) or not names:
        return None
    figure, panels = make_figure(len(names), num_columns=4, width=11.0, row_height=2.5)
    edges = np.r_[0, train.step]  # a step's record closes its window
    for number, (axes, name) in enumerate(zip(panels, names, strict=True)):
        for critic, (color, words) in CRITICS.items():
            where = "any" if critic == "exact" else task
            draw_reading(axes, train, f"{where}/{critic}/{name}", color, words)
        axes.stairs(train.truth, edges, baseline=None, color=INK, linewidth=1.3, label="truth")
        row = here[here.estimator == name].iloc[0]
        if np.isfinite(row.ceiling):
            axes.axhline(row.ceiling, color=RED, linestyle="--", linewidth=1, label="ceiling")
        axes.set_ylim(-0.4, 1.4 * train.truth.max())
        axes.set_xlim(0, edges[-1])
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        x, y = "step" if number + 4 >= len(panels) else "", "" if number % 4 else "nats"
        label(axes, x, y, TITLES[name])
        axes.annotate(
            row.label, (0, 1), xytext=(4, -3), xycoords="axes fraction",
            textcoords="offset points", va="top", fontsize=7.5, color=MUTED,
        )  # fmt: skip
    add_shared_legend(figure, panels)
    return figure


def draw_reading(axes: Axes, train: Frame, name: str, color: str, words: str) -> None:
    """Draw one line with its shade, if it was recorded."""
    if name not in train:
        return
    half = train.step.iloc[0] / 2  # a record is the mean of the window that it closes
    known = train[np.isfinite(train[name])]
    # Clipped far outside the axes; no shade if an estimate that diverged would hide all else.
    mean, std = (np.clip(known[key], -1e6, 1e6) for key in (name, f"{name}/std"))
    steps, near = known.step - half, std < 1e2
    axes.fill_between(steps, mean - std, mean + std, where=near, color=color, alpha=0.18, lw=0)
    axes.plot(steps, mean, color=color, linewidth=1.2, label=words)


def tasks_figure(table: Frame) -> Figure | None:
    """Draw tasks down, estimators across, colored by estimate less truth."""
    if not len(table):
        return None
    bias = {title: rows.set_index("task").bias for title, rows in by_reading(table).items()}
    tasks = table.task.unique()
    size = 4.2 + 0.8 * len(bias), 1.7 + 0.24 * len(tasks)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    shown = np.ma.masked_invalid([[one[task] for one in bias.values()] for task in tasks])
    image = axes.imshow(shown, cmap="RdBu_r", vmin=-0.6, vmax=0.6, aspect="auto")
    axes.set_yticks(range(len(tasks)), tasks, fontsize=7.5, color=INK)
    axes.set_xticks(range(len(bias)), list(bias), fontsize=8, color=INK, rotation=30, ha="left")
    axes.xaxis.tick_top()
    bar = figure.colorbar(
        image, ax=axes, location="bottom", shrink=0.4, aspect=30, pad=0.02, extend="both"
    )
    bar.set_label("estimate − truth, nats", fontsize=8.5, color=INK)
    return figure


def consistency_figure(table: Frame) -> Figure | None:
    """Draw the three self-consistency tests over the number of rows that y keeps."""
    if not len(table):
        return None
    figure, panels = make_figure(3, width=11.0, row_height=3.4)
    for axes, (law, title, ideal) in zip(panels, LAWS, strict=True):
        for number, (name, rows) in enumerate(by_reading(table[table.law == law]).items()):
            axes.plot(
                rows.rows, np.clip(rows.ratio, -1e3, 1e3), MARKERS[number % len(MARKERS)] + "-",
                color=COLORS[number % len(COLORS)], markersize=4, linewidth=1.2, label=name,
            )  # fmt: skip
        if ideal is not None:
            axes.axhline(ideal, color=INK, linestyle=":", linewidth=1.3, label="the law")
        axes.set_ylim(0, 1.25 if ideal is None else 1.5 * ideal)
        axes.set_xticks(sorted(table.rows.unique()))
        label(axes, "rows of the image that y keeps", "ratio of estimates", title)
    add_shared_legend(figure, panels)
    return figure


def estimates_figure(readings: Sequence[Reading]) -> Figure:
    """Draw every reading of two arrays with its interval, null and ceiling: one a line."""
    shown = [one for one in readings if abs(one.found.value) < DIVERGED]
    figure, (axes,) = make_figure(1, width=8.6, row_height=1.4 + 0.27 * len(shown))
    for begin, words, color in LABELS:
        for place, one in enumerate(shown):
            if not one.label.startswith(begin):
                continue
            if one.null is not None:
                axes.plot(one.null[1:], [place] * 2, color=GRAY, linewidth=5, alpha=0.6, zorder=1)
            if one.ceiling is not None:
                axes.plot(one.ceiling, place, "|", color=RED, markersize=10)
            axes.plot(one.found[1:], [place] * 2, color=color, linewidth=1.6)
            axes.plot(one.found.value, place, "o", color=color, markersize=5, label=words)
    axes.plot([], [], color=GRAY, linewidth=5, alpha=0.6, label="y shuffled")
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(shown)), [title_of(one) for one in shown], color=INK, fontsize=8.5)
    axes.invert_yaxis()
    seen = [value for one in shown for value in one.found if abs(value) < DIVERGED]
    low, high = min([0.0, *seen]), max([0.1, *seen])
    room = 0.12 * (high - low)
    axes.set_xlim(max(low - room, -2.0), high + room)
    label(axes, "nats", "", "")
    add_shared_legend(figure, [axes])
    return figure
