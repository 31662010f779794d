"""What the paper claims, what the cells of a reproduction measured, and which claims it bears out.

A claim is an order of rows. Where a network, a training and a data set are far smaller than the
paper's, absolute accuracies mean nothing, and orders are what is left to test.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from cpc.report import paper
from cpc.report.comparison import (
    Cell,
    Estimate,
    Probe,
    by_seed,
    difference,
    over_seeds,
    probes_of,
    read_entry,
    stem,
    watched,
)
from cpc.report.records import Picture, Record, Run, read_json
from cpc.types import UserError

#: Rows that the paper gives as equal are equal here if their difference surely lies within these.
EQUAL_POINTS = 1.0
NUM_DRAWS = 4000
#: Of a curve over offsets: neighbours share windows, so that p is too small; and where all but a
#: few offsets are at chance, there is no curve.
SURE, FEWEST_OFFSETS = 0.01, 3
#: So many rows have few enough orders to go through.
MOST_PERMUTED = 8

#: Features of a row that no probe has: always the most frequent class of the training.
CHANCE = "chance"

HELD, REFUTED, UNTOLD = "held", "did not hold", "cannot be told"
MISSING = "not measured"


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


class Judgement(NamedTuple):
    """What became of a claim."""

    claim: Claim
    data: str
    verdict: str
    pairs: tuple[tuple[str, str, str, Estimate | None], ...]
    """Lower, higher, verdict, and the higher minus the lower in points."""


class Reproduction(NamedTuple):
    """A folder of cells, read as far as they are."""

    folder: Path
    plan: dict[str, Any]
    cells: dict[str, Cell]


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


def read_reproduction(folder: Path) -> Reproduction:
    """The plan of a folder and its cells.

    Raises:
        UserError: the folder holds no reproduction.
    """
    plan = (read_json(folder / "sweep.json") or {}).get("reproduction")
    if not isinstance(plan, dict):
        raise UserError(
            f"{folder} holds no reproduction: give the --workdir of python -m experiments.reproduce"
        )
    names = (read_json(folder / "sweep.json") or {}).get("cells", {})
    groups: dict[str, list[Any]] = {stem(name): [] for name in names}
    for name in names:
        entry = read_entry(name, folder / name)
        if entry is not None:
            groups[stem(name)].append(entry)
    cells = {name: Cell(name, entries) for name, entries in groups.items()}
    return Reproduction(folder, plan, cells)


def labelled_sets(cells: Mapping[str, Cell], table: Table) -> list[str]:
    """Names of the sets that a table's task was probed on."""
    found = {
        probe.data: None
        for row in table.rows
        if row.cell in cells
        for run in cells[row.cell].runs
        for probe in probes_of(run)
        if (probe.task, probe.unit) == (table.task, table.unit)
    }
    return sorted(found)


def measure(
    cells: Mapping[str, Cell], table: Table, data: str
) -> dict[str, tuple[Estimate, list[Record]]]:
    """Accuracy in percent, and the rows of each seed, by label; rows not measured are left out."""
    found = {}
    for row in table.rows:
        if row.cell not in cells:
            continue
        probe = Probe(table.task, data, table.unit, row.features, row.probe)
        of_seeds = majority_by_seed if row.features == CHANCE else by_seed
        recorded = of_seeds(cells[row.cell], probe).values()
        rows = [one.get(table.score) if table.score else one for one in recorded]
        rows = [one for one in rows if one]  # few classes have no five best
        if rows:
            found[row.label] = (in_percent(combine(rows)), rows)
    return found


def majority_by_seed(cell: Cell, probe: Probe) -> dict[Any, Record]:
    """Of whatever probes there are of a task, data and unit; recorded without an interval."""
    return {
        run.config.get("seed"): {"accuracy": row["majority"], "low": math.nan, "high": math.nan}
        for run in cell.runs
        for other, row in probes_of(run).items()
        if other[:3] == probe[:3]
    }


def combine(rows: Sequence[Record]) -> Estimate:
    """Mean over seeds, with an interval over seeds and test items.

    Half-widths sqrt(s^2 + u^2): s is Student's over seeds (0 for one seed), u the mean one over
    test items. Seeds share their test items, so u does not shrink with their number.

    >>> rows = [{"accuracy": 0.5, "low": 0.46, "high": 0.54}] * 2
    >>> combine(rows), combine(rows[:1]) == combine(rows)
    (Estimate(value=0.5, low=0.46, high=0.54), True)
    """
    mean, low, _ = over_seeds([row["accuracy"] for row in rows])
    seeds = mean - low if len(rows) > 1 else 0.0
    down = float(np.mean([row["accuracy"] - row["low"] for row in rows]))
    up = float(np.mean([row["high"] - row["accuracy"] for row in rows]))
    ends = np.clip([mean - math.hypot(seeds, down), mean + math.hypot(seeds, up)], 0, 1)
    return Estimate(mean, *(round(float(end), 12) for end in ends))


def in_percent(estimate: Estimate) -> Estimate:
    """Of a share."""
    return Estimate(*(round(100 * one, 10) for one in estimate))


def judge(table: Table, data: str, measured: Mapping[str, Estimate]) -> list[Judgement]:
    """Each claim of a table against estimates in percent by label.

    A claim holds if all its pairs do, and is refuted if one is. The intervals of a pair are taken
    as independent; on the same test items they are narrower, so that too little is claimed.
    """
    judgements = []
    for claim in table.claims:
        pairs = []
        for low, high in claim.pairs:
            if low not in measured or high not in measured:
                pairs.append((low, high, MISSING, None))
                continue
            over = difference(measured[high], measured[low])
            pairs.append((low, high, judge_pair(over, claim.relation), over))
        judgements.append(Judgement(claim, data, join([pair[2] for pair in pairs]), tuple(pairs)))
    return judgements


def judge_pair(over: Estimate, relation: str) -> str:
    """Of the higher row's lead in points.

    >>> judge_pair(Estimate(2.0, 0.5, 3.5), "<"), judge_pair(Estimate(2.0, -0.5, 4.5), "<")
    ('held', 'cannot be told')
    >>> judge_pair(Estimate(0.1, -0.5, 0.7), "="), judge_pair(Estimate(3.0, 1.5, 4.5), "=")
    ('held', 'did not hold')
    """
    if not math.isfinite(over.low + over.high):
        return UNTOLD
    if relation == "=":
        if max(-over.low, over.high) < EQUAL_POINTS:
            return HELD
        return REFUTED if over.low > EQUAL_POINTS or over.high < -EQUAL_POINTS else UNTOLD
    return HELD if over.low > 0 else REFUTED if over.high < 0 else UNTOLD


def join(verdicts: Sequence[str]) -> str:
    """Of all pairs of a claim."""
    for one in (REFUTED, MISSING, UNTOLD):
        if one in verdicts:
            return one
    return HELD


def kendall_tau(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Kendall's tau-b along the last axis; NaN where all are equal.

    tau = sum sign(x_i - x_j) sign(y_i - y_j) / sqrt(pairs untied in x . pairs untied in y)

    >>> float(kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])).round(4))
    0.3333
    """
    i, j = np.triu_indices(x.shape[-1], 1)
    a, b = np.sign(x[..., i] - x[..., j]), np.sign(y[..., i] - y[..., j])
    untied = np.sqrt((a != 0).sum(-1) * (b != 0).sum(-1))
    return np.asarray((a * b).sum(-1) / np.where(untied > 0, untied, np.nan))


def order_agreement(
    theirs: Sequence[float | int], ours: Sequence[Estimate]
) -> tuple[Estimate, float] | None:
    """Kendall's tau between the paper's rows and ours with a 95 % interval, and an exact p.

    The interval is a parametric bootstrap: every row is drawn from a normal distribution as wide
    as its interval over seeds and test items. p: the share of all orders of our rows whose tau is
    as high or higher. Nothing for less than three rows; NaN where all are equal.
    """
    if len(ours) < 3:
        return None
    y, values = np.asarray(theirs, float), np.array([estimate.value for estimate in ours])
    spread = np.array([(e.high - e.low) / (2 * 1.96) for e in ours])
    tau = float(kendall_tau(values, y))
    low = high = math.nan
    if np.isfinite(spread).all() and math.isfinite(tau):
        noise = np.random.default_rng(0).standard_normal((NUM_DRAWS, len(values)))
        drawn = kendall_tau(values + spread * noise, y)
        low, high = (float(end) for end in np.nanquantile(drawn, [0.025, 0.975]))
    p = math.nan
    if len(values) <= MOST_PERMUTED and math.isfinite(tau):
        orders = np.array(list(itertools.permutations(values)))
        p = float((kendall_tau(orders, y) >= tau - 1e-9).mean())
    return Estimate(tau, low, high), p


def independence(
    x: Sequence[Any] | np.ndarray, y: Sequence[Any] | np.ndarray
) -> tuple[float, float]:
    """Kendall's tau and the two-sided p of independence: exact without ties and for few pairs.

    >>> tau, p = independence([1, 2, 3, 4], [1, 2, 3, 4])
    >>> tau, round(p, 4), round(2 / 24, 4)
    (1.0, 0.0833, 0.0833)
    """
    found: Any = stats.kendalltau(x, y)
    return float(found.statistic), float(found.pvalue)


class Offsets(NamedTuple):
    """Figure 3: how often the positive wins, by offset."""

    offsets: list[int]
    num_candidates: list[float]
    acc_top1: list[Estimate]
    """Percent, over seeds."""
    acc_pairwise: list[Estimate]
    tau: tuple[float, float]
    """Of acc_top1 with the offset, and its p (exact)."""
    verdict: str


def read_offsets(cell: Cell | None) -> Offsets | None:
    """The last test record under the training rule, mean over seeds."""
    runs = cell.runs if cell else []
    records = [next(iter(run.tests.values()))[-1] for run in runs if run.tests]
    records = [r for r in records if np.isfinite([*r["acc_top1"], *r["acc_pairwise"]]).all()]
    if not records:
        return None
    first = records[0]

    def mean(key):
        columns = zip(*(record[key] for record in records), strict=True)
        return [in_percent(over_seeds(column)) for column in columns]

    top1 = mean("acc_top1")
    tau, p = independence(first["offsets"], [estimate.value for estimate in top1])
    states = first.get("state", [])
    surely = p < SURE and len([state for state in states if state != "chance"]) >= FEWEST_OFFSETS
    falls = [HELD, REFUTED][tau > 0] if surely else UNTOLD
    return Offsets(
        first["offsets"],
        first["n"],
        top1,
        mean("acc_pairwise"),
        (tau, p),
        falls,
    )


def same_speaker_share(picture: Picture) -> tuple[float, float]:
    """How often the nearest point is of the same speaker, and how often it is by chance.

    >>> x = np.array([[0.0, 0], [0, 1], [9, 9], [9, 8]], np.float32)
    >>> same_speaker_share(Picture(x, np.array([0, 0, 1, 1]), ("a", "b")))
    (1.0, 0.5)
    """
    x, speaker = picture.features.astype(np.float64), picture.speaker
    square = (x**2).sum(1)
    distance = square[:, None] - 2 * x @ x.T + square
    np.fill_diagonal(distance, np.inf)
    share = np.bincount(speaker) / len(speaker)
    return float((speaker[distance.argmin(1)] == speaker).mean()), float((share**2).sum())


def bound_and_probe(
    cells: Mapping[str, Cell], task: str = "phones"
) -> dict[str, list[tuple[str, float, float]]]:
    """By labelled set: name, strict bound in nats and accuracy in percent of each cell.

    The bound is the mean over those offsets that all cells have; cells whose bound was measured
    with another N than most are left out.
    """
    found = []
    for name, cell in cells.items():
        for run in cell.runs:
            records = watched(run)
            rows = {p.data: row for p, row in probes_of(run).items() if is_headline(p, task)}
            if records and records[-1].get("is_bound") and rows:
                found.append((name, records[-1], rows))
    sizes = [round(max(record["n"])) for _, record, _ in found]
    usual = max(sizes, key=sizes.count, default=0)
    kept = [one for one, size in zip(found, sizes, strict=True) if size == usual]
    if not kept:
        return {}
    shared = set.intersection(*(set(record["offsets"]) for _, record, _ in kept))
    points: dict[str, list[tuple[str, float, float]]] = {}
    for name, record, rows in kept:
        pairs = zip(record["offsets"], record["bound"], strict=True)
        bound = float(np.mean([value for k, value in pairs if k in shared]))
        for data, row in rows.items():
            if math.isfinite(bound):
                points.setdefault(data, []).append((name, bound, 100 * row["accuracy"]))
    return dict(sorted(points.items()))


def is_headline(probe: Probe, task: str) -> bool:
    """Linear, on c, by frame."""
    return (probe.task, probe.unit, probe.features, probe.probe) == (task, "frame", "c", "linear")


def rank_correlation(
    x: Sequence[float | int], y: Sequence[float | int]
) -> tuple[Estimate, float] | None:
    """Kendall's tau of two lists with a bootstrap interval over their pairs, and p.

    Nothing for less than four pairs, or where all of a list are equal.
    """
    if len(x) < 4:
        return None
    a, b = np.asarray(x, float), np.asarray(y, float)
    tau, p = independence(a, b)
    if not math.isfinite(tau):
        return None
    drawn = np.random.default_rng(0).integers(len(a), size=(NUM_DRAWS, len(a)))
    low, high = np.nanquantile(kendall_tau(a[drawn], b[drawn]), [0.025, 0.975])
    return Estimate(tau, float(low), float(high)), p


def picture_run(reproduction: Reproduction, cell: str) -> Run | None:
    """The first run of a cell."""
    found = reproduction.cells.get(cell)
    return found.runs[0] if found and found.runs else None
