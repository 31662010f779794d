"""The paper's tables: where each of their rows is found here, and what the paper claims of them.

A claim is an order of rows. Where a network, a training and a data set are far smaller than the
paper's, absolute accuracies mean nothing, and orders are what is left to test.
"""

import itertools
from typing import NamedTuple

from cpc.report import paper

#: Features of a row that no probe has: always the most frequent class of the training.
CHANCE = "chance"


class Row(NamedTuple):
    """A row of a table of the paper, and where ours is found."""

    label: str
    cell: str
    features: str
    probe: str
    paper: float | int | None
    """Percent; None where the paper has no such row."""


class Claim(NamedTuple):
    """An order of rows that the paper reports."""

    sentence: str
    pairs: tuple[tuple[str, str], ...]
    """Labels of the lower and the higher row."""
    relation: str = "<"
    """Or =."""


class Table(NamedTuple):
    """A table of the paper."""

    number: str
    title: str
    task: str
    unit: str
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    score: str = ""
    """What of a recorded row is compared, such as top_5; "" for its accuracy."""


def chain(*labels: str) -> tuple[tuple[str, str], ...]:
    """Neighbours in an ascending order.

    >>> chain("2", "4", "8")
    (('2', '4'), ('4', '8'))
    """
    return tuple(itertools.pairwise(labels))


def steps_label(number: int) -> str:
    """Of a row of Table 2."""
    return f"{number} steps"


def _table_1(task: str, claims: tuple[Claim, ...]) -> Table:
    theirs = [Row(e.label, "mixed", e.features, e.probe, e.accuracy) for e in paper.TABLE_1[task]]
    known = {(row.features, row.probe) for row in theirs}
    more = [
        ("random initialisation, one hidden layer", "random c", "hidden"),
        ("MFCC, one hidden layer", "mfcc", "hidden"),
        ("random initialisation, z", "random z", "linear"),
        ("CPC, z", "z", "linear"),
        ("CPC, z, one hidden layer", "z", "hidden"),
        ("CPC, one hidden layer", "c", "hidden"),
    ]
    ours = [Row(label, "mixed", f, p, None) for label, f, p in more if (f, p) not in known]
    chance = Row("chance (the largest class)", "mixed", CHANCE, "", None)
    rows = (chance, *theirs, *ours)
    return Table("1", f"Table 1: {task} by frame", task, "frame", rows, claims)


MIXED, SAME, MIXED_EXCL, SAME_EXCL, CURRENT = paper.TABLE_2_NEGATIVES
#: Cells of the rows of Table 2.
NEGATIVE_CELLS = ("mixed", "same", "mixed-excl", "same-excl", "current")

TABLES = (
    _table_1(
        "phones",
        (
            Claim(
                "MFCC hold more of the phones than an untrained network, and CPC more than MFCC",
                chain("random initialisation", "MFCC", "CPC"),
            ),
            Claim(
                "a hidden layer reads more phones off c than a linear probe",
                chain("CPC", "CPC, one hidden layer"),
            ),
            Claim(
                "supervised training of the same network does better still",
                chain("CPC, one hidden layer", "supervised, same architecture"),
            ),
        ),
    ),
    _table_1(
        "speakers",
        (
            Claim(
                "MFCC hold more of the speaker than an untrained network, and CPC more than MFCC",
                chain("random initialisation", "MFCC", "CPC"),
            ),
            Claim(
                "supervised training of the same network does better still",
                chain("CPC", "supervised, same architecture"),
            ),
        ),
    ),
    Table(
        "2",
        "Table 2: phones by how many steps are predicted",
        "phones",
        "frame",
        tuple(
            Row(steps_label(k), "mixed" if k == 12 else f"steps-{k}", "c", "linear", accuracy)
            for k, accuracy in paper.TABLE_2_STEPS.items()
        ),
        (
            Claim("more offsets help, up to 12", chain(*map(steps_label, (2, 4, 8, 12)))),
            Claim("16 steps lie between 8 and 12", chain(*map(steps_label, (8, 16, 12)))),
        ),
    ),
    Table(
        "2",
        "Table 2: phones by whose latents are negatives",
        "phones",
        "frame",
        tuple(
            Row(label, cell, "c", "linear", accuracy)
            for cell, (label, accuracy) in zip(
                NEGATIVE_CELLS, paper.TABLE_2_NEGATIVES.items(), strict=True
            )
        ),
        (
            Claim(
                "leaving out the own sequence hurts",
                ((MIXED_EXCL, MIXED), (SAME_EXCL, SAME)),
            ),
            Claim(
                "negatives of the same speaker help phones",
                ((MIXED, SAME), (MIXED_EXCL, SAME_EXCL)),
            ),
            Claim(
                "the current sequence alone lies between mixed and same speaker",
                ((MIXED, CURRENT), (SAME_EXCL, CURRENT), (CURRENT, SAME)),
            ),
            Claim(
                "same speaker without the own sequence equals mixed speaker with it",
                ((MIXED, SAME_EXCL),),
                "=",
            ),
        ),
    ),
    Table(
        "3",
        "Table 3: pictures, top-1 accuracy of a linear probe",
        "classes",
        "picture",
        (
            Row("CPC", "image", "z", "linear", 48.7),
            Row("CPC, c", "image", "c", "linear", None),
            Row("random initialisation", "image", "random z", "linear", None),
            Row("raw pixels", "image", "pixels", "linear", None),
            Row("supervised, same architecture", "image", "supervised", "whole network", None),
            Row("CPC, a row GRU for context", "image-gru", "z", "linear", None),
        ),
        (
            Claim(
                "a row GRU for the masked convolutions gives similar results (section 3.2)",
                (("CPC", "CPC, a row GRU for context"),),
                "=",
            ),
            Claim(
                "CPC holds more of the class than the same network untrained (no row of the paper)",
                chain("random initialisation", "CPC"),
            ),
        ),
    ),
    Table(
        "4",
        "Table 4: pictures, top-5 accuracy of a linear probe",
        "classes",
        "picture",
        (
            Row("CPC", "image", "z", "linear", 73.6),
            Row("CPC, c", "image", "c", "linear", None),
            Row("random initialisation", "image", "random z", "linear", None),
            Row("raw pixels", "image", "pixels", "linear", None),
        ),
        (
            Claim(
                "the class is more often among CPC's five best than among those of the same "
                "network untrained (no row of the paper)",
                chain("random initialisation", "CPC"),
            ),
        ),
        score="top_5",
    ),
)
