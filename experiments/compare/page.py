"""The page that compares runs: comparison.html, .md and .json."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from cpc import results
from cpc.files import write_json, write_text
from cpc.report.draw import GRAY, GRID, MUTED, add_shared_legend, label, make_figure, palette
from cpc.report.engine import Figure, Section, Table, markdown, write_page
from cpc.report.run_page import over_steps
from cpc.report.scores import metric_title, value_axis
from cpc.results import Cell, Frame, Run, evaluations, information
from cpc.types import UserError
from experiments.command.run_dir import read_failure
from experiments.compare import tables
from experiments.status import cut

#: Ceilings log N that differ by at most this count as equal. They vary slightly with the seed, as
#: do the counts of windows that are short or share sound.
CEILING_TOLERANCE_NATS = 0.1


def write_comparison(runs: Sequence[tuple[str, Path]], folder: Path) -> Path:
    """Compare named runs in comparison.html, comparison.md and comparison.json in a folder."""
    found, problems = read_runs(runs)
    if not found:
        raise UserError(
            "the runs have no records yet"
            + "".join(f"; {name} {problem}" for name, problem in problems.items())
        )
    cells = results.group_by_seed(found)
    failed = [name for name in problems if name not in dict(found)]
    scores = results.compare(cells)
    whole = tables.cell_table(cells, scores, failed, with_leads=True)
    write_text(folder / "comparison.md", markdown(whole))
    write_json(folder / "comparison.json", record(cells, scores, problems))
    num_cells, num_runs = len(cells) + len(failed), len(found) + len(failed)
    title = f"Comparison of {num_cells} cells"
    title += f", {num_runs} runs" if num_runs > num_cells else ""
    commands = [
        {"run": name, "directory": str(run.workdir), "command": run.environment.get("command", "")}
        for cell in cells
        for name, run in cell.runs
    ]
    origins = Table(f"Directories and commands ({len(commands)})", pd.DataFrame(commands))
    sections = [
        Section("", [*best_sentences(cells, scores), *(f"{n}: {p}" for n, p in problems.items())]),
        Section("Cells", tables=[tables.cell_table(cells, scores, failed)]),
        Section("During training", figures=curves(cells, scores)),
        Section(
            "Scores at the end",
            figures=dots(cells, scores),
            details=[tables.all_scores(scores)],
        ),
        Section("Commands", details=[origins]),
    ]
    return write_page(folder, "comparison", title, "Comparison of runs.", sections)


def read_runs(runs: Sequence[tuple[str, Path]]) -> tuple[list[tuple[str, Run]], dict[str, str]]:
    """Read the named runs that have records. Also return each run's problems by name."""
    found, problems = [], {}
    for name, path in runs:
        problem = read_failure(path)
        with contextlib.suppress(UserError):  # without records
            run = results.read_run(path)
            found.append((name, run))
            problem = problem or " ".join(run.problems)
        if problem:
            problems[name] = problem
    return found, problems


def best_sentences(cells: Sequence[Cell], scores: Frame) -> list[str]:
    """Return sentences that name the best finished cell for log N - L and each main score."""
    sentences, scores = [], scores[scores.at_end.astype(bool)]
    bounds = scores[scores.task == "information"]
    if len(bounds) > 1:
        obstacles = find_obstacles(cells)
        if not obstacles and bounds.setting.nunique() > 1:
            obstacles = ["the averaged offsets differ"]
        best = bounds.loc[bounds.value.idxmax()]
        sentences.append(
            f"log N − L is not comparable between all cells: {' and '.join(obstacles)}."
            if obstacles
            else f"Highest bound: {best.cell}, {best.value:.2f} nats."
        )
    for question in tables.headline(scores):
        rows = tables.answers(question, scores)
        # Fewer codes are not better: they are fewest if all codes have collapsed into one.
        if rows.cell.nunique() > 1 and question.task != "codes":
            up = rows.higher_is_better.iloc[0]
            row = rows.loc[rows.value.idxmax() if up else rows.value.idxmin()]
            lead = tables.show_lead(row, "over_first")
            over = f", {lead} over {cells[0].name}" if lead else ""
            value = results.with_unit(row.value, row.metric)
            sentences.append(f"Best {question.title}: {row.cell}, {value}{over}.")
    return sentences


def find_obstacles(cells: Sequence[Cell]) -> list[str]:
    """Return any reasons why log N - L cannot be compared between the cells."""
    last = [rows for cell in cells for _, run in cell.runs if len(rows := watched(run))]
    last = [rows[rows.step == rows.step.max()] for rows in last]
    offsets = [tuple(rows.offset) for rows in last]
    # Compare ceilings at common offsets only, because short windows lower them at large offsets.
    shared = set(offsets[0]).intersection(*offsets) if offsets else set()
    common = [rows[rows.offset.isin(shared)].drop_duplicates("offset") for rows in last]
    ceilings = [rows.sort_values("offset").log_n.to_numpy(float) for rows in common]
    found = {
        "their offsets differ": len(set(offsets)) > 1,
        "their numbers of negatives differ": bool(ceilings)
        and bool((np.ptp(ceilings, axis=0) > CEILING_TOLERANCE_NATS).any()),
        "not all are bounds": not all(rows.is_bound.all() for rows in last),
    }
    return [text for text, holds in found.items() if holds]


def record(cells: Sequence[Cell], scores: Frame, problems: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of comparison.json: each cell's settings, runs and scores."""
    keys, problems = results.settings(cells), dict(problems)
    named = []
    for cell in cells:
        runs = [
            {
                "name": name,
                "seed": run.config.get("seed"),
                "step": run.step,
                "num_steps": run.num_steps,
                "seconds": results.last_known(run.train, "seconds"),
                "workdir": str(run.workdir),
                "problem": problems.pop(name, ""),
            }
            for name, run in cell.runs
        ]
        own = scores[scores.cell == cell.name].drop(columns="cell").to_dict("records")
        settings = keys.loc[cell.name].to_dict()
        named.append({"cell": cell.name, "settings": settings, "runs": runs, "scores": own})
    failed = [
        {"cell": name, "runs": [{"name": name, "problem": problem}], "scores": []}
        for name, problem in problems.items()
    ]
    return {"cells": [*named, *failed]}


def curves(cells: Sequence[Cell], scores: Frame) -> list[Figure]:
    """Plot each run's log N - L and main scores over the training steps."""
    kinds = {one.method for cell in cells for _, run in cell.runs if (one := information(run))}
    title = f"log N − L ({kinds.pop()})" if len(kinds) == 1 else "log N − L"
    among = results.shared_headline(run for cell in cells for _, run in cell.runs)
    if among:
        title += f" at k = {results.offset_ranges([*among])}"
    runs = [(number, run) for number, cell in enumerate(cells) for _, run in cell.runs]
    bounds = [(number, over_steps(watched(run), "bound", among)) for number, run in runs]
    drawn = (
        [("nats, mean over offsets", title, bounds)] if any(len(x) for _, (x, _) in bounds) else []
    )
    for one in tables.headline(scores):
        lines = [(number, score_steps(run, one)) for number, run in runs]
        if any(len(steps) > 1 for _, (steps, _) in lines):
            drawn.append((metric_title(one.metric), one.title, lines))
    if not drawn:
        return []
    figure, panels = make_figure(len(drawn), num_columns=2, row_height=3.6)
    colors = palette(len(cells))
    style: dict[str, Any] = {"marker": "o", "markersize": 3, "linewidth": 1.4, "alpha": 0.85}
    for axes, (unit, title, lines) in zip(panels, drawn, strict=True):
        for number, (steps, values) in lines:
            if len(steps):
                axes.plot(steps, values, color=colors[number], label=cells[number].name, **style)
        label(axes, "step", unit, title)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    add_shared_legend(figure, panels)
    caption = (
        "Test data, averaged over offsets, with one line per run and one color per cell. Cells "
        "whose negatives differ in rule or number are not comparable."
    )
    return [Figure("comparison_curves", figure, "Numbers at the evaluations", caption)]


def watched(run: Run) -> Frame:
    """Return a run's bound evaluations or, if it has none, those with the training's negatives."""
    found = list(evaluations(run).values())
    bounds = [rows for rows in found if rows.is_bound.all()]
    return (bounds[-1:] or found[:1] or [run.offsets[:0]])[0]


def score_steps(run: Run, question: tables.ScoreKey) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps and values of a run's scores for a question, in the units of an axis."""
    rows = tables.answers(question, run.scores).sort_values("step")
    return rows.step.to_numpy(float), value_axis(rows.value.to_numpy(float), question.metric)


def dots(cells: Sequence[Cell], scores: Frame) -> list[Figure]:
    """Plot each cell's main scores, with their intervals and each seed's value."""
    questions = tables.headline(scores)
    if not questions:
        return []
    figure, panels = make_figure(len(questions), num_columns=2, row_height=1.2 + 0.27 * len(cells))
    names = [cell.name for cell in cells]
    colors = dict(zip(names, palette(len(cells)), strict=True))
    for panel, (axes, question) in enumerate(zip(panels, questions, strict=True)):
        for row in tables.one_per_cell(tables.answers(question, scores)).itertuples():
            y, color, numbers = names.index(row.cell), colors[row.cell], np.array(row.by_seed)
            value, low, high, single = (
                value_axis(one, row.metric) for one in (row.value, row.low, row.high, numbers)
            )
            axes.plot([low, high], [y, y], color=color, linewidth=1.6)
            axes.plot(value, y, "o", color=color, markersize=6)
            if len(single) > 1:
                axes.plot(single, [y] * len(single), "o", color=MUTED, markersize=2.5)
        random = question._replace(features=f"random {question.features}")
        for row in tables.one_per_cell(tables.answers(random, scores)).itertuples():
            value = value_axis(row.value, row.metric)
            axes.plot(value, names.index(row.cell), "x", color=GRAY, markersize=5)
        axes.set_yticks(range(len(cells)), [] if panel % 2 else [cut(name, 44) for name in names])
        axes.set_ylim(len(cells) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
        label(axes, metric_title(question.metric), "", question.title)
    caption = "Points: scores with their intervals; small dots: single seeds; gray crosses: the "
    return [Figure("comparison_scores", figure, "Scores", f"{caption}untrained network.")]
