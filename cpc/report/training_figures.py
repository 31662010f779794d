"""Figures of the training: loss, bound, accuracy by offset, collapse, speed.

Each function takes a run and returns a figure, or None when the run has not recorded enough.
"""

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
    STATES,
    add_legend,
    add_shared_legend,
    label,
    make_figure,
)
from cpc.report.markup import number_text
from cpc.report.records import (
    Record,
    Run,
    by_direction,
    final_bound,
    final_test,
    mean_known,
    rule_name,
    series,
)
from cpc.report.words import words_of


def curves_figure(run: Run) -> Figure | None:
    """Loss and log N - L over the steps, averaged over offsets."""
    if not run.train and not run.tests:
        return None
    figure, (left, right) = make_figure(2)
    for axes, key, name in ((left, "offset_loss", "loss"), (right, "bound", "log N − L")):
        axes.plot(*series(run.train, key), color=BLUE, alpha=0.45, linewidth=1, label="train")
        for number, records in enumerate(run.tests.values()):
            kind = "bound" if records[-1].get("is_bound") else "score"
            axes.plot(
                *series(records, key),
                color=(INK, GREEN, ORANGE)[number % 3],
                linewidth=1.6,
                marker="o",
                markersize=3.5,
                label=f"test, {rule_name(records[-1])} ({kind})",
            )
        for number, records in enumerate(ceilings(run).values()):
            axes.plot(
                *series(records, "log_n"),
                color=(RED, ORANGE)[number % 2],
                linestyle="--",
                linewidth=1,
                label=f"log N, {rule_name(records[-1])}",
            )
        label(axes, "step", "nats, mean over offsets", name)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    add_shared_legend(figure, [left, right])
    return figure


def ceilings(run: Run) -> dict[str, list[Record]]:
    """Records that show each distinct log N: of the training, and of test rules with another N."""
    shown = {str(run.train[-1].get("rule")): run.train} if run.train else {}
    for rule, records in run.tests.items():
        shown.setdefault(rule, records)
    return shown


def bound_figure(run: Run) -> Figure | None:
    """Final log N - L of each offset with its interval, its ceiling and its state."""
    records = [records[-1] for records in run.tests.values()] or run.train[-1:]
    records = [part for record in records if record.get("offsets") for part in by_direction(record)]
    if not records:
        return None
    num_columns = 2 if "direction" in records[0] else 3
    figure, panels = make_figure(len(records), num_columns=num_columns, row_height=3.7)
    ahead = words_of(run).ahead
    for axes, record in zip(panels, records, strict=True):
        draw_bound(axes, record, ahead)
        if run.truth:
            axes.plot(
                run.truth["offsets"],
                run.truth["mutual_information"],
                color=GREEN,
                linestyle="-.",
                marker="_",
                markersize=9,
                label="exact mutual information",
            )
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    add_shared_legend(figure, panels)
    return figure


def draw_bound(axes: Axes, record: Record, ahead: str) -> None:
    """One panel: offsets against nats."""
    offsets, bound = np.array(record["offsets"]), np.array(record["bound"], float)
    low = np.array(record.get("bound_low", bound), float)
    high = np.array(record.get("bound_high", bound), float)
    axes.plot(offsets, record["log_n"], color=RED, linestyle="--", linewidth=1.2, label="log N")
    axes.plot(offsets, bound, color=GRAY, linewidth=0.8, zorder=1)
    states = np.array(record.get("state", ["fine"] * len(offsets)))
    for state, (color, marker, words) in STATES.items():
        chosen = (states == state) & np.isfinite(bound)
        if chosen.any():
            axes.errorbar(
                offsets[chosen],
                bound[chosen],
                yerr=np.maximum(0, [(bound - low)[chosen], (high - bound)[chosen]]),
                color=color,
                marker=marker,
                markersize=5,
                linestyle="none",
                capsize=2.5,
                linewidth=1.2,
                label=words,
            )
    kind = "a lower bound" if record.get("is_bound") else "a score, no bound"
    label(axes, f"offset k ({ahead})", "log N − L, nats", f"{rule_name(record)}: {kind}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def accuracy_figure(run: Run) -> Figure | None:
    """Accuracy of telling the positive from the negatives, by offset, in both readings."""
    record = final_test(run) or (run.train[-1] if run.train else None)
    if record is None or not record.get("offsets"):
        return None
    strict = final_bound(run)
    shown = [record] if strict is None or strict is record else [record, strict]
    figure, panels = make_figure(2)
    readings = (
        ("acc_top1", "beats every negative (top-1)", chance_of_winning),
        ("acc_pairwise", "share of negatives beaten (pairwise)", lambda r: [50] * len(r["n"])),
    )
    ahead = words_of(run).ahead
    for axes, (key, title, chance) in zip(panels, readings, strict=True):
        for number, one in enumerate(shown):
            count = number_text(mean_known(one["n"]), ",.0f")
            parts = by_direction(one)
            for color, part in zip(accuracy_colors(number, len(parts)), parts, strict=False):
                axes.plot(
                    part["offsets"],
                    100 * np.array(part[key]),
                    color=color,
                    linestyle="--" if number and len(parts) > 1 else "-",
                    markerfacecolor="white" if number and len(parts) > 1 else color,
                    marker="o",
                    markersize=4,
                    label=f"{rule_name(part)}, N = {count}",
                )
            same = key == "acc_pairwise" and one is not record
            if not same:
                axes.plot(
                    parts[0]["offsets"],
                    chance(parts[0]),
                    color=MUTED if key == "acc_pairwise" else accuracy_colors(number, 1)[0],
                    linestyle=":",
                    linewidth=1.2,
                    label="chance, 1/2" if key == "acc_pairwise" else f"chance, 1/{count}",
                )
        label(axes, f"offset k ({ahead})", "percent", title)
        axes.set_ylim(0, 103)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if "directions" not in record:
            add_legend(axes)
    if "directions" in record:  # too many lines for a legend inside
        add_shared_legend(figure, panels)
    return figure


def accuracy_colors(number: int, num_directions: int) -> tuple[str, ...]:
    """A colour for each direction; for a single one, each rule has its own."""
    return (BLUE, ORANGE, GREEN, RED) if num_directions > 1 else ((BLUE, GREEN)[number],)


def chance_of_winning(record: Record) -> list[float]:
    """Percent of anchors at which guessing beats every negative, NaN where there are no anchors."""
    return [100 / n if n > 0 else np.nan for n in record["n"]]


def collapse_figure(run: Run) -> Figure | None:
    """Standard deviation and effective rank of z and c over the steps."""
    records = next((r for r in run.tests.values() if any("std_c" in one for one in r)), [])
    if not records:
        return None
    figure, (left, right) = make_figure(2, row_height=2.9)
    for axes, key, title in (
        (left, "std", "mean standard deviation"),
        (right, "rank", "effective rank of the covariance"),
    ):
        for name, color in (("z", ORANGE), ("c", BLUE)):
            steps, values = series(records, f"{key}_{name}")
            axes.plot(steps, values, color=color, marker="o", markersize=3.5, label=name)
        label(axes, "step", "", title)
        axes.set_ylim(bottom=0)
        add_legend(axes)
    return figure


def speed_figure(run: Run) -> Figure | None:
    """Steps a second, learning rate and gradient norm over the steps."""
    if not any("steps_per_second" in record for record in run.train):
        return None
    figure, panels = make_figure(3, row_height=2.7)
    for axes, key, title in zip(
        panels,
        ("steps_per_second", "learning_rate", "gradient_norm"),
        ("steps per second", "learning rate", "gradient norm"),
        strict=True,
    ):
        steps, values = series(run.train, key)
        axes.plot(steps, values, color=BLUE, linewidth=1.2)
        label(axes, "step", "", title)
        axes.set_ylim(bottom=0)
    return figure
