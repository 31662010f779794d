"""The page of two arrays: what may be claimed, in sentences, a table, a figure and scores."""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure as Drawing

from cpc.estimators.tracker import saturation
from cpc.report import draw
from cpc.report.engine import Figure, Section, Table, show, show_interval, write_page
from cpc.report.provenance import made_section
from cpc.results import Score, read_run
from experiments.information.estimators import DIVERGED, TITLES, show_ceiling
from experiments.information.rotations import Interval, Reading

#: Labels of readings of two arrays: their beginning, words and color.
LABELS = (("lower", "lower bounds", draw.BLUE), ("upper", "upper, if its model holds", draw.GREEN),
          ("no", "estimates, no bounds", draw.ORANGE))  # fmt: skip
#: How two arrays are measured, and how to read the figures.
HOW = (
    "In each of four rotations half of the rows trains, a quarter chooses the step (early "
    "stopping), and a quarter is read: each row once, by networks that never saw it.",
    "Intervals are Student's, 95 %, over disjoint batches of held-out rows; for KSG and CCA over "
    "ten disjoint parts of the rows; for the null, the range of one more shuffle. They hold for "
    "these networks and independent rows, and ignore that rotations share rows for training.",
    "The line over 1 / n: each rotation trained with all, half and a quarter of its rows, read on "
    "the same held-out rows. Its end is what these networks would read with more rows; of a lower "
    "bound that is still one.",
)
ESTIMATES = (
    "Points: held-out values with 95 % intervals. Gray: with y shuffled. Red ticks: the ceiling, "
    "if there is one in sight. Colors: what may be claimed."
)


def headline(readings: Sequence[Reading]) -> Reading:
    """Return the basis of the claim: InfoNCE, whose values are bounded, with the chosen critic."""
    return next(one for one in readings if one.estimator == "info_nce" and one.null)


def title_of(reading: Reading) -> str:
    """Return the estimator, and its critic if it is one of two."""
    name = TITLES[reading.estimator]
    return f"{name}, {reading.critic}" if reading.critic in ("separable", "joint") else name


def certifiable(num_rows: int) -> float:
    """Return the highest sure lower bound for this many rows (McAllester & Stratos 2020), nats."""
    return 2 * math.log(num_rows) + 5


def state_of(reading: Reading) -> str:
    """Return chance, fine, warn or saturated; a value that shuffled rows reach is chance."""
    found, null = reading.found, reading.null
    if null is not None and found.low <= null.high:
        return "chance"
    return saturation(found.value, reading.ceiling or math.inf, found.low)


def claim(readings: Sequence[Reading], num_rows: int, identity: str = "") -> list[str]:
    """Return what can be claimed, the most important sentence first.

    >>> found, null = Interval(1.4, 1.3, 1.5), Interval(0.0, -0.1, 0.1)
    >>> reading = Reading("info_nce", "joint", "lower bound", 5.5, found, null, (1.4, 1.2, 0.8),
    ...     Interval(1.6, 1.5, 1.7), Interval(0.2, 0.1, 0.3), Interval(0.0, -0.1, 0.1))
    >>> claim([reading], 4000)[0]
    'x and y share at least 1.30 nats; not saturated; more data would add 0.20 (0.10 to 0.30).'
    """
    best = headline(readings)
    state, top = state_of(best), show(best.ceiling, ".2f")
    limited = at_ceiling([one for one in readings if one is not best])
    known = [identity] if identity else []
    if state == "chance":
        return [*known, *nothing_found(best, limited, identity), *others(readings, num_rows)]
    parts = [f"x and y share at least {show(best.found.low, '.2f')} nats"]
    if state == "saturated":
        parts.append(f"saturated at the ceiling of {top}: it may be far more")
    elif state == "warn":
        parts.append(f"near the ceiling of {top}, which hides part of what is above")
    if limited and state != "saturated":
        parts.append(f"{limited}: it may be far more")
    if state == "fine" and not limited and not identity:
        parts.append("not saturated")
    if not limited and not identity:
        parts += more_data(best)
    return [*known, "; ".join(parts) + ".", *others(readings, num_rows)]


def nothing_found(best: Reading, limited: str, identity: str) -> list[str]:
    """Return the sentences on a bound that shuffled rows also reach."""
    has_diverged = not abs(best.found.value) < DIVERGED
    read = "diverged" if has_diverged else f"reads {format_nats(best.found)} nats"
    null = format_nats(best.null or best.found)
    rest = f"{read} on held-out rows; with y shuffled it reads {null} nats."
    said = [f"InfoNCE did not find it: it {rest}"]
    if not identity:
        said = [f"No information was found: InfoNCE {rest} That does not prove independence."]
    if limited:
        return [*said, f"But {limited}."]
    if not has_diverged and not identity:
        said += [f"{one[0].upper()}{one[1:]}." for one in more_data(best)]
    return said


def at_ceiling(readings: Sequence[Reading]) -> str:
    """Return a clause on the reading that is nearest to its ceiling, if it is near; else ""."""
    near = [one for one in readings if state_of(one) in ("warn", "saturated") and one.ceiling]
    if not near:
        return ""
    top = max(near, key=lambda one: one.found.value / (one.ceiling or math.inf))
    value, ceiling = show(top.found.value, ".2f"), show(top.ceiling, ".2f")
    return f"{TITLES[top.estimator]} reads {value} of at most {ceiling}"


def more_data(reading: Reading) -> list[str]:
    """Return, without a full stop, what the line over 1 / n promises for more rows."""
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
    """Return sentences on the estimates that are not bounds."""
    values = [r.found.value for r in readings if r.label.startswith("no ")]
    known = [value for value in values if abs(value) < DIVERGED]
    said = []
    if known:
        span = show_interval(min(known), max(known)) if len(known) > 1 else show(known[0], ".2f")
        said.append(f"Estimates that are not bounds read {span} nats.")
    limit = headline(readings).limit
    above = [r for r in readings if r.critic == "none" and limit and r.found.low > limit.high]
    if above:
        names = " and ".join(TITLES[r.estimator] for r in above)
        said.append(f"{names} read surely above InfoNCE's limit: its critic misses dependence.")
    most = certifiable(num_rows)
    if any(value > most for value in values):
        said.append(f"No sure bound from {num_rows:,} rows can pass {show(most, '.1f')} nats.")
    return said


def show_nats(nats: float) -> str:
    """Return a value, or "diverged"."""
    return show(nats, ".2f") if abs(nats) < DIVERGED else "diverged"


def format_nats(interval: Interval) -> str:
    """Return a value with its interval, or "diverged"."""
    value = show_nats(interval.value)
    ends = f" ({show_interval(interval.low, interval.high)})"
    return value if value == "diverged" else value + ends


def write_arrays_report(
    folder: Path, lead: str, readings: Sequence[Reading], sentences: Sequence[str], num_rows: int
) -> Path:
    """Write information.html, .md and .json with the readings of two arrays."""
    run, figure = read_run(folder), estimates_figure(readings)
    sections = [
        Section("", sentences),
        Section(
            "Estimates",
            figures=[Figure("estimates", figure, "Estimates", ESTIMATES)],
            tables=[reading_table(readings, num_rows)],
        ),
        Section("How it was measured", HOW),
        made_section(run.environment, run.config),
    ]
    title = "What two arrays tell about each other"
    return write_page(folder, "information", title, lead, sections=sections, also=["md", "json"])


def reading_table(readings: Sequence[Reading], num_rows: int) -> Table:
    """Return a row for each reading."""
    rows = [
        {
            "estimator": title_of(one),
            "claim": one.label,
            "ceiling": show_ceiling(one.ceiling),
            "nats": format_nats(one.found),
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
        f"from {num_rows:,} rows can pass 2 ln n + 5 = {certifiable(num_rows):.1f} nats."
    )
    return Table("Estimates", pd.DataFrame(rows), note)


def to_scores(readings: Sequence[Reading], data: str, seed: int, num_rows: int) -> list[Score]:
    """Return readings as the scores of a run directory, except those that diverged."""
    return [
        Score(
            "information", data, "row", "x, y", f"{one.estimator}, {one.critic}", "nats",
            *one.found, None if one.null is None else one.null.value, seed=seed,
            num_train=num_rows // 2, num_test=num_rows, setting=one.label,
        )
        for one in readings
        if abs(one.found.value) < DIVERGED
    ]  # fmt: skip


def estimates_figure(readings: Sequence[Reading]) -> Drawing:
    """Draw every reading of two arrays with its interval, null and ceiling: one a line."""
    shown = [one for one in readings if abs(one.found.value) < DIVERGED]
    figure, (axes,) = draw.make_figure(1, width=8.6, row_height=1.4 + 0.27 * len(shown))
    for begin, words, color in LABELS:
        for place, one in enumerate(shown):
            if not one.label.startswith(begin):
                continue
            if one.null is not None:
                axes.plot(
                    one.null[1:], [place] * 2, color=draw.GRAY, linewidth=5, alpha=0.6, zorder=1
                )
            if one.ceiling is not None:
                axes.plot(one.ceiling, place, "|", color=draw.RED, markersize=10)
            axes.plot(one.found[1:], [place] * 2, color=color, linewidth=1.6)
            axes.plot(one.found.value, place, "o", color=color, markersize=5, label=words)
    axes.plot([], [], color=draw.GRAY, linewidth=5, alpha=0.6, label="y shuffled")
    axes.axvline(0, color=draw.INK, linewidth=0.8)
    axes.set_yticks(
        range(len(shown)), [title_of(one) for one in shown], color=draw.INK, fontsize=8.5
    )
    axes.invert_yaxis()
    seen = [value for one in shown for value in one.found if abs(value) < DIVERGED]
    low, high = min([0.0, *seen]), max([0.1, *seen])
    room = 0.12 * (high - low)
    axes.set_xlim(max(low - room, -2.0), high + room)
    draw.label(axes, "nats", "", "")
    draw.add_shared_legend(figure, [axes])
    return figure
