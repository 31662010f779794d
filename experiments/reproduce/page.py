"""The page that compares a reproduction with the paper, as reproduction.html, .md and .json."""

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cpc.data import SAMPLE_RATE_HZ
from cpc.files import read_arrays
from cpc.report import draw
from cpc.report.engine import Figure, Section, Table, show, write_page
from cpc.results import Difference, Frame, Run
from cpc.types import UserError
from experiments.command.config import load_config
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio import sections as maps
from experiments.kinds.audio.model import build_encoder
from experiments.kinds.image.figures import units_figure
from experiments.kinds.image.sections import imagenet_table
from experiments.kinds.text.sections import paper_section
from experiments.reproduce import cells, statistics
from experiments.reproduce.claims import IMAGES_TABLE, PHONES_TABLE, SMALLEST_EFFECT, TASKS
from experiments.reproduce.statistics import Learned, Reproduction, lead, mean_percent

#: Maximum numbers of speakers and points. The paper's Figure 2 shows ten of 251 speakers.
MAX_SPEAKERS, MAX_POINTS = 10, 1000
#: The agents that Figure 6 compares, with their colors.
ARMS = {"without": draw.GRAY, "with CPC": draw.BLUE}
NOTE = (
    "All intervals cover 95 %. They are the root of the sum of squares of Student's interval over "
    "seeds and the bootstrap over test utterances or images; with one seed, the latter alone. The "
    "difference of two rows is paired by seed, and by test item if both rows recorded them; if "
    "not, its interval is over seeds alone. Rows that share fewer than two seeds are treated as "
    "independent. Two rows differ if the interval excludes 0, and are equal if it is within "
    f"{statistics.EQUAL_POINTS:g} points, half of the smallest effect that the paper claims "
    f"({SMALLEST_EFFECT:g}). Holm's correction of the verdicts at the head of the page keeps the "
    "probability of any false one at 5 %. It counts each judged claim once per labelled set; the p "
    "of a claim, by Student's t over seeds, is the largest p of its pairs if all hold, and the "
    "smallest times their number if one refutes it. Power, before this correction, is the "
    "probability of finding an effect in points (the paper's, or "
    f"{statistics.EFFECT_POINTS:g} if it lacks a row) with as many seeds of the same scatter "
    "(noncentral Student's t), or for “=” of calling rows without a difference equal; the power of "
    "a claim is that of its weakest pair. Kendall's τ compares the order of our rows with the "
    "paper's; its interval draws each row from a normal distribution as wide as its interval, and "
    "its p is exact: the fraction of all orders that agree at least as well."
)
ABSENT = (
    "Tables 3 and 4, other rows: they belong to other methods, which are not run here.",
    "Table 5, sets Subj, MPQA and TREC: they are not available. Figures 1 and 4 are drawings of "
    "the method.",
    "Figure 3: the paper does not print numbers; only the fall of the curve is tested.",
)


def write_reproduction(folder: str | Path) -> Path:
    """Write reproduction.html, .md and .json from the recorded cells of a folder."""
    reproduction = statistics.read_reproduction(folder)
    plan, results = reproduction.plan, statistics.read_results(reproduction)
    parts, learned = plan["parts"], []
    if "figure 6" in parts:
        for task in TASKS:
            runs = (reproduction.runs.get(cell, ()) for cell in cells.AGENTS[task.variant])
            learned.append(statistics.compare_arms(task, *map(statistics.read_curves, runs)))
    more = [one.finding for one in learned]
    sections = [Section("", statistics.verdict(reproduction, results, more))]
    sections += [table_section(plan, result) for result in results]
    if {"table 3", "table 4"} & {*parts}:
        sections.append(Section("Images: the paper and others", tables=[imagenet_table()]))
    if "table 5" in parts and (runs := reproduction.runs.get(cells.TEXT)):
        sections += filter(None, [paper_section(runs[0])])
    sections += [figure_section(part, reproduction) for part in FIGURES if part in parts]
    sections += [agents_section(learned)] if learned else []
    sections.append(open_section(reproduction))
    sections += [bound_section(reproduction)] if "bound" in parts else []
    sections += [Section("What is not here", ABSENT), Section("How to read the numbers", [NOTE])]
    title = f"Reproduction of CPC at scale {plan['scale']}, on {plan['data']}"
    below = f"{plan['size']}. {plan['hardware']}."
    return write_page(folder, "reproduction", title, below, sections=sections, also=("md", "json"))


def show_estimate(estimate: Any, style: str = ".1f", missing: str = "–") -> str:
    """Format a number, followed by its interval in brackets if it has one.

    >>> show_estimate((50.0, 40.0, 60.0)), show_estimate((-1.0, math.nan, math.nan), "+.1f")
    ('50.0 (40.0 to 60.0)', '−1.0')
    """
    if estimate is None:
        return ""
    value, low, high = estimate[:3]
    if not math.isfinite(value):
        return missing
    ends = f" ({show(low, style)} to {show(high, style)})" if math.isfinite(low + high) else ""
    return show(value, style) + ends


show_measured = functools.partial(show_estimate, missing=statistics.MISSING)
show_lead = functools.partial(show_estimate, style="+.1f")
show_return = functools.partial(show_estimate, style="+.2f", missing=statistics.MISSING)


def table_section(plan: Mapping[str, Any], result: statistics.Result) -> Section:
    """Return a section with a table, its agreement with the paper's order, and claims by pair."""
    measured, pairs = result.rows.reset_index(), result.pairs
    rows = measured[["row"]].assign(**{"paper %": measured.paper})
    rows["ours %"] = [*zip(measured.value, measured.low, measured.high, strict=True)]
    note = "Accuracy in percent."
    if plan["scale"] == "paper":
        rows["ours − paper"] = measured.value - measured.paper
    else:
        note += " At this size only the order of the rows is comparable."
    if measured.at_limit.any():
        names = ", ".join(measured.row[measured.at_limit])
        note += f" Ended by its number of steps, and might have improved further: {names}."
    formats = {"paper %": "g", "ours %": show_measured, "ours − paper": "+.1f"}
    tables = [Table("Rows", rows.assign(seeds=measured.seeds), note, formats)]
    names = {"claim": "the paper's claim", "paired": "paired by", "p_value": "p"}
    pairs = pairs.rename(columns=names).assign(
        pair=pairs.lower + " " + pairs.relation + " " + pairs.higher,
        lead=[*zip(pairs.value, pairs.low, pairs.high, strict=True)],
        **{"power %": 100 * pairs.power},
    )
    columns = ["the paper's claim", "pair", "lead", "seeds", "paired by", "effect", "power %", "p"]
    note = "Points. Each verdict is on one pair, by its own interval."
    formats = {"lead": show_lead, "effect": "+.1f", "power %": ".0f", "p": ".2g"}
    tables.append(Table("Claims", pairs[[*columns, "verdict"]], note, formats))
    title = result.table.title + (f", {result.data}" if result.data else "")
    return Section(title, [order_sentence(result.order)], tables=tables)


def order_sentence(order: Difference | None) -> str:
    """Describe, by Kendall's tau, how far our order of rows agrees with the paper's."""
    if order is None:
        return "Order against the paper's: fewer than three of its rows are measured."
    p = f"p {show(order.p_value, '.3f')}" + " (exact)" * math.isfinite(order.p_value)
    suffix = "" if math.isfinite(order.value) else f": {statistics.UNTOLD}, as our rows are equal"
    return f"Order against the paper's: Kendall's τ {show_estimate(order, '.2f')}, {p}{suffix}."


def speaker_map(runs: Sequence[Run]) -> tuple[Figure]:
    """Draw a map like the paper's Figure 2, of pieces of speech colored by speaker."""
    found = maps.read_speaker_map(runs[0])
    if found is None or len(found[0]) < maps.MIN_DISTINCT_POINTS:
        raise UserError(statistics.MISSING)
    features, speaker, names = found
    most = np.argsort(-np.bincount(speaker), kind="stable")[:MAX_SPEAKERS]
    rows = np.flatnonzero(np.isin(speaker, most))[:MAX_POINTS]
    features, speaker = features[rows], speaker[rows]
    drawn = maps.draw_speakers(features, speaker, names)
    if drawn is None:
        raise UserError(f"fewer than {maps.MIN_DISTINCT_POINTS} of {len(features)} points differ")
    from sklearn.neighbors import NearestNeighbors  # imports for a second

    neighbors = NearestNeighbors(n_neighbors=1).fit(features.astype(np.float64))
    nearest = neighbors.kneighbors(return_distance=False)[:, 0]  # other than the point itself
    counts, n = np.bincount(speaker), len(speaker)
    same, chance = (speaker[nearest] == speaker).mean(), counts @ (counts - 1) / (n * (n - 1))
    caption = (
        "t-SNE of means of c over pieces of test utterances. The nearest neighbor in feature space "
        f"has the same speaker for {100 * same:.1f} % of the points ({100 * chance:.1f} % by "
        "chance)."
    )
    return (Figure("speakers", drawn, "Speech by speaker", caption),)


def offset_curves(runs: Sequence[Run]) -> tuple[Figure, Table]:
    """Draw curves like Figure 3, of top-1 and pairwise accuracy, and return their table."""
    offsets = statistics.read_offsets(runs)
    if offsets is None:
        raise UserError(statistics.MISSING)
    frame, encoder = offsets.frame, build_encoder(load_config(runs[0].config, audio.KEYS))
    x = 1000 * encoder.stride / SAMPLE_RATE_HZ * frame.offset
    figure, panels = draw.make_figure(2, num_columns=2, row_height=3.4)
    readings = (
        ("acc_top1", "beats every negative", frame["chance %"], draw.BLUE),
        ("acc_pairwise", "negatives beaten", np.full(len(frame), 50), draw.GREEN),
    )
    for axes, (name, words, chance, color) in zip(panels, readings, strict=True):
        mean, low, high = np.array([*frame[f"{name} %"]]).T
        axes.plot(x, mean, "o-", color=color, markersize=4, label=name)
        if np.isfinite(low).all():
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        axes.plot(x, chance, ":", color=draw.RED, label="chance")
        draw.label(axes, "milliseconds ahead", "percent", f"{name}: {words}")
        axes.set_ylim(0, 102)
        draw.add_legend(axes)
    caption = (
        f"Held-out windows, N about {frame.N.mean():,.0f}. The paper's curve starts high "
        f"and falls. Verdict on ours: {offsets.finding.verdict} (Kendall's τ of acc_top1 with the "
        f"offset {show(offsets.tau, '.2f')}, p {show(offsets.p, '.2g')} if offsets were "
        "independent). The first two offsets share samples with the context."
    )
    formats = {"N": ",.0f", "log N": ".2f", "chance %": ".2g"}
    formats |= dict.fromkeys(("acc_top1 %", "acc_pairwise %"), show_estimate)
    table = Table("All offsets", frame, formats=formats)
    return Figure("offsets", figure, "Two readings", caption), table


def unit_patches(runs: Sequence[Run]) -> tuple[Figure]:
    """Draw patches like the paper's Figure 5, which excite single units."""
    path = runs[0].workdir / "probes" / "units.npz"
    if not path.exists():
        raise UserError(statistics.MISSING)
    caption = "One row per unit of z, starting with the patch that excites it most."
    return (Figure("units", units_figure(read_arrays(path)), "Units", caption),)


#: The titles, cells and drawings of sections with a figure.
FIGURES = {
    "figure 2": ("what c knows of speakers", cells.MIXED, speaker_map),
    "figure 3": ("how often the positive wins, by offset", cells.FAR_OFFSETS, offset_curves),
    "figure 5": ("patches that excite a unit", cells.IMAGE, unit_patches),
}


def figure_section(part: str, reproduction: Reproduction) -> Section:
    """Return a section with one of `FIGURES`, or with the reason why it cannot be drawn."""
    words, cell, make = FIGURES[part]
    title, runs = f"{part.capitalize()}: {words}", reproduction.runs.get(cell)
    if not runs:
        return Section(title, [f"Left out: {statistics.MISSING}."])
    try:
        figure, *tables = make(runs)
    except UserError as error:
        return Section(title, [f"Left out: {error}."])
    return Section(title, figures=[figure], details=tables)


def agents_section(learned: list[Learned]) -> Section:
    """Return a section like the paper's Figure 6, with curves, areas and verdicts for our tasks."""
    title = "Figure 6: agents with and without CPC"
    if not any(curves for one in learned for curves in one.curves):
        return Section(title, ["Not measured."])
    areas = [f"area {arm}" for arm in ARMS]
    expected = {"<": "higher", "no gain": "equal"}
    rows = [
        (one.task.variant.replace("_", " "), *one.areas, one.over, expected[one.task.relation],
         one.seeds, 100 * one.finding.power, one.finding.verdict)
        for one in learned
    ]  # fmt: skip
    names = ["task", *areas, "with − without", "expected", "seeds", "power %", "verdict"]
    frame = pd.DataFrame(rows, columns=pd.Index(names))
    note = (
        "Mean return over the whole training. Intervals of 95 % are Student's over seeds; the "
        "difference is paired by seed. The paper does not print areas: power is for a difference "
        f"of {statistics.EFFECT_RETURN:g}, and areas are equal if their difference is surely less "
        "than half of it. A sure loss is a harm if no gain was expected."
    )
    caption = "Thin: seeds; thick: their mean. The return is −0.78 by chance and at most 1."
    formats = dict.fromkeys((*areas, "with − without"), show_return) | {"power %": ".0f"}
    about = (
        "Catch with a ball that hides after two of ten steps and reappears as it lands, never "
        "reappears, or is always visible: tasks that replace the paper's levels of DeepMind Lab. "
        "Where CPC can help is known in advance. notebooks/studies/hidden_ball has ten seeds."
    )
    drawn = [Figure("agents", curves_figure(learned), "Learning", caption)]
    return Section(title, [about], drawn, [Table("Area under the curve", frame, note, formats)])


def open_section(reproduction: Reproduction) -> Section:
    """Return a section on choices left open by the paper: ours, and the effects of alternatives."""
    heads = {"open": "what", "here": "choice", "varied as": "change"}
    tables, known = [], reproduction.plan["open"]
    bases = ((cells.MIXED, PHONES_TABLE, "c"), (cells.IMAGE, IMAGES_TABLE, "z"))
    for base, table, features in bases:
        kind, formats = cells.KIND_OF.get(base, "audio"), {}
        rows = [one for one in known if one["kind"] == kind]
        if not rows:
            continue
        frame = pd.DataFrame({head: [one[key] for one in rows] for head, key in heads.items()})
        scores = statistics.linear_scores(reproduction.scores, table, features)
        varied = scores[scores.cell.isin([one["cell"] for one in rows])]
        for data, of_data in scores[scores.data.isin(varied.data)].groupby("data"):
            percent, over = f"{table.task} %, {data}", f"over {base}, {data}"
            each = [of_data[of_data.cell == one["cell"]] if one["cell"] else None for one in rows]
            theirs = of_data[of_data.cell == base]
            frame[percent] = [ours if ours is None else mean_percent(ours)[:3] for ours in each]
            frame[over] = [ours if ours is None else lead(ours, theirs)[0][:3] for ours in each]
            formats |= {percent: show_estimate, over: show_lead}
        note = f"A linear probe on {features} by {table.unit}; points over the cell {base}."
        tables.append(Table(f"Choices for {kind}", frame, note, formats))
    return Section("What the paper leaves open", tables=tables)


def bound_section(reproduction: Reproduction) -> Section:
    """Return a section on whether the strict bound predicts the probe on each labelled set."""
    compared, parts, taus = statistics.bound_and_probe(reproduction.runs, PHONES_TABLE), [], {}
    for data, runs in compared.points.groupby("data"):
        tau = taus[data] = statistics.rank_correlation(runs.nats, runs.percent)
        if tau is None:
            parts.append(f"{data}: fewer than four distinct runs, not enough to compare")
            continue
        effect = "it does" if tau.low > 0 else "it misleads" if tau.high < 0 else statistics.UNTOLD
        text = f"Kendall's τ {show_estimate(tau, '.2f')}, p {tau.p_value:.2g}"
        parts.append(f"{data}: {text}: {effect}")
    first, offsets = statistics.MIN_FAR_OFFSET, ", ".join(map(str, compared.offsets)) or "none"
    caption = (
        f"{'; '.join(parts) or 'not measured'}. One point per run; interval: bootstrap over runs. "
        f"The strict bound is the mean over the common offsets of these runs from {first} on "
        f"({offsets}): nearer latents share sound with the context, and their bounds are near the "
        f"ceiling log N. Excluded runs: {compared.num_near} without such an offset, "
        f"{compared.num_other} with another N."
    )
    title = "Whether log N − L predicts the probe"
    if not taus:
        return Section(title, [caption])
    drawn = bound_and_probe_figure(compared.points, taus)
    return Section(title, figures=[Figure("bound_and_probe", drawn, "Bound and probe", caption)])


def bound_and_probe_figure(points: Frame, taus: Mapping[str, Difference | None]) -> Any:
    """Draw the score of a linear probe on c against the strict bound, with a point per run."""
    figure, panels = draw.make_figure(points.data.nunique(), num_columns=2, row_height=3.9)
    for axes, (data, runs) in zip(panels, points.groupby("data"), strict=True):
        runs = runs.sort_values("percent", kind="stable")
        axes.plot(runs.nats, runs.percent, "o", color=draw.BLUE, markersize=5)
        heights = np.linspace(0.02, 0.98, len(runs))  # in the order of the points
        for run, height in zip(runs.itertuples(), heights, strict=True):
            arrow = {"arrowstyle": "-", "color": draw.GRAY, "linewidth": 0.5, "shrinkB": 3}
            axes.annotate(
                run.cell.removeprefix("open-"), (run.nats, run.percent), xytext=(1.03, height),
                textcoords="axes fraction", va="center", fontsize=7, color=draw.INK,
                arrowprops=arrow,
            )  # fmt: skip
        tau = taus[data]
        words = f", τ {tau.value:.2f}" if tau and math.isfinite(tau.value) else ""
        draw.label(axes, "strict bound, nats", "phones, percent", f"{data}{words}")
    return figure


def curves_figure(learned: Sequence[Learned]) -> Any:
    """Draw the paper's Figure 6: a panel per task, with each seed's curve and their mean."""
    drawn, panels = draw.make_figure(len(learned), row_height=3.4)
    for axes, one in zip(panels, learned, strict=True):
        for (arm, color), curves in zip(ARMS.items(), one.curves, strict=True):
            for frames, returns in curves.values():
                axes.plot(frames / 1e3, returns, color=color, linewidth=0.4, alpha=0.6)
            if curves:  # the mean of the curves that are as long as the first
                first = next(iter(curves.values()))
                alike = [curve for curve in curves.values() if curve.shape == first.shape]
                frames, returns = np.mean(alike, axis=0)
                axes.plot(frames / 1e3, returns, color=color, linewidth=1.8, label=arm)
        axes.set_ylim(-1, 1)
        draw.label(axes, "thousands of frames", "return", one.task.variant.replace("_", " "))
    draw.add_shared_legend(drawn, panels)
    return drawn
