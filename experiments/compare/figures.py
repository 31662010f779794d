"""Runs next to each other as curves over the steps, and as dots at the end."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.ticker import MaxNLocator

from cpc.report.draw import GRAY, GRID, MUTED, add_shared_legend, label, make_figure
from cpc.report.engine import Figure
from cpc.report.run_page import over_steps
from cpc.report.scores import metric_title, value_axis
from cpc.results import Cell, Frame, Run, evaluations, information
from experiments.compare.tables import Question, answers, headline, one_row
from experiments.status import cut


def curves(cells: Sequence[Cell], scores: Frame) -> list[Figure]:
    """Return log N - L of every run over the steps, and headline scores measured on the way."""
    kinds = {one.method for cell in cells for _, run in cell.runs if (one := information(run))}
    title = f"log N − L ({kinds.pop()})" if len(kinds) == 1 else "log N − L"
    panels_of = [("nats, mean over offsets", title, lambda run: over_steps(watched(run), "bound"))]
    for one in headline(scores):
        panels_of.append(
            (metric_title(one.metric), one.title, lambda run, one=one: score_steps(run, one))
        )
    drawn = []
    for number, (unit, title, read) in enumerate(panels_of):
        lines = [(place, read(run)) for place, cell in enumerate(cells) for _, run in cell.runs]
        if any(len(steps) > bool(number) for _, (steps, _) in lines):
            drawn.append((unit, title, lines))
    if not drawn:
        return []
    figure, panels = make_figure(len(drawn), num_columns=2, row_height=3.6)
    colors = palette(cells)
    for axes, (unit, title, lines) in zip(panels, drawn, strict=True):
        named = set()
        for place, (steps, values) in lines:
            if len(steps):
                name = None if place in named else cells[place].name
                named.add(place)
                style: dict[str, Any] = {"marker": "o", "markersize": 3, "linewidth": 1.4}
                axes.plot(steps, values, color=colors[place], alpha=0.85, label=name, **style)
        label(axes, "step", unit, title)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    add_shared_legend(figure, panels)
    caption = (
        "Test data, averaged over offsets; one line per run, one color per cell. Cells whose "
        "negatives differ in rule or number are not comparable."
    )
    return [Figure("comparison_curves", figure, "Numbers at the evaluations", caption)]


def watched(run: Run) -> Frame:
    """Return the evaluations to follow: of a bound, else those under the training rule."""
    found = list(evaluations(run).values())
    bounds = [rows for rows in found if rows.is_bound.all()]
    return (bounds[-1:] or found[:1] or [run.offsets[:0]])[0]


def score_steps(run: Run, question: Question) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values of a question, as an axis shows them."""
    rows = answers(question, run.scores).sort_values("step")
    return rows.step.to_numpy(float), value_axis(rows.value.to_numpy(float), question.metric)


def dots(cells: Sequence[Cell], scores: Frame) -> list[Figure]:
    """Return the headline scores of every cell with their intervals, and its single seeds."""
    asked = headline(scores)
    if not asked:
        return []
    figure, panels = make_figure(len(asked), num_columns=2, row_height=1.2 + 0.27 * len(cells))
    names = [cut(cell.name, 44) for cell in cells]
    for panel, (axes, question) in enumerate(zip(panels, asked, strict=True)):
        random = question._replace(features=f"random {question.features}")
        for place, (cell, color) in enumerate(zip(cells, palette(cells), strict=True)):
            row, untrained = (one_row(answers(q, scores), cell.name) for q in (question, random))
            if row is not None:
                value, low, high, *single = (
                    value_axis(one, row.metric)
                    for one in (row.value, row.low, row.high, *row.by_seed)
                )
                axes.plot([low, high], [place, place], color=color, linewidth=1.6)
                axes.plot(value, place, "o", color=color, markersize=6)
                if len(single) > 1:
                    axes.plot(single, [place] * len(single), "o", color=MUTED, markersize=2.5)
            if untrained is not None:
                value = value_axis(untrained.value, untrained.metric)
                axes.plot(value, place, "x", color=GRAY, markersize=5)
        axes.set_yticks(range(len(cells)), [] if panel % 2 else names)
        axes.set_ylim(len(cells) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
        label(axes, metric_title(question.metric), "", question.title)
    caption = "Points: scores with their intervals; small dots: single seeds; gray crosses: the "
    return [Figure("comparison_scores", figure, "Scores", f"{caption}untrained network.")]


def palette(cells: Sequence[Cell]) -> list[Any]:
    """Return a color for each cell."""
    if len(cells) <= 10:
        return [colormaps["tab10"](number) for number in range(len(cells))]
    return [colormaps["turbo"](0.05 + 0.9 * i / (len(cells) - 1)) for i in range(len(cells))]
