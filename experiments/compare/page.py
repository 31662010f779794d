"""The page of several runs: comparison.html, .md and .json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cpc import results
from cpc.files import write_json, write_text
from cpc.report.engine import Section, Table, markdown, write_page
from cpc.results import Cell, Frame, Run
from cpc.types import UserError
from experiments.command.run_dir import read_failure
from experiments.compare import tables
from experiments.compare.figures import curves, dots, watched

#: Ceilings log N that differ by less are equal: the windows of other seeds are more or less often
#: short, or share sound.
CEILING_TOLERANCE_NATS = 0.1


def write_comparison(runs: Sequence[tuple[str, Path]], folder: Path) -> Path:
    """Write comparison.html, .md (the table of cells) and .json of named runs into a folder."""
    found, problems = read_runs(runs)
    if not found:
        raise UserError(
            "no run has recorded anything yet"
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
    first = tables.headline(scores)
    learned = [one for one in tables.questions(scores) if one.features in tables.LEARNED]
    commands = [
        {"run": name, "directory": str(run.workdir), "command": run.environment.get("command", "")}
        for cell in cells
        for name, run in cell.runs
    ]
    made = Table(f"Directories and commands ({len(commands)})", pd.DataFrame(commands))
    sections = [
        Section("", [*best_sentences(cells, scores), *(f"{n}: {p}" for n, p in problems.items())]),
        Section("Cells", tables=[tables.cell_table(cells, scores, failed)]),
        Section("Over the training", figures=curves(cells, scores)),
        Section(
            "Scores at the end",
            figures=dots(cells, scores),
            tables=[tables.question_table(one, scores) for one in first],
            details=[tables.question_table(one, scores) for one in learned if one not in first],
        ),
        Section("How they were made", details=[made]),
    ]
    return write_page(folder, "comparison", title, "Runs beside each other.", (), sections)


def read_runs(
    runs: Sequence[tuple[str, Path]],
) -> tuple[list[tuple[str, Run]], dict[str, str]]:
    """Return the runs that have recorded something, and by name what is wrong with a run."""
    found, problems = [], {}
    for name, path in runs:
        if failure := read_failure(path):
            problems[name] = failure
        if (path / "config.json").exists() or (path / "metrics.jsonl").exists():
            run = results.read_run(path)
            found.append((name, run))
            if run.problems:
                problems.setdefault(name, " ".join(run.problems))
    return found, problems


def best_sentences(cells: Sequence[Cell], scores: Frame) -> list[str]:
    """Return which cell is best by each number, of those that have come to their last step."""
    sentences, scores = [], scores[scores.at_end.astype(bool)]
    bounds = scores[scores.task == "information"]
    if len(bounds) > 1:
        obstacles = obstacles_of(cells)
        best = bounds.loc[bounds.value.idxmax()]
        sentences.append(
            f"log N − L does not compare between all cells: {' and '.join(obstacles)}."
            if obstacles
            else f"Highest bound: {best.cell}, {best.value:.2f} nats."
        )
    for question in tables.headline(scores):
        rows = tables.answers(question, scores)
        # Codes are fewest where all collapse into one, which is not best.
        if rows.cell.nunique() > 1 and question.task != "codes":
            up = rows.higher_is_better.iloc[0]
            row = rows.loc[rows.value.idxmax() if up else rows.value.idxmin()]
            lead = tables.lead_of(row, "over_first")
            over = f", {tables.show_lead(lead)} over {cells[0].name}" if lead else ""
            value = results.with_unit(row.value, row.metric)
            sentences.append(f"Best {question.title}: {row.cell}, {value}{over}.")
    return sentences


def obstacles_of(cells: Sequence[Cell]) -> list[str]:
    """Return why the nats of cells do not compare; nothing if they do."""
    last = [rows for cell in cells for _, run in cell.runs if len(rows := watched(run))]
    last = [rows[rows.step == rows.step.max()] for rows in last]
    offsets = [tuple(rows.offset) for rows in last]
    # Over the offsets that all have: a ceiling falls with the offset where windows are short.
    shared = set(offsets[0]).intersection(*offsets) if offsets else set()
    alike = [rows[rows.offset.isin(shared)].drop_duplicates("offset") for rows in last]
    ceilings = [rows.sort_values("offset").log_n.to_numpy(float) for rows in alike]
    found = {
        "their offsets differ": len(set(offsets)) > 1,
        "their numbers of negatives differ": bool(ceilings)
        and bool((np.ptp(ceilings, axis=0) > CEILING_TOLERANCE_NATS).any()),
        "not all are bounds": not all(rows.is_bound.all() for rows in last),
    }
    return [text for text, holds in found.items() if holds]


def record(cells: Sequence[Cell], scores: Frame, problems: Mapping[str, str]) -> dict[str, Any]:
    """Return every number of the comparison."""
    keys = results.settings(cells)
    named = [
        {
            "cell": cell.name,
            "settings": keys.loc[cell.name].to_dict(),
            "runs": [
                {
                    "name": name,
                    "seed": run.config.get("seed"),
                    "step": run.step,
                    "num_steps": run.num_steps,
                    "seconds": results.last_known(run.train, "seconds"),
                    "workdir": str(run.workdir),
                    "problem": problems.get(name, ""),
                }
                for name, run in cell.runs
            ],
            "scores": scores[scores.cell == cell.name].drop(columns="cell").to_dict("records"),
        }
        for cell in cells
    ]
    recorded = {name for cell in cells for name, _ in cell.runs}
    failed = [
        {"cell": name, "runs": [{"name": name, "problem": problem}], "scores": []}
        for name, problem in problems.items()
        if name not in recorded
    ]
    return {"cells": [*named, *failed]}
