"""Tables of a run's scores, and the groups, titles and colors that tables and figures share."""

import itertools
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import pandas as pd

from cpc.report.draw import BLUE, GRAY, GREEN, INK, ORANGE
from cpc.report.engine import Table
from cpc.report.words import Words
from cpc.results import (
    Difference,
    Frame,
    Row,
    difference,
    in_percent,
    last_scores,
    score_cells,
    show_value,
)

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
        method = list(METHODS).index(row.method) if row.method in METHODS else len(METHODS)
        return method, feature_order(row.features, words)

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
    return {
        (*group, metric): part
        for group, rows in score_groups(scores, words).items()
        for metric, part in rows[(rows.num_train.notna() & is_curve(rows)) == curves].groupby(
            "metric", sort=False
        )
    }


def is_curve(rows: Frame) -> bool:
    """Return whether any probe of a task was fitted on several numbers of labels."""
    by_probe = rows.groupby(["features", "method", "metric", "step"])
    return bool(by_probe.num_train.nunique().max() > 1)


def headlines(scores: Frame, words: Words) -> list[Headline]:
    """Return the main score of each task at its last step.

    If it is recorded, this is the score of a linear probe on the most important features. In a
    learning curve, it is the score with the fewest labels.
    """
    groups, found = score_groups(last_scores(scores), words), []
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
            line["chance"] = show_value(ours.chance, ours.metric)
        names = (*words.baselines, f"random {ours.features}")
        others = [same_probe[one] for one in names if one in same_probe and one != ours.features]
        for one in (*others, ours):
            line[short_title(one.features, words)] = show_value(one.value, one.metric)
        if others and ours.task not in words.unranked and ours.features in words.features:
            sign = 1 if ours.higher_is_better else -1
            strongest = max(others, key=lambda one: sign * one.value)
            line[DIFFERENCE] = lead_phrase(difference(ours, strongest), ours.metric)
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
    for row, line in zip(rows, score_cells(rows), strict=True):
        other = untrained.get((f"random {row.features}", *one_probe(row)))
        gain = lead_phrase(difference(row, other), row.metric) if other else ""
        tested_on = f"{row.num_test:,.0f}" if math.isfinite(row.num_test) else ""
        more = {"metric": row.metric + arrow(row, words), "over untrained": gain}
        lines.append(line | more | {"tested on": tested_on})
    frame = pd.DataFrame(lines)
    note = " ".join(words.notes[name] for name in scores.metric.unique() if name in words.notes)
    return Table(f"All {len(rows):,} scores", frame.loc[:, (frame != "").any()], note)


def wrap_rows(rows: Sequence[Sequence[str]], width: int) -> Iterator[tuple[str, ...]]:
    """Wrap a table's first column and the heads of its narrow columns, and yield its lines.

    >>> list(wrap_rows([("task", "mean of words"), ("phones of many voices", "73.1")], 29))
    [('task', 'mean of'), ('', 'words'), ('phones of many', '73.1'), ('  voices', '')]
    """
    head, *body = rows
    heads, sizes = [], []
    for name, *column in zip(head, *body, strict=True):
        widest = max(map(len, column))
        heads.append(textwrap.wrap(name, max(10, widest), break_long_words=False))
        sizes.append(max(widest, *map(len, heads[-1])))
    left = max(12, width - sum(sizes[1:]) - 2 * len(sizes[1:]))
    wrap = textwrap.TextWrapper(left, subsequent_indent="  ").wrap
    wrapped = ([wrap(first), *([cell] for cell in others)] for first, *others in body)
    for lines in (heads, *wrapped):
        yield from itertools.zip_longest(*lines, fillvalue="")


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
        return GRAY
    return ORANGE if features in words.baselines else {"z": GREEN, "c": BLUE}.get(features, INK)


def value_axis(values: Any, metric: str) -> Any:
    """Return a metric's values in the unit of its axis. Fractions are converted to percent."""
    return 100 * values if in_percent(metric) else values


def metric_title(metric: str) -> str:
    """Return a metric's axis label.

    >>> metric_title("accuracy"), metric_title("nats")
    ('accuracy, percent', 'nats')
    """
    return f"{metric}, percent" if in_percent(metric) else metric


def lead_phrase(lead: Difference | tuple[float, ...], metric: str) -> str:
    """Format a difference with its interval. For rates and accuracies, use percentage points.

    >>> lead_phrase((0.0123, -0.004, 0.03), "accuracy")
    '+1.2 (−0.4 to +3.0)'
    """
    value, low, high = (
        f"{'−' if one < 0 else '+'}{show_value(abs(one), metric)}" for one in lead[:3]
    )
    return f"{value} ({low} to {high})" if math.isfinite(lead[1] + lead[2]) else value
