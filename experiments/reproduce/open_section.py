"""Each choice that the paper leaves open, and what another makes of it."""

from typing import Any

import pandas as pd

from cpc.report.engine import Section, Table
from cpc.results import Frame
from cpc.results.compare import UNKNOWN
from experiments.reproduce.cells import IMAGE, MIXED, kind_of
from experiments.reproduce.claims import IMAGES_TABLE, PHONES_TABLE, PaperTable
from experiments.reproduce.estimates import combine, in_percent, lead
from experiments.reproduce.read import Reproduction
from experiments.reproduce.show import show_estimate, show_lead


def open_section(reproduction: Reproduction) -> Section:
    """Return each choice that the paper leaves, what it is here, and what another makes of it."""
    heads = {"open": "what", "here": "choice", "varied as": "change"}
    tables = []
    for base, table, features in ((MIXED, PHONES_TABLE, "c"), (IMAGE, IMAGES_TABLE, "z")):
        kind, formats = kind_of(base), {}
        known = reproduction.plan["open"]
        rows = [one for one in known if one.get("kind", kind_of(one["cell"])) == kind]
        if not rows:
            continue
        frame = pd.DataFrame({head: [one[key] for one in rows] for head, key in heads.items()})
        scores = linear_scores(reproduction.scores, table, features)
        varied = scores[scores.cell.isin([one["cell"] for one in rows])]
        for data, of_data in scores[scores.data.isin(varied.data)].groupby("data"):
            found = [compare_with(of_data, one["cell"], base) for one in rows]
            percent, over = f"{table.task} %, {data}", f"over {base}, {data}"
            frame[percent], frame[over] = zip(*found, strict=True)
            formats |= {percent: show_estimate, over: show_lead}
        note = f"A linear probe on {features} by {table.unit}; points over the cell {base}."
        tables.append(Table(f"Choices for {kind}", frame, note, formats))
    return Section("What the paper leaves open", tables=tables)


def linear_scores(scores: Frame, table: PaperTable, features: str) -> Frame:
    """Return the scores of a table's task by a linear probe on some features."""
    asked = {"task": table.task, "unit": table.unit, "metric": table.metric}
    asked |= {"features": features, "method": "linear"}
    return scores[(scores[list(asked)] == pd.Series(asked)).all(axis=1)]


def compare_with(scores: Frame, cell: str, base: str) -> tuple[Any, Any]:
    """Return what a cell measured, and how much more that is than its base, each with an interval.

    Both are None without a cell, and NaN for what is not measured.
    """
    if not cell:
        return None, None
    ours, theirs = (scores[scores.cell == name] for name in (cell, base))
    value = in_percent(combine(ours)) if len(ours) else UNKNOWN
    over = in_percent(lead(ours, theirs)[0]) if len(ours) and len(theirs) else UNKNOWN
    return value[:3], over[:3]
