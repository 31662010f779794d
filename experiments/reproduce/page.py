"""The page that compares a reproduction with the paper: reproduction.html, .md and .json."""

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cpc.data import SAMPLE_RATE_HZ
from cpc.files import flatten, read_arrays, read_object
from cpc.report.engine import Figure, Section, Table, show, write_page
from cpc.results import Difference, Frame, Run, at_end, last_evaluation
from cpc.results.run import headline_rows, offset_ranges
from cpc.types import UserError
from experiments.command.config import load_config
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.model import build_encoder
from experiments.kinds.audio.sections import (
    MIN_DISTINCT_POINTS,
    NO_MAP,
    draw_speakers,
    read_speaker_map,
)
from experiments.kinds.image.figures import units_figure
from experiments.kinds.image.sections import imagenet_table
from experiments.kinds.text.sections import paper_section
from experiments.reproduce import figures, statistics
from experiments.reproduce.cells import (
    AGENTS,
    FAR_OFFSETS,
    IMAGE,
    MIXED,
    OTHER_SHARDS,
    TEXT,
    kind_of,
)
from experiments.reproduce.claims import IMAGES_TABLE, PHONES_TABLE, SMALLEST_EFFECT, TASKS
from experiments.reproduce.statistics import Finding, Reproduction, lead, mean_percent

#: The largest number of speakers (the paper's Figure 2 shows ten of 251) and of points.
MAX_SPEAKERS, MAX_POINTS = 10, 1000
FIGURE_6 = "Figure 6: agents with and without CPC"
NOTE = (
    "Intervals are of 95 %. Over seeds and test items: Student's over seeds and the bootstrap"
    " over test utterances or images, joined as the root of the sum of their squares; of one "
    "seed, over test items alone, which says nothing about other seeds. The difference of two"
    " rows is paired: it is taken seed by seed, on the same test items where both recorded "
    "them (“paired by seeds and items”, of one seed “items”), and has an interval made in the"
    " same way; of what has none over items it is over seeds alone, and where the rows share "
    "fewer than two seeds, the two are taken as independent. Two rows are told apart if it "
    "leaves out 0, and then so do the interval over seeds and that over items, each for "
    f"itself; they are equal if it lies within {statistics.EQUAL_POINTS:g} points, half of the "
    f"smallest effect that the paper claims ({SMALLEST_EFFECT:g}). One seed is not judged. Holm's "
    "correction keeps the probability of any false verdict on the page at 5 %; it counts each "
    "judged claim once per labelled set, its p by Student's t over seeds the largest of its pairs' "
    "if all hold, and their number times the smallest if one refutes it. Power, before this "
    "correction, is the probability that an effect in points (the paper's, or "
    f"{statistics.EFFECT_POINTS:g} if it lacks a row) is found with as many seeds that scatter as "
    "these do (noncentral Student's t), or for “=” that rows without a difference are called "
    "equal; a claim's is that of its weakest pair. Verdicts at the head of the page count Holm's "
    "correction, those next to tables and figures do not. Kendall's τ compares the order of our "
    "rows with the paper's; its interval is a parametric bootstrap (each row drawn anew from a "
    "normal distribution as wide as its interval), its p is exact: the fraction of all orders that "
    "agree as well."
)
ABSENT = (
    "Tables 3 and 4, other rows: they are other methods, which are not run here.",
    "Table 5, sets Subj, MPQA and TREC: they are not available. Figures 1 and 4 are drawings of "
    "the method.",
    "Figure 6: the paper's levels of DeepMind Lab; there are small tasks in their place.",
    "Figure 3: the paper prints no numbers; what is tested is that the curve falls.",
)


def write_reproduction(folder: str | Path) -> Path:
    """Write reproduction.html, .md and .json from the cells of a folder, as far as they are."""
    reproduction = statistics.read_reproduction(folder)
    plan, results = reproduction.plan, statistics.read_results(reproduction)
    parts, learned = plan["parts"], []
    if "figure 6" in parts:
        for task in TASKS:
            runs = (reproduction.runs.get(cell, ()) for cell in AGENTS[task.variant])
            learned.append(statistics.compare_arms(task, *map(statistics.read_curves, runs)))
    more = [Finding(one.task.claim, one.verdict, one.p_value, one.power) for one in learned]
    sections = [Section("", statistics.verdict(reproduction, results, more))]
    sections += [table_section(plan, result) for result in results]
    if {"table 3", "table 4"} & {*parts}:
        sections.append(Section("Images: the paper and others", tables=[imagenet_table()]))
    if "table 5" in parts and (run := first_run(reproduction, TEXT)):
        sections += filter(None, [paper_section(run)])
    makers = {"figure 2": speakers_section, "figure 3": offsets_section, "figure 5": units_section}
    sections += [make(reproduction) for part, make in makers.items() if part in parts]
    sections += [agents_section(learned)] if learned else []
    sections.append(open_section(reproduction))
    sections += [bound_section(reproduction)] if "bound" in parts else []
    sections += [Section("What is not here", ABSENT), Section("How to read the numbers", [NOTE])]
    title = f"Reproduction of CPC at scale {plan['scale']}, on {plan['data']}"
    below = f"{plan['size']}. {plan['hardware']}."
    return write_page(folder, "reproduction", title, below, sections=sections, also=("md", "json"))


def show_estimate(estimate: Any, style: str = ".1f", missing: str = "–") -> str:
    """Return a number and, in brackets, its interval if it has one.

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
    """Return a table with the paper's numbers, its order, and its claims pair by pair."""
    measured, pairs = result.rows.reset_index(), result.pairs
    rows = measured[["row"]].assign(**{"paper %": measured.paper})
    rows["ours %"] = [*zip(measured.value, measured.low, measured.high, strict=True)]
    note = "Accuracy in percent."
    if plan["scale"] == "paper":
        rows["ours − paper"] = measured.value - measured.paper
    else:
        note += " At this size only the order of the rows compares."
    if measured.at_limit.any():
        names = ", ".join(measured.row[measured.at_limit])
        note += f" Ended by its number of steps, and might have improved further: {names}."
    columns = {
        "the paper's claim": pairs.claim,
        "pair": pairs.lower + " " + pairs.relation + " " + pairs.higher,
        "lead": [*zip(pairs.value, pairs.low, pairs.high, strict=True)],
        "seeds": pairs.seeds,
        "paired by": pairs.paired,
        "effect": pairs.effect,
        "power %": 100 * pairs.power,
        "p": pairs.p_value,
        "verdict": pairs.verdict,
    }
    note_of_pairs = "Points. The verdicts are of pairs, each by its own interval."
    formats_of_pairs = {"lead": show_lead, "effect": "+.1f", "power %": ".0f", "p": ".2g"}
    formats = {"paper %": "g", "ours %": show_measured, "ours − paper": "+.1f"}
    tables = [
        Table("Rows", rows.assign(seeds=measured.seeds), note, formats),
        Table("Claims", pd.DataFrame(columns), note_of_pairs, formats_of_pairs),
    ]
    title = result.table.title + (f", {result.data}" if result.data else "")
    return Section(title, [order_sentence(result.order)], tables=tables)


def order_sentence(order: Difference | None) -> str:
    """Return Kendall's tau in words."""
    if order is None:
        return "Order against the paper's: fewer than three of its rows are measured."
    p = f"p {show(order.p_value, '.3f')}" + " (exact)" * math.isfinite(order.p_value)
    untold = "" if math.isfinite(order.value) else f": {statistics.UNTOLD}, as our rows are equal"
    return f"Order against the paper's: Kendall's τ {show_estimate(order, '.2f')}, {p}{untold}."


def first_run(reproduction: Reproduction, cell: str) -> Run | None:
    """Return the first run of a cell."""
    return next(iter(reproduction.runs.get(cell, [])), None)


def speakers_section(reproduction: Reproduction) -> Section:
    """Return the paper's Figure 2: a point is a piece of speech, its color the speaker."""
    title, run = "Figure 2: what c knows of speakers", first_run(reproduction, MIXED)
    try:
        found = read_speaker_map(run) if run else None
    except UserError as error:
        return Section(title, [f"Left out: {error}."])
    if found is None or len(found[0]) < MIN_DISTINCT_POINTS:
        return Section(title, ["Not measured."])
    features, speaker = choose_speakers(*found[:2])
    drawn = draw_speakers(features, speaker, found[2])
    if drawn is None:
        return Section(title, [NO_MAP.format(len(features))])
    same, chance = same_speaker_fraction(features, speaker)
    caption = (
        f"t-SNE of means of c over pieces of test utterances. The nearest other point, in the "
        f"features themselves, is of the same speaker for {100 * same:.1f} % of the points "
        f"(by chance {100 * chance:.1f} %)."
    )
    return Section(title, figures=[Figure("speakers", drawn, "Speech by speaker", caption)])


def choose_speakers(features: np.ndarray, speaker: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of the speakers who have most of them, at most `MAX_POINTS`."""
    counts = np.bincount(speaker)
    speakers = np.argsort(-counts, kind="stable")[:MAX_SPEAKERS]
    rows = np.flatnonzero(np.isin(speaker, speakers))[:MAX_POINTS]
    return features[rows], speaker[rows]


def same_speaker_fraction(features: np.ndarray, speaker: np.ndarray) -> tuple[float, float]:
    """Return how often the nearest point is of the same speaker, and how often any other is.

    >>> x = np.array([[0.0, 0], [0, 1], [9, 9], [9, 8]], np.float32)
    >>> same_speaker_fraction(x, np.array([0, 0, 1, 1]))
    (1.0, 0.3333333333333333)
    """
    x = features.astype(np.float64)
    square = (x**2).sum(1)
    distance = square[:, None] - 2 * x @ x.T + square
    np.fill_diagonal(distance, np.inf)
    counts, number = np.bincount(speaker), len(speaker)
    chance = (counts * (counts - 1)).sum() / (number * (number - 1))
    return float((speaker[distance.argmin(1)] == speaker).mean()), float(chance)


def offsets_section(reproduction: Reproduction) -> Section:
    """Return the paper's Figure 3 in both readings, as curves and as a table."""
    title = "Figure 3: how often the positive wins, by offset"
    runs = reproduction.runs.get(FAR_OFFSETS, [])
    offsets = statistics.read_offsets(runs)
    if offsets is None:
        return Section(title, ["Not measured."])
    config = load_config(runs[0].config, audio.KEYS)
    frame_ms = 1000 * build_encoder(config).stride / SAMPLE_RATE_HZ
    figure = figures.offsets_figure(offsets.frame, frame_ms)
    formats = {"N": ",.0f", "log N": ".2f", "chance %": ".2g"}
    formats |= dict.fromkeys(("acc_top1 %", "acc_pairwise %"), show_estimate)
    return Section(
        title,
        figures=[Figure("offsets", figure, "Two readings", offsets_sentence(offsets))],
        details=[Table("All offsets", offsets.frame, formats=formats)],
    )


def offsets_sentence(offsets: statistics.Offsets) -> str:
    """Return whether the curve falls."""
    tau, p = show(offsets.tau, ".2f"), show(offsets.p, ".2g")
    return (
        f"Held-out windows, N about {offsets.frame.N.mean():,.0f}. The paper's curve starts high "
        f"and falls. Verdict on ours: {offsets.verdict} (Kendall's τ of acc_top1 with the offset "
        f"{tau}, p {p} if offsets were independent). The first two offsets share samples with the "
        "context."
    )


def units_section(reproduction: Reproduction) -> Section:
    """Return the paper's Figure 5: patches that excite single units."""
    title, run = "Figure 5: patches that excite a unit", first_run(reproduction, IMAGE)
    path = run.workdir / "probes" / "units.npz" if run else None
    if path is None or not path.exists():
        return Section(title, ["Not measured."])
    try:
        figure = units_figure(read_arrays(path))
    except UserError as error:
        return Section(title, [f"Left out: {error}."])
    caption = "A row per unit of z, the patch that excites it most first."
    return Section(title, figures=[Figure("units", figure, "Units", caption)])


def agents_section(learned: list[statistics.Learned]) -> Section:
    """Return the paper's Figure 6 as tasks of our own: curves, areas and verdicts."""
    if not any(curves for one in learned for curves in one.curves):
        return Section(FIGURE_6, ["Not measured."])
    areas = [f"area {arm}" for arm in figures.ARMS]
    expected = {"<": "higher", "no gain": "equal"}
    rows = [
        (one.task.variant.replace("_", " "), *one.areas, one.over, expected[one.task.relation],
         one.seeds, 100 * one.power, one.verdict)
        for one in learned
    ]  # fmt: skip
    names = ["task", *areas, "with − without", "expected", "seeds", "power %", "verdict"]
    frame = pd.DataFrame(rows, columns=pd.Index(names))
    note = (
        "Mean return over all of training. Intervals of 95 % are Student's over seeds, of the "
        "difference paired by seed. The paper prints no areas: power is for a difference of "
        f"{statistics.EFFECT_RETURN:g}, and areas that surely differ by less than half of it are "
        "equal. A sure loss where none was expected is a harm."
    )
    caption = "Thin: each seed; thick: their mean. By chance the return is −0.78; 1 is the most."
    formats = dict.fromkeys((*areas, "with − without"), show_return) | {"power %": ".0f"}
    return Section(
        FIGURE_6,
        [
            "Catch whose ball hides after two of ten steps, and shows again as it lands or does "
            "not, or is always visible. The paper's levels of DeepMind Lab are not here; these "
            "tasks are of their kinds, and say beforehand where CPC can help. "
            "notebooks/studies/hidden_ball has ten seeds, and controls."
        ],
        [Figure("agents", figures.curves_figure(learned), "Learning", caption)],
        [Table("Area under the curve", frame, note, formats)],
    )


def open_section(reproduction: Reproduction) -> Section:
    """Return each choice that the paper leaves open, ours, and the effect of another."""
    heads = {"open": "what", "here": "choice", "varied as": "change"}
    tables = []
    for base, table, features in ((MIXED, PHONES_TABLE, "c"), (IMAGE, IMAGES_TABLE, "z")):
        kind, formats = kind_of(base), {}
        known = reproduction.plan["open"]
        rows = [one for one in known if one.get("kind", kind_of(one["cell"])) == kind]
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
    """Return log N - L against N, on one device or many, and against the probes."""
    first, sentences, drawings, tables = first_run(reproduction, MIXED), [], [], []
    known = first.truth if first else None
    truth = {} if known is None else dict(zip(known.offset, known.mutual_information, strict=True))
    if rows := (read_object(reproduction.folder / "bound.json", []) or {}).get("rows"):
        frame = pd.DataFrame(rows).astype({"value": float, "low": float, "high": float})
        caption = (
            "Candidates are latents of other recordings, one of each while there are enough, which "
            "makes log N − L a bound; more latents of the same recordings are not independent, and "
            "it is an estimate that is no bound."
            + (" Dotted: the exact information of the source." if truth else "")
        )
        drawn = figures.bound_figure(frame, truth)
        drawings.append(Figure("bound", drawn, "Against the number of negatives", caption))
        table = bound_frame(frame, truth)
        formats = dict.fromkeys(table.columns[1:], show_nats)
        note = "±: half of the 95 % interval over windows. *: an estimate, no bound."
        tables.append(Table("log N − L, nats", table, note, formats))
    else:
        sentences.append("log N − L by number of negatives: not measured.")
    shards = shards_frame(reproduction)
    if {MIXED, OTHER_SHARDS} <= set(shards.cell):
        formats = {"N": ",.0f"} | dict.fromkeys(shards.columns[3:6], ".2f")
        formats |= dict.fromkeys(shards.columns[7:], show_estimate)
        title = "Negatives of a device, or of the whole batch"
        tables.append(Table(title, shards, formats=formats))
    compared = statistics.bound_and_probe(reproduction.runs, PHONES_TABLE)
    taus = {
        str(data): statistics.rank_correlation(runs.nats, runs.percent)
        for data, runs in compared.points.groupby("data")
    }
    title = "Whether log N − L predicts the probe"
    caption = predict_sentence(taus, compared)
    if taus:
        drawn = figures.bound_and_probe_figure(compared.points, taus)
        drawings.append(Figure("bound_and_probe", drawn, title, caption))
    else:
        sentences.append(f"{title}: {caption}")
    return Section("The bound, which the paper does not tabulate", sentences, drawings, tables)


def bound_frame(rows: Frame, truth: Mapping[int, float]) -> Frame:
    """Return a row for each offset and a column for each number of candidates, last the ceilings.

    An entry is (nats, half of the interval, whether it is a bound).
    """
    entries = {
        (row.offset, row.n): (row.value, (row.high - row.low) / 2, row.is_bound)
        for row in rows.itertuples()
    }
    offsets = sorted(rows.offset.unique())
    columns: dict[str, Any] = {"offset": [*map(str, offsets), "ceiling log N"]}
    for n in sorted(rows.n.unique()):
        column = [entries.get((offset, n)) for offset in offsets]
        columns[f"N = {n:,}"] = [*column, (math.log(n), None, True)]
    if truth:
        exact = [(truth[offset], None, True) if offset in truth else None for offset in offsets]
        columns["truth"] = [*exact, None]
    return pd.DataFrame(columns)


def show_nats(entry: tuple[float, float | None, bool] | None) -> str:
    """Return nats with half the width of their interval, and a star if they are no bound.

    >>> show_nats((-0.014, 0.03, False)), show_nats((4.1589, None, True))
    ('−0.01 ±0.03*', '4.16')
    """
    if entry is None:
        return ""
    value, half, is_bound = entry
    width = "" if half is None else f" ±{show(half, '.2f')}"
    return f"{show(value, '.2f')}{width}{'' if is_bound else '*'}"


def shards_frame(reproduction: Reproduction) -> Frame:
    """Return the runs that differ in negatives.shards alone: N, estimate, bound, and the phones."""
    rows = []
    cells = [
        (cell, run) for cell in (MIXED, OTHER_SHARDS) for run in reproduction.runs.get(cell, [])
    ]
    for cell, run in cells:
        own, strict = (at_end(run, last_evaluation(run, which)) for which in (False, True))
        if not len(own):
            continue
        own, strict = headline_rows(own), headline_rows(strict)
        entry = {
            "cell": cell,
            "shards": flatten(run.config).get("negatives.shards"),
            "N": own.n.mean(),
            "log N": own.log_n.mean(),
            "log N − L (estimate)": own.bound.mean(),
            "strict bound": strict.bound.mean(),
            "its offsets": offset_ranges(strict.offset),
        }
        scores = statistics.linear_scores(statistics.final_scores(run), PHONES_TABLE, "c")
        for data, score in scores.groupby("data"):
            entry[f"phones %, {data}"] = mean_percent(score)[:3]
        rows.append(entry)
    frame = pd.DataFrame(rows, columns=None if rows else pd.Index(["cell"]))
    return frame.astype(object).where(frame.notna(), None)


def predict_sentence(
    taus: Mapping[str, Difference | None], compared: statistics.BoundAndProbe
) -> str:
    """Return the rank correlation on each labelled set, and what it compares."""
    parts = []
    for data, tau in taus.items():
        if tau is None:
            parts.append(f"{data}: too few to compare, fewer than four runs that differ")
            continue
        says = "it does" if tau.low > 0 else "it misleads" if tau.high < 0 else statistics.UNTOLD
        text = f"Kendall's τ {show_estimate(tau, '.2f')}, p {tau.p_value:.2g}"
        parts.append(f"{data}: {text}: {says}")
    first, offsets = statistics.MIN_FAR_OFFSET, ", ".join(map(str, compared.offsets)) or "none"
    return (
        f"{'; '.join(parts) or 'not measured'}. A point per run; interval: bootstrap over runs. "
        f"The strict bound is the mean over the offsets of {first} and more that these runs have "
        f"in common ({offsets}): nearer latents share sound with the context, and their bounds are "
        f"near the ceiling log N. Runs left out: {compared.num_near} without such an offset, "
        f"{compared.num_other} with another N."
    )
