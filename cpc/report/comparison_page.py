"""The page that lays runs beside each other: comparison.html, .md and .json."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

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
    over_seeds,
    probe_row,
    probes_of,
    read_cells,
    stem,
    steps_of,
    value_of,
    watched,
)
from cpc.report.draw import GRAY, GRID, MUTED, add_shared_legend, label, make_figure, to_png
from cpc.report.probe_figures import PROBES, progress_parts
from cpc.report.records import Run, known, rule_name, series
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
    text = json.dumps(finite(record), indent=2, allow_nan=False)
    (folder / "comparison.json").write_text(text + "\n", encoding="utf-8")
    (folder / "comparison.md").write_text(markdown(*whole), encoding="utf-8")
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


def with_interval(estimate: Estimate, scale: float | int, style: str) -> str:
    """A number and, in brackets, its interval.

    >>> with_interval(Estimate(0.5, 0.4, 0.6), 100, ".1f")
    '50.0 (40.0 to 60.0)'
    """
    value, low, high = (scale * one for one in estimate)
    text = markup.number_text(value, style)
    if math.isfinite(low + high):
        text += f" ({low:{style}} to {high:{style}})"
    return text.replace("-", "−")


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


def probe_title(probe: Probe) -> str:
    """In words.

    >>> probe_title(Probe("phones", "festvox-ru", "frame", "c", "linear"))
    'phones by frame, festvox-ru, linear on c'
    """
    kind = PROBES.get(probe.probe, probe.probe)
    by = "" if probe.unit == "picture" else f" by {probe.unit}"
    return f"{probe.task}{by}, {probe.data}, {kind} on {probe.features}"


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


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""A table as GitHub reads it.

    >>> print(markdown(["cell", "nats"], [["a|b", "1.5"]]), end="")
    | cell | nats |
    |---|---|
    | a\|b | 1.5 |
    """
    lines = [head, ["---"] * len(head), *rows]
    texts = [[text.replace("|", "\\|").replace("\n", " ") for text in line] for line in lines]
    texts = [f"| {' | '.join(line)} |" for line in texts]
    texts[1] = f"|{'---|' * len(head)}"
    return "\n".join(texts) + "\n"


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


def finite(tree: Any) -> Any:
    """JSON has no NaN: null instead.

    >>> finite({"low": math.nan, "values": [1.0]})
    {'low': None, 'values': [1.0]}
    """
    if isinstance(tree, dict):
        return {key: finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def colours(cells: Sequence[Cell]) -> list[Any]:
    """One a cell."""
    if len(cells) <= 10:
        return [colormaps["tab10"](number) for number in range(len(cells))]
    return [colormaps["turbo"](0.05 + 0.9 * i / (len(cells) - 1)) for i in range(len(cells))]


def curves_figure(cells: Sequence[Cell]) -> Figure | None:
    """Curves of log N - L of every run, and each headline probe where it was fitted on the way."""
    panels_of: list[tuple[str, str, Callable[[Run], tuple[np.ndarray, np.ndarray]]]] = [
        ("nats, mean over offsets", curve_title(cells), lambda run: series(watched(run), "bound"))
    ]
    for probe in headline(cells):
        title = probe_title(probe)
        panels_of.append(("percent", title, lambda run, probe=probe: probe_series(run, probe)))
    drawn = []
    for unit, title, read in panels_of:
        lines = [(number, read(run)) for number, cell in enumerate(cells) for run in cell.runs]
        if any(len(steps) > (unit == "percent") for _, (steps, _) in lines):
            drawn.append((unit, title, lines))
    if not drawn:
        return None
    figure, panels = make_figure(len(drawn), num_columns=2, row_height=3.6)
    palette = colours(cells)
    for axes, (unit, title, lines) in zip(panels, drawn, strict=True):
        named = set()
        for number, (steps, values) in lines:
            if len(steps):
                name = cells[number].name if number not in named else None
                named.add(number)
                draw_line(axes, steps, values, palette[number], name)
        label(axes, "step", unit, title)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    add_shared_legend(figure, panels)
    return figure


def draw_line(axes: Axes, steps: Any, values: Any, colour: Any, name: str | None) -> None:
    """One run; later runs of the same cell have no name."""
    axes.plot(
        steps, values, color=colour, linewidth=1.4, marker="o", markersize=3, alpha=0.85, label=name
    )


def curve_title(cells: Sequence[Cell]) -> str:
    """What is drawn, and whether it is a bound."""
    records = [records[-1] for c in cells for run in c.runs if (records := watched(run))]
    kinds = {bool(record.get("is_bound")) for record in records}
    rules = {rule_name(record) for record in records}
    kind = {frozenset([True]): " (bound)", frozenset([False]): " (score)"}.get(frozenset(kinds), "")
    return f"log N − L{kind}" + (f", {rules.pop()}" if len(rules) == 1 else "")


def probe_series(run: Run, probe: Probe) -> tuple[np.ndarray, np.ndarray]:
    """Steps and percent of a probe during the training, and at its end."""
    for name in {key for record in run.probe_records for key in record if "/" in key}:
        if name.count("/") not in (2, 4):
            continue
        (task, data, unit), (features, kind) = progress_parts(name)
        if Probe(task, data or probe.data, unit, features, kind) == probe:
            steps, values = series(run.probe_records, name)
            row = probes_of(run).get(probe)
            if row is not None:
                steps = np.append(steps, steps_of(run)[0])
                values = np.append(values, row["accuracy"])
            return steps, 100 * values
    return np.zeros(0), np.zeros(0)


def dots_figure(cells: Sequence[Cell]) -> Figure | None:
    """Accuracy of the headline probes of every cell with its interval."""
    probes = headline(cells)
    if not probes:
        return None
    height = 1.2 + 0.27 * len(cells)
    figure, panels = make_figure(len(probes), num_columns=2, row_height=height)
    palette = colours(cells)
    for panel, (axes, probe) in enumerate(zip(panels, probes, strict=True)):
        random = probe._replace(features=f"random {probe.features}")
        for place, cell in enumerate(cells):
            rows, untrained = (list(by_seed(cell, p).values()) for p in (probe, random))
            if rows:
                draw_dot(axes, place, rows, palette[place])
            if untrained:
                value = 100 * over_seeds([row["accuracy"] for row in untrained]).value
                axes.plot(value, place, "x", color=GRAY, markersize=5)
        axes.set_yticks(range(len(cells)), [] if panel % 2 else [short(c.name) for c in cells])
        axes.set_ylim(len(cells) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
        label(axes, "accuracy, percent", "", probe_title(probe))
    return figure


def short(name: str) -> str:
    """Its end is what tells cells apart."""
    return name if len(name) <= 44 else "…" + name[-43:]


def draw_dot(axes: Axes, place: int, rows: list[dict[str, Any]], colour: Any) -> None:
    """A point with its interval, and the single seeds."""
    estimate = accuracy(rows)
    value, low, high = (100 * one for one in estimate)
    if math.isfinite(low + high):
        axes.plot([low, high], [place, place], color=colour, linewidth=1.6)
    axes.plot(value, place, "o", color=colour, markersize=6)
    if len(rows) > 1:
        single = [100 * row["accuracy"] for row in rows]
        axes.plot(single, [place] * len(rows), "o", color=MUTED, markersize=2.5)
