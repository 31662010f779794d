"""The page that lays a reproduction beside the paper: reproduction.html, .md and .json."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cpc.data import SAMPLE_RATE_HZ
from cpc.files import flatten, read_arrays, read_json
from cpc.report.engine import Figure, Section, Table, show, write_page
from cpc.results import Difference, Frame, Run, last_evaluation, last_scores
from cpc.types import UserError
from experiments.audio.modality import AUDIO
from experiments.audio.model import build_encoder
from experiments.audio.sections import flat_points, read_speaker_map
from experiments.command.config import RENAMED, upgrade
from experiments.image.figures import units_figure
from experiments.image.sections import check_arrays, imagenet_table
from experiments.reproduce.agents import agents_section, read_learned
from experiments.reproduce.cells import FAR_OFFSETS, IMAGE, MIXED, OTHER_SHARDS, kind_of
from experiments.reproduce.claims import TABLES, PaperTable
from experiments.reproduce.figures import (
    bound_and_probe_figure,
    bound_figure,
    offsets_figure,
    speakers_figure,
)
from experiments.reproduce.judge import (
    EQUAL_POINTS,
    MISSING,
    UNKNOWN,
    UNTOLD,
    Offsets,
    Reproduction,
    Result,
    at_end,
    bound_and_probe,
    combine,
    in_percent,
    lead,
    read_offsets,
    read_reproduction,
    read_results,
    verdict,
)
from experiments.reproduce.ranks import rank_correlation

PHONES_TABLE, IMAGES_TABLE = (next(t for t in TABLES if t.number == n) for n in "23")
#: Points that t-SNE needs; speakers (the paper's Figure 2 shows ten of 251) and points at most.
FEWEST_POINTS, NUM_SPEAKERS, MAX_POINTS = 10, 10, 1000
NOTE = (
    "Intervals are of 95 %. Over seeds and test items: Student's over seeds and the bootstrap over "
    "test utterances or images, joined as the root of the sum of their squares; of one seed, "
    "over test items alone, which says nothing about other seeds. The difference of two rows is "
    "paired: it is taken seed by seed, on the same test items where both recorded them (“paired by "
    "items”; otherwise the two are taken as independent), and has an interval made in the same "
    "way. Two rows are told apart if it leaves out 0, and then so do the interval over seeds and "
    "that over items, each for itself; they are equal if it lies within "
    f"{EQUAL_POINTS:g} point. Kendall's τ compares the order of our rows with the paper's; "
    "its interval is a parametric bootstrap (each row drawn anew from a normal distribution as "
    "wide as its interval), its p is exact: the fraction of all orders that agree as well."
)
ABSENT = (
    "Tables 3 and 4, other rows: they are other methods, which are not run here.",
    "Table 5 (text) is not reproduced. Figures 1 and 4 are drawings of the method.",
    "Figure 6: the paper's levels of DeepMind Lab; there are small tasks in their place.",
    "Figure 3: the paper prints no numbers; what is tested is that the curve falls.",
)


def write_reproduction(folder: str | Path) -> Path:
    """Write reproduction.html, .md and .json from the cells of a folder, as far as they are.

    Everything that was asked for, in the paper's order, then what the paper lacks.

    Raises:
        UserError: the folder holds no reproduction.
    """
    reproduction = read_reproduction(folder)
    plan, results = reproduction.plan, read_results(reproduction)
    makers = {
        "figure 2": speakers_section,
        "figure 3": offsets_section,
        "figure 5": units_section,
        "figure 6": agents_section,
        "bound": bound_section,
    }
    made = {part: make(reproduction) for part, make in makers.items() if part in plan["parts"]}
    learned = read_learned(reproduction) if "figure 6" in plan["parts"] else []
    told = [(one.task.claim, one.verdict, one.seeds) for one in learned]
    others = Section("Images: the paper and others", tables=[imagenet_table()])
    bound = [made.pop("bound")] if "bound" in made else []
    sections = [
        Section("", verdict(reproduction, results, told)),
        *(table_section(plan, result) for result in results),
        *([others] if {"table 3", "table 4"} & {*plan["parts"]} else []),
        *made.values(),
        open_section(reproduction),
        *bound,
        Section("What is not here", ABSENT),
        Section("How to read the numbers", [NOTE]),
    ]
    return write_page(
        reproduction.folder,
        "reproduction",
        f"Reproduction of CPC at scale {plan['scale']}, on {plan['data']}",
        f"{plan['size']}. {plan['hardware']}.",
        sections=sections,
        also=("md", "json"),
    )


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


def show_measured(estimate: Any) -> str:
    """Return an estimate, or that it is not measured."""
    return show_estimate(estimate, missing=MISSING)


def show_lead(estimate: Any) -> str:
    """Return a difference with its sign."""
    return show_estimate(estimate, "+.1f")


def triples(frame: Frame, *names: str) -> list[tuple[float, ...]]:
    """Return the rows of some columns, such as value, low and high."""
    return list(frame[list(names)].itertuples(index=False, name=None))


def table_section(plan: Mapping[str, Any], result: Result) -> Section:
    """Return a table beside the paper's, its order, and its claims pair by pair.

    At the paper's size also how far apart the paper's numbers and ours are.
    """
    measured, pairs = result.rows.reset_index(), result.pairs
    rows = measured[["row"]].assign(**{"paper %": measured.paper})
    rows["ours %"] = triples(measured, "value", "low", "high")
    note = "Accuracy in percent."
    if plan["scale"] == "paper":
        rows["ours − paper"] = measured.value - measured.paper
    else:
        note += " At this size only the order of the rows compares."
    claims = pairs[["claim"]].rename(columns={"claim": "the paper's claim"})
    claims["pair"] = pairs.lower + " " + pairs.relation + " " + pairs.higher
    claims["lead"] = triples(pairs, "value", "low", "high")
    formats = {"paper %": "g", "ours %": show_measured, "ours − paper": "+.1f"}
    own = {"seeds": pairs.seeds, "paired by": pairs.paired, "verdict": pairs.verdict}
    tables = [
        Table("Rows", rows.assign(seeds=measured.seeds), note, formats),
        Table("Claims", claims.assign(**own), "Points.", {"lead": show_lead}),
    ]
    title = result.table.title + (f", {result.data}" if result.data else "")
    return Section(title, [order_sentence(result.order)], tables=tables)


def order_sentence(order: Difference | None) -> str:
    """Return Kendall's tau in words."""
    if order is None:
        return "Order against the paper's: fewer than three of its rows are measured."
    p = f"p {show(order.p_value, '.3f')}" + " (exact)" * math.isfinite(order.p_value)
    untold = "" if math.isfinite(order.value) else f": {UNTOLD}, as our rows are equal"
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
    if found is None or len(found[0]) < FEWEST_POINTS:
        return Section(title, ["Not measured."])
    features, speaker = chosen_speakers(*found[:2])
    same, chance = same_speaker_fraction(features, speaker)
    caption = (
        f"t-SNE of means of c over pieces of test utterances. The nearest other point, in the "
        f"features themselves, is of the same speaker for {100 * same:.1f} % of the points "
        f"(by chance {100 * chance:.1f} %)."
    )
    figure = speakers_figure(flat_points(features), speaker, found[2])
    return Section(title, figures=[Figure("speakers", figure, "Speech by speaker", caption)])


def chosen_speakers(features: np.ndarray, speaker: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of the speakers who have most of them, at most `MAX_POINTS`."""
    counts = np.bincount(speaker)
    speakers = np.argsort(-counts, kind="stable")[:NUM_SPEAKERS]
    rows = np.flatnonzero(np.isin(speaker, speakers))[:MAX_POINTS]
    return features[rows], speaker[rows]


def same_speaker_fraction(features: np.ndarray, speaker: np.ndarray) -> tuple[float, float]:
    """Return how often the nearest point is of the same speaker, and how often it is by chance.

    >>> x = np.array([[0.0, 0], [0, 1], [9, 9], [9, 8]], np.float32)
    >>> same_speaker_fraction(x, np.array([0, 0, 1, 1]))
    (1.0, 0.5)
    """
    x = features.astype(np.float64)
    square = (x**2).sum(1)
    distance = square[:, None] - 2 * x @ x.T + square
    np.fill_diagonal(distance, np.inf)
    fraction = np.bincount(speaker) / len(speaker)
    return float((speaker[distance.argmin(1)] == speaker).mean()), float((fraction**2).sum())


def offsets_section(reproduction: Reproduction) -> Section:
    """Return the paper's Figure 3 in both readings, as curves and as a table."""
    title = "Figure 3: how often the positive wins, by offset"
    offsets = read_offsets(reproduction.runs.get(FAR_OFFSETS, []))
    if offsets is None:
        return Section(title, ["Not measured."])
    config = upgrade(reproduction.runs[FAR_OFFSETS][0].config, AUDIO.keys)
    frame_ms = 1000 * build_encoder(config).stride / SAMPLE_RATE_HZ
    figure = offsets_figure(offsets.frame, frame_ms)
    formats = {
        "N": ",.0f",
        "log N": ".2f",
        "chance %": ".2g",
        "acc_top1 %": show_estimate,
        "acc_pairwise %": show_estimate,
    }
    return Section(
        title,
        figures=[Figure("offsets", figure, "Two readings", offsets_sentence(offsets))],
        details=[Table("All offsets", offsets.frame, formats=formats)],
    )


def offsets_sentence(offsets: Offsets) -> str:
    """Return whether the curve falls."""
    tau, p = show(offsets.tau, ".2f"), show(offsets.p, ".2g")
    return (
        f"Held-out windows, N about {offsets.frame.N.mean():,.0f}. The paper's curve starts high "
        f"and falls; ours: {offsets.verdict} (Kendall's τ of acc_top1 with the offset {tau}, p {p} "
        "if offsets were independent). The first two offsets share samples with the context."
    )


def units_section(reproduction: Reproduction) -> Section:
    """Return the paper's Figure 5: patches that excite single units."""
    title, run = "Figure 5: patches that excite a unit", first_run(reproduction, IMAGE)
    path = run.workdir / "probes" / "units.npz" if run else None
    if path is None or not path.exists():
        return Section(title, ["Not measured."])
    try:
        figure = units_figure(check_arrays("units", read_arrays(path)))
    except UserError as error:
        return Section(title, [f"Left out: {error}."])
    caption = "A row a unit of z, the patch that excites it most first."
    return Section(title, figures=[Figure("units", figure, "Units", caption)])


def open_section(reproduction: Reproduction) -> Section:
    """Return each choice that the paper leaves, what it is here, and what another makes of it."""
    heads = {"open": "what", "here": "choice", "varied as": "change"}
    tables = []
    for base, table, features in ((MIXED, PHONES_TABLE, "c"), (IMAGE, IMAGES_TABLE, "z")):
        kind, formats = kind_of(base), {}
        known = reproduction.plan["open"]
        rows = [one for one in known if one.get("kind", kind_of(one["cell"])) == kind]
        if not rows:
            continue
        frame = pd.DataFrame({head: [one[key] for one in rows] for head, key in heads.items()})
        scores = linear_scores(reproduction.scores, table, features)
        varied = scores[scores.cell.isin([one["cell"] for one in rows])]
        for data, of_data in scores[scores.data.isin(varied.data)].groupby("data"):
            found = [compare_with(of_data, one["cell"], base) for one in rows]
            percent, over = f"{table.task} %, {data}", f"over {base}, {data}"
            frame[percent], frame[over] = zip(*found, strict=True)
            formats |= {percent: show_estimate, over: show_lead}
        note = f"A linear probe on {features} by {table.unit}; points over the cell {base}."
        tables.append(Table(f"Choices for {kind}", frame, note, formats))
    return Section("What the paper leaves open", tables=tables)


def linear_scores(scores: Frame, table: PaperTable, features: str) -> Frame:
    """Return the scores of a table's task by a linear probe on some features."""
    asked = {"task": table.task, "unit": table.unit, "metric": table.metric}
    asked |= {"features": features, "method": "linear"}
    return scores[(scores[list(asked)] == pd.Series(asked)).all(axis=1)]


def compare_with(scores: Frame, cell: str, base: str) -> tuple[Any, Any]:
    """Return what a cell measured, and how much more that is than its base, each with an interval.

    Both are None without a cell, and NaN for what is not measured.
    """
    if not cell:
        return None, None
    ours, theirs = (scores[scores.cell == name] for name in (cell, base))
    value = in_percent(combine(ours)) if len(ours) else UNKNOWN
    over = in_percent(lead(ours, theirs)[0]) if len(ours) and len(theirs) else UNKNOWN
    return value[:3], over[:3]


def bound_section(reproduction: Reproduction) -> Section:
    """Return log N - L against N, on one device or many, and against the probes."""
    found = read_bound(reproduction.folder)
    known = first.truth if (first := first_run(reproduction, MIXED)) else None
    truth = {} if known is None else dict(zip(known.offset, known.mutual_information, strict=True))
    sentences, figures, tables = [], [], []
    if rows := found.get("rows"):
        frame = pd.DataFrame(rows)
        for name in ("value", "low", "high"):
            frame[name] = frame[name].astype(float)
        caption = (
            "Candidates are latents of other recordings, one of each while there are enough, which "
            "makes log N − L a bound; more latents of the same recordings are not independent, and "
            "it is an estimate that is no bound."
            + (" Dotted: the exact information of the source." if truth else "")
        )
        drawn = bound_figure(frame, truth)
        figures.append(Figure("bound", drawn, "Against the number of negatives", caption))
        table = bound_frame(frame, truth)
        formats = dict.fromkeys(table.columns[1:], show_nats)
        note = "±: half of the 95 % interval over windows. *: an estimate, no bound."
        tables.append(Table("log N − L, nats", table, note, formats))
    else:
        sentences.append("log N − L by number of negatives: not measured.")
    shards = shards_frame(reproduction)
    if {MIXED, OTHER_SHARDS} <= set(shards.cell):
        formats = {"N": ",.0f"} | dict.fromkeys(shards.columns[3:6], ".2f")
        formats |= dict.fromkeys(shards.columns[6:], show_estimate)
        title = "Negatives of a device, or of the whole batch"
        tables.append(Table(title, shards, formats=formats))
    points = bound_and_probe(reproduction, PHONES_TABLE)
    if len(points):
        taus = {str(data): rank_correlation(runs.nats, runs.percent)
                for data, runs in points.groupby("data")}  # fmt: skip
        title = "Whether log N − L predicts the probe"
        drawn = bound_and_probe_figure(points, taus)
        figures.append(Figure("bound_and_probe", drawn, title, predict_sentence(taus)))
    return Section("The bound, which the paper does not tabulate", sentences, figures, tables)


def read_bound(folder: Path) -> dict[str, Any]:
    """Return what was measured by the number of negatives, nothing if that is not done."""
    path = folder / "bound.json"
    try:
        return read_json(path) if path.exists() else {}
    except UserError:
        return {}


def bound_frame(rows: Frame, truth: Mapping[int, float]) -> Frame:
    """Return an offset a row and a number of candidates a column, last the ceilings.

    An entry is (nats, half of the interval, whether it is a bound).
    """
    sizes = sorted(rows.n.unique())
    entries = {(row.offset, row.n): (row.value, (row.high - row.low) / 2, row.is_bound)
               for row in rows.itertuples()}  # fmt: skip
    offsets = sorted(rows.offset.unique())
    columns: dict[str, Any] = {"offset": [*map(str, offsets), "ceiling log N"]}
    for n in sizes:
        column = [entries.get((offset, n)) for offset in offsets]
        columns[f"N = {n:,}"] = [*column, (math.log(n), None, True)]
    if truth:
        exact = [(truth[offset], None, True) if offset in truth else None for offset in offsets]
        columns["truth"] = [*exact, None]
    return pd.DataFrame(columns)


def show_nats(entry: tuple[float, float | None, bool] | None) -> str:
    """Return nats with half the width of their interval, and a star where they are no bound.

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
    for cell in (MIXED, OTHER_SHARDS):
        for run in reproduction.runs.get(cell, []):
            own, strict = (at_end(run, last_evaluation(run, which)) for which in (False, True))
            if not len(own):
                continue
            config = {RENAMED.get(name, name): value for name, value in flatten(run.config).items()}
            entry = {
                "cell": cell,
                "shards": config.get("negatives.shards"),
                "N": own.n.mean(),
                "log N": own.log_n.mean(),
                "log N − L (estimate)": own.bound.mean(),
                "strict bound": strict.bound.mean() if len(strict) else math.nan,
            }
            scores = linear_scores(at_end(run, last_scores(run.scores)), PHONES_TABLE, "c")
            for data, score in scores.groupby("data"):
                entry[f"phones %, {data}"] = in_percent(combine(score))[:3]
            rows.append(entry)
    frame = pd.DataFrame(rows, columns=None if rows else pd.Index(["cell"]))
    return frame.astype(object).where(frame.notna(), None)


def predict_sentence(taus: Mapping[str, Difference | None]) -> str:
    """Return the rank correlation on each labelled set."""
    parts = []
    for data, tau in taus.items():
        if tau is None:
            parts.append(f"{data}: fewer than four runs that differ")
            continue
        says = "it does" if tau.low > 0 else "it misleads" if tau.high < 0 else UNTOLD
        text = f"Kendall's τ {show_estimate(tau, '.2f')}, p {tau.p_value:.2g}"
        parts.append(f"{data}: {text}: {says}")
    return (
        "A point a run; the strict bound is the mean over the offsets that all of them have. "
        f"Interval: bootstrap over runs. {'; '.join(parts)}."
    )
