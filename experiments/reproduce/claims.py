"""The paper's tables: where each of their rows is found here, and what the paper claims of them.

A claim is an order of rows. Where a network, a training and a data set are far smaller than the
paper's, absolute accuracies mean nothing, and orders are what is left to test.
"""

import itertools
from typing import NamedTuple

from experiments.kinds import paper
from experiments.reproduce.cells import (
    CURRENT,
    IMAGE,
    IMAGE_GRU,
    MIXED,
    MIXED_EXCL,
    SAME,
    SAME_EXCL,
    STEPS,
)

#: Features of a row that no probe has: always the most frequent class of the training.
CHANCE = "chance"


class PaperRow(NamedTuple):
    """A row of a table of the paper, and where ours is found."""

    label: str
    cell: str
    features: str
    method: str
    paper: float | None
    """Percent; None where the paper has no such row."""


class Claim(NamedTuple):
    """An order of rows that the paper reports."""

    sentence: str
    pairs: tuple[tuple[str, str], ...]
    """Labels of the lower and the higher row."""
    relation: str = "<"
    """"=" if the paper has them equal."""


class PaperTable(NamedTuple):
    """A table of the paper."""

    number: str
    title: str
    task: str
    unit: str
    rows: tuple[PaperRow, ...]
    claims: tuple[Claim, ...]
    metric: str = "accuracy"


def chain(*labels: str) -> tuple[tuple[str, str], ...]:
    """Return the neighbors in an ascending order.

    >>> chain("2", "4", "8")
    (('2', '4'), ('4', '8'))
    """
    return tuple(itertools.pairwise(labels))


def steps_label(number: int) -> str:
    """Return the label of a row of Table 2."""
    return f"{number} steps"


def _table_1(task: str, claims: tuple[Claim, ...]) -> PaperTable:
    theirs = [
        PaperRow(e.label, MIXED, e.features, e.probe, e.accuracy) for e in paper.TABLE_1[task]
    ]
    known = {(row.features, row.method) for row in theirs}
    more = [
        ("random initialization, one hidden layer", "random c", "hidden"),
        ("MFCC, one hidden layer", "mfcc", "hidden"),
        ("random initialization, z", "random z", "linear"),
        ("CPC, z", "z", "linear"),
        ("CPC, z, one hidden layer", "z", "hidden"),
        ("CPC, one hidden layer", "c", "hidden"),
    ]
    ours = [PaperRow(label, MIXED, f, m, None) for label, f, m in more if (f, m) not in known]
    chance = PaperRow("chance (the largest class)", MIXED, CHANCE, "", None)
    rows = (chance, *theirs, *ours)
    return PaperTable("1", f"Table 1: {task} by frame", task, "frame", rows, claims)


#: Cells of the rows of Table 2, in the paper's order.
NEGATIVE_CELLS = (MIXED, SAME, MIXED_EXCL, SAME_EXCL, CURRENT)
MIXED_ROW, SAME_ROW, MIXED_EXCL_ROW, SAME_EXCL_ROW, CURRENT_ROW = paper.TABLE_2_NEGATIVES

TABLES = (
    _table_1(
        "phones",
        (
            Claim(
                "CPC holds more of the phones than the same network untrained",
                chain("random initialization", "CPC"),
            ),
            Claim(
                "MFCC hold more of the phones than an untrained network, and CPC more than MFCC",
                chain("random initialization", "MFCC", "CPC"),
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
                "CPC holds more of the speaker than the same network untrained",
                chain("random initialization", "CPC"),
            ),
            Claim(
                "MFCC hold more of the speaker than an untrained network, and CPC more than MFCC",
                chain("random initialization", "MFCC", "CPC"),
            ),
            Claim(
                "supervised training of the same network does better still",
                chain("CPC", "supervised, same architecture"),
            ),
        ),
    ),
    PaperTable(
        "2",
        "Table 2: phones by how many steps are predicted",
        "phones",
        "frame",
        tuple(
            PaperRow(steps_label(k), STEPS[k], "c", "linear", accuracy)
            for k, accuracy in paper.TABLE_2_STEPS.items()
        ),
        (
            Claim("more offsets help, up to 12", chain(*map(steps_label, (2, 4, 8, 12)))),
            Claim("16 steps lie between 8 and 12", chain(*map(steps_label, (8, 16, 12)))),
        ),
    ),
    PaperTable(
        "2",
        "Table 2: phones by whose latents are negatives",
        "phones",
        "frame",
        tuple(
            PaperRow(label, cell, "c", "linear", accuracy)
            for cell, (label, accuracy) in zip(
                NEGATIVE_CELLS, paper.TABLE_2_NEGATIVES.items(), strict=True
            )
        ),
        (
            Claim(
                "leaving out the own sequence hurts",
                ((MIXED_EXCL_ROW, MIXED_ROW), (SAME_EXCL_ROW, SAME_ROW)),
            ),
            Claim(
                "negatives of the same speaker help phones",
                ((MIXED_ROW, SAME_ROW), (MIXED_EXCL_ROW, SAME_EXCL_ROW)),
            ),
            Claim(
                "the current sequence alone lies between mixed and same speaker",
                ((MIXED_ROW, CURRENT_ROW), (SAME_EXCL_ROW, CURRENT_ROW), (CURRENT_ROW, SAME_ROW)),
            ),
            Claim(
                "same speaker without the own sequence equals mixed speaker with it",
                ((MIXED_ROW, SAME_EXCL_ROW),),
                "=",
            ),
        ),
    ),
    PaperTable(
        "3",
        "Table 3: images, top-1 accuracy of a linear probe",
        "classes",
        "image",
        (
            PaperRow("CPC", IMAGE, "z", "linear", 48.7),
            PaperRow("CPC, c", IMAGE, "c", "linear", None),
            PaperRow("random initialization", IMAGE, "random z", "linear", None),
            PaperRow("raw pixels", IMAGE, "pixels", "linear", None),
            PaperRow("supervised, same architecture", IMAGE, "supervised", "whole network", None),
            PaperRow("CPC, a row GRU for context", IMAGE_GRU, "z", "linear", None),
        ),
        (
            Claim(
                "a row GRU for the masked convolutions gives similar results (section 3.2)",
                (("CPC", "CPC, a row GRU for context"),),
                "=",
            ),
            Claim(
                "CPC holds more of the class than the same network untrained (no row of the paper)",
                chain("random initialization", "CPC"),
            ),
        ),
    ),
    PaperTable(
        "4",
        "Table 4: images, top-5 accuracy of a linear probe",
        "classes",
        "image",
        (
            PaperRow("CPC", IMAGE, "z", "linear", 73.6),
            PaperRow("CPC, c", IMAGE, "c", "linear", None),
            PaperRow("random initialization", IMAGE, "random z", "linear", None),
            PaperRow("raw pixels", IMAGE, "pixels", "linear", None),
        ),
        (
            Claim(
                "the class is more often among CPC's five best than among those of the same "
                "network untrained (no row of the paper)",
                chain("random initialization", "CPC"),
            ),
        ),
        metric="top-5 accuracy",
    ),
)

PHONES_TABLE, IMAGES_TABLE = (next(one for one in TABLES if one.number == n) for n in "23")
