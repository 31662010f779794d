"""Scores of a run as figures, a table for each task, and the last lines on the console."""

import functools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from cpc.report import draw
from cpc.report.engine import Figure, Section, Table, show
from cpc.report.scores import (
    METHODS,
    capitalize,
    color_of,
    column_of,
    feature_title,
    group_title,
    headlines,
    metric_groups,
    metric_title,
    row_title,
    score_groups,
    split_curve,
    task_phrase,
    value_axis,
)
from cpc.report.sentences import (
    gain_sentences,
    harm_sentences,
    interval_phrase,
    lead_phrase,
    lost_sentences,
)
from cpc.report.words import Words
from cpc.results import (
    Frame,
    Row,
    Run,
    difference,
    digest,
    in_percent,
    last_scores,
    read_run,
    show_value,
    text_table,
)


def scores_section(run: Run, words: Words) -> Section:
    """Return figures of the scores, a table for each task, and learning curves."""
    title, last = "What the representation knows", last_scores(run.scores)
    if not len(last):
        missing = "No probe has been recorded yet; run the probe command on this directory."
        return Section(title, [missing])
    tables = []
    for group, rows in score_groups(last, words).items():
        curve, others = split_curve(rows)
        by_metric = curve.groupby("metric", sort=False)
        tables += [curve_table(group, own, words) for _, own in by_metric]
        tables += [score_table(group, others, words)] if len(others) else []
    figures = [*scores_figure(last, words), *progress_figure(run.scores, words)]
    return Section(title, figures=[*figures, *curve_figures(last, words)], tables=tables)


def scores_figure(scores: Frame, words: Words) -> list[Figure]:
    """Draw scores with their intervals, one panel per task, data, unit and metric."""
    groups = metric_groups(scores, words, curves=False)
    if not groups:
        return []
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
    baselines = " and ".join(feature_title(name, words) for name in words.baselines) or "its input"
    caption = (
        f"Bars are scores on test {words.tested}{interval_caption(scores, words)}. The dotted line "
        "is the score of knowing nothing, such as always answering the most frequent class. "
        "Training paid off where CPC beats the same network at random "
        f"initialization; CPC is useful where it also beats {baselines}."
    )
    return [Figure("scores", figure, "Scores of frozen features", caption)]


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


def interval_caption(scores: Frame, words: Words) -> str:
    """Return a clause on the intervals of a figure of scores."""
    known = scores.low.notna() & scores.high.notna()
    if not known.any():
        return f"; so few {words.tested} give no interval"
    some = "" if known.all() else " (if there are several)"
    return f", black lines 95 % intervals over {words.tested}{some}"


def progress_figure(scores: Frame, words: Words) -> list[Figure]:
    """Draw scores that were measured at several steps over the steps."""
    groups = metric_groups(scores, words, curves=False)
    found = {group: rows for group, rows in groups.items() if rows.step.nunique() > 1}
    if not found:
        return []
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
    caption = (
        f"Scores at evaluations during training, on test {words.tested}; dashed lines are methods "
        "other than the linear probe. If a curve still improves, train longer; if it gets worse "
        "while the bound rises, the features serve the prediction and not the task."
    )
    return [Figure("progress", figure, "Scores during training", caption)]


def curve_figures(scores: Frame, words: Words) -> list[Figure]:
    """Draw scores against the number of labels, by task, data, unit and metric."""
    caption = (
        "Scores of a probe on frozen features, or of the whole network, given only this many "
        f"labels{interval_caption(scores, words)}. Pretraining pays off where it matches the "
        "supervised network with fewer labels."
    )
    figures = []
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
        title = f"{table_title(*group)}: {metric} against labels"
        figures.append(Figure(file_name("curve", *group, metric), figure, title, caption))
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


def file_name(*parts: str) -> str:
    """Make a file name from texts with any characters.

    >>> file_name("curve", "few_labels", "clothes"), file_name("curve", "../x")
    ('curve_few_labels_clothes', 'curve_.._x-2f2408c5')
    """
    name = "_".join(parts)
    plain = re.sub(r"[^\w.-]", "_", name)[:100]
    return plain if plain == name else f"{plain}-{digest(name)[:8]}"


def score_table(group: tuple[str, str, str], rows: Frame, words: Words) -> Table:
    """Return the scores of a task, each next to the untrained network's with the same method."""
    lines, strong = [], []
    chances = rows.groupby("metric").chance
    is_own = chances.nunique().gt(1).any()  # each of the features has a chance of its own
    if not is_own and rows.chance.notna().any():
        chance = {column_of(str(metric)): chance for metric, chance in chances.first().items()}
        lines.append({"features": "chance", **chance, "95 % interval": None})
    for (features, method), found in rows.groupby(["features", "method"], sort=False):
        if features in words.features:
            strong.append(len(lines))
        scores = list(found.itertuples())
        first = scores[0]
        line: dict[str, Any] = {
            "features": feature_title(features, words),
            "method": METHODS.get(method, method),
            **{column_of(score.metric): score.value for score in scores},
            "95 % interval": (first.low, first.high, first.metric),
            "setting": first.setting,
        }
        if is_own:
            line["chance"] = " and ".join(show_value(one.chance, one.metric) for one in scores)
        untrained = rows[rows.features == f"random {features}"]
        for other in untrained[untrained.method == method].itertuples():
            if other.metric == first.metric:
                line["over untrained"] = (*difference(first, other)[:3], first.metric)
        lines.append(line)
    metrics = {column_of(metric): metric for metric in dict.fromkeys(rows.metric)}
    order = ("features", "method", *metrics, "chance", "95 % interval", "over untrained", "setting")
    columns = [name for name in order if any(name in line for line in lines)]
    frame = pd.DataFrame([{name: line.get(name) for name in columns} for line in lines])
    formats: dict[str, Any] = {
        column: functools.partial(show_known, metric=metric) for column, metric in metrics.items()
    }
    formats |= {"95 % interval": show_ends, "over untrained": show_lead}
    note = score_note(next(rows.itertuples()), rows, words)
    return Table(table_title(*group), frame, note, formats, strong)


def show_ends(ends: Any) -> str:
    """Format an interval with its metric; "" for the NaN of an empty cell."""
    return interval_phrase(*ends) if isinstance(ends, tuple) else ""


def show_lead(lead: Any) -> str:
    """Format a difference with its metric; "" for the NaN of an empty cell."""
    return lead_phrase(lead[:3], lead[3]) if isinstance(lead, tuple) else ""


def show_known(value: float | int | None, metric: str) -> str:
    """Format a value; return "" for None and NaN."""
    return "" if value is None or math.isnan(value) else show_value(value, metric)


def table_title(task: str, data: str, unit: str) -> str:
    """Return the title of a task's table."""
    return f"{capitalize(task)} by {unit}, {data}"


def score_note(first: Row, rows: Frame, words: Words) -> str:
    """Return a note on the measurement of the scores in a table."""
    parts = []
    if math.isfinite(first.num_train):
        parts.append(f"fitted on {first.num_train:,.0f} labeled items")
    if math.isfinite(first.num_test):
        parts.append(f"tested on {first.num_test:,.0f} {first.unit}s")
    note = f"{', '.join([*parts, f'at step {first.step:,}']).capitalize()}."
    if first.task not in words.unranked and not rows.higher_is_better.all():
        note += " Lower is better."
    if rows.low.notna().any():
        note += f" Intervals: over test {words.tested}."
    names = (first.data, *dict.fromkeys(rows.metric))
    note += "".join(f" {words.notes[name]}" for name in names if name in words.notes)
    if any(name.startswith("random") for name in rows.features):
        note += (
            " Over untrained: the difference from the same network at random initialization by "
            f"the same method, on the same {words.tested} where these were recorded."
        )
    return note


def curve_table(group: tuple[str, str, str], rows: Frame, words: Words) -> Table:
    """Return scores of one metric by number of labels, one row per features and method."""
    counts = rows.drop_duplicates("num_train").sort_values("num_train")
    heads = {
        row.num_train: f"{row.num_train:,.0f}" + (f" ({row.setting})" if row.setting else "")
        for row in counts.itertuples()
    }
    lines = []
    for (features, method), line in rows.groupby(["features", "method"], sort=False):
        cells = {
            heads[one.num_train]: (one.value, one.low, one.high, one.metric)
            for one in line.itertuples()
        }
        values = {head: cells.get(head) for head in heads.values()}
        lines.append({"features": row_title(features, method, words), **values})
    note = "Half-widths of 95 % intervals over test items and, where several were drawn, subsets."
    formats = dict.fromkeys(heads.values(), show_half_width)
    title = f"{table_title(*group)}: {column_of(rows.metric.iloc[0])} by number of labels"
    return Table(title, pd.DataFrame(lines), note, formats)


def show_half_width(cell: tuple[float, float, float, str] | None) -> str:
    """Format a value and half the width of its interval.

    >>> show_half_width((0.512, 0.5, 0.53, "accuracy"))
    '51.2 ± 1.5'
    """
    if not isinstance(cell, tuple):
        return ""
    value, low, high, metric = cell
    half = (high - low) / 2
    plus = f" ± {show_value(half, metric)}" if math.isfinite(half) else ""
    return show_value(value, metric) + plus


def closing_lines(workdir: str | Path, words: Words) -> list[str]:
    """Return a table of each task's headline score and its baselines, and what training gained."""
    run, lines = read_run(workdir), []
    found = headlines(run.scores, words)
    for headline in found:
        ours, scores = headline.score, headline.same_probe
        learned, untrained = ours.features, f"random {ours.features}"
        if learned in words.baselines or learned.startswith("random "):  # nothing learned is scored
            learned, untrained = "", learned
        names = (*words.baselines, "" if untrained in words.baselines else untrained, learned)
        how = METHODS.get(ours.method, ours.method)
        name = f"{task_phrase(ours)}, {how}, {column_of(ours.metric)}"
        values = [scores[name].value if name in scores else None for name in names]
        shown = ["" if value is None else show_value(value, ours.metric) for value in values]
        lines.append([name, show_value(ours.chance, ours.metric), *shown])
    if not lines:
        return []
    titles = [feature_title(name, words) for name in words.baselines]
    return [
        *harm_sentences(run, found, words),
        *text_table([["score", "chance", *titles, "untrained", "CPC"], *lines]),
        *gain_sentences(found),
        *lost_sentences(found, words),
    ]
