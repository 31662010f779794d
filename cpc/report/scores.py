"""Groups, order, names and colors of scores on pages."""

from typing import Any, NamedTuple, TypeAlias

from cpc.report.draw import BLUE, GRAY, GREEN, INK, ORANGE
from cpc.report.words import Words
from cpc.results import Frame, Row, in_percent, last_scores, unit_of

#: (task, data, unit) -> its scores, from baselines to learned features.
Groups: TypeAlias = dict[tuple[str, str, str], Frame]

#: Methods in the order of tables, in words.
METHODS = {
    "linear": "linear",
    "hidden": "one hidden layer",
    "sgd": "linear, SGD",
    "ridge": "ridge regression",
    "knn": "nearest neighbors",
}


class Headline(NamedTuple):
    """The main score of a task and the other scores of the task."""

    score: Row
    same_probe: dict[str, Row]
    """The scores with its method and metric, by features."""
    by_probe: dict[tuple[str, str], dict[str, Row]]
    """All scores by (method, metric) and features."""


def score_groups(scores: Frame, words: Words) -> Groups:
    """Return scores by task, data and unit, each from baselines to learned features."""

    def place(row: Row) -> tuple:
        method = list(METHODS).index(row.method) if row.method in METHODS else len(METHODS)
        return method, feature_order(row.features, words)

    groups = {}
    for names, rows in scores.groupby(["task", "data", "unit"], sort=False):
        order = sorted(enumerate(rows.itertuples()), key=lambda one: place(one[1]))
        groups[tuple(map(str, names))] = rows.iloc[[number for number, _ in order]]
    return groups


def metric_groups(scores: Frame, words: Words, curves: bool) -> dict[tuple[str, ...], Frame]:
    """Return scores by task, data, unit and metric: learning curves only, or all but these."""
    return {
        (*group, metric): rows
        for group, found in score_groups(scores, words).items()
        for metric, rows in split_curve(found)[not curves].groupby("metric", sort=False)
    }


def split_curve(rows: Frame) -> tuple[Frame, Frame]:
    """Return the scores of a task that make a learning curve, and the others.

    A curve has several numbers of labels; scores without a known number are not part of it.
    """
    in_curve = rows.num_train.notna() & is_curve(rows)
    return rows[in_curve], rows[~in_curve]


def is_curve(rows: Frame) -> bool:
    """Return whether the scores of one task differ in their number of labels."""
    by_probe = rows.groupby(["features", "method", "metric", "step"])
    return bool(by_probe.num_train.nunique().max() > 1)


def headlines(scores: Frame, words: Words) -> list[Headline]:
    """Return the last headline score of each task: if possible linear, on the first features."""
    found = []
    for rows in score_groups(last_scores(scores), words).values():
        candidates = [] if is_curve(rows) else list(rows.itertuples())
        learned = [one for name in words.features for one in candidates if one.features == name]
        linear = [one for one in learned if one.method == "linear"]
        by_probe: dict[tuple[str, str], dict[str, Row]] = {}
        for one in candidates:
            by_probe.setdefault((one.method, one.metric), {})[one.features] = one
        for one in (linear or learned or candidates)[:1]:
            found.append(Headline(one, by_probe[one.method, one.metric], by_probe))
    return found


def feature_title(name: str, words: Words) -> str:
    """Return features in words."""
    if name.startswith("random"):
        return f"untrained{name.removeprefix('random').replace(' ', ', ', 1)}"
    return f"CPC, {name}" if name in words.features else words.titles.get(name, name)


def feature_order(name: str, words: Words) -> tuple[int, str]:
    """Return the sort key of features in a table: untrained, baselines, learned, others."""
    learned = {feature: 2 + n for n, feature in enumerate(sorted(words.features, reverse=True))}
    place = 0 if name.startswith("random") else 1 if name in words.baselines else 9
    return learned.get(name, place), name


def row_title(features: str, method: str, words: Words) -> str:
    """Return features and method in words; a linear probe is not mentioned."""
    how = {"linear": "", "hidden": ", hidden", "knn": ", kNN"}.get(method, f", {method}")
    return feature_title(features, words) + ("" if features == "supervised" else how)


def task_phrase(score: Row) -> str:
    """Return the task, data and unit of a score within a sentence."""
    return f"{score.task.replace('_', ' ')} of {score.data} by {score.unit}"


def capitalize(text: str) -> str:
    """Capitalize the first letter of a text and keep the others.

    >>> capitalize("few_labels"), capitalize("ABX")
    ('Few labels', 'ABX')
    """
    return text[:1].upper() + text[1:].replace("_", " ")


def group_title(task: str, data: str, unit: str) -> str:
    """Return the title of a panel."""
    return f"{task.replace('_', ' ')} by {unit}\n{data}"


def column_of(metric: str) -> str:
    """Return the head of a column.

    >>> column_of("error rate")
    'error rate, %'
    """
    return f"{metric}, {unit_of(metric)}" if unit_of(metric) not in ("", metric) else metric


def color_of(features: str, words: Words) -> str:
    """Return the color of features, the same in all figures."""
    if features.startswith("random"):
        return GRAY
    return ORANGE if features in words.baselines else {"z": GREEN, "c": BLUE}.get(features, INK)


def value_axis(values: Any, metric: str) -> Any:
    """Return values for an axis, fractions in percent."""
    return 100 * values if in_percent(metric) else values


def metric_title(metric: str) -> str:
    """Return the label of an axis.

    >>> metric_title("accuracy"), metric_title("nats")
    ('accuracy, percent', 'nats')
    """
    return f"{metric}, percent" if in_percent(metric) else metric
