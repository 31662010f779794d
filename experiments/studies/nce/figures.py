"""Figures of theory as experiments: what was measured as points, what was expected as lines."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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

Curves = dict[str, Any]
COLORS = (BLUE, ORANGE, GREEN, RED, "#7a4fc9", "#0e8fa3")
MODES = {
    "fixed": (BLUE, "o", "fixed noise"),
    "stopped": (GREEN, "s", "noise = model, frozen"),
    "through": (RED, "D", "noise = model, gradient through it"),
}
POINTS = {"marker": "o", "markersize": 4.5, "linestyle": "none"}


def log_log(axes: Axes) -> None:
    """Divide both axes by decades."""
    axes.set_xscale("log")
    axes.set_yscale("log")


def mark_sizes(axes: Axes, sizes: Any) -> None:
    """Name the sizes that were measured, in plain digits, on a logarithmic axis."""
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()


def likelihood_limit_figure(curves: Curves) -> Figure:
    """Draw the relative distance of the NCE gradient from the likelihood's, over k."""
    figure, (axes,) = make_figure(1, row_height=3.7)
    k = np.array(curves["k"])
    for (name, one), color in zip(curves["noises"].items(), COLORS, strict=False):
        axes.plot(k, one["error"], color=color, label=f"{name} noise", **POINTS)
        tail = k >= k[-1] / 300
        axes.plot(k[tail], one["constant"] / k[tail], color=color, linewidth=1.1, label="_")
    axes.plot([], [], color=INK, linewidth=1.1, label="C / k, C from p, q, data")
    log_log(axes)
    label(axes, "k, noise samples for each datum", "distance / |likelihood's gradient|", "")
    add_legend(axes)
    return figure


def noise_modes_figure(curves: Curves) -> Figure:
    """Draw the fraction of the likelihood's gradient over k, and a mean's error over n."""
    figure, (left, right) = make_figure(2, num_columns=2, width=9.6, row_height=3.7)
    k = np.array(curves["k"], float)
    smooth = np.geomspace(k[0], k[-1], 50)
    for mode, law in (("stopped", smooth / (smooth + 1)), ("through", 0 * smooth)):
        color, marker, words = MODES[mode]
        left.plot(smooth, law, color=color, linewidth=1.1)
        points = {**POINTS, "marker": marker}
        left.plot(k, curves["ratio"][mode], color=color, label=words, **points)
    left.set_xscale("log")
    left.set_ylim(-0.06, 1.06)
    label(
        left,
        "k, noise samples for each datum",
        "fraction",
        "How much of the likelihood's gradient",
    )
    for mode, (color, marker, words) in MODES.items():
        right.plot(curves["n"], curves["expected"][mode], color=color, linewidth=1.1)
        points = {**POINTS, "marker": marker}
        if mode == "fixed":  # a ring, as the next lies on it
            points |= {"markersize": 9, "markerfacecolor": "none"}
        right.plot(curves["n"], curves["error"][mode], color=color, label=words, **points)
    log_log(right)
    label(right, "n, data", "root mean square error", "How far a fitted mean is from the truth")
    add_legend(right, loc="lower left")
    return figure


def sampled_softmax_figure(curves: Curves) -> Figure:
    """Draw the largest entry of the gradient where the full softmax has none, over K."""
    figure, (axes,) = make_figure(1, row_height=4.4)
    k = np.array(curves["k"])
    for (name, bias), color in zip(curves["bias"].items(), COLORS, strict=False):
        axes.plot(k, bias, color=color, marker="o", markersize=4, linewidth=1.2, label=name)
    axes.axhline(curves["limit"], color=INK, linestyle=":", linewidth=1.2,
                 label="limit without correction")  # fmt: skip
    mark_sizes(axes, k)
    label(axes, "K, negatives", "largest bias of the gradient", "")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8.5, labelcolor=INK)
    return figure


def identity_figure(curves: Curves) -> Figure:
    """Draw the best critic's log N - L, I - KL, and the usual derivation's looser bound."""
    figure, (axes,) = make_figure(1, row_height=3.7)
    n = curves["n"]
    axes.axhline(curves["information"], color=INK, linewidth=1.2, label="I")
    axes.plot(n, curves["identity"], color=BLUE, linewidth=1.2, label="I − KL")
    axes.plot(n, curves["bound"], color=BLUE, label="log N − L, best critic", **POINTS)
    axes.plot(n, curves["usual"], color=GRAY, linestyle="--", linewidth=1.2,
              label="what the usual derivation keeps")  # fmt: skip
    mark_sizes(axes, n)
    axes.set_ylim(0, 1.12 * curves["information"])
    label(axes, "N, candidates", "nats", "")
    add_legend(axes, loc="lower right")
    return figure


def dependent_negatives_figure(curves: Curves) -> Figure:
    """Draw the greatest log N - L over the number of independent negatives."""
    figure, (axes,) = make_figure(1, row_height=3.7)
    truth = curves["information"]
    axes.axhspan(truth, 1, color=RED, alpha=0.06, linewidth=0)
    axes.axhline(truth, color=INK, linewidth=1.2, label="I")
    axes.plot(curves["independent"], curves["value"], color=RED, marker="o", markersize=4.5,
              linewidth=1.2, label="log N − L, best critic of its kind")  # fmt: skip
    log_log(axes)
    axes.set_ylim(0.5 * truth, 1)
    label(axes, f"independent ones among {curves['num']} negatives", "nats", "")
    add_legend(axes)
    return figure


def bias_against_n_figure(curves: Curves) -> Figure:
    """Draw what the exact critic reads over N, and its bias as it nears the ceiling."""
    figure, (left, right) = make_figure(2, num_columns=2, width=9.6, row_height=4.0)
    n = np.array(curves["n"])
    left.plot(n, np.log(n), color=INK, linestyle="--", linewidth=1.2, label="ceiling log N")
    series = zip(curves["information"], curves["value"], curves["share"], curves["relative_bias"],
                 COLORS, strict=False)  # fmt: skip
    for nats, value, fraction, bias, color in series:
        left.axhline(nats, color=color, linestyle=":", linewidth=1)
        words = f"I = {nats:g}"
        left.plot(n, value, color=color, marker="o", markersize=4, linewidth=1.2, label=words)
        right.plot(fraction, 100 * np.array(bias), color=color, **POINTS)
    mark_sizes(left, n)
    label(left, "N, candidates", "log N − L, nats", "Dotted: the truth")
    for edge, words in ((0.6, "warn"), (0.9, "saturated")):
        right.axvline(edge, color=GRAY, linewidth=1)
        right.annotate(words, (edge, 1), xytext=(4, -2), xycoords=("data", "axes fraction"),
                       textcoords="offset points", va="top", fontsize=8, color=INK)  # fmt: skip
    right.set_xlim(0, 1.12)
    label(right, "(log N − L) / log N", "bias, % of I", "Low long before the ceiling")
    right.set_ylim(-3, 70)
    add_shared_legend(figure, [left])
    return figure


def threshold_figure(curves: Curves) -> Figure:
    """Draw the two losses over the positive's score, and where they differ most, over K."""
    figure, (left, right) = make_figure(2, num_columns=2, width=9.6, row_height=3.8)
    left.plot(curves["a"], curves["hinge"], color=ORANGE, linewidth=1.4,
              label="triplet, margin τ log K, over τ")  # fmt: skip
    left.plot(curves["a"], curves["soft"], color=BLUE, linewidth=1.4, label="InfoNCE")
    left.axvline(curves["predicted"][-1], color=INK, linestyle=":", linewidth=1.2,
                 label="β + τ log K")  # fmt: skip
    label(left, "score of the positive", "nats", f"K = {curves['k'][-1]}")
    add_legend(left)
    top = max(1.1, *curves["predicted"]) + 0.05
    right.axhspan(1, top, color=RED, alpha=0.07, linewidth=0)
    right.annotate("no cosine is so high", (0.03, 1.01), xycoords=("axes fraction", "data"),
                   fontsize=8.5, color=RED)  # fmt: skip
    right.plot(curves["k"], curves["predicted"], color=INK, linewidth=1.1, label="β + τ log K")
    right.plot(curves["k"], curves["found"], color=BLUE, label="greatest gap found at", **POINTS)
    mark_sizes(right, curves["k"])
    right.set_ylim(min(curves["predicted"]) - 0.1, top)
    label(right, "K, negatives", "threshold on the positive", f"τ = {curves['tau']:g}")
    add_legend(right, loc="lower right")
    return figure


def negatives_needed_figure(curves: Curves) -> Figure:
    """Draw how many anchors have a hard negative, over the number of negatives."""
    figure, (axes,) = make_figure(1, row_height=3.7)
    for (density, needed), color in zip(curves["needed"].items(), COLORS, strict=False):
        k = np.geomspace(1, 1.3 * needed[-1], 200)
        axes.plot(k, -np.expm1(k * np.log1p(-float(density))), color=color, linewidth=1.1)
        axes.plot(needed, curves["share"][density], color=color,
                  label=f"a fraction of {density} is hard", **POINTS)  # fmt: skip
    for rate in curves["rate"]:
        axes.axhline(rate, color=GRAY, linestyle=":", linewidth=0.9)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.03)
    label(axes, "k, negatives", "anchors that have a hard one", "")
    add_shared_legend(figure, [axes])
    return figure


def temperature_figure(curves: Curves) -> Figure:
    """Draw entropy, its slope, and the hardest negatives' weight, over the temperature."""
    figure, panels = make_figure(3, width=10.6, row_height=3.5)
    tau, log_n = curves["tau"], np.log(curves["n"])
    panels[0].plot(tau, curves["entropy"], color=BLUE, linewidth=1.3, label="H")
    panels[0].plot(curves["solved"], curves["wanted"], color=ORANGE, label="solved for", **POINTS)
    panels[0].axhline(log_n, color=INK, linestyle=":", linewidth=1.2, label="log n")
    label(panels[0], "τ", "nats", "Entropy")
    panels[1].plot(tau, curves["variance"], color=INK, linewidth=1.1, label="Var_p(s) / τ³")
    panels[1].plot(tau, curves["slope"], color=BLUE, label="dH / dτ, differentiated", **POINTS)
    label(panels[1], "τ", "nats for each unit of τ", "Its slope")
    panels[2].plot(tau, curves["hardest"], color=RED, linewidth=1.3, label="hardest one")
    panels[2].plot(tau, curves["harder_half"], color=ORANGE, linewidth=1.3, label="harder half")
    panels[2].set_ylim(0, 1.04)
    label(panels[2], "τ", "fraction of the push", "Who is pushed")
    for axes in panels:
        axes.set_xscale("log")
        add_legend(axes)
    return figure


FIGURES: dict[str, Callable[[Curves], Figure]] = {
    "likelihood_limit": likelihood_limit_figure,
    "noise_modes": noise_modes_figure,
    "sampled_softmax": sampled_softmax_figure,
    "identity": identity_figure,
    "dependent_negatives": dependent_negatives_figure,
    "bias_against_n": bias_against_n_figure,
    "threshold": threshold_figure,
    "negatives_needed": negatives_needed_figure,
    "temperature": temperature_figure,
}
