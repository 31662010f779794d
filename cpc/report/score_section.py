"""The scores section of a run's page, and the lines that a run prints at its end."""

import itertools
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from cpc.report import draw
from cpc.report.engine import Figure, Section, cells
from cpc.report.scores import (
    all_scores,
    color_of,
    group_title,
    headlines,
    metric_groups,
    metric_title,
    row_title,
    score_table,
    value_axis,
    wrap_rows,
)
from cpc.report.sentences import harm_sentences, lost_sentences
from cpc.report.words import Words
from cpc.results import (
    Frame,
    Run,
    digest,
    last_scores,
    read_run,
    text_table,
)

#: Width of the console, in columns.
WIDTH = 100


def closing_lines(workdir: str | Path, words: Words) -> list[str]:
    """Return a table with a row per task, and warnings about scores, wrapped to `WIDTH`."""
    run = read_run(workdir)
    found = headlines(run.scores, words)
    if not found:
        return []
    table = score_table(found, words)
    rows = [[*table.frame.columns], *cells(table)]
    said = [*harm_sentences(run, found, words), *lost_sentences(found, words)]
    wrapped = itertools.chain.from_iterable(textwrap.wrap(one, WIDTH) for one in said)
    return [*text_table([*wrap_rows(rows, WIDTH)]), *wrapped]


def scores_section(run: Run, words: Words) -> Section | None:
    """Return the section with all scores in figures and a table, or None if there are no scores."""
    last = last_scores(run.scores)
    if not len(last):
        return None
    figures = [*progress_figure(run.scores, words), *curve_figures(last, words)]
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
    return plain if plain == name else f"{plain}-{digest(name)[:8]}"
