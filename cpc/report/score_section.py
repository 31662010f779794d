"""The part of a run's page on scores: figures, a table for each task, learning curves."""

import math
import re
from collections.abc import Sequence
from typing import Any

from cpc.report import figures
from cpc.report.engine import Figure, Section, Table, figure_of
from cpc.report.scores import METHODS, feature_title, is_curve, row_title, score_groups, task_title
from cpc.report.sentences import lead_phrase
from cpc.report.words import Words
from cpc.results import (
    Difference,
    Frame,
    Row,
    Run,
    difference,
    digest,
    last_scores,
    show_value,
    unit_of,
)


def scores_section(run: Run, words: Words) -> Section:
    """Return what evaluators measured: figures, a table for each task, learning curves."""
    title, last = "What the representation knows", last_scores(run.scores)
    if not len(last):
        missing = "No probe has been recorded yet; run the probe command on this directory."
        return Section(title, [missing])
    bars = figure_of(
        "scores",
        figures.scores_figure(last, words),
        "Scores of frozen features",
        f"Bars are scores on test {words.tested}{interval_caption(last, words)}. The dotted line "
        "is the score of knowing nothing, such as always answering the most frequent class. "
        "Training paid off where CPC beats the same network at random "
        f"initialization; CPC is useful where it also beats {baseline_phrase(words)}.",
    )
    progress = figure_of(
        "progress",
        figures.progress_figure(run.scores, words),
        "Scores during training",
        f"Scores at evaluations during training, on test {words.tested}; dashed lines are methods "
        "other than the linear probe. If a curve still improves, train longer; if it gets worse "
        "while the bound rises, the features serve the prediction and not the task.",
    )
    curves = [
        Figure(
            file_name("curve", *group, metric),
            figure,
            f"{table_title(*group)}: {metric} against labels",
            "Scores of a probe on frozen features, or of the whole network, given only this many "
            f"labels{interval_caption(last, words)}. Pretraining pays off where it matches the "
            "supervised network with fewer labels.",
        )
        for *group, metric, figure in figures.curve_figures(last, words)
    ]
    tables = [
        table
        for group, rows in score_groups(last, words).items()
        for table in (
            [curve_table(group, own, words) for _, own in rows.groupby("metric", sort=False)]
            if is_curve(rows)
            else [score_table(group, rows, words)]
        )
    ]
    return Section(title, figures=[*bars, *progress, *curves], tables=tables)


def interval_caption(scores: Frame, words: Words) -> str:
    """Return a clause on the intervals of a figure of scores, which has none with one test item."""
    known = scores.low.notna() & scores.high.notna()
    if not known.any():
        return f"; so few {words.tested} give no interval"
    some = "" if known.all() else " (if there are several)"
    return f", black lines 95 % intervals over {words.tested}{some}"


def file_name(*parts: str) -> str:
    """Return a name for a file, made of names that may hold what a file's may not.

    >>> file_name("curve", "few_labels", "clothes"), file_name("curve", "../x")
    ('curve_few_labels_clothes', 'curve_.._x-2f2408c5')
    """
    name = "_".join(parts)
    plain = re.sub(r"[^\w.-]", "_", name)[:100]
    return plain if plain == name else f"{plain}-{digest(name)[:8]}"


def baseline_phrase(words: Words) -> str:
    """Return the baselines in words."""
    titles = [feature_title(name, words) for name in words.baselines]
    return " and ".join(titles) if titles else "its input"


def score_table(group: tuple[str, str, str], rows: Frame, words: Words) -> Table:
    """Return the scores of a task, each beside the untrained network's with the same method."""
    import pandas as pd

    scores = list(rows.itertuples())
    by_method: dict[tuple, list[Row]] = {}
    for score in scores:
        by_method.setdefault((score.features, score.method), []).append(score)
    first, lines, strong = scores[0], [], []
    metrics = list(dict.fromkeys(score.metric for score in scores))
    chances = rows.groupby("metric").chance
    is_own = chances.nunique().gt(1).any()  # of boundaries: by how many each of the features finds
    if not is_own and rows.chance.notna().any():
        line = {column_of(str(metric)): chance for metric, chance in chances.first().items()}
        lines.append({"features": "chance", **line, "95 % interval": None})
    for (features, method), found in by_method.items():
        strong += [len(lines)] * (features in words.features)
        line: dict[str, Any] = {
            "features": feature_title(features, words),
            "method": METHODS.get(method, method),
        }
        for score in found:
            line[column_of(score.metric)] = score.value
        if is_own:
            line["chance"] = " and ".join(show_value(score.chance, score.metric) for score in found)
        line["95 % interval"] = (found[0].low, found[0].high, found[0].metric)
        if lead := over_untrained(found[0], scores):
            line["over untrained"] = (*lead[:3], found[0].metric)
        lines.append(line | {"setting": found[0].setting})
    heads = ("features", "method", *map(column_of, metrics))
    order = (*heads, "chance", "95 % interval", "over untrained", "setting")
    columns = [name for name in order if any(name in line for line in lines)]
    frame = pd.DataFrame([{name: line.get(name) for name in columns} for line in lines])
    formats: dict[str, Any] = {
        column_of(metric): lambda value, metric=metric: shown(value, metric) for metric in metrics
    }
    formats["95 % interval"] = show_ends
    formats["over untrained"] = lambda lead: lead_phrase(lead[:3], lead[3]) if lead else ""
    return Table(table_title(*group), frame, score_note(first, rows, words), formats, strong)


def column_of(metric: str) -> str:
    """Return the head of a column.

    >>> column_of("error rate")
    'error rate, %'
    """
    return f"{metric}, {unit_of(metric)}" if unit_of(metric) not in ("", metric) else metric


def shown(value: float | int | None, metric: str) -> str:
    """Return a value, nothing where there is none."""
    return "" if value is None or math.isnan(value) else show_value(value, metric)


def show_ends(ends: tuple[float, float, str] | None) -> str:
    """Return an interval, nothing where there is none."""
    if not isinstance(ends, tuple) or math.isnan(ends[0] + ends[1]):
        return ""
    return f"{show_value(ends[0], ends[2])} to {show_value(ends[1], ends[2])}"


def over_untrained(score: Row, scores: Sequence[Row]) -> Difference | None:
    """Return how much larger a score is than the untrained network's with the same method."""
    for other in scores:
        same = (other.method, other.metric) == (score.method, score.metric)
        if same and other.features == f"random {score.features}":
            return difference(score, other)
    return None


def table_title(task: str, data: str, unit: str) -> str:
    """Return the title of a task's table."""
    return f"{task_title(task)} by {unit}, {data}"


def score_note(first: Row, rows: Frame, words: Words) -> str:
    """Return what the scores of a table were measured on."""
    parts = []
    if math.isfinite(first.num_train):
        parts.append(f"fitted on {first.num_train:,.0f} labeled items")
    if math.isfinite(first.num_test):
        parts.append(f"tested on {first.num_test:,.0f} {first.unit}s")
    note = f"{', '.join([*parts, f'at step {first.step:,}']).capitalize()}."
    if not rows.higher_is_better.all():
        note += " Lower is better."
    if rows.low.notna().any():
        note += f" Intervals: over test {words.tested}."
    if any(name.startswith("random") for name in rows.features):
        note += (
            " Over untrained: the difference from the same network at random initialization by "
            f"the same method, on the same {words.tested} where these were recorded."
        )
    return note


def curve_table(group: tuple[str, str, str], rows: Frame, words: Words) -> Table:
    """Return scores of one metric by number of labels, a row for each way to use them."""
    import pandas as pd

    counts = rows.drop_duplicates("num_train").sort_values("num_train")
    heads = {
        row.num_train: f"{row.num_train:,.0f}" + (f" ({row.setting})" if row.setting else "")
        for row in counts.itertuples()
    }
    lines = []
    for (features, method), line in rows.groupby(["features", "method"], sort=False):
        cells = {heads[score.num_train]: score for score in line.itertuples()}
        values = {
            head: (one.value, one.low, one.high, one.metric) if (one := cells.get(head)) else None
            for head in heads.values()
        }
        lines.append({"features": row_title(features, method, words), **values})
    note = "Half-widths of 95 % intervals over test items and, where several were drawn, subsets."
    formats = dict.fromkeys(heads.values(), show_half_width)
    metric = rows.metric.iloc[0]
    title = f"{table_title(*group)}: {column_of(metric)} by number of labels"
    return Table(title, pd.DataFrame(lines), note, formats)


def show_half_width(cell: tuple[float, float, float, str] | None) -> str:
    """Return a value and half the width of its interval.

    >>> show_half_width((0.512, 0.5, 0.53, "accuracy"))
    '51.2 ± 1.5'
    """
    if not isinstance(cell, tuple):
        return ""
    value, low, high, metric = cell
    half = (high - low) / 2
    return show_value(value, metric) + (
        f" ± {show_value(half, metric)}" if math.isfinite(half) else ""
    )
