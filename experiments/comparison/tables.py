"""Runs beside each other as tables: one row a cell, and what each question found."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cpc.report.engine import Table, duration
from cpc.results import Cell, Frame, last_known, settings, show_value, unit_of
from experiments.comparison.questions import (
    NOTE,
    Question,
    answers,
    estimate,
    has_curve,
    headline,
    lead_of,
    one_row,
    short_title,
    show_estimate,
    show_lead,
    show_nats,
)


def cell_table(
    cells: Sequence[Cell],
    scores: Frame,
    failed: Sequence[str],
    paper: Mapping[str, str],
    with_leads: bool = False,
) -> Table:
    """Return one row a cell: settings, information, headline scores, seeds, steps and time."""
    import pandas as pd

    names = [cell.name for cell in cells]
    keys = settings(cells)
    ends = [key.rsplit(".", 1)[-1] for key in keys]
    columns: dict[str, list[Any]] = {"cell": names}
    for key, end in zip(keys, ends, strict=True):
        columns[end if ends.count(end) == 1 else key] = [setting(value) for value in keys[key]]
    bounds = scores[scores.task == "information"]
    nats = [one_row(bounds, name) for name in names]
    columns["log N − L, nats"] = [
        (row.value, row.low, row.high, row.method == "bound") if row else None for row in nats
    ]
    formats: dict[str, Any] = {"log N − L, nats": show_nats}
    for question in headline(scores):
        rows = [one_row(answers(question, scores), name) for name in names]
        head = f"{question.title}, {unit_of(question.metric)}".rstrip(", ")
        columns[head], formats[head] = [estimate(row) for row in rows], show_estimate
        for over in ("over_untrained", "over_first") if with_leads else ():
            head = f"{short_title(question, headline(scores))}: {over.replace('_', ' ')}"
            columns[head], formats[head] = [lead_of(row, over) for row in rows], show_lead
    if paper:
        columns["paper"] = [paper.get(name, "") for name in names]
    columns["seeds"] = [seeds_text(cell) for cell in cells]
    columns["steps"] = [steps_text(cell) for cell in cells]
    columns["training"] = [time_text(cell) for cell in cells]
    rows = [*zip(*columns.values(), strict=True)]
    rows += [(name, *[None] * (len(columns) - 1)) for name in failed]
    frame = pd.DataFrame(rows, columns=pd.Index(list(columns)), dtype=object)
    return Table("One row a cell", frame, NOTE, formats)


def setting(value: Any) -> str:
    """Return a config's value in a table."""
    return (
        "–"
        if value is None
        else ", ".join(map(str, value))
        if isinstance(value, list)
        else str(value)
    )


def seeds_text(cell: Cell) -> int | str:
    """Return the number of seeds; of how many, where some are not at their end."""
    ended = sum(run.num_steps is None or run.step >= run.num_steps for _, run in cell.runs)
    return f"{ended} of {len(cell.runs)}" if 0 < ended < len(cell.runs) else len(cell.runs)


def steps_text(cell: Cell) -> str:
    """Return the steps made, and of how many where a run is not at its end."""
    texts = []
    for _, run in cell.runs:
        wanted = run.num_steps
        done = f"{run.step:,}"
        short = wanted is not None and run.step < wanted
        texts.append(f"{done} of {wanted:,}" if short else done)
    return ", ".join(dict.fromkeys(texts))


def time_text(cell: Cell) -> str:
    """Return the mean time of training."""
    seconds = [last_known(run.train, "seconds") for _, run in cell.runs]
    known = [one for one in seconds if math.isfinite(one)]
    return duration(float(np.mean(known))) if known else "–"


def question_table(question: Question, scores: Frame) -> Table:
    """Return one question of every cell, with the untrained network's and the single seeds."""
    import pandas as pd

    random = question._replace(features=f"random {question.features}")
    untrained, has_labels = answers(random, scores), has_curve(question, scores)
    lines = []
    for row in answers(question, scores).itertuples():
        beside = untrained[untrained.num_train.eq(row.num_train) | untrained.num_train.isna()]
        line: dict[str, Any] = {"cell": row.cell}
        if has_labels:
            line["labels"] = row.num_train
        line[question.metric] = estimate(row)
        line["untrained"] = estimate(one_row(beside, str(row.cell)))
        line["over untrained"] = lead_of(row, "over_untrained")
        line["over the first"] = lead_of(row, "over_first")
        seeds = [show_value(one, question.metric) for one in row.by_seed]
        lines.append(line | {"by seed": ", ".join(seeds) if len(seeds) > 1 else ""})
    formats: dict[str, Any] = {question.metric: show_estimate, "untrained": show_estimate}
    formats |= {"over untrained": show_lead, "over the first": show_lead}
    title = f"{question.title[:1].upper()}{question.title[1:]}"
    unit = f"In {unit_of(question.metric)}." if unit_of(question.metric) else ""
    return Table(title, pd.DataFrame(lines, dtype=object), unit, formats)


def runs_table(cells: Sequence[Cell]) -> Table:
    """Return directory and command of each run."""
    import pandas as pd

    rows = [
        {
            "run": name,
            "directory": str(run.workdir),
            "command": str(run.environment.get("command", "")),
        }
        for cell in cells
        for name, run in cell.runs
    ]
    return Table(f"Directories and commands ({len(rows)})", pd.DataFrame(rows))
