"""The part of a run's page on scores: figures, a table for each task, learning curves."""

import functools
import math
import re
from typing import Any

from cpc.report import figures
from cpc.report.engine import Figure, Section, Table, figure_of
from cpc.report.scores import (
    METHODS,
    capitalize,
    column_of,
    feature_title,
    interval_phrase,
    lead_phrase,
    row_title,
    score_groups,
    split_curve,
)
from cpc.report.words import Words
from cpc.results import Frame, Row, Run, difference, digest, last_scores, show_value


def scores_section(run: Run, words: Words) -> Section:
    """Return figures of the scores, a table for each task, and learning curves."""
    title, last = "What the representation knows", last_scores(run.scores)
    if not len(last):
        missing = "No probe has been recorded yet; run the probe command on this directory."
        return Section(title, [missing])
    baselines = " and ".join(feature_title(name, words) for name in words.baselines) or "its input"
    bars = figure_of(
        "scores",
        figures.scores_figure(last, words),
        "Scores of frozen features",
        f"Bars are scores on test {words.tested}{interval_caption(last, words)}. The dotted line "
        "is the score of knowing nothing, such as always answering the most frequent class. "
        "Training paid off where CPC beats the same network at random "
        f"initialization; CPC is useful where it also beats {baselines}.",
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
        for (*group, metric), figure in figures.curve_figures(last, words).items()
    ]
    tables = []
    for group, rows in score_groups(last, words).items():
        curve, others = split_curve(rows)
        by_metric = curve.groupby("metric", sort=False)
        tables += [curve_table(group, own, words) for _, own in by_metric]
        tables += [score_table(group, others, words)] if len(others) else []
    return Section(title, figures=[*bars, *progress, *curves], tables=tables)


def interval_caption(scores: Frame, words: Words) -> str:
    """Return a clause on the intervals of a figure of scores."""
    known = scores.low.notna() & scores.high.notna()
    if not known.any():
        return f"; so few {words.tested} give no interval"
    some = "" if known.all() else " (if there are several)"
    return f", black lines 95 % intervals over {words.tested}{some}"


def file_name(*parts: str) -> str:
    """Return the name of a file for texts with any characters.

    >>> file_name("curve", "few_labels", "clothes"), file_name("curve", "../x")
    ('curve_few_labels_clothes', 'curve_.._x-2f2408c5')
    """
    name = "_".join(parts)
    plain = re.sub(r"[^\w.-]", "_", name)[:100]
    return plain if plain == name else f"{plain}-{digest(name)[:8]}"


def score_table(group: tuple[str, str, str], rows: Frame, words: Words) -> Table:
    """Return the scores of a task, each next to the untrained network's with the same method."""
    import pandas as pd

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
    """Format a value; "" if there is none."""
    return "" if value is None or math.isnan(value) else show_value(value, metric)


def table_title(task: str, data: str, unit: str) -> str:
    """Return the title of a task's table."""
    return f"{capitalize(task)} by {unit}, {data}"


def score_note(first: Row, rows: Frame, words: Words) -> str:
    """Return how the scores of a table were measured."""
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
    """Return scores of one metric by number of labels, one row per features and method."""
    import pandas as pd

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
