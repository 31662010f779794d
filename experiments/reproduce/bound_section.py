"""Log N - L against N, on one device or many, and against the probes: the page's last part."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from cpc.files import flatten, read_json
from cpc.report.engine import Figure, Section, Table, show
from cpc.results import Difference, Frame, at_end, last_evaluation, last_scores
from cpc.types import UserError
from experiments.reproduce.cells import MIXED, OTHER_SHARDS
from experiments.reproduce.claims import PHONES_TABLE
from experiments.reproduce.estimates import combine, in_percent
from experiments.reproduce.figures import bound_and_probe_figure, bound_figure
from experiments.reproduce.open_section import linear_scores
from experiments.reproduce.ranks import rank_correlation
from experiments.reproduce.read import Reproduction, first_run
from experiments.reproduce.show import show_estimate
from experiments.reproduce.trends import bound_and_probe
from experiments.reproduce.verdicts import UNTOLD


def bound_section(reproduction: Reproduction) -> Section:
    """Return log N - L against N, on one device or many, and against the probes."""
    found = read_bound(reproduction.folder)
    known = first.truth if (first := first_run(reproduction, MIXED)) else None
    truth = {} if known is None else dict(zip(known.offset, known.mutual_information, strict=True))
    sentences, figures, tables = [], [], []
    if rows := found.get("rows"):
        frame = pd.DataFrame(rows)
        for name in ("value", "low", "high"):
            frame[name] = frame[name].astype(float)
        caption = (
            "Candidates are latents of other recordings, one of each while there are enough, which "
            "makes log N − L a bound; more latents of the same recordings are not independent, and "
            "it is an estimate that is no bound."
            + (" Dotted: the exact information of the source." if truth else "")
        )
        drawn = bound_figure(frame, truth)
        figures.append(Figure("bound", drawn, "Against the number of negatives", caption))
        table = bound_frame(frame, truth)
        formats = dict.fromkeys(table.columns[1:], show_nats)
        note = "±: half of the 95 % interval over windows. *: an estimate, no bound."
        tables.append(Table("log N − L, nats", table, note, formats))
    else:
        sentences.append("log N − L by number of negatives: not measured.")
    shards = shards_frame(reproduction)
    if {MIXED, OTHER_SHARDS} <= set(shards.cell):
        formats = {"N": ",.0f"} | dict.fromkeys(shards.columns[3:6], ".2f")
        formats |= dict.fromkeys(shards.columns[6:], show_estimate)
        title = "Negatives of a device, or of the whole batch"
        tables.append(Table(title, shards, formats=formats))
    points = bound_and_probe(reproduction, PHONES_TABLE)
    if len(points):
        taus = {str(data): rank_correlation(runs.nats, runs.percent)
                for data, runs in points.groupby("data")}  # fmt: skip
        title = "Whether log N − L predicts the probe"
        drawn = bound_and_probe_figure(points, taus)
        figures.append(Figure("bound_and_probe", drawn, title, predict_sentence(taus)))
    return Section("The bound, which the paper does not tabulate", sentences, figures, tables)


def read_bound(folder: Path) -> dict[str, Any]:
    """Return what was measured by the number of negatives, nothing if that is not done."""
    path = folder / "bound.json"
    try:
        return read_json(path) if path.exists() else {}
    except UserError:
        return {}


def bound_frame(rows: Frame, truth: Mapping[int, float]) -> Frame:
    """Return an offset a row and a number of candidates a column, last the ceilings.

    An entry is (nats, half of the interval, whether it is a bound).
    """
    sizes = sorted(rows.n.unique())
    entries = {(row.offset, row.n): (row.value, (row.high - row.low) / 2, row.is_bound)
               for row in rows.itertuples()}  # fmt: skip
    offsets = sorted(rows.offset.unique())
    columns: dict[str, Any] = {"offset": [*map(str, offsets), "ceiling log N"]}
    for n in sizes:
        column = [entries.get((offset, n)) for offset in offsets]
        columns[f"N = {n:,}"] = [*column, (math.log(n), None, True)]
    if truth:
        exact = [(truth[offset], None, True) if offset in truth else None for offset in offsets]
        columns["truth"] = [*exact, None]
    return pd.DataFrame(columns)


def show_nats(entry: tuple[float, float | None, bool] | None) -> str:
    """Return nats with half the width of their interval, and a star where they are no bound.

    >>> show_nats((-0.014, 0.03, False)), show_nats((4.1589, None, True))
    ('−0.01 ±0.03*', '4.16')
    """
    if entry is None:
        return ""
    value, half, is_bound = entry
    width = "" if half is None else f" ±{show(half, '.2f')}"
    return f"{show(value, '.2f')}{width}{'' if is_bound else '*'}"


def shards_frame(reproduction: Reproduction) -> Frame:
    """Return the runs that differ in negatives.shards alone: N, estimate, bound, and the phones."""
    rows = []
    for cell in (MIXED, OTHER_SHARDS):
        for run in reproduction.runs.get(cell, []):
            own, strict = (at_end(run, last_evaluation(run, which)) for which in (False, True))
            if not len(own):
                continue
            entry = {
                "cell": cell,
                "shards": flatten(run.config).get("negatives.shards"),
                "N": own.n.mean(),
                "log N": own.log_n.mean(),
                "log N − L (estimate)": own.bound.mean(),
                "strict bound": strict.bound.mean() if len(strict) else math.nan,
            }
            scores = linear_scores(at_end(run, last_scores(run.scores)), PHONES_TABLE, "c")
            for data, score in scores.groupby("data"):
                entry[f"phones %, {data}"] = in_percent(combine(score))[:3]
            rows.append(entry)
    frame = pd.DataFrame(rows, columns=None if rows else pd.Index(["cell"]))
    return frame.astype(object).where(frame.notna(), None)


def predict_sentence(taus: Mapping[str, Difference | None]) -> str:
    """Return the rank correlation on each labelled set."""
    parts = []
    for data, tau in taus.items():
        if tau is None:
            parts.append(f"{data}: fewer than four runs that differ")
            continue
        says = "it does" if tau.low > 0 else "it misleads" if tau.high < 0 else UNTOLD
        text = f"Kendall's τ {show_estimate(tau, '.2f')}, p {tau.p_value:.2g}"
        parts.append(f"{data}: {text}: {says}")
    return (
        "A point a run; the strict bound is the mean over the offsets that all of them have. "
        f"Interval: bootstrap over runs. {'; '.join(parts)}."
    )
