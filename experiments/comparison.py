"""The page that lays runs beside each other: comparison.html, .md and .json."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from cpc.files import plain, read_json, write_json, write_text
from cpc.report.draw import GRAY, GRID, MUTED, add_shared_legend, label, make_figure
from cpc.report.engine import Figure, Section, Table, markdown, write_page
from cpc.report.figures import metric_title, over_steps
from cpc.report.scores import value_axis
from cpc.report.sentences import duration, last_known, with_unit
from cpc.results import (
    Cell,
    Frame,
    Run,
    compare,
    evaluations,
    group_by_seed,
    information,
    read_run,
    settings,
    show_value,
    stem,
    unit_of,
)
from cpc.types import UserError
from experiments.command.config import find_kind, upgrade
from experiments.modality import MODALITIES
from experiments.questions import (
    NOTE,
    Question,
    answers,
    estimate,
    has_curve,
    headline,
    lead_of,
    one_row,
    other_questions,
    short_title,
    show_estimate,
    show_lead,
    show_nats,
)


def write_comparison(
    runs: Sequence[tuple[str, Path]], folder: Path, paper: Mapping[str, str] | None = None
) -> Path:
    """Write comparison.html, comparison.md (the table of cells) and comparison.json into a folder.

    Args:
        runs: names and directories; those that differ in nothing but the seed become one cell.
        folder: where to write.
        paper: by name of a cell, a text to show beside its numbers.

    Returns:
        The path of the page.

    Raises:
        UserError: no directory has recorded anything, or `paper` names a cell that is not there.
    """
    found, problems = read_runs(runs)
    if not found:
        raise UserError(
            "no run has recorded anything yet"
            + "".join(f"; {name} {problem}" for name, problem in problems.items())
        )
    cells = group_by_seed(found)
    failed = [name for name in problems if name not in dict(found)]
    paper, names = paper or {}, {stem(name) for name, _ in runs} | {cell.name for cell in cells}
    for name in paper:
        if name not in names:
            raise UserError(
                f"the paper's column names {name}, which is no cell: cells are "
                f"{', '.join(sorted(names))}"
            )
    scores = compare(cells)
    whole = cell_table(cells, scores, failed, paper, with_leads=True)
    write_text(folder / "comparison.md", markdown(whole))
    write_json(folder / "comparison.json", record(cells, scores, problems, paper))
    num_cells, num_runs = len(cells) + len(failed), len(found) + len(failed)
    title = f"Comparison of {num_cells} cells"
    title += f", {num_runs} runs" if num_runs > num_cells else ""
    sections = [
        Section("", [*best_sentences(cells, scores), *(f"{n}: {p}" for n, p in problems.items())]),
        Section("Cells", tables=[cell_table(cells, scores, failed, paper)]),
        Section("Over the training", figures=curves(cells, scores)),
        Section(
            "Scores at the end",
            figures=dots(cells, scores),
            tables=[question_table(one, scores) for one in headline(scores)],
            details=[question_table(one, scores) for one in other_questions(scores)],
        ),
        Section("How they were made", details=[runs_table(cells)]),
    ]
    return write_page(folder, "comparison", title, "Runs beside each other.", (), sections)


def read_runs(
    runs: Sequence[tuple[str, Path]],
) -> tuple[list[tuple[str, Run]], dict[str, str]]:
    """Return the runs that have recorded something, and by name what is wrong with a run.

    A cell of a sweep that failed has a failed.json with the error's sentence and the command.
    """
    found, problems = [], {}
    for name, path in runs:
        try:
            failure = read_json(path / "failed.json")
            problems[name] = f"failed: {failure['error']}. To try again: {failure['command']}"
        except (UserError, LookupError, TypeError):
            pass
        if (path / "config.json").exists() or (path / "metrics.jsonl").exists():
            run = read_run(path)
            found.append((name, run._replace(config=upgraded(run.config))))
            if run.problems:
                problems.setdefault(name, " ".join(run.problems))
    return found, problems


def upgraded(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded config with today's keys, so that old runs are one cell with new ones."""
    modality = MODALITIES.get(find_kind(config))
    try:
        return dict(config) if modality is None else plain(upgrade(config, modality.keys))
    except UserError:  # it has a key that nothing knows
        return dict(config)


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
    columns["seeds"] = [len(cell.runs) for cell in cells]
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


def best_sentences(cells: Sequence[Cell], scores: Frame) -> list[str]:
    """Return which cell is best by each number."""
    sentences = []
    bounds = scores[scores.task == "information"]
    if len(bounds) > 1:
        obstacles = obstacles_of(cells)
        best = bounds.loc[bounds.value.idxmax()]
        sentences.append(
            f"log N − L does not compare between all cells: {' and '.join(obstacles)}."
            if obstacles
            else f"Highest bound: {best.cell}, {best.value:.2f} nats."
        )
    for question in headline(scores):
        rows = answers(question, scores)
        if rows.cell.nunique() > 1:
            up = rows.higher_is_better.iloc[0]
            row = rows.loc[rows.value.idxmax() if up else rows.value.idxmin()]
            lead = lead_of(row, "over_first")
            over = f", {show_lead(lead)} over {cells[0].name}" if lead else ""
            value = with_unit(row.value, row.metric)
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
    found = {
        "their offsets differ": len(set(offsets)) > 1,
        "their numbers of negatives differ": len({tuple(rows.log_n.round(6)) for rows in alike})
        > 1,
        "not all are bounds": not all(rows.is_bound.all() for rows in last),
    }
    return [text for text, holds in found.items() if holds]


def watched(run: Run) -> Frame:
    """Return the evaluations to follow: of a bound, else those under the training rule."""
    found = list(evaluations(run).values())
    bounds = [rows for rows in found if rows.is_bound.all()]
    return (bounds[-1:] or found[:1] or [run.offsets[:0]])[0]


def palette(cells: Sequence[Cell]) -> list[Any]:
    """Return a color for each cell."""
    if len(cells) <= 10:
        return [colormaps["tab10"](number) for number in range(len(cells))]
    return [colormaps["turbo"](0.05 + 0.9 * i / (len(cells) - 1)) for i in range(len(cells))]


def curves(cells: Sequence[Cell], scores: Frame) -> list[Figure]:
    """Return log N - L of every run over the steps, and headline scores measured on the way."""
    kinds = {one.method for cell in cells for _, run in cell.runs if (one := information(run))}
    title = f"log N − L ({kinds.pop()})" if len(kinds) == 1 else "log N − L"
    panels_of = [("nats, mean over offsets", title, lambda run: over_steps(watched(run), "bound"))]
    for one in headline(scores):
        panels_of.append(
            (metric_title(one.metric), one.title, lambda run, one=one: score_steps(run, one))
        )
    drawn = []
    for number, (unit, title, read) in enumerate(panels_of):
        lines = [(place, read(run)) for place, cell in enumerate(cells) for _, run in cell.runs]
        if any(len(steps) > bool(number) for _, (steps, _) in lines):
            drawn.append((unit, title, lines))
    if not drawn:
        return []
    figure, panels = make_figure(len(drawn), num_columns=2, row_height=3.6)
    colors = palette(cells)
    for axes, (unit, title, lines) in zip(panels, drawn, strict=True):
        named = set()
        for place, (steps, values) in lines:
            if len(steps):
                name = None if place in named else cells[place].name
                named.add(place)
                draw_line(axes, steps, values, colors[place], name)
        label(axes, "step", unit, title)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    add_shared_legend(figure, panels)
    caption = (
        "Test data, averaged over offsets; one line per run, one color per cell. Cells whose "
        "negatives differ in rule or number are not comparable."
    )
    return [Figure("comparison_curves", figure, "Numbers at the evaluations", caption)]


def score_steps(run: Run, question: Question) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values of a question, as an axis shows them."""
    rows = answers(question, run.scores).sort_values("step")
    return rows.step.to_numpy(float), value_axis(rows.value.to_numpy(float), question.metric)


def draw_line(axes: Axes, steps: Any, values: Any, color: Any, name: str | None) -> None:
    """Draw one run; later runs of the same cell have no name."""
    axes.plot(
        steps, values, color=color, linewidth=1.4, marker="o", markersize=3, alpha=0.85, label=name
    )


def dots(cells: Sequence[Cell], scores: Frame) -> list[Figure]:
    """Return the headline scores of every cell with their intervals."""
    asked = headline(scores)
    if not asked:
        return []
    figure, panels = make_figure(len(asked), num_columns=2, row_height=1.2 + 0.27 * len(cells))
    for panel, (axes, question) in enumerate(zip(panels, asked, strict=True)):
        draw_dots(axes, cells, question, scores)
        axes.set_yticks(range(len(cells)), [] if panel % 2 else [short(c.name) for c in cells])
        axes.set_ylim(len(cells) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
        label(axes, metric_title(question.metric), "", question.title)
    caption = "Points: scores with their intervals; small dots: single seeds; gray crosses: the "
    return [Figure("comparison_scores", figure, "Scores", f"{caption}untrained network.")]


def draw_dots(axes: Axes, cells: Sequence[Cell], question: Question, scores: Frame) -> None:
    """Draw one question: a point with its interval for each cell, and its single seeds."""
    random = question._replace(features=f"random {question.features}")
    for place, (cell, color) in enumerate(zip(cells, palette(cells), strict=True)):
        row, untrained = (one_row(answers(q, scores), cell.name) for q in (question, random))
        if row is not None:
            value, low, high = (
                value_axis(one, row.metric) for one in (row.value, row.low, row.high)
            )
            axes.plot([low, high], [place, place], color=color, linewidth=1.6)
            axes.plot(value, place, "o", color=color, markersize=6)
            single = [value_axis(one, row.metric) for one in row.by_seed]
            if len(single) > 1:
                axes.plot(single, [place] * len(single), "o", color=MUTED, markersize=2.5)
        if untrained is not None:
            value = value_axis(untrained.value, untrained.metric)
            axes.plot(value, place, "x", color=GRAY, markersize=5)


def short(name: str) -> str:
    """Return a name of at most 44 letters; its end is what tells cells apart."""
    return name if len(name) <= 44 else "…" + name[-43:]


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


def record(
    cells: Sequence[Cell], scores: Frame, problems: Mapping[str, str], paper: Mapping[str, str]
) -> dict[str, Any]:
    """Return every number of the comparison."""
    keys = settings(cells)
    named = [
        {
            "cell": cell.name,
            "settings": keys.loc[cell.name].to_dict(),
            **({"paper": paper.get(cell.name)} if paper else {}),
            "runs": [
                {
                    "name": name,
                    "seed": run.config.get("seed"),
                    "step": run.step,
                    "num_steps": run.num_steps,
                    "seconds": last_known(run.train, "seconds"),
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
