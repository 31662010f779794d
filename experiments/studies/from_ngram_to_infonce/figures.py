"""Figures of the way from n-grams to InfoNCE."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cpc.report.draw import BLUE, GRAY, GREEN, INK, ORANGE, RED, add_legend, label, make_figure
from experiments.studies.nce.figures import POINTS, log_log, mark_sizes

Curves = dict[str, Any]
COLORS = (BLUE, ORANGE, GREEN, RED, GRAY)


def perplexity_figure(curves: Curves) -> Figure:
    """Draw perplexity over k, and over the seconds of training."""
    figure, (left, right) = make_figure(2, num_columns=2, width=9.6, row_height=3.7)
    for (noise, values), color in zip(curves["nce"].items(), COLORS, strict=False):
        left.plot(curves["k"], values, color=color, marker="o", label=f"NCE, {noise} noise")
    left.axhline(curves["likelihood"], color=INK, linewidth=1.2, label="likelihood")
    mark_sizes(left, curves["k"])
    label(left, "k, noise words of each datum", "perplexity", "")
    add_legend(left)
    for name, row in curves["rows"].items():
        color = BLUE if "unigram" in name else ORANGE if "uniform" in name else INK
        at = row.get("cpu_seconds", row["seconds"]), row["perplexity"]
        right.plot(*at, color=color, **POINTS)
        name = name.rpartition("NCE, ")[2].replace("unigram, ", "").replace("uniform, ", "")
        on_left = color != ORANGE and "Kneser" not in name
        place = (-4 if on_left else 4), (3 if color != INK else -10)
        right.annotate(name, at, place, textcoords="offset points", fontsize=7, color=color,
                       ha="right" if on_left else "left")  # fmt: skip
    right.set_xscale("log")
    label(right, "seconds of processor time", "perplexity", "")
    return figure


def gradient_figure(curves: Curves) -> Figure:
    """Draw the distance of the gradients over k."""
    figure, (axes,) = make_figure(1, row_height=3.4)
    axes.plot(curves["k"], curves["error"], color=BLUE, **POINTS)
    k = np.array(curves["k"], float)
    axes.plot(k[-3:], curves["error"][-1] * k[-1] / k[-3:], color=INK, label="1 / k")
    log_log(axes)
    label(axes, "k, noise words of each datum", "distance / |likelihood's gradient|", "")
    add_legend(axes)
    return figure


def pointwise_figure(curves: Curves) -> Figure:
    """Draw scores over the pointwise mutual information."""
    figure, (axes,) = make_figure(1, row_height=3.7)
    for (k, one), color in zip(curves["points"].items(), COLORS, strict=False):
        axes.plot(one["pmi"], one["score"], color=color, label=f"k {k}", **POINTS)
        ends = np.array([min(one["pmi"]), max(one["pmi"])])
        axes.plot(ends, ends - np.log(int(k)), color=color, linewidth=1.1)
    label(axes, "PMI, nats", "score, nats", "")
    add_legend(axes)
    return figure


def factorised_figure(curves: Curves) -> Figure:
    """Draw scores over what they are to be, and likeness by both kinds of vectors."""
    figure, (left, right) = make_figure(2, num_columns=2, width=9.6, row_height=3.5)
    points = curves["points"]
    left.plot(points["pmi"], points["score"], ".", color=BLUE, markersize=2)
    ends = np.array([min(points["pmi"]), max(points["pmi"])])
    left.plot(ends, ends, color=INK, linewidth=1.1)
    label(left, "PMI - log k, nats", "score, nats", "")
    names = []
    for set_name, row in curves["rows"].items():
        for kind, (value, low, high) in row["values"].items():
            right.plot((low, high), (len(names), len(names)), color=BLUE, linewidth=1.2)
            right.plot(value, len(names), color=BLUE, **POINTS)
            names.append(f"{kind}, {set_name}")
    right.set_yticks(range(len(names)), names)
    right.invert_yaxis()
    label(right, "Spearman's correlation with people", "", "")
    return figure


def bars_figure(curves: Curves) -> Figure:
    """Draw a bar for each row, its mean, and its seeds or its interval if there are any."""
    figure, (axes,) = make_figure(1, row_height=3.0)
    draw_bars(axes, curves["rows"], curves.get("unit", "perplexity"))
    for i, ends in enumerate(curves.get("intervals", {}).values()):
        axes.plot(ends, (i, i), color=BLUE, linewidth=1.2)
    return figure


def draw_bars(axes: Any, rows: Curves, unit: str) -> None:
    """Draw a line for each row: its values, and their mean."""
    for i, given in enumerate(rows.values()):
        values = np.atleast_1d(given)
        axes.plot(values, np.full(len(values), i), color=BLUE, **POINTS)
        axes.plot(values.mean(), i, color=INK, marker="|", markersize=14)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    label(axes, unit, "", "")


def panels_figure(curves: Curves) -> Figure:
    """Draw bars for each measure, side by side."""
    panels = curves["panels"]
    figure, axes = make_figure(len(panels), num_columns=len(panels), width=12.0, row_height=3.0)
    for one, (unit, rows) in zip(axes, panels.items(), strict=True):
        draw_bars(one, rows, unit)
        one.locator_params(axis="x", nbins=5)
    return figure


def runaway_figure(curves: Curves) -> Figure:
    """Draw the path of log Z."""
    figure, (axes,) = make_figure(1, row_height=3.2)
    for (name, path), color in zip(curves["paths"].items(), (RED, BLUE), strict=True):
        axes.plot(path, color=color, label=name)
    axes.axhline(2, color=INK, linestyle=":", linewidth=1.2, label="true")
    label(axes, "step", "log Z", "")
    add_legend(axes)
    return figure


def cost_figure(unit: str) -> Callable[[Curves], Figure]:
    """Return what draws rows over sizes of the vocabulary."""

    def draw(curves: Curves) -> Figure:
        figure, (axes,) = make_figure(1, row_height=3.5)
        for (name, values), color in zip(curves["rows"].items(), COLORS, strict=False):
            axes.plot(curves["sizes"], values, color=color, marker="o", label=name)
        log_log(axes)
        label(axes, "words of the vocabulary", unit, "")
        add_legend(axes)
        return figure

    return draw


FIGURES: dict[str, Callable[[Curves], Figure]] = {
    "perplexity": perplexity_figure,
    "gradient": gradient_figure,
    "pointwise": pointwise_figure,
    "infonce_is_likelihood": bars_figure,
    "runaway": runaway_figure,
    "noise_choice": bars_figure,
    "popularity": bars_figure,
    "two_towers": bars_figure,
    "factorised": factorised_figure,
    "skip_gram_or_cbow": panels_figure,
    "sampled_softmax_or_nce": panels_figure,
    "rare_words": bars_figure,
    "hits_and_ratio": bars_figure,
    "step_cost": cost_figure("milliseconds"),
    "draw_cost": cost_figure("draws a second"),
}
