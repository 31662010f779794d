"""Drawings of a reproduction: the paper's Figures 3 and 6, and the bound against the probe."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression

from cpc.report import draw
from cpc.results import Difference, Frame
from experiments.reproduce.statistics import Learned

#: The agents that Figure 6 compares, with their colors.
ARMS = {"without": draw.GRAY, "with CPC": draw.BLUE}


def offsets_figure(frame: Frame, frame_ms: float) -> Figure:
    """Draw the paper's Figure 3 for top-1 and pairwise accuracy, from the frame of `Offsets`."""
    figure, panels = draw.make_figure(2, num_columns=2, row_height=3.4)
    readings = (
        ("acc_top1", "beats every negative", frame["chance %"], draw.BLUE),
        ("acc_pairwise", "negatives beaten", np.full(len(frame), 50), draw.GREEN),
    )
    for axes, (name, words, chance, color) in zip(panels, readings, strict=True):
        x, (mean, low, high) = frame_ms * frame.offset, np.array([*frame[f"{name} %"]]).T
        axes.plot(x, mean, "o-", color=color, markersize=4, label=name)
        if np.isfinite(low).all():
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        axes.plot(x, chance, ":", color=draw.RED, label="chance")
        draw.label(axes, "milliseconds ahead", "percent", f"{name}: {words}")
        axes.set_ylim(0, 102)
        draw.add_legend(axes)
    return figure


def bound_and_probe_figure(points: Frame, taus: Mapping[str, Difference | None]) -> Figure:
    """Draw the score of a linear probe on c against the strict bound, with a point per run."""
    figure, panels = draw.make_figure(points.data.nunique(), num_columns=2, row_height=3.9)
    for axes, (data, runs) in zip(panels, points.groupby("data"), strict=True):
        runs = runs.sort_values("percent", kind="stable")
        axes.plot(runs.nats, runs.percent, "o", color=draw.BLUE, markersize=5)
        low, high = axes.get_ylim()
        # Isotonic regression moves overlapping labels apart, by as little as possible.
        steps, at = 0.045 * np.arange(len(runs)), (runs.percent.to_numpy() - low) / (high - low)
        heights = isotonic_regression(at - steps).x + steps
        for run, height in zip(runs.itertuples(), heights, strict=True):
            arrow = {"arrowstyle": "-", "color": draw.GRAY, "linewidth": 0.5, "shrinkB": 3}
            axes.annotate(
                run.cell.removeprefix("open-"), (run.nats, run.percent), xytext=(1.03, height),
                textcoords="axes fraction", va="center", fontsize=7, color=draw.INK,
                arrowprops=arrow,
            )  # fmt: skip
        tau = taus[data]
        words = f", τ {tau.value:.2f}" if tau and math.isfinite(tau.value) else ""
        draw.label(axes, "strict bound, nats", "phones, percent", f"{data}{words}")
    return figure


def curves_figure(learned: Sequence[Learned]) -> Figure:
    """Draw the paper's Figure 6: a panel per task, with each seed's curve and their mean."""
    drawn, panels = draw.make_figure(len(learned), row_height=3.4)
    for axes, one in zip(panels, learned, strict=True):
        for (arm, color), curves in zip(ARMS.items(), one.curves, strict=True):
            for frames, returns in curves.values():
                axes.plot(frames / 1e3, returns, color=color, linewidth=0.4, alpha=0.6)
            if curves:  # the mean of the curves that are as long as the first
                first = next(iter(curves.values()))
                alike = [curve for curve in curves.values() if curve.shape == first.shape]
                frames, returns = np.mean(alike, axis=0)
                axes.plot(frames / 1e3, returns, color=color, linewidth=1.8, label=arm)
        axes.set_ylim(-1, 1)
        draw.label(axes, "thousands of frames", "return", one.task.variant.replace("_", " "))
    draw.add_shared_legend(drawn, panels)
    return drawn
