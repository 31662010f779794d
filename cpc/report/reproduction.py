"""What the cells of a reproduction measured, and which of the paper's claims it bears out."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from cpc.report.claims import CHANCE, TABLES, Claim, Table
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

HELD, REFUTED, UNTOLD = "held", "did not hold", "cannot be told"
MISSING = "not measured"
VERDICTS = (
    (HELD, "Held"),
    (REFUTED, "Did not hold"),
    (UNTOLD, "Cannot be told at this size (intervals overlap)"),
    (MISSING, "Not measured"),
)


class Judgement(NamedTuple):
    """What became of a claim."""

    claim: Claim
    data: str
    verdict: str
    pairs: tuple[tuple[str, str, str, Estimate | None], ...]
    """Lower, higher, verdict, and the higher minus the lower in points."""


class Result(NamedTuple):
    """A table of the paper on one labelled set."""

    table: Table
    data: str
    estimates: dict[str, Estimate]
    """Percent, by label."""
    num_seeds: dict[str, int]
    judgements: list[Judgement]
    tau: tuple[Estimate, float] | None
    """Order against the paper's, and its p."""


class Reproduction(NamedTuple):
    """A folder of cells, read as far as they are."""

    folder: Path
    plan: dict[str, Any]
    cells: dict[str, Cell]


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


def read_results(reproduction: Reproduction) -> list[Result]:
    """Of each table that was asked for: one for each set that its task was probed on, or one."""
    return [
        read_result(reproduction.cells, table, data)
        for table in TABLES
        if f"table {table.number}" in reproduction.plan["parts"]
        for data in labelled_sets(reproduction.cells, table) or [""]
    ]


def read_result(cells: Mapping[str, Cell], table: Table, data: str) -> Result:
    """As far as it is measured."""
    measured = measure(cells, table, data)
    estimates = {name: estimate for name, (estimate, _) in measured.items()}
    pairs = [
        (row.paper, estimates[row.label])
        for row in table.rows
        if row.label in estimates and row.paper is not None
    ]
    return Result(
        table,
        data,
        estimates,
        {name: len(rows) for name, (_, rows) in measured.items()},
        judge(table, data, estimates),
        order_agreement(*zip(*pairs, strict=True)) if pairs else None,
    )


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


def picture_run(reproduction: Reproduction, cell: str) -> Run | None:
    """The first run of a cell."""
    found = reproduction.cells.get(cell)
    return found.runs[0] if found and found.runs else None


def verdict(reproduction: Reproduction, results: Sequence[Result]) -> list[str]:
    """Which claims held, which did not, which cannot be told, and which are not measured."""
    found: dict[str, dict[str, list[str]]] = {}  # verdict -> claim -> the labelled sets
    several = {
        result.table.title for result in results for other in results
        if result.table is other.table and result.data != other.data
    }  # fmt: skip
    for result in results:
        on = [result.data] if result.table.title in several else []
        for judgement in result.judgements:
            claim = f"{result.table.task}: {judgement.claim.sentence}"
            found.setdefault(judgement.verdict, {}).setdefault(claim, []).extend(on)
    offsets = read_offsets(reproduction.cells.get("steps-20"))
    if "figure 3" in reproduction.plan["parts"]:
        kind = offsets.verdict if offsets else MISSING
        found.setdefault(kind, {})["accuracy falls with the offset (Figure 3)"] = []
    problems = [
        f"{entry.name}: {entry.problem}"
        for cell in reproduction.cells.values()
        for entry in cell.entries
        if entry.problem
    ]
    waiting = [name for name, cell in reproduction.cells.items() if not cell.entries]

    def listed(claims):
        return "; ".join(f"{c} ({', '.join(on)})" if on else c for c, on in claims.items())

    return [
        *(f"{words}: {listed(found[kind])}." for kind, words in VERDICTS if kind in found),
        *([f"Cells not begun: {', '.join(waiting)}."] if waiting else []),
        *problems,
    ]
