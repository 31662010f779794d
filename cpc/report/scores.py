"""A run's scores: tables, figures, and the titles and colors that they share."""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from cpc import results
from cpc.report import draw
from cpc.report.engine import Figure, Section, Table
from cpc.report.words import Words
from cpc.results import Difference, Frame, Row

#: Column head for the difference between the learned features and the best baseline.
DIFFERENCE = "CPC − best other"
NOTE = "Accuracies, rates and errors are in percent; ↓ means that lower is better."
#: Scores by (task, data, unit), in table order: baselines first, then learned features.
Groups: TypeAlias = dict[tuple[str, str, str], Frame]

#: Titles of methods, in the order of table rows.
METHODS = {
    "linear": "linear",
    "hidden": "one hidden layer",
    "sgd": "linear, SGD",
    "ridge": "ridge regression",
    "knn": "nearest neighbors",
}


class Headline(NamedTuple):
    """A task's main score, and its other scores."""

    title: str
    """The task and its data, with the unit, method or features if they are not the default."""
    score: Row
    same_probe: dict[str, Row]
    """The scores with the same method and metric as `score`, by features."""
    by_probe: dict[tuple[str, str], dict[str, Row]]
    """All scores of the task, by (method, metric) and then by features."""


def score_groups(scores: Frame, words: Words) -> Groups:
    """Group scores by task, data and unit. Baselines come first, then learned features."""

    def place(row: Row) -> tuple:
        return [*METHODS, row.method].index(row.method), feature_order(row.features, words)

    groups = {}
    for names, rows in scores.groupby(["task", "data", "unit"], sort=False):
        order = sorted(enumerate(rows.itertuples()), key=lambda one: place(one[1]))
        groups[tuple(map(str, names))] = rows.iloc[[number for number, _ in order]]
    return groups


def metric_groups(scores: Frame, words: Words, curves: bool) -> dict[tuple[str, ...], Frame]:
    """Group scores by task, data, unit and metric.

    If `curves` is true, the groups contain only the scores of learning curves. Otherwise they
    contain only the other scores. A learning curve has scores for several known numbers of labels.
    """
    groups = {}
    for group, rows in score_groups(scores, words).items():
        rows = rows[(rows.num_train.notna() & is_curve(rows)) == curves]
        groups |= {(*group, metric): part for metric, part in rows.groupby("metric", sort=False)}
    return groups


def is_curve(rows: Frame) -> bool:
    """Return whether any probe of a task was fitted on several numbers of labels."""
    by_probe = rows.groupby(["features", "method", "metric", "step"])
    return bool(by_probe.num_train.nunique().max() > 1)


def headlines(scores: Frame, words: Words) -> list[Headline]:
    """Return the main score of each task at its last step.

    If it is recorded, this is the score of a linear probe on the most important features. In a
    learning curve, it is the score with the fewest labels.
    """
    groups, found = score_groups(results.last_scores(scores), words), []
    tasks = [(task, data) for task, data, _ in groups]
    for (task, data, unit), rows in groups.items():
        labels = ""
        if is_curve(rows):
            rows = rows[rows.num_train == rows.num_train.min()]
            labels = f"{rows.num_train.iloc[0]:,.0f} labels"
        by_probe: dict[tuple[str, str], dict[str, Row]] = {}
        for one in rows.itertuples():
            by_probe.setdefault((one.method, one.metric), {})[one.features] = one
        learned = rows[rows.features.isin([*words.features])]
        linear = learned[learned.method == "linear"]
        candidates = next(one for one in (linear, learned, rows) if len(one))
        ours = min(
            candidates.itertuples(),
            key=lambda one: (*words.features, one.features).index(one.features),
        )
        parts = [task_title(ours), data, labels]
        if tasks.count((task, data)) > 1:
            parts[0] += f" by {unit}"
        if ours.method != "linear":
            parts.append(METHODS.get(ours.method) or ours.method)
        if ours.features in words.features[1:]:
            parts.append(ours.features)
        title = ", ".join(filter(None, parts))
        found.append(Headline(title, ours, by_probe[ours.method, ours.metric], by_probe))
    return found


def task_title(score: Row) -> str:
    """Return a score's task in words, with its metric unless that is accuracy.

    >>> from cpc.results import Score
    >>> score = Score("ABX", "voices", "phone pair", "c", "cosine", "ABX error", 0.1)
    >>> task_title(score), task_title(score._replace(task="few_labels", metric="accuracy"))
    ('ABX error', 'few labels')
    """
    task = score.task.replace("_", " ")
    if score.metric in ("accuracy", task):
        return task
    return score.metric if score.metric.startswith(task) else f"{task}, {score.metric}"


def score_table(found: Sequence[Headline], words: Words) -> Table:
    """Return a table with one row per task.

    The columns are chance, baselines, untrained network, CPC, and CPC's difference from the best
    other score by the same method.
    """
    lines = []
    for title, ours, same_probe, _ in found:
        line = {"task": title + arrow(ours, words)}
        if math.isfinite(ours.chance):
            line["chance"] = results.show_value(ours.chance, ours.metric)
        names = (*words.baselines, f"random {ours.features}")
        others = [same_probe[one] for one in names if one in same_probe and one != ours.features]
        for one in (*others, ours):
            line[short_title(one.features, words)] = results.show_value(one.value, one.metric)
        if others and ours.task not in words.unranked and ours.features in words.features:
            sign = 1 if ours.higher_is_better else -1
            strongest = max(others, key=lambda one: sign * one.value)
            line[DIFFERENCE] = lead_phrase(results.difference(ours, strongest), ours.metric)
        lines.append(line)
    frame: Any = pd.DataFrame(lines)
    baselines = [short_title(name, words) for name in words.baselines]
    order = ["task", "chance", *baselines, "untrained", "CPC"]
    last = [name for name in frame if name not in order and name != DIFFERENCE] + [DIFFERENCE]
    return Table("", frame[[name for name in (*order, *last) if name in frame]], NOTE)


def arrow(score: Row, words: Words) -> str:
    """Return a down arrow if lower scores are better, or "" otherwise."""
    return "" if score.higher_is_better or score.task in words.unranked else "\xa0↓"


def all_scores(scores: Frame, words: Words) -> Table:
    """Return a table of all scores and their differences from the untrained network."""
    rows = [row for one in score_groups(scores, words).values() for row in one.itertuples()]
    untrained = {(one.features, *one_probe(one)): one for one in rows}
    lines = []
    for row, line in zip(rows, results.score_cells(rows), strict=True):
        other = untrained.get((f"random {row.features}", *one_probe(row)))
        gain = lead_phrase(results.difference(row, other), row.metric) if other else ""
        tested_on = f"{row.num_test:,.0f}" if math.isfinite(row.num_test) else ""
        more = {"metric": row.metric + arrow(row, words), "over untrained": gain}
        lines.append(line | more | {"tested on": tested_on})
    frame = pd.DataFrame(lines)
    note = " ".join(words.notes[name] for name in scores.metric.unique() if name in words.notes)
    return Table(f"All {len(rows):,} scores", frame.loc[:, (frame != "").any()], note)


def one_probe(row: Row) -> tuple:
    """Return a key that the scores of one probe on different features share."""
    return row.task, row.data, row.unit, row.method, row.metric, str(row.num_train)


def short_title(features: str, words: Words) -> str:
    """Return the column head in `score_table` for features such as "c" or "random c"."""
    if features.startswith("random "):
        return "untrained"
    return "CPC" if features in words.features else feature_title(features, words)


def feature_title(name: str, words: Words) -> str:
    """Return a title for features, such as "CPC, c" for "c" or "untrained, c" for "random c"."""
    if name.startswith("random"):
        return f"untrained{name.removeprefix('random').replace(' ', ', ', 1)}"
    return f"CPC, {name}" if name in words.features else words.titles.get(name, name)


def feature_order(name: str, words: Words) -> tuple[int, str]:
    """Return a key that sorts features: untrained, baselines, learned, others."""
    learned = {feature: 2 + n for n, feature in enumerate(sorted(words.features, reverse=True))}
    place = 0 if name.startswith("random") else 1 if name in words.baselines else 9
    return learned.get(name, place), name


def row_title(features: str, method: str, words: Words) -> str:
    """Return a title for features and a method. Linear probes are not mentioned."""
    how = {"linear": "", "hidden": ", hidden", "knn": ", kNN"}.get(method, f", {method}")
    return feature_title(features, words) + ("" if features == "supervised" else how)


def group_title(task: str, data: str, unit: str) -> str:
    """Return the title of a panel with a task's scores."""
    return f"{task.replace('_', ' ')} by {unit}\n{data}"


def color_of(features: str, words: Words) -> str:
    """Return the color that represents features in all figures."""
    if features.startswith("random"):
        return draw.GRAY
    if features in words.baselines:
        return draw.ORANGE
    return {"z": draw.GREEN, "c": draw.BLUE}.get(features, draw.INK)


def value_axis(values: Any, metric: str) -> Any:
    """Return a metric's values in the unit of its axis. Fractions are converted to percent."""
    return 100 * values if results.in_percent(metric) else values


def metric_title(metric: str) -> str:
    """Return a metric's axis label.

    >>> metric_title("accuracy"), metric_title("nats")
    ('accuracy, percent', 'nats')
    """
    return f"{metric}, percent" if results.in_percent(metric) else metric


def lead_phrase(lead: Difference | tuple[float, ...], metric: str) -> str:
    """Format a difference with its interval. For rates and accuracies, use percentage points.

    >>> lead_phrase((0.0123, -0.004, 0.03), "accuracy")
    '+1.2 (−0.4 to +3.0)'
    """
    value, low, high = (
        f"{'−' if one < 0 else '+'}{results.show_value(abs(one), metric)}" for one in lead[:3]
    )
    return f"{value} ({low} to {high})" if math.isfinite(lead[1] + lead[2]) else value


def scores_section(scores: Frame, words: Words) -> Section:
    """Return the section with all scores in figures and a table."""
    last = results.last_scores(scores)
    if not len(last):
        return Section("")
    figures = [*progress_figure(scores, words), *curve_figures(last, words)]
    return Section("Scores", figures=figures, details=[all_scores(last, words)])


def progress_figure(scores: Frame, words: Words) -> list[Figure]:
    """Draw the scores that were measured at several training steps against the step."""
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
    """Draw learning curves (scores by number of labels), in one figure per task and metric."""
    caption = (
        "Scores of a probe on frozen features, or of the whole network, trained on this number of "
        f"labels, with 95 % intervals over {words.tested} if there are several. Pretraining pays "
        "off if it matches the supervised network with fewer labels."
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
        title = f"{group_title(*group)}: {metric} against labels".replace("\n", ", ")
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
    """Make a valid file name from arbitrary texts.

    >>> file_name("curve", "few_labels", "clothes"), file_name("curve", "../x")
    ('curve_few_labels_clothes', 'curve_.._x-2f2408c5')
    """
    name = "_".join(parts)
    plain = re.sub(r"[^\w.-]", "_", name)[:100]
    return plain if plain == name else f"{plain}-{results.digest(name)[:8]}"
