"""Figures of estimates of mutual information: the staircase, benchmark tasks, consistency."""

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

#: Critics of the staircase: color and words.
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
COLORS = (BLUE, ORANGE, GREEN, RED, "#7a4fc9", "#0e8fa3", "#a35a0e", INK)
MARKERS = "osD^vPX*"
#: The laws of Song and Ermon (2020): key, title, what an estimator that obeys gives.
LAWS = (
    ("rows", "top rows: grows, as a share of all rows", None),
    ("processing", "a processed copy beside: stays at 1", 1.0),
    ("independence", "two independent images: 2", 2.0),
)


def by_reading(table: Frame) -> dict[str, Frame]:
    """Return the rows of each estimator by its title, in the order of `NAMES`.

    The title names the critic where an estimator was read with several.
    """
    found = {}
    for name in NAMES:
        rows = table[table.estimator == name]
        critics = rows.critic.unique()
        for critic in critics:
            title = f"{NAMES[name]}, {critic}" if len(critics) > 1 else NAMES[name]
            found[title] = rows[rows.critic == critic]
    return found


def staircase_figure(train: Frame, table: Frame, task: str) -> Figure | None:
    """Draw every reading over the steps on one task: a panel an estimator, a line a critic.

    Shaded: one standard deviation from batch to batch. Truth in ink, ceiling dashed.
    """
    here = table[table.task.isin([task, "any"])]
    names = [name for name in NAMES if name in set(here.estimator)]
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
        label(axes, x, y, NAMES[name])
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
    # Far outside the axes, and no shade at all where an estimate that diverged would hide all else.
    mean, std = (np.clip(known[key], -1e6, 1e6) for key in (name, f"{name}/std"))
    steps, near = known.step - half, std < 1e2
    axes.fill_between(steps, mean - std, mean + std, where=near, color=color, alpha=0.18, lw=0)
    axes.plot(steps, mean, color=color, linewidth=1.2, label=words)


def tasks_figure(table: Frame) -> Figure | None:
    """Draw tasks down, estimators across: each estimate, colored by its distance from the truth."""
    if not len(table):
        return None
    truths = table.drop_duplicates("task").set_index("task").truth
    readings = {title: rows.set_index("task") for title, rows in by_reading(table).items()}
    bias = np.full((len(truths), 1 + len(readings)), np.nan)  # the first column is the truth's
    figure = Figure(
        figsize=(3.4 + 0.8 * bias.shape[1], 1.7 + 0.24 * len(truths)),
        layout="constrained",
        facecolor="white",
    )
    axes = figure.add_subplot()
    center = {"ha": "center", "va": "center", "fontsize": 7.5}
    for i, (task, truth) in enumerate(truths.items()):
        axes.text(0, i, f"{truth:.2f}", color=INK, **center)
        for j, rows in enumerate(readings.values(), start=1):
            value, bias[i, j] = rows.value[task], rows.bias[task]
            text = f"{value:z.2f}".replace("-", "−") if np.isfinite(value) else "–"
            axes.text(j, i, text, color="white" if abs(bias[i, j]) > 0.4 else INK, **center)
    shown = np.ma.masked_invalid(bias)
    image = axes.imshow(shown, cmap="RdBu_r", vmin=-0.6, vmax=0.6, aspect="auto")
    axes.set_yticks(range(len(truths)), truths.index, fontsize=7.5, color=INK)
    heads = ["truth", *readings]
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


def consistency_figure(table: Frame) -> Figure | None:
    """Draw the three self-consistency tests over the number of rows that y keeps."""
    if not len(table):
        return None
    figure, panels = make_figure(3, width=11.0, row_height=3.4)
    for axes, (law, title, ideal) in zip(panels, LAWS, strict=True):
        for number, (name, rows) in enumerate(by_reading(table[table.law == law]).items()):
            axes.plot(
                rows.rows,
                np.clip(rows.ratio, -1e3, 1e3),
                color=COLORS[number % len(COLORS)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=4,
                linewidth=1.2,
                label=name,
            )
        if ideal is not None:
            axes.axhline(ideal, color=INK, linestyle=":", linewidth=1.3, label="the law")
        axes.set_ylim(0, 1.25 if ideal is None else 1.5 * ideal)
        axes.set_xticks(sorted(table.rows.unique()))
        label(axes, "rows of the image that y keeps", "ratio of estimates", title)
    add_shared_legend(figure, panels)
    return figure
