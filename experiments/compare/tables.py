"""Tables that compare runs: one with a row per cell, and one with all scores."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from cpc.report.engine import Table, duration
from cpc.report.scores import METHODS, lead_phrase
from cpc.results import QUESTION, Cell, Frame, Run, last_known, settings, show_value, unit_of

NOTE = (
    "All intervals are 95 % intervals. With one seed, they are over test items. With several, they "
    "are over test items and finished seeds (Student's). Over untrained: the difference from the "
    "same network at random initialization by the same method. Over the first: the difference from "
    "the first cell. Differences are paired by items or seeds if these are recorded, and otherwise "
    "computed from two independent intervals. The more cells, the more of them differ by chance."
)
LEARNED = ("c", "z")


class ScoreKey(NamedTuple):
    """A question: the quantity that comparable scores of different cells measure."""

    task: str
    data: str
    unit: str
    features: str
    method: str
    metric: str

    @property
    def title(self) -> str:
        """The question in words, with all fields."""
        method = METHODS.get(self.method, self.method)
        metric = "" if self.metric == "accuracy" else f", {self.metric}"
        return f"{self.task} by {self.unit}, {self.data}, {method} on {self.features}{metric}"


def headline(scores: Frame) -> list[ScoreKey]:
    """Return the main question of each task, preferably a linear probe of learned features."""
    learned = scores[(scores.task != "information") & scores.features.isin(LEARNED)]
    keys = learned[list(QUESTION)].drop_duplicates().itertuples(index=False)
    first: dict[tuple, ScoreKey] = {}
    for one in sorted((ScoreKey(*key) for key in keys), key=lambda one: one.method != "linear"):
        has_curve = answers(one, scores).num_train.nunique() > 1  # several numbers of labels
        if one.method == "linear" or not has_curve:
            first.setdefault((one.task, one.data, one.unit, one.metric), one)
    return list(first.values())


def answers(question: ScoreKey, scores: Frame) -> Frame:
    """Return the rows of a score frame that answer a question."""
    chosen = scores[list(QUESTION)] == list(question)
    return scores[chosen.all(axis=1)]


def one_per_cell(rows: Frame) -> Frame:
    """Return the row of each cell with the most labels."""
    return rows.sort_values("num_train").drop_duplicates("cell", keep="last")


def show_estimate(row: Any) -> str:
    """Format a row's value with its interval."""
    ends = (row.value, row.low, row.high)
    value, low, high = (show_value(one, row.metric).replace("-", "−") for one in ends)
    return f"{value} ({low} to {high})" if math.isfinite(row.low + row.high) else value


def show_nats(row: Any) -> str:
    """Format log N - L with its interval and offsets. Estimates are marked as such."""
    end = "" if row.method == "bound" else " (estimate)"
    return ", ".join(filter(None, [show_estimate(row), row.setting])) + end


def show_lead(row: Any, over: str) -> str:
    """Format a row's difference in the columns `over`. A missing difference becomes ""."""
    if math.isnan(getattr(row, over)):
        return ""
    difference = (getattr(row, f"{over}{end}") for end in ("", "_low", "_high"))
    return lead_phrase(tuple(difference), row.metric)


def cell_table(
    cells: Sequence[Cell], scores: Frame, failed: Sequence[str], with_leads: bool = False
) -> Table:
    """Return a table with one row per cell: settings, log N - L, scores, seeds, steps and time."""
    names, keys = [cell.name for cell in cells], settings(cells)
    ends = [key.rsplit(".", 1)[-1] for key in keys]
    columns: dict[str, list[Any]] = {"cell": names}
    for key, end in zip(keys, ends, strict=True):
        columns[end if ends.count(end) == 1 else key] = [setting(value) for value in keys[key]]

    def add(head: str, rows: Frame, show: Callable[..., str], *options: str) -> None:
        texts = {row.cell: show(row, *options) for row in one_per_cell(rows).itertuples()}
        columns[head] = [texts.get(name, "") for name in names]

    add("log N − L, nats", scores[scores.task == "information"], show_nats)
    for question in headline(scores):
        rows, unit = answers(question, scores), unit_of(question.metric)
        add(f"{question.title}, {unit}".rstrip(", "), rows, show_estimate)
        for over in ("over_untrained", "over_first") if with_leads else ():
            add(f"{question.title}: {over.replace('_', ' ')}", rows, show_lead, over)
    columns |= {"seeds": [seeds_text(cell) for cell in cells], "steps": [], "training": []}
    for cell in cells:
        steps = [steps_text(run) for _, run in cell.runs]
        columns["steps"].append(", ".join(dict.fromkeys(steps)))
        seconds: Any = pd.Series([last_known(run.train, "seconds") for _, run in cell.runs])
        columns["training"].append(duration(seconds.mean()) if seconds.notna().any() else "–")
    rows = [*zip(*columns.values(), strict=True)]
    rows += [(name, *[None] * (len(columns) - 1)) for name in failed]
    frame = pd.DataFrame(rows, columns=pd.Index(list(columns)), dtype=object)
    return Table("One row per cell", frame, NOTE)


def setting(value: Any) -> str:
    """Format a config value."""
    if value is None:
        return "–"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def seeds_text(cell: Cell) -> int | str:
    """Return a cell's number of seeds, or a text such as "2 of 3" if some are unfinished."""
    ended = sum(run.num_steps is None or run.step >= run.num_steps for _, run in cell.runs)
    return f"{ended} of {len(cell.runs)}" if 0 < ended < len(cell.runs) else len(cell.runs)


def steps_text(run: Run) -> str:
    """Format a run's last step. If the run is unfinished, add its total number of steps."""
    return f"{run.step:,}" + ("" if run.step >= (run.num_steps or 0) else f" of {run.num_steps:,}")


def all_scores(scores: Frame) -> Table:
    """Return a table of all scores, with their differences and each seed's value."""
    rows = scores[scores.task != "information"]
    lines = [
        {
            **{name: getattr(row, name) for name in ("cell", *QUESTION)},
            "labels": row.num_train,
            "score": show_estimate(row),
            "over untrained": show_lead(row, "over_untrained"),
            "over the first": show_lead(row, "over_first"),
            "by seed": ", ".join(show_value(one, row.metric) for one in row.by_seed),
        }
        for row in rows.itertuples()
    ]
    return Table(f"All {len(lines)} scores", pd.DataFrame(lines, dtype=object))
