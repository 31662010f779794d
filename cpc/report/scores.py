"""Scores as pages show them: their groups, order, names and colors."""

from typing import Any, NamedTuple, TypeAlias

from cpc.report.draw import BLUE, GRAY, GREEN, INK, ORANGE
from cpc.report.words import Words
from cpc.results import Frame, Row, in_percent

#: (task, data, unit) -> its scores, from baselines to what was learned.
Groups: TypeAlias = dict[tuple[str, str, str], Frame]

#: How features were used, in the order of tables, with the words for it.
METHODS = {
    "linear": "linear",
    "hidden": "one hidden layer",
    "sgd": "linear, SGD",
    "ridge": "ridge regression",
    "knn": "nearest neighbors",
}


class Headline(NamedTuple):
    """The score by which a task is judged first."""

    score: Row
    rows: Frame
    """All scores of its task, data and unit."""


def score_groups(scores: Frame, words: Words) -> Groups:
    """Return scores by task, data and unit, as asked, each from baselines to what was learned."""
    if not len(scores):
        return {}

    def ordered(rows: Frame) -> Frame:
        rank = [
            (method_order(row.method), feature_order(row.features, words), number)
            for number, row in enumerate(rows.itertuples())
        ]
        return rows.iloc[sorted(range(len(rows)), key=rank.__getitem__)]

    groups = scores.groupby(["task", "data", "unit"], sort=False)
    return {(str(task), str(data), str(unit)): ordered(rows) for (task, data, unit), rows in groups}


def is_curve(rows: Frame) -> bool:
    """Return whether scores of one task show how they grow with the number of labels."""
    return bool(
        rows.groupby(["features", "method", "metric", "step"]).num_train.nunique().max() > 1
    )


def headlines(groups: Groups, words: Words) -> list[Headline]:
    """Return what each task that is no curve is judged by: linear, on the first features."""
    found = []
    for rows in groups.values():
        scores = [] if is_curve(rows) else list(rows.itertuples())
        learned = [score for name in words.features for score in scores if score.features == name]
        linear = [score for score in learned if score.method == "linear"]
        found += [Headline(score, rows) for score in (linear or learned or scores)[:1]]
    return found


def feature_title(name: str, words: Words) -> str:
    """Return features in words."""
    if name.startswith("random"):
        return f"untrained{name.removeprefix('random').replace(' ', ', ', 1)}"
    return f"CPC, {name}" if name in words.features else words.titles.get(name, name)


def feature_order(name: str, words: Words) -> tuple[int, str]:
    """Return the place of features in a table: baselines first, then what was learned."""
    learned = {feature: 2 + n for n, feature in enumerate(sorted(words.features, reverse=True))}
    place = 0 if name.startswith("random") else 1 if name in words.baselines else 9
    return learned.get(name, place), name


def method_order(name: str) -> int:
    """Return the place of a method in a table, the unknown ones last."""
    return list(METHODS).index(name) if name in METHODS else len(METHODS)


def row_title(features: str, method: str, words: Words) -> str:
    """Return features and method in words; a linear probe goes without saying."""
    how = {"linear": "", "hidden": ", hidden", "knn": ", kNN"}.get(method, f", {method}")
    title = feature_title(features, words)
    return title if features == "supervised" else title + how


def task_title(task: str) -> str:
    """Return the name of a task at the beginning of a sentence.

    >>> task_title("few_labels"), task_title("ABX")
    ('Few labels', 'ABX')
    """
    return task[:1].upper() + task[1:].replace("_", " ")


def group_title(task: str, data: str, unit: str) -> str:
    """Return task, unit and data of a panel."""
    return f"{task.replace('_', ' ')} by {unit}\n{data}"


def color_of(features: str, words: Words) -> str:
    """Return the same color for the same features everywhere."""
    if features.startswith("random"):
        return GRAY
    if features in words.baselines:
        return ORANGE
    return {"z": GREEN, "c": BLUE}.get(features, INK)


def value_axis(values: Any, metric: str) -> Any:
    """Return values as an axis shows them: percent of what lies in 0..1."""
    return 100 * values if in_percent(metric) else values
