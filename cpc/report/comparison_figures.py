"""Figures of the page that lays runs beside each other: curves, and probes with intervals."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cpc.report.comparison import (
    Cell,
    Probe,
    accuracy,
    by_seed,
    headline,
    over_seeds,
    probe_title,
    probes_of,
    steps_of,
    watched,
)
from cpc.report.draw import GRAY, GRID, MUTED, add_shared_legend, label, make_figure
from cpc.report.probe_figures import progress_parts
from cpc.report.records import Run, rule_name, series


def colours(cells: Sequence[Cell]) -> list[Any]:
    """One a cell."""
    if len(cells) <= 10:
        return [colormaps["tab10"](number) for number in range(len(cells))]
    return [colormaps["turbo"](0.05 + 0.9 * i / (len(cells) - 1)) for i in range(len(cells))]


def curves_figure(cells: Sequence[Cell]) -> Figure | None:
    """Curves of log N - L of every run, and each headline probe where it was fitted on the way."""
    panels_of: list[tuple[str, str, Callable[[Run], tuple[np.ndarray, np.ndarray]]]] = [
        ("nats, mean over offsets", curve_title(cells), lambda run: series(watched(run), "bound"))
    ]
    for probe in headline(cells):
        title = probe_title(probe)
        panels_of.append(("percent", title, lambda run, probe=probe: probe_series(run, probe)))
    drawn = []
    for unit, title, read in panels_of:
        lines = [(number, read(run)) for number, cell in enumerate(cells) for run in cell.runs]
        if any(len(steps) > (unit == "percent") for _, (steps, _) in lines):
            drawn.append((unit, title, lines))
    if not drawn:
        return None
    figure, panels = make_figure(len(drawn), num_columns=2, row_height=3.6)
    palette = colours(cells)
    for axes, (unit, title, lines) in zip(panels, drawn, strict=True):
        named = set()
        for number, (steps, values) in lines:
            if len(steps):
                name = cells[number].name if number not in named else None
                named.add(number)
                draw_line(axes, steps, values, palette[number], name)
        label(axes, "step", unit, title)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    add_shared_legend(figure, panels)
    return figure


def draw_line(axes: Axes, steps: Any, values: Any, colour: Any, name: str | None) -> None:
    """One run; later runs of the same cell have no name."""
    axes.plot(
        steps, values, color=colour, linewidth=1.4, marker="o", markersize=3, alpha=0.85, label=name
    )


def curve_title(cells: Sequence[Cell]) -> str:
    """What is drawn, and whether it is a bound."""
    records = [records[-1] for c in cells for run in c.runs if (records := watched(run))]
    kinds = {bool(record.get("is_bound")) for record in records}
    rules = {rule_name(record) for record in records}
    kind = {frozenset([True]): " (bound)", frozenset([False]): " (score)"}.get(frozenset(kinds), "")
    return f"log N − L{kind}" + (f", {rules.pop()}" if len(rules) == 1 else "")


def probe_series(run: Run, probe: Probe) -> tuple[np.ndarray, np.ndarray]:
    """Steps and percent of a probe during the training, and at its end."""
    for name in {key for record in run.probe_records for key in record if "/" in key}:
        if name.count("/") not in (2, 4):
            continue
        (task, data, unit), (features, kind) = progress_parts(name)
        if Probe(task, data or probe.data, unit, features, kind) == probe:
            steps, values = series(run.probe_records, name)
            row = probes_of(run).get(probe)
            if row is not None:
                steps = np.append(steps, steps_of(run)[0])
                values = np.append(values, row["accuracy"])
            return steps, 100 * values
    return np.zeros(0), np.zeros(0)


def dots_figure(cells: Sequence[Cell]) -> Figure | None:
    """Accuracy of the headline probes of every cell with its interval."""
    probes = headline(cells)
    if not probes:
        return None
    height = 1.2 + 0.27 * len(cells)
    figure, panels = make_figure(len(probes), num_columns=2, row_height=height)
    palette = colours(cells)
    for panel, (axes, probe) in enumerate(zip(panels, probes, strict=True)):
        random = probe._replace(features=f"random {probe.features}")
        for place, cell in enumerate(cells):
            rows, untrained = (list(by_seed(cell, p).values()) for p in (probe, random))
            if rows:
                draw_dot(axes, place, rows, palette[place])
            if untrained:
                value = 100 * over_seeds([row["accuracy"] for row in untrained]).value
                axes.plot(value, place, "x", color=GRAY, markersize=5)
        axes.set_yticks(range(len(cells)), [] if panel % 2 else [short(c.name) for c in cells])
        axes.set_ylim(len(cells) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
        label(axes, "accuracy, percent", "", probe_title(probe))
    return figure


def short(name: str) -> str:
    """Its end is what tells cells apart."""
    return name if len(name) <= 44 else "…" + name[-43:]


def draw_dot(axes: Axes, place: int, rows: list[dict[str, Any]], colour: Any) -> None:
    """A point with its interval, and the single seeds."""
    estimate = accuracy(rows)
    value, low, high = (100 * one for one in estimate)
    if math.isfinite(low + high):
        axes.plot([low, high], [place, place], color=colour, linewidth=1.6)
    axes.plot(value, place, "o", color=colour, markersize=6)
    if len(rows) > 1:
        single = [100 * row["accuracy"] for row in rows]
        axes.plot(single, [place] * len(rows), "o", color=MUTED, markersize=2.5)
