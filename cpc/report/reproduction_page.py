"""The page that lays a reproduction beside the paper: reproduction.html, .md and .json."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpc.report import markup
from cpc.report.claims import TABLES
from cpc.report.comparison import Cell, Probe, by_seed, difference, with_interval
from cpc.report.draw import shown
from cpc.report.image_figures import units_figure
from cpc.report.probe_figures import flat_points
from cpc.report.records import mean_known, read_json
from cpc.report.reproduction import (
    EQUAL_POINTS,
    MISSING,
    UNTOLD,
    Offsets,
    Reproduction,
    Result,
    combine,
    in_percent,
    labelled_sets,
    picture_run,
    read_offsets,
    read_reproduction,
    read_results,
    same_speaker_share,
    verdict,
)
from cpc.report.reproduction_bound import bound_and_probe, bound_section, bound_table
from cpc.report.reproduction_figures import chosen_speakers, offsets_figure, speakers_picture
from cpc.report.tables import imagenet_table

#: Points that t-SNE needs to make a picture.
FEWEST_POINTS = 10
NOTE = (
    "Intervals are of 95 %. Over seeds and test items: Student's over seeds and the bootstrap over "
    "test utterances or pictures, joined as the root of the sum of their squares; of one seed, "
    "over test items alone, which says nothing about other seeds. Two rows are told apart if the "
    "interval of their difference, taken as independent, leaves out 0; they are equal if it lies "
    f"within {EQUAL_POINTS:g} point. Kendall's τ compares the order of our rows with the paper's; "
    "its interval is a parametric bootstrap (each row drawn anew from a normal distribution as "
    "wide as its interval), its p is exact: the share of all orders that agree as well."
)
ABSENT = (
    "Tables 3 and 4, other rows: they are other methods, which are not run here.",
    "Table 5 (text) and Figure 6 (reinforcement learning) are not reproduced. Figures 1 and 4 are "
    "drawings of the method.",
    "Figure 3: the paper prints no numbers; what is tested is that the curve falls.",
)


def write_reproduction(folder: Path) -> Path:
    """Write reproduction.html, .md and .json from the cells of a folder, as far as they are.

    Raises:
        UserError: the folder holds no reproduction.
    """
    reproduction = read_reproduction(folder)
    results = read_results(reproduction)
    title = "Reproduction of CPC at scale {scale}, on {data}".format(**reproduction.plan)
    sentences = verdict(reproduction, results)
    record = record_of(reproduction, results, sentences)
    text = json.dumps(markup.finite(record), indent=2, allow_nan=False)
    (folder / "reproduction.json").write_text(text + "\n", encoding="utf-8")
    summary = summary_of(title, reproduction, results, sentences)
    (folder / "reproduction.md").write_text(summary, encoding="utf-8")
    path = folder / "reproduction.html"
    body = page_body(title, reproduction, results, sentences)
    path.write_text(markup.page(title, body), encoding="utf-8")
    return path


def page_body(
    title: str, reproduction: Reproduction, results: Sequence[Result], sentences: Sequence[str]
) -> str:
    """Everything that is asked for, in the paper's order, then what the paper lacks."""
    parts, plan = reproduction.plan["parts"], reproduction.plan
    return "\n".join(
        [
            f"<h1>{markup.escape(title)}</h1>",
            markup.paragraph(f"{plan['size']}. {plan['hardware']}.", "lead"),
            markup.bullets(sentences),
            markup.paragraph(NOTE, "note"),
            *(section_of(plan, result) for result in results),
            imagenet_table() if {"table 3", "table 4"} & set(parts) else "",
            figure_2(reproduction) if "figure 2" in parts else "",
            figure_3(reproduction) if "figure 3" in parts else "",
            figure_5(reproduction) if "figure 5" in parts else "",
            markup.section("What the paper leaves open", open_table(reproduction)),
            bound_section(reproduction) if "bound" in parts else "",
            markup.section("What is not here", markup.bullets(ABSENT)),
        ]
    )


def section_of(plan: dict[str, Any], result: Result) -> str:
    """A table beside the paper's, its order, and its claims pair by pair."""
    head, rows = result_table(plan, result)
    caption = "Accuracy in percent." + (
        "" if plan["scale"] == "paper" else " At this size only the order of the rows compares."
    )
    title = result.table.title + (f", {result.data}" if result.data else "")
    return markup.section(
        title,
        markup.table(head, rows, title="Rows", caption=caption),
        markup.paragraph(order_sentence(result)),
        markup.table(*claim_table(result), title="Claims", caption="Points.", style="plain"),
    )


def result_table(plan: dict[str, Any], result: Result) -> tuple[list[str], list[list[str]]]:
    """The paper's value and ours; at the paper's size also how far apart they are."""
    with_gap = plan["scale"] == "paper"
    rows = []
    for row in result.table.rows:
        ours = result.estimates.get(row.label)
        gap = "" if ours is None or row.paper is None else f"{ours.value - row.paper:+.1f}"
        rows.append(
            [
                row.label,
                "" if row.paper is None else f"{row.paper:g}",
                MISSING if ours is None else with_interval(ours, 1, ".1f"),
                *[gap.replace("-", "−")] * with_gap,
                str(result.num_seeds.get(row.label, 0)),
            ]
        )
    return ["row", "paper %", "ours %", *["ours − paper"] * with_gap, "seeds"], rows


def claim_table(result: Result) -> tuple[list[str], list[list[str]]]:
    """Each pair of each claim with the lead of the row that the paper has higher."""
    rows = [
        [
            judgement.claim.sentence,
            f"{low} {judgement.claim.relation} {high}",
            with_interval(over, 1, "+.1f") if over else "",
            word,
        ]
        for judgement in result.judgements
        for low, high, word, over in judgement.pairs
    ]
    return ["the paper's claim", "pair", "lead", "verdict"], rows


def order_sentence(result: Result) -> str:
    """Kendall's tau in words."""
    if result.tau is None:
        return "Order against the paper's: fewer than three of its rows are measured."
    tau, p = result.tau
    share = f"p {markup.number_text(p, '.3f')}" + " (exact)" * math.isfinite(p)
    untold = "" if math.isfinite(tau.value) else f": {UNTOLD}, as our rows are equal"
    text = with_interval(tau, 1, ".2f")
    return f"Order against the paper's: Kendall's τ {text}, {share}{untold}."


def figure_2(reproduction: Reproduction) -> str:
    """Points by speaker, to be pointed at."""
    run, title = picture_run(reproduction, "mixed"), "Figure 2: what c knows of speakers"
    if run is None or run.picture is None or len(run.picture.features) < FEWEST_POINTS:
        return markup.section(title, markup.paragraph("Not measured."))
    picture = chosen_speakers(run.picture)
    share, chance = same_speaker_share(picture)
    words = (
        f"t-SNE of means of c over pieces of test utterances. The nearest other point, in the "
        f"features themselves, is of the same speaker for {100 * share:.1f} % of the points "
        f"(by chance {100 * chance:.1f} %)."
    )
    drawn = speakers_picture(flat_points(picture.features), picture.speaker, picture.names)
    return markup.section(title, drawn, markup.paragraph(words))


def figure_3(reproduction: Reproduction) -> str:
    """Both readings, as curves and as a table."""
    offsets = read_offsets(reproduction.cells.get("steps-20"))
    title = "Figure 3: how often the positive wins, by offset"
    if offsets is None:
        return markup.section(title, markup.paragraph("Not measured."))
    return markup.section(
        title,
        shown(offsets_figure(offsets), "Two readings", offsets_sentence(offsets)),
        markup.details(
            "All offsets", markup.table(*offsets_table(offsets), title="By offset", caption="")
        ),
    )


def offsets_sentence(offsets: Offsets) -> str:
    """Whether it falls."""
    tau = markup.number_text(offsets.tau[0], ".2f").replace("-", "−")
    p = markup.number_text(offsets.tau[1], ".2g")
    return (
        f"Held-out windows, N about {mean_known(offsets.num_candidates):,.0f}. The paper's curve "
        f"starts high and falls; ours: {offsets.verdict} (Kendall's τ of acc_top1 with the offset "
        f"{tau}, p {p} if offsets were independent). The first two offsets share samples "
        "with the context."
    )


def offsets_table(offsets: Offsets) -> tuple[list[str], list[list[str]]]:
    """Percent, with chance."""
    columns = zip(
        offsets.offsets, offsets.num_candidates, offsets.acc_top1, offsets.acc_pairwise, strict=True
    )
    rows = [
        [
            str(k),
            f"{n:,.0f}",
            f"{math.log(n):.2f}",
            with_interval(top1, 1, ".1f"),
            f"{100 / n:.2g}",
            with_interval(pairwise, 1, ".1f"),
        ]
        for k, n, top1, pairwise in columns
    ]
    return ["offset", "N", "log N", "acc_top1 %", "chance %", "acc_pairwise %"], rows


def figure_5(reproduction: Reproduction) -> str:
    """Patches that excite single units."""
    run = picture_run(reproduction, "image")
    figure = units_figure(run) if run else None
    words = "A row a unit of z, the patch that excites it most first."
    return markup.section(
        "Figure 5: patches that excite a unit",
        shown(figure, "Units", words) if figure else markup.paragraph("Not measured."),
    )


def open_table(reproduction: Reproduction) -> str:
    """Each choice that the paper leaves, what it is here, and what another makes of it."""
    head, rows = open_rows(reproduction)
    return markup.table(
        head,
        [[markup.breakable(text) for text in row] for row in rows],
        title="Choices",
        caption="Phones by frame, linear on c, and points over the cell mixed; classes of "
        "pictures, linear on z, and points over the cell image.",
        style="plain",
    )


def open_rows(reproduction: Reproduction) -> tuple[list[str], list[list[str]]]:
    """Head and rows; a column for each labelled set, of phones and of pictures."""
    columns = [
        (base, Probe(table.task, data, table.unit, features, "linear"))
        for base, number, features in (("mixed", "2", "c"), ("image", "3", "z"))
        for table in [next(table for table in TABLES if table.number == number)]
        for data in labelled_sets(reproduction.cells, table)
    ]
    rows = [
        [
            *(one[key] for key in ("what", "choice", "change")),
            *(sensitivity(reproduction.cells, one["cell"], *column) for column in columns),
        ]
        for one in reproduction.plan["open"]
    ]
    heads = [f"{probe.task}, {probe.data}" for _, probe in columns]
    return ["open", "here", "varied as", *heads], rows


def sensitivity(cells: Mapping[str, Cell], name: str, base: str, probe: Probe) -> str:
    """Accuracy of a cell, and points over the base; a dash for what it cannot be asked of."""
    pictures = {row.cell for table in TABLES if table.unit == "picture" for row in table.rows}
    if not name or (name in pictures) != (base in pictures):
        return "–"
    ours, theirs = (
        list(by_seed(cells[one], probe).values()) if one in cells else [] for one in (name, base)
    )
    if not ours:
        return MISSING
    estimate = in_percent(combine(ours))
    text = f"{estimate.value:.1f}"
    if theirs:
        text += f", {with_interval(difference(estimate, in_percent(combine(theirs))), 1, '+.1f')}"
    return text


def summary_of(
    title: str, reproduction: Reproduction, results: Sequence[Result], sentences: Sequence[str]
) -> str:
    """The tables and the verdict as Markdown."""
    plan = reproduction.plan
    parts = [f"# {title}", f"{plan['size']}. {plan['hardware']}.", *(f"- {s}" for s in sentences)]
    for result in results:
        parts += [f"## {result.table.title}" + (f", {result.data}" if result.data else "")]
        parts += [markup.markdown(*result_table(plan, result)), order_sentence(result)]
        parts += [markup.markdown(*claim_table(result))]
    offsets = read_offsets(reproduction.cells.get("steps-20"))
    if "figure 3" in plan["parts"] and offsets:
        parts += [
            "## Figure 3",
            markup.markdown(*offsets_table(offsets)),
            offsets_sentence(offsets),
        ]
    parts += ["## What the paper leaves open", markup.markdown(*open_rows(reproduction))]
    found = read_json(reproduction.folder / "bound.json") or {}
    if "bound" in plan["parts"] and found.get("rows"):
        table = bound_table(found["rows"], found.get("truth"))
        said = "±: half of the 95 % interval over windows; *: a score, no bound"
        parts += [f"## log N - L by N, nats ({said})", markup.markdown(*table)]
    parts += ["## What is not here", *(f"- {sentence}" for sentence in ABSENT), NOTE]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def record_of(
    reproduction: Reproduction, results: Sequence[Result], sentences: Sequence[str]
) -> dict[str, Any]:
    """Every number of the page."""
    offsets = read_offsets(reproduction.cells.get("steps-20"))
    points = bound_and_probe(reproduction.cells)
    return {
        "plan": reproduction.plan,
        "verdict": list(sentences),
        "tables": [
            {
                "title": result.table.title,
                "data": result.data,
                "rows": [
                    {
                        "row": row.label,
                        "cell": row.cell,
                        "paper": row.paper,
                        "ours": ours._asdict()
                        if (ours := result.estimates.get(row.label))
                        else None,
                        "seeds": result.num_seeds.get(row.label, 0),
                    }
                    for row in result.table.rows
                ],
                "tau": {**result.tau[0]._asdict(), "p": result.tau[1]} if result.tau else None,
                "claims": [
                    {
                        "claim": judgement.claim.sentence,
                        "verdict": judgement.verdict,
                        "pairs": [
                            {
                                "lower": low,
                                "higher": high,
                                "verdict": word,
                                "lead": over._asdict() if over else None,
                            }
                            for low, high, word, over in judgement.pairs
                        ],
                    }
                    for judgement in result.judgements
                ],
            }
            for result in results
        ],
        "figure_3": {
            "offsets": offsets.offsets,
            "n": offsets.num_candidates,
            "acc_top1": [e._asdict() for e in offsets.acc_top1],
            "acc_pairwise": [e._asdict() for e in offsets.acc_pairwise],
            "verdict": offsets.verdict,
        }
        if offsets
        else None,
        "bound": read_json(reproduction.folder / "bound.json"),
        "bound_and_probe": {
            data: [{"run": name, "nats": nats, "accuracy": a} for name, nats, a in runs]
            for data, runs in points.items()
        },
    }
