"""The page that lays a reproduction beside the paper: reproduction.html, .md and .json."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpc.report.engine import Section, Table, show, write_page
from cpc.results import Difference
from experiments.kinds.image.sections import imagenet_table
from experiments.reproduce.agents import agents_section, read_learned
from experiments.reproduce.bound_section import bound_section
from experiments.reproduce.figure_sections import (
    offsets_section,
    speakers_section,
    units_section,
)
from experiments.reproduce.judge import Result, read_results, verdict
from experiments.reproduce.open_section import open_section
from experiments.reproduce.read import read_reproduction
from experiments.reproduce.show import show_estimate, show_lead, show_measured, triples
from experiments.reproduce.verdicts import EQUAL_POINTS, UNTOLD

NOTE = (
    "Intervals are of 95 %. Over seeds and test items: Student's over seeds and the bootstrap"
    " over test utterances or images, joined as the root of the sum of their squares; of one "
    "seed, over test items alone, which says nothing about other seeds. The difference of two"
    " rows is paired: it is taken seed by seed, on the same test items where both recorded "
    "them (“paired by seeds and items”, of one seed “items”), and has an interval made in the"
    " same way; of what has none over items it is over seeds alone, and where the rows share "
    "fewer than two seeds, the two are taken as independent. Two rows are told apart if it "
    "leaves out 0, and then so do the interval over seeds and that over items, each for "
    f"itself; they are equal if it lies within {EQUAL_POINTS:g} point. Kendall's τ compares "
    "the order of our rows with the paper's; its interval is a parametric bootstrap (each row"
    " drawn anew from a normal distribution as wide as its interval), its p is exact: the "
    "fraction of all orders that agree as well."
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
    if measured.at_limit.any():
        names = ", ".join(measured.row[measured.at_limit])
        note += f" Ended by its number of steps, and might have improved further: {names}."
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
