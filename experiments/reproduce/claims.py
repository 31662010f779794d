"""The paper's tables, with our run for each row and the claimed orders of rows.

Only orders are tested, since absolute accuracies are not comparable at far smaller sizes.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.kinds import paper
from experiments.reproduce import cells

#: Features of a row without a probe, which always predicts the most frequent training class.
CHANCE = "chance"


class PaperRow(NamedTuple):
    """A row of a table in the paper, with the cell and probe of our row."""

    label: str
    cell: str
    features: str
    method: str = "linear"
    paper: float | None = None
    """Percentage in the paper, or None if the row is not in the paper."""


class Claim(NamedTuple):
    """An order of row labels that the paper reports, such as "2 steps < 4 steps; MFCC = CPC"."""

    sentence: str
    order: str

    @property
    def pairs(self) -> list[tuple[str, str, str]]:
        """Pairs of neighboring rows in the order, as (lower, relation, higher).

        >>> Claim("", "2 < 4 < 8; 2 = 3").pairs
        [('2', '<', '4'), ('4', '<', '8'), ('2', '=', '3')]
        """
        chains = [re.split(" ([<=]) ", part) for part in self.order.split("; ")]
        return [pair for c in chains for pair in zip(c[:-2:2], c[1::2], c[2::2], strict=True)]


class PaperTable(NamedTuple):
    """A table of the paper."""

    number: str
    title: str
    task: str
    unit: str
    rows: Sequence[PaperRow]
    claims: Sequence[Claim]
    metric: str = "accuracy"

    def effect(self, low: str, high: str) -> float | None:
        """Return the difference of two rows in the paper, in points, or None if one is missing."""
        a, b = (next(row.paper for row in self.rows if row.label == one) for one in (low, high))
        return None if a is None or b is None else round(b - a, 6)


class Task(NamedTuple):
    """A task for agents, with the paper's claim about tasks of its kind."""

    variant: str
    relation: str
    """Expected relation of areas under learning curves, without to with CPC: "<" or "no gain"."""
    claim: str


def table_1(task: str, what: str, best: str, *claims: Claim) -> PaperTable:
    """Return half of Table 1: the paper's rows, our rows, the common claims, and `claims`.

    The supervised network is compared with our row `best`.
    """
    rows = [
        ("chance (the largest class)", CHANCE, "", None),
        *((one.label, one.features, one.probe, one.accuracy) for one in paper.TABLE_1[task]),
        ("random initialization, one hidden layer", "random c", "hidden", None),
        ("MFCC, one hidden layer", "mfcc", "hidden", None),
        ("random initialization, z", "random z", "linear", None),
        ("CPC, z", "z", "linear", None),
        ("CPC, z, one hidden layer", "z", "hidden", None),
        ("CPC, one hidden layer", "c", "hidden", None),
    ]
    found: dict[str, PaperRow] = {}
    for label, *probe in rows:  # a row of the paper precedes our row with the same label
        found.setdefault(label, PaperRow(label, cells.MIXED, *probe))
    shared = (
        Claim(f"CPC holds more of the {what} than the same network untrained",
              "random initialization < CPC"),
        Claim(f"MFCC hold more of the {what} than an untrained network, and CPC more than MFCC",
              "random initialization < MFCC < CPC"),
        *claims,
        Claim("supervised training of the same network does better still",
              f"{best} < supervised, same architecture"),
    )  # fmt: skip
    title, rows = f"Table 1: {task} by frame", [*found.values()]
    return PaperTable("1", title, task, "frame", rows, shared)


def table_2(
    by: str, names: Sequence[str], entries: Mapping[str, float], *claims: Claim
) -> PaperTable:
    """Return half of Table 2, with the paper's accuracies by label and our cells."""
    rows = [
        PaperRow(label, cell, "c", paper=accuracy)
        for cell, (label, accuracy) in zip(names, entries.items(), strict=True)
    ]
    return PaperTable("2", f"Table 2: phones by {by}", "phones", "frame", rows, claims)


def table_of_images(
    number: str, metric: str, accuracy: float, more: Sequence[PaperRow], *claims: Claim
) -> PaperTable:
    """Return Table 3 or 4 with the paper's accuracy and our rows."""
    rows = [
        PaperRow("CPC", cells.IMAGE, "z", paper=accuracy),
        PaperRow("CPC, c", cells.IMAGE, "c"),
        PaperRow("random initialization", cells.IMAGE, "random z"),
        PaperRow("raw pixels", cells.IMAGE, "pixels"),
        *more,
    ]
    untrained = Claim(f"CPC has a higher {metric} than the same network untrained (no row of the "
                      "paper)", "random initialization < CPC")  # fmt: skip
    title = f"Table {number}: images, {'top-1 ' * (number == '3')}{metric} of a linear probe"
    return PaperTable(number, title, "classes", "image", rows, [*claims, untrained], metric)


def table_of_text(
    title: str, task: str, unit: str, method: str, features: str, accuracy: float | None = None
) -> PaperTable:
    """Return a sentence task of Table 5, with the paper's accuracy if it has one."""
    other = "z" if features == "c" else "c"
    rows = [
        PaperRow("CPC", cells.TEXT, features, method, accuracy),
        PaperRow(f"CPC, {other}", cells.TEXT, other, method),
        PaperRow("random initialization", cells.TEXT, f"random {features}", method),
        PaperRow("bag of words", cells.TEXT, "bag", method),
    ]
    claim = Claim("CPC holds more of sentences than the same network untrained (no row of the "
                  "paper)", "random initialization < CPC")  # fmt: skip
    return PaperTable("5", f"Table 5: {title}", task, unit, rows, [claim])


#: The cells of Table 2 that vary the negatives, in the paper's order.
NEGATIVE_CELLS = (cells.MIXED, cells.SAME, cells.MIXED_EXCL, cells.SAME_EXCL, cells.CURRENT)
TABLES = (
    table_1(
        "phones", "phones", "CPC, one hidden layer",
        Claim("a hidden layer reads more phones off c than a linear probe",
              "CPC < CPC, one hidden layer"),
    ),
    table_1("speakers", "speaker", "CPC"),
    table_2(
        "how many steps are predicted",
        [cells.STEPS[k] for k in paper.TABLE_2_STEPS],
        {f"{k} steps": accuracy for k, accuracy in paper.TABLE_2_STEPS.items()},
        Claim("more offsets help, up to 12", "2 steps < 4 steps < 8 steps < 12 steps"),
        Claim("16 steps lie between 8 and 12", "8 steps < 16 steps < 12 steps"),
    ),
    table_2(
        "whose latents are negatives",
        NEGATIVE_CELLS,
        paper.TABLE_2_NEGATIVES,
        Claim("leaving out the own sequence hurts",
              "mixed speaker (excl.) < mixed speaker; same speaker (excl.) < same speaker"),
        Claim("negatives of the same speaker help phones",
              "mixed speaker < same speaker; mixed speaker (excl.) < same speaker (excl.)"),
        Claim("the current sequence alone lies between mixed and same speaker",
              "mixed speaker < current sequence only; "
              "same speaker (excl.) < current sequence only; current sequence only < same speaker"),
        Claim("same speaker without the own sequence equals mixed speaker with it",
              "mixed speaker = same speaker (excl.)"),
    ),
    table_of_images(
        "3", "accuracy", 48.7,
        [PaperRow("supervised, same architecture", cells.IMAGE, "supervised", "whole network"),
         PaperRow("CPC, a row GRU for context", cells.IMAGE_GRU, "z")],
        Claim("a row GRU for the masked convolutions gives similar results (section 3.2)",
              "CPC = CPC, a row GRU for context"),
    ),
    table_of_images("4", "top-5 accuracy", 73.6, []),
    table_of_text("the sign of movie reviews, as in MR", "movies", "sentence", "logistic", "z",
                  paper.TABLE_5["CPC"]["MR"]),
    table_of_text("the sign of product reviews, as in CR", "products", "sentence", "logistic", "z",
                  paper.TABLE_5["CPC"]["CR"]),
    table_of_text("which of two sentences of a document is next (no row of the paper)", "next",
                  "sentence within document", "score", "c"),
)  # fmt: skip
#: The smallest claimed effect with both rows in the paper, in points (16 steps over 8).
SMALLEST_EFFECT = min(
    table.effect(low, high) or math.inf for table in TABLES for claim in table.claims
    for low, relation, high in claim.pairs if relation == "<"
)  # fmt: skip
PHONES_TABLE, IMAGES_TABLE = (next(one for one in TABLES if one.number == n) for n in "23")

#: The tasks of Figure 6, each with a prediction, made in advance, of whether CPC helps.
TASKS = (
    Task("seen_again", "<",
         "agents: CPC makes learning faster where memory tells what is seen later (4 of 5 levels)"),
    Task("always_visible", "no gain",
         "agents: CPC is neither better nor worse where no memory is needed (lasertag)"),
    Task("never_seen", "no gain",
         "agents: nor where memory is needed and tells nothing that is seen (no row of the paper)"),
)  # fmt: skip
