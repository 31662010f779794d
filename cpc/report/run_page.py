"""A run's page, report.html, and the lines that a run prints at its end, from the run's files.

Functions that draw return a list with one captioned figure, or [] if there is nothing to draw.
"""

import itertools
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from cpc import results
from cpc.report import draw, engine
from cpc.report.engine import Figure, Format, Section, Table, show, show_interval
from cpc.report.provenance import provenance_section
from cpc.report.scores import headlines, score_table, scores_section
from cpc.report.sentences import harm_sentences, lost_sentences, reading_sentences, warnings
from cpc.report.words import Words
from cpc.results import Frame, Run

#: section(run) -> a section of the page, or None to leave the section out.
SectionMaker: TypeAlias = Callable[[Run], Section | None]
#: Width of the console, in columns.
WIDTH = 100
#: Line colors of the evaluations.
LINES = (draw.INK, draw.GREEN, draw.ORANGE)


def write_report(workdir: str | Path, words: Words, sections: Sequence[SectionMaker] = ()) -> Path:
    """Write report.html and figures/*.png into a run directory, and return the page's path.

    Args:
        workdir: the run directory.
        words: the nouns for the run's kind of data.
        sections: functions that make further sections, which follow the scores on the page.
    """
    run = results.read_run(workdir)
    found = headlines(run.scores, words)
    sentences = [*warnings(run, found, words), *reading_sentences(run, found, words)]
    made = [
        Section("", tables=[score_table(found, words)] if found else []),
        bound_section(run, words),
        Section("How to read them", sentences),
        scores_section(run.scores, words),
        *(maker(run) for maker in sections),
        audit_section(run),
        Section("Health of the run", figures=[*spread_figure(run, words), *speed_figure(run)]),
        provenance_section(run, words),
    ]
    return engine.write_page(run.workdir, "report", run.name, subtitle(run), made)


def closing_lines(workdir: str | Path, words: Words) -> list[str]:
    """Return a table with a row per task, and warnings about scores, wrapped to `WIDTH`."""
    run = results.read_run(workdir)
    found = headlines(run.scores, words)
    if not found:
        return []
    table = score_table(found, words)
    rows = [[*table.frame.columns], *engine.cells(table)]
    said = [*harm_sentences(run, found, words), *lost_sentences(found, words)]
    wrapped = itertools.chain.from_iterable(textwrap.wrap(one, WIDTH) for one in said)
    return [*results.text_table([*wrap_rows(rows, WIDTH)]), *wrapped]


def wrap_rows(rows: Sequence[Sequence[str]], width: int) -> Iterator[tuple[str, ...]]:
    """Wrap a table's first column and the heads of its narrow columns, and yield its lines.

    >>> list(wrap_rows([("task", "mean of words"), ("phones of many voices", "73.1")], 29))
    [('task', 'mean of'), ('', 'words'), ('phones of many', '73.1'), ('  voices', '')]
    """
    head, *body = rows
    heads, sizes = [], []
    for name, *column in zip(head, *body, strict=True):
        widest = max(map(len, column))
        heads.append(textwrap.wrap(name, max(10, widest), break_long_words=False))
        sizes.append(max(widest, *map(len, heads[-1])))
    left = max(12, width - sum(sizes[1:]) - 2 * len(sizes[1:]))
    wrap = textwrap.TextWrapper(left, subsequent_indent="  ").wrap
    wrapped = ([wrap(first), *([cell] for cell in others)] for first, *others in body)
    for lines in (heads, *wrapped):
        yield from itertools.zip_longest(*lines, fillvalue="")


def subtitle(run: Run) -> str:
    """Return the line under the title, with the run's data, revision and directory."""
    revision = str(run.environment.get("git_revision") or "")
    data = run.config.get("data")
    source = (data.get("source") or data.get("name")) if isinstance(data, dict) else data
    parts = [
        "A run of contrastive predictive coding (van den Oord, Li, Vinyals 2018)",
        f"data: {source}" if source else "",
        f"revision {revision[:12]}" if revision else "",
        str(run.workdir.resolve()),
    ]
    return " · ".join(part for part in parts if part)


def bound_section(run: Run, words: Words) -> Section:
    """Return the section with loss, log N - L and accuracy, by training step and by offset."""
    figures = [*curves_figure(run), *bound_figure(run, words), *accuracy_figure(run, words)]
    details = [
        table
        for rule, rows in by_direction(last_rows(run) if results.evaluations(run) else {})
        for table in (offset_table(rule, rows, words), *split_tables(rule, rows, words))
    ]
    return Section("Curves", figures=figures, details=details)


def by_direction(found: Mapping[str, Frame]) -> list[tuple[str, Frame]]:
    """Split each titled frame by prediction direction, and return (title, rows) pairs."""
    return [
        (f"{rule}, {direction}" if direction else rule, part)
        for rule, rows in found.items()
        for direction, part in rows.groupby("direction", sort=False)
    ]


def over_steps(rows: Frame, key: str, among: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps, and a column's mean over offsets at each, without missing values."""
    rows = rows if among is None else rows[rows.offset.isin([*among])]
    if key not in rows or not len(rows):
        return np.zeros(0), np.zeros(0)
    means = rows.groupby("step")[key].mean().dropna()
    return means.index.to_numpy(float), means.to_numpy(float)


def curves_figure(run: Run) -> list[Figure]:
    """Draw the mean loss over all offsets, and the mean log N - L of the `headline_rows`."""
    strict = results.last_evaluation(run, strict=True)
    own = strict if strict.bound.notna().any() else results.last_evaluation(run)
    chosen = results.headline_rows(own).offset
    train, tests = run.offsets[run.offsets.split == "train"], results.evaluations(run)
    if not len(run.offsets):
        return []
    figure, (left, right) = draw.make_figure(2)
    bound = "bound" if train.bound.notna().any() else "strict_bound"
    for axes, key, of_train, name in (
        (left, "offset_loss", "offset_loss", "loss"),
        (right, "bound", bound, "log N − L"),
    ):
        among = chosen if axes is right and len(chosen) else None
        title = "train, strict bound" if of_train == "strict_bound" else "train"
        values = over_steps(train, of_train, among)
        axes.plot(*values, color=draw.BLUE, alpha=0.45, linewidth=1, label=title)
        for number, (rule, rows) in enumerate(tests.items()):
            kind = " (bound)" if rows.is_bound.all() else " (estimate)"
            title = f"test, {rule}{kind if rows.bound.notna().any() else ''}"
            style: Any = {"color": LINES[number % 3], "linewidth": 1.6, "markersize": 3.5}
            axes.plot(*over_steps(rows, key, among), marker="o", label=title, **style)
        for number, (rule, rows) in enumerate(ceilings(run).items()):
            color, values = (draw.RED, draw.ORANGE)[number % 2], over_steps(rows, "log_n", among)
            axes.plot(*values, color=color, linestyle="--", linewidth=1, label=f"log N, {rule}")
        offsets = "" if among is None else f" at k = {results.offset_ranges(among)}"
        draw.label(axes, "step", "nats, mean over offsets", f"{name}{offsets}")
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    draw.add_shared_legend(figure, [left, right])
    caption = (
        "Loss, averaged over all offsets, and log N − L, averaged over offsets that are neither "
        "saturated at the end nor share input with the context, or else the furthest offset. "
        "Dashed: log N, the ceiling of log N − L and the InfoNCE loss of guessing. If log N − L is "
        "far lower on test than on training data, the model overfits."
    )
    return [Figure("curves", figure, "Loss and log N − L over training", caption)]


def train_rows(run: Run) -> dict[str, Frame]:
    """Return {rule title: training rows of `Run.offsets`}, or {} if there are none."""
    train = run.offsets[run.offsets.split == "train"]
    return {results.rule_title(str(train.rule.iloc[-1])): train} if len(train) else {}


def ceilings(run: Run) -> dict[str, Frame]:
    """Return rows with a log N to draw, by rule title: training, and tests by other rules."""
    found = results.evaluations(run) | train_rows(run)
    return {rule: rows for rule, rows in found.items() if rows.bound.notna().any()}


def bound_figure(run: Run, words: Words) -> list[Figure]:
    """Draw the last log N - L at each offset with its interval, ceiling and state."""
    panels_of = [one for one in by_direction(last_rows(run)) if one[1].bound.notna().any()]
    if not panels_of:
        return []
    num_columns = 2 if any(part.direction.iloc[0] for _, part in panels_of) else 3
    figure, panels = draw.make_figure(len(panels_of), num_columns=num_columns, row_height=3.7)
    for axes, (rule, rows) in zip(panels, panels_of, strict=True):
        draw_bound(axes, rows)
        kind = "a lower bound" if rows.is_bound.all() else "an estimate, not a bound"
        draw.label(axes, f"offset k ({words.ahead})", "log N − L, nats", f"{rule}: {kind}")
        if run.truth is not None:
            style = {"color": draw.GREEN, "linestyle": "-.", "marker": "_", "markersize": 9}
            truth = run.truth.offset, run.truth.mutual_information
            axes.plot(*truth, label="exact mutual information", **style)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    draw.add_shared_legend(figure, panels)
    caption = (
        f"On test {words.examples}, with 95 % intervals over {words.sequence}s. Values should fall "
        "with the offset, because the near future is easier to predict. A point at the ceiling "
        "log N shows only that the information is at least about log N. One candidate from each "
        f"{words.sequence} makes them independent, and log N − L a bound."
    )
    return [Figure("bound", figure, "log N − L at each offset, last evaluation", caption)]


def last_rows(run: Run) -> dict[str, Frame]:
    """Return each rule's rows at its last step, from training if there are no evaluations."""
    found = results.evaluations(run) or train_rows(run)
    return {rule: rows[rows.step == rows.step.max()] for rule, rows in found.items()}


def draw_bound(axes: Axes, rows: Frame) -> None:
    """Draw log N - L against the offset."""
    axes.plot(rows.offset, rows.log_n, color=draw.RED, linestyle="--", linewidth=1.2, label="log N")
    axes.plot(rows.offset, rows.bound, color=draw.GRAY, linewidth=0.8, zorder=1)
    for state, (color, marker, words) in draw.STATES.items():
        part = rows[(rows.state.replace("", "fine") == state) & np.isfinite(rows.bound)]
        if len(part):
            ends = part.bound - part.bound_low, part.bound_high - part.bound
            style = {"color": color, "marker": marker, "markersize": 5, "linestyle": "none"}
            style |= {"capsize": 2.5, "linewidth": 1.2, "label": words}
            axes.errorbar(part.offset, part.bound, yerr=np.maximum(0, ends), **style)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def offset_table(rule: str, rows: Frame, words: Words) -> Table:
    """Return a table of all numbers of an evaluation, with one row per offset."""
    has_bound = rows.bound.notna()
    interval = list(zip(rows.bound_low, rows.bound_high, strict=True))
    columns: dict[str, tuple[Any, Format]] = {
        "offset k": (rows.offset, ""),
        "N": (rows.n, ",.0f"),
        "log N": (rows.log_n, ".2f"),
        "loss": (rows.offset_loss, ".3f"),
        "log N − L": (rows.bound, ".3f"),
        "95 % interval": (interval, lambda ends: show_interval(ends[0], ends[1], ".3f")),
        "top-1 %": (100 * rows.acc_top1, ".1f"),
        "chance %": (100 / rows.n.where(rows.n > 0), ".2g"),
        "pairwise %": (100 * rows.acc_pairwise, ".1f"),
        "state": (rows.state.where(has_bound, "–"), ""),
    }
    if is_known(rows, "shared"):
        columns["input shared with the context %"] = 100 * rows.shared, ".0f"
    if is_known(rows, "frames_per_prediction"):
        columns["frames aligned to it"] = rows.frames_per_prediction, ".2f"
    kind = "log N − L is an estimate, not a bound"
    if not has_bound.any():
        kind = "this loss has no log N"
        for name in ("log N", "log N − L", "95 % interval", "state"):
            del columns[name]
    elif rows.is_bound.all():
        kind = "log N − L is a lower bound on the information"
    title = f"All numbers of each offset: rule “{rule}”, step {rows.step.max():,}"
    note = f"Test {words.examples}, in nats; {kind}. Pairwise chance is 50 %."
    return formatted_table(title, columns, note)


def is_known(rows: Frame, name: str) -> bool:
    """Return whether a column exists and has a value."""
    return name in rows and bool(rows[name].notna().any())


def formatted_table(title: str, columns: Mapping[str, tuple[Any, Format]], note: str) -> Table:
    """Make a table from columns, each given as (values, format)."""
    frame = pd.DataFrame({name: values for name, (values, _) in columns.items()})
    return Table(title, frame, note, {name: style for name, (_, style) in columns.items()})


def split_tables(rule: str, rows: Frame, words: Words) -> list[Table]:
    """Return [table of log N - L within and between groups], or [] if it is not recorded."""
    if not is_known(rows, "within"):
        return []
    within, between = (
        list(rows[[part, f"{part}_low", f"{part}_high"]].itertuples(index=False))
        for part in ("within", "between")
    )
    columns: dict[str, tuple[Any, Format]] = {
        "offset k": (rows.offset, ""),
        "log N − L": (rows.within + rows.between, ".3f"),
        "within": (within, show_part),
        "N within": (rows.within_n, ",.1f"),
        "log N within": (rows.within_log_n, ".2f"),
        "state within": (rows.within_state, ""),
        "between": (between, show_part),
        "anchors left out": (rows.left_out, ",.0f"),
    }
    note = (
        f"Within: log N − L with candidates from the anchor's {words.group} only, a lower bound on "
        f"the information given the {words.group}. Between: the rest of log N − L with all "
        f"candidates, an estimate of the information that identifies the {words.group}. Anchors "
        f"whose {words.group} has no other candidate are left out, so the sum can differ from the "
        "bound above. If “within” is saturated, information moves from it to “between”."
    )
    title = f"log N − L within a {words.group} and between them: rule “{rule}”"
    return [formatted_table(title, columns, note)]


def show_part(ends: tuple[float, float, float]) -> str:
    """Format a value with its interval, given as (value, low, high)."""
    return f"{show(ends[0], '.3f')} ({show_interval(*ends[1:], '.3f')})"


def accuracy_figure(run: Run, words: Words) -> list[Figure]:
    """Draw the top-1 accuracy and the pairwise accuracy by offset."""
    last, strict = last_rows(run), results.last_evaluation(run, strict=True)
    shown = dict(list(last.items())[:1])
    shown |= {rule: rows for rule, rows in last.items() if len(strict) and rows.equals(strict)}
    if not shown:
        return []
    figure, panels = draw.make_figure(2)
    readings = (
        ("acc_top1", "beats every negative (top-1)"),
        ("acc_pairwise", "share of negatives beaten (pairwise)"),
    )
    parts = by_direction(shown)
    colors = dict(zip((name for name, _ in parts), draw.palette(len(parts)), strict=True))
    for axes, (key, title) in zip(panels, readings, strict=True):
        for name, part in parts:
            style = {"color": colors[name], "marker": "o", "markersize": 4}
            count = show(part.n.mean(), ",.0f")
            axes.plot(part.offset, 100 * part[key], label=f"{name}, N = {count}", **style)
        for rule, rows in shown.items():
            chance, color = 50.0, draw.MUTED
            if key == "acc_top1":
                chance = 100 * rows.chance_top1.mean()
                color = next(colors[name] for name in colors if name.startswith(rule))
            style = {"color": color, "linestyle": ":", "linewidth": 1.2}
            axes.axhline(chance, label=f"chance, {show(chance, '.2g')} %", **style)
        draw.label(axes, f"offset k ({words.ahead})", "percent", title)
        axes.set_ylim(0, 103)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    draw.add_shared_legend(figure, panels)
    caption = (
        f"How often the positive scores highest, on test {words.examples}: against all "
        "negatives at once, and against one at a time. The paper does not say which it plots. "
        "Dotted: chance. Top-1 depends on N, so compare it only between runs with the same N."
    )
    title = "Accuracy of predicting the positive, by offset (the paper's Figure 3)"
    return [Figure("accuracy", figure, title, caption)]


def audit_section(run: Run) -> Section | None:
    """Return the section that audits the negatives, or None if no audit is recorded."""
    if run.audit is None:
        return None
    columns = pd.Index(["name", "value", "unit", "meaning"])
    frame = pd.DataFrame(run.audit["rows"], columns=columns).astype({"value": float})
    frame = frame.fillna({"unit": "", "meaning": ""}).rename(columns={"name": "what"})
    frame["what"] = frame.what.str.replace("_", " ")
    note = f"Counted before the first step: {run.audit.get('title', 'the negatives')}."
    return Section("Negatives", details=[Table("Audit of the negatives", frame, note)])


def spread_figure(run: Run, words: Words) -> list[Figure]:
    """Draw the standard deviation and effective rank of z and c by training step."""
    names = [name for name in ("z", "c") if {f"std_{name}", f"rank_{name}"} <= {*run.metrics}]
    test = run.metrics[run.metrics.split == "test"]
    if not names:
        return []
    figure, (left, right) = draw.make_figure(2, row_height=2.9)
    for axes, key, title in (
        (left, "std", "mean standard deviation"),
        (right, "rank", "effective rank of the covariance"),
    ):
        for name in names:
            steps, values = over_steps(test, f"{key}_{name}")
            color = {"z": draw.ORANGE, "c": draw.BLUE}[name]
            axes.plot(steps, values, color=color, marker="o", markersize=3.5, label=name)
        draw.label(axes, "step", "", title)
        axes.set_ylim(bottom=0)
        draw.add_legend(axes)
    caption = (
        f"Measured on test {words.examples}: the standard deviation, averaged over dimensions, and "
        "the effective rank, the exponential of the entropy of the covariance's normalized "
        "eigenvalues. If the deviation falls towards zero or the rank towards one, the "
        "representation has collapsed: all inputs get nearly the same features."
    )
    return [Figure("collapse", figure, "Spread of the representation", caption)]


def speed_figure(run: Run) -> list[Figure]:
    """Draw the speed, the learning rate and the gradient norm over the training steps."""
    if "steps_per_second" not in run.train:
        return []
    keys = ("steps_per_second", "learning_rate", "gradient_norm")
    figure, panels = draw.make_figure(3, row_height=2.7)
    for axes, key in zip(panels, keys, strict=True):
        axes.plot(*over_steps(run.train, key), color=draw.BLUE, linewidth=1.2)
        draw.label(axes, "step", "", key.replace("_", " "))
        axes.set_ylim(bottom=0)
    caption = (
        "Steps per second, learning rate and gradient norm during training. Dips in speed come "
        "from evaluations or from other jobs on the machine; jumps in the gradient norm suggest "
        "that the learning rate is too high."
    )
    return [Figure("speed", figure, "Speed and optimization", caption)]
