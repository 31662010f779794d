"""The page that lays runs beside each other: comparison.html, .md and .json."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpc.report import markup
from cpc.report.comparison import (
    Cell,
    Estimate,
    Probe,
    ProbeRow,
    accuracy,
    all_probes,
    by_seed,
    differing_keys,
    headline,
    learned,
    nats,
    probe_row,
    probe_title,
    read_cells,
    stem,
    steps_of,
    value_of,
    watched,
    with_interval,
)
from cpc.report.comparison_figures import curves_figure, dots_figure
from cpc.report.draw import to_png
from cpc.report.records import known
from cpc.report.verdict import duration
from cpc.types import UserError

#: A column: its head and its cells.
Column = tuple[str, list[str]]
Table = tuple[list[str], list[list[str]]]

NOTE = (
    "Intervals are of 95 %. Of one seed they are over test items; of several, Student's t-interval "
    "of the mean over seeds, which says nothing about other test items. Over untrained: points "
    "above the same network at random initialisation with the same probe. Over the first: points "
    "above the first cell. Both are differences on the same items or the same seeds where those "
    "are recorded, else of two intervals taken as independent. The more cells, the more of them "
    "exceed the first by chance."
)


def write_comparison(
    runs: Sequence[tuple[str, Path]], folder: Path, paper: Mapping[str, str] | None = None
) -> Path:
    """Write comparison.html, comparison.md and comparison.json into a folder.

    Args:
        runs: names and directories; those that differ in nothing but the seed become one cell.
        folder: where to write.
        paper: by name of a cell, a text to show beside its numbers.

    Returns:
        The path of the page.

    Raises:
        UserError: no directory has recorded anything, or `paper` names a cell that is not there.
    """
    cells = read_cells(runs)
    if not any(cell.runs for cell in cells):
        raise UserError(
            "no run has recorded anything yet"
            + "".join(f"; {entry.name} {entry.problem}" for c in cells for entry in c.entries)
        )
    paper, names = paper or {}, {stem(name) for name, _ in runs} | {cell.name for cell in cells}
    for name in paper:
        if name not in names:
            raise UserError(
                f"the paper's column names {name}, which is no cell: cells are "
                f"{', '.join(sorted(names))}"
            )
    folder.mkdir(parents=True, exist_ok=True)
    whole = main_table(cells, paper, whole_columns(cells))
    shorter = main_table(cells, paper, accuracy_columns(cells))
    record = {"cells": [record_of(cell, cells, paper) for cell in cells]}
    text = json.dumps(markup.finite(record), indent=2, allow_nan=False)
    (folder / "comparison.json").write_text(text + "\n", encoding="utf-8")
    (folder / "comparison.md").write_text(markup.markdown(*whole), encoding="utf-8")
    path = folder / "comparison.html"
    path.write_text(markup.page(title_of(cells), page_body(cells, *shorter)), encoding="utf-8")
    return path


def title_of(cells: Sequence[Cell]) -> str:
    """How many of what."""
    num_runs = sum(len(cell.entries) for cell in cells)
    return f"Comparison of {len(cells)} cells" + (
        f", {num_runs} runs" if num_runs > len(cells) else ""
    )


def page_body(cells: Sequence[Cell], head: list[str], rows: list[list[str]]) -> str:
    """What won, the table, the curves, all probes, and how to make each run again."""
    curves, dots = curves_figure(cells), dots_figure(cells)
    first = headline(cells)
    caption = f"Probes: {', '.join(map(probe_title, first))}. {NOTE}" if first else NOTE
    others = [probe for probe in learned(all_probes(cells)) if probe not in first]
    tables = [probe_table(cells, probe) for probe in first]
    return "\n".join(
        [
            f"<h1>{markup.escape(title_of(cells))}</h1>",
            markup.bullets([*best_sentences(cells), *problem_sentences(cells)]),
            markup.table(
                [markup.breakable(name).replace("N − L", "N\u00a0−\u00a0L") for name in head],
                kept_together(rows),
                title="One row a cell",
                caption=caption,
                style="wrapping",
            ),
            markup.section(
                "Over the training",
                markup.picture(
                    to_png(curves),
                    "log N − L and probes at the evaluations",
                    "Test data, mean over offsets; a line for each run, a colour for each cell. "
                    "Numbers of cells with another rule or N of the negatives do not compare.",
                )
                if curves
                else "",
            ),
            markup.section(
                "Probes at the end",
                markup.picture(
                    to_png(dots),
                    "Probe accuracy",
                    "Points: accuracy with its interval; small dots: single seeds; grey "
                    "crosses: the untrained network.",
                )
                if dots
                else "",
                *tables,
                markup.details(
                    "Other probes of learned features",
                    "\n".join(probe_table(cells, probe) for probe in others),
                )
                if others
                else "",
            ),
            markup.section("How they were made", runs_table(cells)),
        ]
    )


def kept_together(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Cells of a table that may break, but not within an interval."""
    return [[cell.replace(" to ", "\u00a0to\u00a0") for cell in row] for row in rows]


def best_sentences(cells: Sequence[Cell]) -> list[str]:
    """Which cell has the most of each number."""
    sentences = []
    found = [(cell, number) for cell in cells if (number := nats(cell))]
    obstacles = obstacles_of(cells, [is_bound for _, (_, is_bound) in found])
    if len(found) > 1 and not obstacles:
        cell, (best, _) = max(found, key=lambda pair: pair[1][0].value)
        sentences.append(f"Highest bound: {cell.name}, {best.value:.2f} nats.")
    elif len(found) > 1:
        sentences.append(
            f"log N − L does not compare between all cells: {' and '.join(obstacles)}."
        )
    for probe in headline(cells):
        rows = [(cell, row) for cell in cells if (row := probe_row(cell, cells[0], probe))]
        if len(rows) > 1:
            cell, row = max(rows, key=lambda pair: pair[1].accuracy.value)
            lead = f", {points(row.over_first)} over {cells[0].name}" if row.over_first else ""
            sentences.append(f"Best {probe_title(probe)}: {cell.name}, {percent(row)} %{lead}.")
    return sentences


def obstacles_of(cells: Sequence[Cell], are_bounds: Sequence[bool]) -> list[str]:
    """Why the nats of cells do not compare; nothing if they do."""
    last = [watched(run)[-1] for cell in cells for run in cell.runs if watched(run)]
    num_offsets = {len(record.get("offsets", ())) for record in last}
    # Over the offsets that all have: a ceiling falls with the offset where windows are short.
    shared = slice(min(num_offsets, default=0))
    ceilings = {str(record.get("log_n", [])[shared]) for record in last}
    found = {
        "their offsets differ": len(num_offsets) > 1,
        "their numbers of negatives differ": len(ceilings) > 1,
        "not all are bounds": not all(are_bounds),
    }
    return [text for text, holds in found.items() if holds]


def problem_sentences(cells: Sequence[Cell]) -> list[str]:
    """What failed or cannot be read."""
    entries = [entry for cell in cells for entry in cell.entries]
    return [f"{entry.name}: {entry.problem}" for entry in entries if entry.problem]


def main_table(cells: Sequence[Cell], paper: Mapping[str, str], probes: list[Column]) -> Table:
    """One row a cell: its settings, its information, the columns of the probes, its size."""
    keys = differing_keys(cells)
    last = [key.rsplit(".", 1)[-1] for key in keys]
    columns = [
        ("cell", [cell.name for cell in cells]),
        *(
            (end if last.count(end) == 1 else key, [shown(value_of(cell, key)) for cell in cells])
            for key, end in zip(keys, last, strict=True)
        ),
        ("log N − L, nats", [nats_text(cell) for cell in cells]),
        *probes,
        *[("paper", [paper.get(cell.name, "") for cell in cells])] * bool(paper),
        ("seeds", [str(len(cell.runs)) for cell in cells]),
        ("steps", [steps_text(cell) for cell in cells]),
        ("training", [time_text(cell) for cell in cells]),
    ]
    rows = [list(row) for row in zip(*(column for _, column in columns), strict=True)]
    return [head for head, _ in columns], rows


def accuracy_columns(cells: Sequence[Cell]) -> list[Column]:
    """The headline probes, one column each."""
    probes = headline(cells)
    return [
        (f"{short_title(probe, probes)}, %", [(row and percent(row)) or "" for row in rows])
        for probe in probes
        if (rows := [probe_row(cell, cells[0], probe) for cell in cells])
    ]


def whole_columns(cells: Sequence[Cell]) -> list[Column]:
    """The headline probes with their differences."""
    columns = []
    for probe in headline(cells):
        rows = [probe_row(cell, cells[0], probe) for cell in cells]
        columns += [
            (f"{probe_title(probe)}, %", [(row and percent(row)) or "" for row in rows]),
            ("over untrained", [(row and points(row.over_untrained)) or "" for row in rows]),
            ("over the first", [(row and points(row.over_first)) or "" for row in rows]),
        ]
    return columns


def short_title(probe: Probe, probes: Sequence[Probe]) -> str:
    """Without what all of them share.

    >>> probe = Probe("phones", "festvox-ru", "frame", "c", "linear")
    >>> short_title(probe, [probe, probe._replace(task="speakers")])
    'phones by frame'
    """
    parts = probe_title(probe).split(", ")
    shared = set.intersection(*(set(probe_title(other).split(", ")) for other in probes))
    return ", ".join([parts[0], *(part for part in parts[1:] if part not in shared)])


def shown(value: Any) -> str:
    """A config's value in a table."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "–" if value is None else str(value)


def nats_text(cell: Cell) -> str:
    """With its interval over seeds; what is no bound says so."""
    found = nats(cell)
    if found is None:
        return ""
    estimate, is_bound = found
    return with_interval(estimate, 1, ".2f") + ("" if is_bound else " (score)")


def percent(row: ProbeRow) -> str:
    """Accuracy in percent."""
    return with_interval(row.accuracy, 100, ".1f")


def points(estimate: Estimate | None) -> str:
    """A difference in points, with signs."""
    return with_interval(estimate, 100, "+.1f") if estimate else ""


def steps_text(cell: Cell) -> str:
    """Steps made, and of how many where some are missing; or that the cell failed."""
    texts = []
    for run in cell.runs:
        step, wanted, _ = steps_of(run)
        texts.append(f"{step:,}" if step >= wanted else f"{step:,} of {wanted:,}")
    texts += ["failed" for entry in cell.entries if entry.problem.startswith("failed")]
    return ", ".join(dict.fromkeys(texts))


def time_text(cell: Cell) -> str:
    """Time of training, mean over seeds."""
    seconds = known([steps_of(run)[2] for run in cell.runs])
    return duration(float(seconds.mean())) if len(seconds) else ""


def probe_table(cells: Sequence[Cell], probe: Probe) -> str:
    """One probe in all cells, with every seed."""
    random = probe._replace(features=f"random {probe.features}")
    rows = []
    for cell in cells:
        found = probe_row(cell, cells[0], probe)
        if found is None:
            continue
        untrained = list(by_seed(cell, random).values())
        seeds = [f"{100 * row['accuracy']:.1f}" for row in by_seed(cell, probe).values()]
        rows.append(
            [
                cell.name,
                percent(found),
                with_interval(accuracy(untrained), 100, ".1f") if untrained else "",
                points(found.over_untrained),
                points(found.over_first),
                ", ".join(seeds) if len(seeds) > 1 else "",
            ]
        )
    head = ["cell", "accuracy %", "untrained %", "over untrained", "over the first", "by seed, %"]
    title = probe_title(probe)
    return markup.table(head, rows, title=title[:1].upper() + title[1:])


def runs_table(cells: Sequence[Cell]) -> str:
    """Directory and command of each run."""
    rows = [
        [entry.name, str(entry.run.workdir), str(entry.run.environment.get("command", ""))]
        for cell in cells
        for entry in cell.entries
        if entry.run is not None
    ]
    table = markup.table(["run", "directory", "command"], rows, style="plain")
    return markup.details(f"Directories and commands ({len(rows)})", table)


def record_of(cell: Cell, cells: Sequence[Cell], paper: Mapping[str, str]) -> dict[str, Any]:
    """Every number of a cell."""
    number = nats(cell)
    runs = []
    for entry in cell.entries:
        step, wanted, seconds = steps_of(entry.run) if entry.run else (0, None, math.nan)
        runs.append(
            {
                "name": entry.name,
                "seed": entry.run.config.get("seed") if entry.run else None,
                "step": step,
                "num_steps": wanted,
                "seconds": seconds,
                "problem": entry.problem,
            }
        )
    probes = []
    for probe in all_probes(cells):
        found = probe_row(cell, cells[0], probe)
        if found is not None:
            values = [row["accuracy"] for row in by_seed(cell, probe).values()]
            fields = {
                key: value._asdict() if value else None for key, value in found._asdict().items()
            }
            probes.append({**probe._asdict(), "by_seed": values, **fields})
    return {
        "cell": cell.name,
        "settings": {key: value_of(cell, key) for key in differing_keys(cells)},
        "nats": {**number[0]._asdict(), "is_bound": number[1]} if number else None,
        "probes": probes,
        **({"paper": paper.get(cell.name)} if paper else {}),
        "runs": runs,
    }
