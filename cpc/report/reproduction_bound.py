"""What the paper lacks: log N - L by the number of negatives, and whether it predicts the probe."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cpc.report import markup
from cpc.report.claims import TABLES
from cpc.report.comparison import (
    Cell,
    Estimate,
    Probe,
    accuracy,
    probes_of,
    watched,
    with_interval,
)
from cpc.report.draw import shown
from cpc.report.records import mean_known, read_json
from cpc.report.reproduction import (
    NUM_DRAWS,
    Reproduction,
    independence,
    kendall_tau,
    labelled_sets,
)
from cpc.report.reproduction_figures import bound_and_probe_figure, bound_figure


def bound_section(reproduction: Reproduction) -> str:
    """Log N - L against N, on one device or many, and against the probes."""
    found = read_json(reproduction.folder / "bound.json") or {}
    rows, truth = found.get("rows", []), found.get("truth")
    points = bound_and_probe(reproduction.cells)
    taus = {data: correlation(runs) for data, runs in points.items()}
    words = (
        "Candidates are latents of other recordings, one of each while there are enough, which "
        "makes log N − L a bound; more latents of the same recordings are not independent, and it "
        "is a score." + (" Dotted: the exact information of the source." if truth else "")
    )
    groups = groups_rows(reproduction)
    return markup.section(
        "The bound, which the paper does not tabulate",
        shown(bound_figure(rows, truth), "Against the number of negatives", words) if rows else "",
        markup.table(
            *bound_table(rows, truth),
            title="log N − L, nats",
            caption="±: half of the 95 % interval over windows. *: a score, no bound.",
            style="wrapping",
        )
        if rows
        else markup.paragraph("log N − L by number of negatives: not measured."),
        markup.table(*groups, title="Negatives of a device, or of the whole batch")
        if groups
        else "",
        shown(
            bound_and_probe_figure(points, taus),
            "Whether log N − L predicts the probe",
            predict_sentence(taus),
        )
        if points
        else "",
    )


def correlation(runs: Sequence[tuple[str, float, float]]) -> tuple[Estimate, float] | None:
    """Of bound and accuracy over runs."""
    return rank_correlation([bound for _, bound, _ in runs], [accuracy for *_, accuracy in runs])


def predict_sentence(taus: dict[str, tuple[Estimate, float] | None]) -> str:
    """The rank correlation on each labelled set."""
    parts = []
    for data, found in taus.items():
        if found is None:
            parts.append(f"{data}: fewer than four runs that differ")
            continue
        tau, p = found
        says = "it does" if tau.low > 0 else "it misleads" if tau.high < 0 else "cannot be told"
        parts.append(f"{data}: Kendall's τ {with_interval(tau, 1, '.2f')}, p {p:.2g}: {says}")
    return (
        "A point a run; the strict bound is the mean over the offsets that all of them have. "
        f"Interval: bootstrap over runs. {'; '.join(parts)}."
    )


def bound_table(
    rows: Sequence[dict[str, Any]], truth: dict[str, Any] | None
) -> tuple[list[str], list[list[str]]]:
    """An offset a row, a number of candidates a column."""
    sizes = sorted({row["n"] for row in rows})
    values = {(row["offset"], row["n"]): row for row in rows}
    known = dict(zip(*truth.values(), strict=True)) if truth else {}
    body = []
    for offset in sorted({row["offset"] for row in rows}):
        cells = [values.get((offset, n)) for n in sizes]
        texts = [nats_text(cell) if cell else "" for cell in cells]
        exact = [f"{known[offset]:.2f}" if offset in known else ""] * bool(truth)
        body.append([str(offset), *texts, *exact])
    ceilings = ["ceiling log N", *(f"{math.log(n):.2f}" for n in sizes), *[""] * bool(truth)]
    head = ["offset", *(f"N = {n:,}" for n in sizes), *["truth"] * bool(truth)]
    return head, [*body, ceilings]


def nats_text(row: dict[str, Any]) -> str:
    """With half the width of its interval, and a star where it is no bound.

    >>> nats_text({"value": -0.014, "low": -0.044, "high": 0.016, "is_bound": False})
    '−0.01 ±0.03*'
    """
    value = f"{row['value']:.2f}".replace("-", "−")
    half = markup.number_text((row["high"] - row["low"]) / 2, ".2f")
    return f"{value} ±{half}" + "*" * (not row["is_bound"])


def groups_rows(reproduction: Reproduction) -> tuple[list[str], list[list[str]]] | None:
    """Cells that differ in negatives.groups alone: N, the score, the bound, and the phones."""
    table = next(table for table in TABLES if table.number == "2")
    sets = labelled_sets(reproduction.cells, table)
    rows = []
    for name in ("mixed", "open-groups"):
        cell = reproduction.cells.get(name)
        for run in cell.runs if cell else []:
            if not run.tests:
                continue
            score, strict = next(iter(run.tests.values()))[-1], watched(run)[-1]
            known = probes_of(run)
            phones = [known.get(Probe("phones", data, "frame", "c", "linear")) for data in sets]
            rows.append(
                [
                    name,
                    str(run.config.get("negatives", {}).get("groups", "")),
                    f"{mean_known(score['n']):,.0f}",
                    f"{mean_known(score['log_n']):.2f}",
                    f"{mean_known(score['bound']):.2f}",
                    f"{mean_known(strict['bound']):.2f}" if strict.get("is_bound") else "",
                    *(with_interval(accuracy([row]), 100, ".1f") if row else "" for row in phones),
                ]
            )
    head = ["cell", "devices' groups", "N", "log N", "log N − L (score)", "strict bound"]
    head += [f"phones %, {data}" for data in sets]
    return (head, rows) if {row[0] for row in rows} == {"mixed", "open-groups"} else None


def bound_and_probe(
    cells: Mapping[str, Cell], task: str = "phones"
) -> dict[str, list[tuple[str, float, float]]]:
    """By labelled set: name, strict bound in nats and accuracy in percent of each cell.

    The bound is the mean over those offsets that all cells have; cells whose bound was measured
    with another N than most are left out.
    """
    found = []
    for name, cell in cells.items():
        for run in cell.runs:
            records = watched(run)
            rows = {p.data: row for p, row in probes_of(run).items() if is_headline(p, task)}
            if records and records[-1].get("is_bound") and rows:
                found.append((name, records[-1], rows))
    sizes = [round(max(record["n"])) for _, record, _ in found]
    usual = max(sizes, key=sizes.count, default=0)
    kept = [one for one, size in zip(found, sizes, strict=True) if size == usual]
    if not kept:
        return {}
    shared = set.intersection(*(set(record["offsets"]) for _, record, _ in kept))
    points: dict[str, list[tuple[str, float, float]]] = {}
    for name, record, rows in kept:
        pairs = zip(record["offsets"], record["bound"], strict=True)
        bound = float(np.mean([value for k, value in pairs if k in shared]))
        for data, row in rows.items():
            if math.isfinite(bound):
                points.setdefault(data, []).append((name, bound, 100 * row["accuracy"]))
    return dict(sorted(points.items()))


def is_headline(probe: Probe, task: str) -> bool:
    """Linear, on c, by frame."""
    return (probe.task, probe.unit, probe.features, probe.probe) == (task, "frame", "c", "linear")


def rank_correlation(
    x: Sequence[float | int], y: Sequence[float | int]
) -> tuple[Estimate, float] | None:
    """Kendall's tau of two lists with a bootstrap interval over their pairs, and p.

    Nothing for less than four pairs, or where all of a list are equal.
    """
    if len(x) < 4:
        return None
    a, b = np.asarray(x, float), np.asarray(y, float)
    tau, p = independence(a, b)
    if not math.isfinite(tau):
        return None
    drawn = np.random.default_rng(0).integers(len(a), size=(NUM_DRAWS, len(a)))
    low, high = np.nanquantile(kendall_tau(a[drawn], b[drawn]), [0.025, 0.975])
    return Estimate(tau, float(low), float(high)), p
