"""Pages of the experiments on estimators, and of estimates for two arrays."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from cpc.estimators.tracker import saturation
from cpc.files import read_json
from cpc.report import draw
from cpc.report.engine import Figure, Section, Table, figure_of, show, show_interval, write_page
from cpc.report.provenance import made_section
from cpc.results import Frame, Run, Score, read_run
from cpc.types import UserError
from experiments.information.estimators import DIVERGED, TITLES, show_ceiling
from experiments.information.rotations import Interval, Reading

#: Titles of the staircase's tasks.
MAPS = {"gaussian": "Correlated Gaussians", "cubic": "Correlated Gaussians, y cubed"}
#: Color and title of each critic in the staircase figures.
CRITICS = {
    "exact": (draw.GRAY, "exact log ratio"),
    "separable": (draw.BLUE, "separable critic"),
    "joint": (draw.ORANGE, "joint critic"),
    "conditional": (draw.GREEN, "Gaussian q(y|x)"),
}
#: Key, title and exact ratio of each law in Song and Ermon (2020).
LAWS = (
    ("rows", "top rows: grows, as a share of all rows", None),
    ("processing", "with a processed copy: stays at 1", 1.0),
    ("independence", "two independent images: 2", 2.0),
)


def write_information_report(workdir: str | Path) -> Path:
    """Write report.html and figures/*.png from metrics.jsonl and table.json of a run."""
    workdir = Path(workdir)
    if not (workdir / "table.json").exists():
        raise UserError(f"{workdir} has no table.json: repeat the command until it has finished")
    run = read_run(workdir)
    title, caption, make_parts = PAGES[str(run.config.get("kind"))]
    drawn, tables = make_parts(run, read_table(workdir / "table.json"), caption)
    sections = [
        Section("", run.problems),
        Section("Figures", figures=drawn),
        Section("Numbers", tables=tables),
        made_section(run.environment, run.config),
    ]
    return write_page(workdir, "report", title, str(workdir.resolve()), sections=sections)


def read_table(path: Path) -> Frame:
    """Return the estimates of a run, one per row, with NaN for diverged estimates."""
    table = pd.DataFrame(read_json(path))
    names = [name for name in ("value", "bias", "spread", "ratio", "ceiling") if name in table]
    return table.astype(dict.fromkeys(names, float))


def staircase_parts(run: Run, table: Frame, caption: str) -> tuple[list[Figure], list[Table]]:
    """Return a figure and a table for each task, including the exact critic."""
    drawn, tables = [], []
    note = "Value ± spread from batch to batch, and bias, over the last half of each level."
    for task in table.task[table.task != "any"].unique():
        here = table[table.task.isin([task, "any"])]
        figure = staircase_figure(run.train, here, task)
        drawn += figure_of(f"staircase_{task}", figure, MAPS[task], caption)
        shown = show_readings(here, "{0.truth:g} nats", show_estimate)
        tables.append(Table(MAPS[task], shown, note))
    return drawn, tables


def tasks_parts(run: Run, table: Frame, caption: str) -> tuple[list[Figure], list[Table]]:
    """Return the chart and the table of all tasks."""
    shown = show_readings(table, "{0.task}", show_estimate)
    by_task = shown.drop(columns=["claim", "ceiling"]).set_index("estimator").T
    by_task.insert(0, "truth", table.groupby("task").truth.first().map("{:.3f}".format))
    claims = "; ".join(f"{row.estimator}: {row.claim}" for row in shown.itertuples())
    note = f"Mean ± standard deviation over seeds, and bias, nats. {claims}."
    drawn = Figure("tasks", tasks_figure(table), "Estimates and the truth", caption)
    return [drawn], [Table("Estimates", by_task.rename_axis("task").reset_index(), note)]


def consistency_parts(run: Run, table: Frame, caption: str) -> tuple[list[Figure], list[Table]]:
    """Return the figure of the three self-consistency tests, and a table for each."""
    note, tables = "Ratio of estimates, and the estimate itself in nats.", []
    for law, title, _ in LAWS:
        shown = show_readings(table[table.law == law], "{0.rows} rows", show_ratio)
        tables.append(Table(title[0].upper() + title[1:], shown, note))
    figure, title = consistency_figure(table), "Three laws that information obeys"
    return [Figure("consistency", figure, title, caption)], tables


def show_readings(table: Frame, column: str, text_of: Callable[[Any], str]) -> Frame:
    """Return a row per estimator and critic, with label, ceiling and one column per setting."""
    rows = []
    for title, here in by_reading(table).items():
        one = here.iloc[0]
        row = {"estimator": title, "claim": one.label, "ceiling": show_ceiling(one.ceiling)}
        rows.append(row | {column.format(each): text_of(each) for each in here.itertuples()})
    return pd.DataFrame(rows).fillna("")


def show_estimate(row: Any) -> str:
    """Format an estimate with its spread and bias."""
    if not abs(row.value) < DIVERGED:
        return "diverged"
    return f"{show(row.value, '.2f')} ± {show(row.spread, '.2f')} ({show(row.bias, '+.2f')})"


def show_ratio(row: Any) -> str:
    """Format the ratio of an estimate to its reference, and the estimate."""
    if not math.isfinite(row.ratio):
        return "diverged"
    return f"{show(row.ratio, '.2f')} ({show(row.value, '.2f')})"


#: Kind -> title of its page, caption of its figures, and function for figures and tables.
PAGES = {
    "mi_staircase": (
        "The staircase: estimators train while the information rises",
        "Ink: the truth. Dashed: the ceiling of batches of this size. Gray: the exact log ratio, "
        "the best that training can reach. Shaded: one standard deviation from batch to batch. "
        "Values above the truth come from estimators that are not bounds, or from few batches.",
        staircase_parts,
    ),
    "mi_tasks": (
        "Benchmark tasks of known information",
        "Color: the mean over seeds; blue is below the truth, red above. KSG and CCA train "
        "nothing. Student's tasks have no correlation: CCA misses the dependence, or follows a "
        "few far points. No task here is near the ceiling of InfoNCE.",
        tasks_parts,
    ),
    "mi_consistency": (
        "Self-consistency on images",
        "Left: y keeps the top rows of the image x; information must grow with them. Middle: a "
        "copy of y with fewer rows adds nothing. Right: two independent images hold twice the "
        "information of one. At its ceiling an estimator breaks the last law.",
        consistency_parts,
    ),
}


def by_reading(table: Frame) -> dict[str, Frame]:
    """Return the rows of each estimator, or of each critic if there are several, by title."""
    found = {}
    for name, title in TITLES.items():
        critics = dict(iter(table[table.estimator == name].groupby("critic", sort=False)))
        for critic, rows in critics.items():
            found[f"{title}, {critic}" if len(critics) > 1 else title] = rows
    return found


def staircase_figure(train: Frame, here: Frame, task: str) -> Drawing | None:
    """Plot the estimates for a task by step, with a panel per estimator and a line per critic."""
    names = [name for name in TITLES if name in set(here.estimator)]
    if not len(train):  # the records are lost
        return None
    figure, panels = draw.make_figure(len(names), num_columns=4, width=11.0, row_height=2.5)
    edges = np.r_[0, train.step]  # a record is at the end of its window
    for number, (axes, name) in enumerate(zip(panels, names, strict=True)):
        for critic, (color, words) in CRITICS.items():
            where = "any" if critic == "exact" else task
            draw_reading(axes, train, f"{where}/{critic}/{name}", color, words)
        axes.stairs(train.truth, edges, baseline=None, color=draw.INK, linewidth=1.3, label="truth")
        row = here[here.estimator == name].iloc[0]
        if np.isfinite(row.ceiling):
            axes.axhline(row.ceiling, color=draw.RED, linestyle="--", linewidth=1, label="ceiling")
        axes.set_ylim(-0.4, 1.4 * train.truth.max())
        axes.set_xlim(0, edges[-1])
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        x, y = "step" if number + 4 >= len(panels) else "", "" if number % 4 else "nats"
        draw.label(axes, x, y, TITLES[name])
        axes.annotate(
            row.label, (0, 1), xytext=(4, -3), xycoords="axes fraction",
            textcoords="offset points", va="top", fontsize=7.5, color=draw.MUTED,
        )  # fmt: skip
    draw.add_shared_legend(figure, panels)
    return figure


def draw_reading(axes: Axes, train: Frame, name: str, color: str, words: str) -> None:
    """Plot a recorded reading with its spread."""
    if name not in train:
        return
    half = train.step.iloc[0] / 2  # a record is the mean of the window that it closes
    known = train[np.isfinite(train[name])]
    # Clip values far outside the axes, and omit a diverged spread, which would hide other lines.
    mean, std = (np.clip(known[key], -1e6, 1e6) for key in (name, f"{name}/std"))
    steps, near = known.step - half, std < 1e2
    axes.fill_between(steps, mean - std, mean + std, where=near, color=color, alpha=0.18, lw=0)
    axes.plot(steps, mean, color=color, linewidth=1.2, label=words)


def tasks_figure(table: Frame) -> Drawing:
    """Draw a heat map of estimate minus truth, by task and estimator."""
    bias = {title: rows.set_index("task").bias for title, rows in by_reading(table).items()}
    bias = pd.DataFrame(bias).loc[tasks := table.task.unique()]
    size = 4.2 + 0.8 * bias.shape[1], 1.7 + 0.24 * len(tasks)
    figure = Drawing(figsize=size, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    image = axes.imshow(bias, cmap="RdBu_r", vmin=-0.6, vmax=0.6, aspect="auto")
    axes.set_yticks(range(len(tasks)), tasks, fontsize=7.5, color=draw.INK)
    style: dict[str, Any] = {"color": draw.INK, "rotation": 30, "ha": "left"}
    axes.set_xticks(range(bias.shape[1]), list(bias), fontsize=8, **style)
    axes.xaxis.tick_top()
    bar = figure.colorbar(
        image, ax=axes, location="bottom", shrink=0.4, aspect=30, pad=0.02, extend="both"
    )
    bar.set_label("estimate − truth, nats", fontsize=8.5, color=draw.INK)
    return figure


def consistency_figure(table: Frame) -> Drawing:
    """Plot the three self-consistency tests over the number of rows in y."""
    figure, panels = draw.make_figure(3, width=11.0, row_height=3.4)
    for axes, (law, title, ideal) in zip(panels, LAWS, strict=True):
        for name, rows in by_reading(table[table.law == law]).items():
            ratio = np.clip(rows.ratio, -1e3, 1e3)
            axes.plot(rows.rows, ratio, "o-", markersize=4, linewidth=1.2, label=name)
        if ideal is not None:
            axes.axhline(ideal, color=draw.INK, linestyle=":", linewidth=1.3, label="the law")
        axes.set_ylim(0, 1.25 if ideal is None else 1.5 * ideal)
        axes.set_xticks(sorted(table.rows.unique()))
        draw.label(axes, "rows of the image that y keeps", "ratio of estimates", title)
    draw.add_shared_legend(figure, panels)
    return figure


#: First word of a label -> legend text and color in reports on two arrays.
LABELS = {
    "lower": ("lower bounds", draw.BLUE),
    "upper": ("upper, if its model holds", draw.GREEN),
    "no": ("estimates, no bounds", draw.ORANGE),
}
#: Method for two arrays and caption of the figures.
HOW = (
    "In each of four rotations, half of the rows are for training, a quarter for early stopping, "
    "and a quarter for evaluation. Each row is evaluated once, by networks not trained on it.",
    "Intervals are Student's, 95 %, over disjoint batches of held-out rows (for KSG and CCA, over "
    "at most ten parts of the rows). For the null, they show the range of another shuffle. "
    "They hold for these networks and independent rows, and ignore shared training rows.",
    "For the line over 1 / n, each rotation is trained with all, half and a quarter of its rows. "
    "The end of the line predicts the value of these networks with more rows. For a lower bound, "
    "this value is a lower bound as well.",
)
ESTIMATES = (
    "Points: held-out values with 95 % intervals. Gray: with y shuffled. Red ticks: the ceiling, "
    "if it is within the axes. Colors: whether the value is a lower, an upper or no bound."
)


def headline(readings: Sequence[Reading]) -> Reading:
    """Return the best critic's InfoNCE estimate, on which the main claim is based."""
    return next(one for one in readings if one.estimator == "info_nce" and one.null)


def title_of(reading: Reading) -> str:
    """Return the title of an estimator, with its critic if it has two."""
    name = TITLES[reading.estimator]
    return f"{name}, {reading.critic}" if reading.critic in ("separable", "joint") else name


def state_of(reading: Reading) -> str:
    """Return "chance" if shuffled rows reach the value, otherwise "fine", "warn" or "saturated"."""
    found, null = reading.found, reading.null
    if null is not None and found.low <= null.high:
        return "chance"
    return saturation(found.value, reading.ceiling or math.inf, found.low)


def claim(readings: Sequence[Reading], num_rows: int, identity: str = "") -> list[str]:
    """Return the claims about two arrays, the most important one first.

    >>> found, null = Interval(1.4, 1.3, 1.5), Interval(0.0, -0.1, 0.1)
    >>> reading = Reading("info_nce", "joint", "lower bound", 5.5, found, null, (1.4, 1.2, 0.8),
    ...     Interval(1.6, 1.5, 1.7), Interval(0.2, 0.1, 0.3), Interval(0.0, -0.1, 0.1))
    >>> claim([reading], 4000)[0]
    'x and y share at least 1.30 nats; not saturated; more data would add 0.20 (0.10 to 0.30).'
    """
    best = headline(readings)
    state, top = state_of(best), show(best.ceiling, ".2f")
    limited = at_ceiling([one for one in readings if one is not best])
    more = [] if limited or identity else critic_limits(readings) or more_data(best)
    if state == "chance":
        said = nothing_found(best, identity, limited, more)
    else:
        parts = [f"x and y share at least {show(best.found.low, '.2f')} nats"]
        if state == "saturated":
            parts.append(f"saturated at the ceiling of {top}: it may be far more")
        elif state == "warn":
            parts.append(f"near the ceiling of {top}, which hides part of what is above")
        if limited and state != "saturated":
            parts.append(f"{limited}: it may be far more")
        if state == "fine" and not limited and not identity:
            parts.append("not saturated")
        said = ["; ".join([*parts, *more]) + "."]
    return [*([identity] if identity else []), *said, *others(readings, num_rows)]


def nothing_found(best: Reading, identity: str, limited: str, more: Sequence[str]) -> list[str]:
    """Return the claims about two arrays whose shuffled rows also reach the bound."""
    nats, null = format_nats(best.found), format_nats(best.null or best.found)
    is_diverged = nats == "diverged"
    read = nats if is_diverged else f"reads {nats} nats"
    rest = f"{read} on held-out rows; with y shuffled it reads {null} nats."
    said = f"No information was found: InfoNCE {rest} That does not prove independence."
    if identity:
        said = f"InfoNCE did not find it: it {rest}"
    if limited:
        return [said, f"But {limited}."]
    return [said, *(f"{one[0].upper()}{one[1:]}." for one in more if not is_diverged)]


def at_ceiling(readings: Sequence[Reading]) -> str:
    """Return a clause on the estimate nearest its ceiling, or "" if none is near its ceiling."""
    near = [one for one in readings if state_of(one) in ("warn", "saturated") and one.ceiling]
    if not near:
        return ""
    top = max(near, key=lambda one: one.found.value / (one.ceiling or math.inf))
    value, ceiling = show(top.found.value, ".2f"), show(top.ceiling, ".2f")
    return f"{TITLES[top.estimator]} reads {value} of at most {ceiling}"


def critic_limits(readings: Sequence[Reading]) -> list[str]:
    """Return a clause if critic-free estimates exceed the critic's limit, or [] if none do."""
    limit = headline(readings).limit
    above = [r for r in readings if r.critic == "none" and limit and r.found.low > limit.high]
    read = " and ".join(f"{TITLES[r.estimator]} reads {show_found(r)}" for r in above)
    return [f"the critic is the limit, not the number of rows: {read}"] if above else []


def more_data(reading: Reading) -> list[str]:
    """Return a clause on the gain from more rows, or [] if it was not extrapolated."""
    gain, bend = reading.gain, reading.bend
    if gain is None or bend is None:
        return []
    if gain.low <= 0 <= gain.high:
        said = f"more data would add nothing that can be told ({show_interval(*gain[1:])})"
    elif gain.value < 0:
        said = f"the line over 1 / n falls by {show(-gain.value, '.2f')}: it promises nothing"
    else:
        said = f"more data would add {format_nats(gain)}"
    if bend.low > 0 or bend.high < 0:
        said += ", by a line that the points do not quite follow"
    return [said]


def others(readings: Sequence[Reading], num_rows: int) -> list[str]:
    """Return claims about the estimates that are not bounds.

    No lower bound from n rows can exceed 2 ln n + 5 nats (McAllester & Stratos 2020).
    """
    values = [r.found.value for r in readings if r.label.startswith("no ")]
    known = [value for value in values if abs(value) < DIVERGED]
    said, most = [], 2 * math.log(num_rows) + 5
    if known:
        span = show_interval(min(known), max(known)) if len(known) > 1 else show(known[0], ".2f")
        said.append(f"Estimates that are not bounds read {span} nats.")
    if any(value > most for value in values):
        said.append(f"No sure bound from {num_rows:,} rows can pass {show(most, '.1f')} nats.")
    return said


def show_nats(nats: float) -> str:
    """Format a value in nats, or "diverged"."""
    return show(nats, ".2f") if abs(nats) < DIVERGED else "diverged"


def format_nats(interval: Interval) -> str:
    """Format a value with its interval, or "diverged"."""
    value = show_nats(interval.value)
    ends = f" ({show_interval(interval.low, interval.high)})"
    return value if value == "diverged" else value + ends


def show_found(reading: Reading) -> str:
    """Format an estimate with its interval, which is omitted if the estimate is saturated."""
    if state_of(reading) == "saturated":
        return f"{show_nats(reading.found.value)}, at its ceiling"
    return format_nats(reading.found)


def write_arrays_report(
    folder: Path, lead: str, readings: Sequence[Reading], sentences: Sequence[str], num_rows: int
) -> Path:
    """Write information.html, .md and .json on two arrays."""
    run, title = read_run(folder), "What two arrays tell about each other"
    drawn = [Figure("estimates", estimates_figure(readings), "Estimates", ESTIMATES)]
    sections = [
        Section("", sentences),
        Section("Estimates", (), drawn, [reading_table(readings, num_rows)]),
        Section("How it was measured", HOW),
        made_section(run.environment, run.config),
    ]
    return write_page(folder, "information", title, lead, sections=sections, also=["md", "json"])


def reading_table(readings: Sequence[Reading], num_rows: int) -> Table:
    """Return a table row for each reading."""
    rows = [
        {
            "estimator": title_of(one),
            "claim": one.label,
            "ceiling": show_ceiling(one.ceiling),
            "nats": show_found(one),
            "y shuffled": format_nats(one.null) if one.null else "",
            "n / 4, n / 2, n": ", ".join(show_nats(nats) for nats in one.line[::-1]),
            "more data would add": format_nats(one.gain) if one.gain else "",
            "at 1 / n = 0": format_nats(one.limit) if one.limit else "",
        }
        for one in readings
    ]
    note = (
        "Nats, with 95 % intervals. Of two critics, only the one with the higher InfoNCE on the "
        "rows that choose the step is trained on shuffled and on fewer rows. No sure lower bound "
        f"from {num_rows:,} rows can pass 2 ln n + 5 = {2 * math.log(num_rows) + 5:.1f} nats."
    )
    return Table("Estimates", pd.DataFrame(rows), note)


def to_scores(readings: Sequence[Reading], data: str, seed: int, num_rows: int) -> list[Score]:
    """Convert estimates that have not diverged to scores of a run directory."""
    return [
        Score(
            "information", data, "row", "x, y", f"{one.estimator}, {one.critic}", "nats",
            *(one.found if state_of(one) != "saturated" else (one.found.value, None, None)),
            None if one.null is None else one.null.value, seed=seed,
            num_train=num_rows // 2, num_test=num_rows, setting=one.label,
        )
        for one in readings
        if abs(one.found.value) < DIVERGED
    ]  # fmt: skip


def estimates_figure(readings: Sequence[Reading]) -> Drawing:
    """Plot the estimates for two arrays, one per line, with interval, null and ceiling."""
    shown = [one for one in readings if abs(one.found.value) < DIVERGED]
    figure, (axes,) = draw.make_figure(1, width=8.6, row_height=1.4 + 0.27 * len(shown))
    gray: dict[str, Any] = {"color": draw.GRAY, "linewidth": 5, "alpha": 0.6}
    for place, one in enumerate(shown):
        words, color = LABELS[one.label.split()[0]]
        if one.null is not None:
            axes.plot(one.null[1:], [place] * 2, zorder=1, **gray)
        if one.ceiling is not None:
            axes.plot(one.ceiling, place, "|", color=draw.RED, markersize=10)
        if state_of(one) != "saturated":
            axes.plot(one.found[1:], [place] * 2, color=color, linewidth=1.6)
        axes.plot(one.found.value, place, "o", color=color, markersize=5, label=words)
    axes.plot([], [], label="y shuffled", **gray)
    axes.axvline(0, color=draw.INK, linewidth=0.8)
    axes.set_yticks(range(len(shown)), map(title_of, shown), color=draw.INK, fontsize=8.5)
    axes.invert_yaxis()
    seen = [value for one in shown for value in one.found if abs(value) < DIVERGED]
    low, high = min([0.0, *seen]), max([0.1, *seen])
    room = 0.12 * (high - low)
    axes.set_xlim(max(low - room, -2.0), high + room)
    draw.label(axes, "nats", "", "")
    draw.add_shared_legend(figure, [axes])
    return figure
