"""Figures that any run can have: loss and bound, accuracy by offset, scores, health.

Each function returns a figure, or None if nothing is recorded.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from cpc.report import draw
from cpc.report.engine import show
from cpc.report.scores import color_of, group_title, metric_groups, row_title, value_axis
from cpc.report.words import Words
from cpc.results import Frame, Run, evaluations, in_percent, last_evaluation, rule_title

#: Colors of the evaluations.
LINES = (draw.INK, draw.GREEN, draw.ORANGE)


def over_steps(rows: Frame, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps and values of a number, averaged over offsets, without missing ones."""
    if key not in rows or not len(rows):
        return np.zeros(0), np.zeros(0)
    means = rows.groupby("step")[key].mean().dropna()
    return means.index.to_numpy(float), means.to_numpy(float)


def curves_figure(run: Run) -> Figure | None:
    """Draw loss and log N - L over the steps, averaged over offsets."""
    train, tests = run.offsets[run.offsets.split == "train"], evaluations(run)
    if not len(run.offsets):
        return None
    figure, (left, right) = draw.make_figure(2)
    bound, name_of_bound = "bound", "train"
    if not train.bound.notna().any():
        bound, name_of_bound = "strict_bound", "train, strict bound"
    for axes, key, of_train, name in (
        (left, "offset_loss", "train", "loss"),
        (right, "bound", name_of_bound, "log N − L"),
    ):
        values = over_steps(train, bound if key == "bound" else key)
        axes.plot(*values, color=draw.BLUE, alpha=0.45, linewidth=1, label=of_train)
        for number, (rule, rows) in enumerate(tests.items()):
            kind = " (bound)" if rows.is_bound.all() else " (estimate)"
            title = f"test, {rule}{kind if rows.bound.notna().any() else ''}"
            style: dict[str, Any] = {"linewidth": 1.6, "marker": "o", "markersize": 3.5}
            color = LINES[number % 3]
            axes.plot(*over_steps(rows, key), color=color, label=title, **style)
        for number, (rule, rows) in enumerate(ceilings(run).items()):
            color, values = (draw.RED, draw.ORANGE)[number % 2], over_steps(rows, "log_n")
            axes.plot(*values, color=color, linestyle="--", linewidth=1, label=f"log N, {rule}")
        draw.label(axes, "step", "nats, mean over offsets", name)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    draw.add_shared_legend(figure, [left, right])
    return figure


def train_rows(run: Run) -> dict[str, Frame]:
    """Return the offsets of the training by title of its rule; empty if none is recorded."""
    train = run.offsets[run.offsets.split == "train"]
    return {rule_title(str(train.rule.iloc[-1])): train} if len(train) else {}


def ceilings(run: Run) -> dict[str, Frame]:
    """Return rows with each distinct log N: of the training, and of test rules with another N."""
    known = evaluations(run) | train_rows(run)
    order = [*train_rows(run), *evaluations(run)]
    return {rule: known[rule] for rule in order if known[rule].bound.notna().any()}


def bound_figure(run: Run, words: Words) -> Figure | None:
    """Draw the last log N - L at each offset with its interval, ceiling and state."""
    panels_of = [
        (f"{rule}, {direction}" if direction else rule, part)
        for rule, rows in last_rows(run).items()
        for direction, part in rows.groupby("direction", sort=False)
        if part.bound.notna().any()
    ]
    if not panels_of:
        return None
    num_columns = 2 if any(part.direction.iloc[0] for _, part in panels_of) else 3
    figure, panels = draw.make_figure(len(panels_of), num_columns=num_columns, row_height=3.7)
    for axes, (rule, rows) in zip(panels, panels_of, strict=True):
        draw_bound(axes, rows)
        kind = "a lower bound" if rows.is_bound.all() else "an estimate, not a bound"
        draw.label(axes, f"offset k ({words.ahead})", "log N − L, nats", f"{rule}: {kind}")
        if run.truth is not None:
            style = {"color": draw.GREEN, "linestyle": "-.", "marker": "_", "markersize": 9}
            truth = run.truth.offset, run.truth.mutual_information
            axes.plot(*truth, label="exact mutual information", **style)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    draw.add_shared_legend(figure, panels)
    return figure


def last_rows(run: Run) -> dict[str, Frame]:
    """Return the last evaluation by each rule, or else the last record of the training."""
    found = evaluations(run) or train_rows(run)
    return {rule: rows[rows.step == rows.step.max()] for rule, rows in found.items()}


def draw_bound(axes: Axes, rows: Frame) -> None:
    """Draw log N - L against the offset."""
    axes.plot(rows.offset, rows.log_n, color=draw.RED, linestyle="--", linewidth=1.2, label="log N")
    axes.plot(rows.offset, rows.bound, color=draw.GRAY, linewidth=0.8, zorder=1)
    for state, (color, marker, words) in draw.STATES.items():
        part = rows[(rows.state.replace("", "fine") == state) & np.isfinite(rows.bound)]
        if len(part):
            ends = part.bound - part.bound_low, part.bound_high - part.bound
            style = {"color": color, "marker": marker, "markersize": 5, "linestyle": "none"}
            style |= {"capsize": 2.5, "linewidth": 1.2, "label": words}
            axes.errorbar(part.offset, part.bound, yerr=np.maximum(0, ends), **style)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def accuracy_figure(run: Run, words: Words) -> Figure | None:
    """Draw the top-1 and the pairwise accuracy by offset."""
    last, strict = last_rows(run), last_evaluation(run, strict=True)
    shown = dict(list(last.items())[:1])
    shown |= {rule: rows for rule, rows in last.items() if len(strict) and rows.equals(strict)}
    if not shown:
        return None
    figure, panels = draw.make_figure(2)
    readings = (
        ("acc_top1", "beats every negative (top-1)"),
        ("acc_pairwise", "share of negatives beaten (pairwise)"),
    )
    has_directions = any(rows.direction.nunique() > 1 for rows in shown.values())
    for axes, (key, title) in zip(panels, readings, strict=True):
        for number, (rule, rows) in enumerate(shown.items()):
            parts = [part for _, part in rows.groupby("direction", sort=False)]
            hollow = bool(number) and len(parts) > 1
            for color, part in zip(accuracy_colors(number, len(parts)), parts, strict=True):
                name = f"{rule}, {part.direction.iloc[0]}".removesuffix(", ")
                count = show(part.n.mean(), ",.0f")
                style = {"linestyle": "--" if hollow else "-", "marker": "o", "markersize": 4}
                style["markerfacecolor"] = "white" if hollow else color
                values = part.offset, 100 * part[key]
                axes.plot(*values, color=color, label=f"{name}, N = {count}", **style)
            chance, color = 100 * parts[0].chance_top1, accuracy_colors(number, 1)[0]
            if key != "acc_top1":
                chance, color = chance * 0 + 50, draw.MUTED
            if key == "acc_top1" or not number:
                name = f"chance, {show(chance.mean(), '.2g')} %"
                style = {"color": color, "linestyle": ":", "linewidth": 1.2, "label": name}
                axes.plot(parts[0].offset, chance, **style)
        draw.label(axes, f"offset k ({words.ahead})", "percent", title)
        axes.set_ylim(0, 103)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if not has_directions:
            draw.add_legend(axes)
    if has_directions:  # too many lines for a legend inside
        draw.add_shared_legend(figure, panels)
    return figure


def accuracy_colors(number: int, num_directions: int) -> Sequence[Any]:
    """Return a color for each direction, or for a rule that has only one."""
    if num_directions == 1:
        return ((draw.BLUE, draw.GREEN)[number % 2],)
    if num_directions <= 4:
        return (draw.BLUE, draw.ORANGE, draw.GREEN, draw.RED)[:num_directions]
    return [colormaps["viridis"](place) for place in np.linspace(0, 0.95, num_directions)]


def scores_figure(scores: Frame, words: Words) -> Figure | None:
    """Draw scores with their intervals, one panel per task, data, unit and metric."""
    groups = metric_groups(scores, words, curves=False)
    if not groups:
        return None
    most = max(len(rows) for rows in groups.values())
    figure, panels = draw.make_figure(len(groups), num_columns=2, row_height=1.25 + 0.34 * most)
    for axes, ((task, data, unit, metric), rows) in zip(panels, groups.items(), strict=True):
        for place, row in enumerate(rows.itertuples()):
            draw_bar(axes, place, row, color_of(str(row.features), words))
        line = {"color": draw.RED, "linestyle": ":", "linewidth": 1.3, "label": "chance"}
        if rows.chance.nunique() == 1:
            axes.axvline(value_axis(rows.chance.dropna().iloc[0], metric), **line)
        elif rows.chance.notna().any():  # each of the features has its own
            at, places = value_axis(rows.chance, metric), np.arange(len(rows))
            axes.vlines(at, places - 0.45, places + 0.45, **line)
        axes.set_yticks(
            range(len(rows)), [row_title(r.features, r.method, words) for r in rows.itertuples()]
        )
        axes.set_ylim(len(rows) - 0.4, -0.6)
        if metric.endswith("accuracy"):
            axes.set_xlim(0, 100)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color=draw.GRID, linewidth=0.8)
        better = "" if rows.higher_is_better.all() else " (lower is better)"
        unit_text = ", percent" if in_percent(metric) else ""
        draw.label(axes, f"{metric}{unit_text}{better}", "", group_title(task, data, unit))
    draw.add_shared_legend(figure, panels)
    return figure


def draw_bar(axes: Axes, place: int, row: Any, color: str) -> None:
    """Draw one score: a bar, its interval, and its number."""
    value, low, high = (value_axis(one, row.metric) for one in (row.value, row.low, row.high))
    axes.barh(place, value, height=0.62, color=color, alpha=0.85)
    known = math.isfinite(low) and math.isfinite(high)
    if known:
        axes.plot([low, high], [place, place], color=draw.INK, linewidth=1.4)
    inside = row.metric.endswith("accuracy") and value > 80
    text = show(value, ".1f" if in_percent(row.metric) else ".3g")
    at = ((low if inside else high) if known else value, place)
    style: dict[str, Any] = {"ha": "left", "color": draw.INK}
    if inside:
        style = {"ha": "right", "color": "white"}
    axes.annotate(
        text, at, xytext=(-5 if inside else 5, 0), textcoords="offset points", va="center",
        fontsize=8.5, **style,
    )  # fmt: skip


def progress_figure(scores: Frame, words: Words) -> Figure | None:
    """Draw scores that were measured at several steps over the steps."""
    groups = metric_groups(scores, words, curves=False)
    found = {group: rows for group, rows in groups.items() if rows.step.nunique() > 1}
    if not found:
        return None
    figure, panels = draw.make_figure(len(found), num_columns=2, row_height=2.7)
    for axes, ((task, data, unit, metric), rows) in zip(panels, found.items(), strict=True):
        for (features, method), line in rows.groupby(["features", "method"], sort=False):
            if line.step.nunique() < 2:
                continue
            line = line.sort_values("step")
            dash, name = "-" if method == "linear" else "--", row_title(features, method, words)
            style: dict[str, Any] = {"linestyle": dash, "marker": "o", "markersize": 3.5}
            values = line.step, value_axis(line.value, metric)
            axes.plot(*values, color=color_of(features, words), label=name, **style)
        draw.label(axes, "step", metric_title(metric), group_title(task, data, unit))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    draw.add_shared_legend(figure, panels)
    return figure


def metric_title(metric: str) -> str:
    """Return the label of an axis.

    >>> metric_title("accuracy"), metric_title("nats")
    ('accuracy, percent', 'nats')
    """
    return f"{metric}, percent" if in_percent(metric) else metric


def curve_figures(scores: Frame, words: Words) -> dict[tuple[str, ...], Figure]:
    """Draw scores against the number of labels, by task, data, unit and metric."""
    figures = {}
    for (*group, metric), rows in metric_groups(scores, words, curves=True).items():
        figure, (axes,) = draw.make_figure(1, row_height=4.4)
        for (features, method), line in rows.groupby(["features", "method"], sort=False):
            draw_curve(axes, line.sort_values("num_train"), features, method, words)
        ticks = rows.drop_duplicates("num_train").sort_values("num_train")
        names = [f"{row.num_train:,.0f}\n{row.setting}".rstrip() for row in ticks.itertuples()]
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(ticks.num_train, names)
        draw.label(axes, "number of labels", metric_title(metric), group_title(*group))
        draw.add_shared_legend(figure, [axes])
        figures[*group, metric] = figure
    return figures


def draw_curve(axes: Axes, line: Frame, features: str, method: str, words: Words) -> None:
    """Draw one learning curve with its intervals."""
    metric, color = line.metric.iloc[0], color_of(features, words)
    value, low, high = (value_axis(line[name], metric) for name in ("value", "low", "high"))
    is_frozen = method == "frozen"
    style: dict[str, Any] = {"linestyle": "-" if is_frozen else "--", "linewidth": 1.5}
    style |= {"marker": "s" if features.endswith("c") else "o", "markersize": 4.5}
    style |= {"markerfacecolor": color if is_frozen else "white", "capsize": 2.5, "elinewidth": 1.1}
    ends = np.nan_to_num(np.maximum(0, [value - low, high - value]))
    name = row_title(features, method, words)
    axes.errorbar(line.num_train, value, yerr=ends, color=color, label=name, **style)


def spread_figure(run: Run) -> Figure | None:
    """Draw standard deviation and effective rank of z and c over the steps."""
    names = [name for name in ("z", "c") if {f"std_{name}", f"rank_{name}"} <= {*run.metrics}]
    if not names:
        return None
    figure, (left, right) = draw.make_figure(2, row_height=2.9)
    for axes, key, title in (
        (left, "std", "mean standard deviation"),
        (right, "rank", "effective rank of the covariance"),
    ):
        for name in names:
            steps, values = over_steps(run.metrics[run.metrics.split == "test"], f"{key}_{name}")
            color = {"z": draw.ORANGE, "c": draw.BLUE}[name]
            axes.plot(steps, values, color=color, marker="o", markersize=3.5, label=name)
        draw.label(axes, "step", "", title)
        axes.set_ylim(bottom=0)
        draw.add_legend(axes)
    return figure


def speed_figure(run: Run) -> Figure | None:
    """Draw steps a second, learning rate and gradient norm over the steps."""
    if "steps_per_second" not in run.train:
        return None
    keys = ("steps_per_second", "learning_rate", "gradient_norm")
    figure, panels = draw.make_figure(3, row_height=2.7)
    for axes, key in zip(panels, keys, strict=True):
        axes.plot(*over_steps(run.train, key), color=draw.BLUE, linewidth=1.2)
        draw.label(axes, "step", "", key.replace("_", " "))
        axes.set_ylim(bottom=0)
    return figure
