"""Drawings of a reproduction, of the paper's Figures 3 and 6 and two that are not in the paper."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

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


def bound_figure(rows: Frame, truth: Mapping[int, float]) -> Figure:
    """Draw log N - L against N, with a line per offset, its `truth`, and the ceiling log N."""
    figure, (axes,) = draw.make_figure(1, row_height=4.2)
    offsets, sizes = sorted(rows.offset.unique()), sorted(rows.n.unique())
    shown = offsets[:: max(1, len(offsets) // 6)]
    for place, offset in enumerate(shown):
        color = colormaps["viridis"](0.05 + 0.85 * place / max(1, len(shown) - 1))
        mine = rows[rows.offset == offset].sort_values("n")
        axes.plot(mine.n, mine.value, "o-", color=color, markersize=4, label=f"offset {offset}")
        if np.isfinite(mine.low + mine.high).all():
            axes.fill_between(mine.n, mine.low, mine.high, color=color, alpha=0.12, linewidth=0)
        if offset in truth:
            axes.axhline(truth[offset], color=color, linestyle=":", linewidth=1.2)
    axes.plot(sizes, np.log(sizes), "--", color=draw.RED, linewidth=1.2, label="ceiling log N")
    last = rows.n[rows.is_bound].max()
    if last < sizes[-1]:
        axes.axvline(
            last, color=draw.GRAY, linewidth=1, label="a bound up to here, then an estimate"
        )
    axes.set_xscale("log", base=2)
    # Plain digits avoid loading the mathematical fonts, which exponents would need.
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    draw.label(axes, "N, the positive among them", "nats", "log N − L on held-out windows")
    draw.add_legend(axes, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def spread(heights: np.ndarray, gap: float) -> np.ndarray:
    """Move ascending heights apart to at least a gap, by equal amounts up and down.

    >>> spread(np.array([0.0, 0.5, 0.5, 1.0]), 0.25)
    array([0.   , 0.375, 0.625, 1.   ])
    """
    steps = gap * np.arange(len(heights))
    pushed_up = np.maximum.accumulate(heights - steps)
    pushed_down = np.minimum.accumulate((heights - steps)[::-1])[::-1]
    return (pushed_up + pushed_down) / 2 + steps


def bound_and_probe_figure(points: Frame, taus: Mapping[str, Difference | None]) -> Figure:
    """Draw the score of a linear probe on c against the strict bound, with a point per run."""
    figure, panels = draw.make_figure(points.data.nunique(), num_columns=2, row_height=3.9)
    for axes, (data, runs) in zip(panels, points.groupby("data"), strict=True):
        runs = runs.sort_values("percent", kind="stable")
        axes.plot(runs.nats, runs.percent, "o", color=draw.BLUE, markersize=5)
        low, high = axes.get_ylim()
        heights = spread((runs.percent.to_numpy() - low) / (high - low), 0.045)
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
