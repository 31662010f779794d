"""What the cells of a reproduction measured, and which of the paper's claims they bear out."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cpc.files import read_json
from cpc.results import (
    Difference,
    Frame,
    Run,
    difference,
    last_evaluation,
    last_scores,
    over_seeds,
    read_run,
    score_frame,
    stem,
    to_scores,
)
from cpc.results.compare import UNKNOWN, independent_difference
from cpc.types import UserError
from experiments.reproduce.cells import FAR_OFFSETS
from experiments.reproduce.claims import CHANCE, TABLES, PaperTable
from experiments.reproduce.ranks import independence, order_agreement

#: Rows that the paper gives as equal are equal here if their difference surely lies within these.
EQUAL_POINTS = 1.0
#: Of a curve over offsets: neighbors share windows, so that p is too small; and where all but a
#: few offsets are at chance, there is no curve.
SURE, FEWEST_OFFSETS = 0.01, 3

HELD, REFUTED, UNTOLD = "held", "did not hold", "cannot be told"
MISSING = "not measured"
VERDICTS = {
    HELD: "Held",
    REFUTED: "Did not hold",
    UNTOLD: "Cannot be told at this size (the interval is too wide)",
    MISSING: "Not measured",
}


class Reproduction(NamedTuple):
    """A folder of cells, read as far as they are."""

    folder: Path
    plan: dict[str, Any]
    runs: dict[str, list[Run]]
    """By cell, one for each seed that has recorded something."""
    scores: Frame
    """The scores of all runs that ended: their fields, and the cell."""
    problems: list[str]
    """A sentence for each cell that failed and each file that is damaged."""
    waiting: list[str]
    """Cells that have not begun."""


class Result(NamedTuple):
    """A table of the paper on one labelled set."""

    table: PaperTable
    data: str
    rows: Frame
    """By label: cell, paper, value, low, high (percent; NaN if not measured), seeds."""
    pairs: Frame
    """A row for each pair of each claim: claim, lower, relation, higher, verdict, and of the higher
    minus the lower in points value, low, high, paired and seeds, as `lead` has them."""
    order: Difference | None
    """Kendall's tau of the order against the paper's, and its p."""

    @property
    def verdicts(self) -> dict[str, str]:
        """What became of each claim."""
        return {
            str(claim): join(rows.verdict.tolist())
            for claim, rows in self.pairs.groupby("claim", sort=False)
        }


def read_reproduction(folder: str | Path) -> Reproduction:
    """Return the plan of a folder and what its cells recorded.

    Raises:
        UserError: the folder holds no reproduction.
    """
    folder = Path(folder)
    path = folder / "sweep.json"
    recorded = read_json(path) if path.exists() else {}
    plan = recorded.get("reproduction") if isinstance(recorded, dict) else None
    if not isinstance(plan, dict):
        raise UserError(
            f"{folder} holds no reproduction: give the --workdir of python -m experiments.reproduce"
        )
    names = list(recorded.get("cells", {}))
    runs: dict[str, list[Run]] = {stem(name): [] for name in names}
    problems, begun, scores = [], set(), [score_frame([]).assign(cell="")]
    for name in names:
        if failure := read_failure(folder / name):
            problems.append(f"{name}: {failure}")
            begun.add(stem(name))
        try:
            run = read_run(folder / name)
        except UserError:  # it has recorded nothing
            continue
        problems += run.problems
        runs[stem(name)].append(run)
        seed = int(run.config.get("seed") or 0)
        scores.append(at_end(run, last_scores(run.scores)).assign(cell=stem(name), seed=seed))
    waiting = [cell for cell, found in runs.items() if not found and cell not in begun]
    filled = [frame for frame in scores if len(frame)] or scores[:1]
    return Reproduction(folder, plan, runs, pd.concat(filled), problems, waiting)


def at_end(run: Run, rows: Frame) -> Frame:
    """Return what of a run's scores or offsets is of its last step, not of one on the way to it."""
    return rows if run.num_steps is None else rows[rows.step == run.num_steps]


def read_failure(folder: Path) -> str:
    """Return why a cell failed and how to try again; "" if it did not."""
    try:
        failure = read_json(folder / "failed.json")
        return f"failed: {failure['error']}. To try again: {failure['command']}"
    except (UserError, LookupError, TypeError):
        return ""


def read_results(reproduction: Reproduction) -> list[Result]:
    """Return each table that was asked for, once for each set that its task was probed on."""
    scores = reproduction.scores
    return [
        read_result(scores, table, data)
        for table in TABLES
        if f"table {table.number}" in reproduction.plan["parts"]
        for data in labelled_sets(scores, table) or [""]
    ]


def read_result(scores: Frame, table: PaperTable, data: str) -> Result:
    """Return a table as far as it is measured."""
    found = find_rows(scores, table, data)
    rows = measure(table, found)
    return Result(table, data, rows, judge(table, found), order_agreement(rows))


def labelled_sets(scores: Frame, table: PaperTable) -> list[str]:
    """Return the names of the sets that a table's task was probed on."""
    cells = {row.cell for row in table.rows}
    asked = (scores.task == table.task) & (scores.unit == table.unit) & scores.cell.isin(cells)
    return sorted(scores[asked].data.unique())


def find_rows(scores: Frame, table: PaperTable, data: str) -> dict[str, Frame]:
    """Return the scores of each row of a table by label, one for each seed; none not measured."""
    of_task = (scores.task == table.task) & (scores.data == data) & (scores.unit == table.unit)
    found = {}
    for row in table.rows:
        mine = scores[of_task & (scores.cell == row.cell)]
        if row.features == CHANCE:  # whatever was probed, without an interval
            mine = mine[(mine.metric == "accuracy") & mine.chance.notna()].drop_duplicates("seed")
            mine = mine.assign(value=mine.chance, low=math.nan, high=math.nan, outcomes=None)
        else:
            asked = {"features": row.features, "method": row.method, "metric": table.metric}
            mine = mine[(mine[list(asked)] == pd.Series(asked)).all(axis=1)]
        found[row.label] = mine
    return found


def measure(table: PaperTable, found: Mapping[str, Frame]) -> Frame:
    """Return the rows of a table by label, in percent, NaN where nothing is measured."""
    rows = []
    for row in table.rows:
        mine = found[row.label]
        over = in_percent(combine(mine)) if len(mine) else UNKNOWN
        rows.append((row.label, row.cell, row.paper, *over[:3], len(mine)))
    names = ["row", "cell", "paper", "value", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=pd.Index(names)).astype({"paper": float}).set_index("row")


def combine(scores: Frame) -> Difference:
    """Return the mean of accuracies over seeds, with `over_seeds_and_items`, within 0 and 1.

    >>> two = pd.DataFrame({"value": [0.5, 0.5], "low": [0.46, 0.46], "high": [0.54, 0.54]})
    >>> combine(two)[:3], combine(two[:1])[:3] == combine(two)[:3]
    ((0.5, 0.46, 0.54), True)
    """
    return within_0_and_1(over_seeds_and_items(scores))


def within_0_and_1(estimate: Difference) -> Difference:
    """Return the mean of accuracies with an interval of what they can be."""
    low, high = np.clip(estimate[1:3], 0, 1)
    return Difference(estimate.value, float(low), float(high))


def over_seeds_and_items(estimates: Frame) -> Difference:
    """Return the mean of estimates, one a seed, with an interval over seeds and test items.

    mean -+ sqrt(s^2 + u^2): s is Student's half-width over seeds, t(0.975, n - 1) sd / sqrt(n) (0
    for one seed), u the mean of the estimates' own over test items. Seeds share their test items,
    so u does not shrink with their number. What lies outside lies outside of both intervals, that
    over seeds and that over items, as the root is no less than either.
    """
    mean, low, *_ = over_seeds(estimates.value.tolist())
    seeds = mean - low if len(estimates) > 1 else 0.0
    down = float((estimates.value - estimates.low).mean(skipna=False))
    up = float((estimates.high - estimates.value).mean(skipna=False))
    low, high = mean - math.hypot(seeds, down), mean + math.hypot(seeds, up)
    return Difference(mean, round(low, 12), round(high, 12))


def lead(ours: Frame, theirs: Frame) -> tuple[Difference, int]:
    """Return by how much the scores of one row lie above another's, and over how many seeds.

    Of each seed that both have, d is the difference on their test items with its bootstrap over
    these (over utterances or images), and the lead is `over_seeds_and_items` of all d: what is
    common to both rows, of an item or of a seed, cancels. "paired" is "items" if it is so for all
    d; otherwise those d are of two intervals taken as independent, as are the rows themselves where
    they share no seed.
    """
    a, b = ({score.seed: score for score in to_scores(rows)} for rows in (ours, theirs))
    found = [difference(a[seed], b[seed]) for seed in a if seed in b]
    if not found:
        return independent_difference(combine(ours), combine(theirs)), min(len(a), len(b))
    paired = "items" if {one.paired for one in found} == {"items"} else ""
    return over_seeds_and_items(pd.DataFrame(found))._replace(paired=paired), len(found)


def in_percent(estimate: Difference) -> Difference:
    """Return a fraction and its interval in percent."""
    value, low, high = (round(100 * one, 10) for one in estimate[:3])
    return estimate._replace(value=value, low=low, high=high)


def judge(table: PaperTable, found: Mapping[str, Frame]) -> Frame:
    """Return each pair of each claim of a table, with its verdict; see `Result.pairs`.

    By the interval of `lead`: a pair is told apart only beyond the scatter of seeds and that of
    test items, each for itself and both together.
    """
    rows = []
    for claim in table.claims:
        for low, high in claim.pairs:
            over, seeds, verdict = UNKNOWN, 0, MISSING
            if len(found[low]) and len(found[high]):
                over, seeds = lead(found[high], found[low])
                over = in_percent(over)
                verdict = judge_pair(over, claim.relation)
            own = over.paired, seeds, verdict
            rows.append((claim.sentence, low, claim.relation, high, *over[:3], *own))
    names = ["claim", "lower", "relation", "higher", "value", "low", "high"]
    return pd.DataFrame(rows, columns=pd.Index([*names, "paired", "seeds", "verdict"]))


def judge_pair(over: Difference, relation: str = "<", equal: float = EQUAL_POINTS) -> str:
    """Return whether one row lies above another, by the interval of their difference in points.

    Equal is what surely differs by less than `equal`.

    >>> judge_pair(Difference(3.0, 1.5, 4.5)), judge_pair(Difference(3.0, -1.5, 7.5))
    ('held', 'cannot be told')
    >>> judge_pair(Difference(0.1, -0.5, 0.7), "="), judge_pair(Difference(3.0, 1.5, 4.5), "=")
    ('held', 'did not hold')
    """
    if not math.isfinite(over.low + over.high):
        return UNTOLD
    if relation == "=":
        if max(-over.low, over.high) < equal:
            return HELD
        return REFUTED if over.low > equal or over.high < -equal else UNTOLD
    return HELD if over.low > 0 else REFUTED if over.high < 0 else UNTOLD


def join(verdicts: Sequence[str]) -> str:
    """Return the verdict on a claim: it holds if all its pairs do, and is refuted if one is."""
    return next((one for one in (REFUTED, MISSING, UNTOLD) if one in verdicts), HELD)


class Offsets(NamedTuple):
    """Figure 3: how often the positive wins, by offset."""

    frame: Frame
    """offset, N, log N, and in percent chance and, each with its interval over seeds, acc_top1 and
    acc_pairwise."""
    tau: float
    """Of acc_top1 with the offset."""
    p: float
    """Exact, if offsets were independent."""
    verdict: str
    seeds: int
    """How many were evaluated."""


def read_offsets(runs: Sequence[Run]) -> Offsets | None:
    """Return the evaluation at the end under the training rule, the mean over seeds."""
    accuracies = ["acc_top1", "acc_pairwise"]
    found = [at_end(run, last_evaluation(run)) for run in runs]
    found = [one for one in found if len(one) and np.isfinite(one[accuracies]).all(axis=None)]
    if not found:
        return None
    first = found[0]
    columns = {"offset": first.offset.astype(int), "N": first.n, "log N": np.log(first.n)}
    frame = pd.DataFrame({**columns, "chance %": 100 / first.n}).reset_index(drop=True)
    for name in accuracies:
        by_offset = pd.concat(found).groupby("offset")[name].agg(list)
        by_seed = [by_offset.loc[k] for k in frame.offset]
        means = [within_0_and_1(over_seeds(list(values))) for values in by_seed]
        frame[f"{name} %"] = [in_percent(mean)[:3] for mean in means]
    tau, p = independence(frame.offset, [value for value, *_ in frame["acc_top1 %"]])
    surely = p < SURE and (first.state != "chance").sum() >= FEWEST_OFFSETS
    return Offsets(frame, tau, p, [HELD, REFUTED][tau > 0] if surely else UNTOLD, len(found))


def bound_and_probe(reproduction: Reproduction, table: PaperTable) -> Frame:
    """Return strict bound and linear probe of the runs that ended, to see if one predicts another.

    The bound is the mean over those offsets that all runs have; runs whose bound was measured with
    another N than most are left out.

    Args:
        reproduction: as read.
        table: its task is probed, by a linear probe on c.

    Returns:
        The columns data, cell, nats, and percent, sorted by data.
    """
    found = []
    for cell, runs in reproduction.runs.items():
        for run in runs:
            strict = at_end(run, last_evaluation(run, strict=True))
            scores = at_end(run, last_scores(run.scores))
            asked = scores.task.eq(table.task) & scores.unit.eq(table.unit)
            asked &= scores.features.eq("c") & scores.method.eq("linear")
            asked &= scores.metric.eq(table.metric)
            if len(strict) and asked.any():
                found.append((cell, strict.set_index("offset"), scores[asked]))
    sizes = [round(strict.n.max()) for _, strict, _ in found]
    usual = max(sizes, key=sizes.count, default=0)
    kept = [one for one, size in zip(found, sizes, strict=True) if size == usual]
    shared = set.intersection(*(set(strict.index) for _, strict, _ in kept)) if kept else set()
    points = [
        (score.data, cell, strict.bound[strict.index.isin(shared)].mean(skipna=False),
         100 * score.value)
        for cell, strict, scores in kept
        for score in scores.itertuples()
    ]  # fmt: skip
    frame = pd.DataFrame(points, columns=pd.Index(["data", "cell", "nats", "percent"]))
    frame = frame.astype({"nats": float, "percent": float})
    return frame.loc[np.isfinite(frame.nats)].sort_values(by="data", kind="stable")


def verdict(
    reproduction: Reproduction,
    results: Sequence[Result],
    told: Sequence[tuple[str, str, int]] = (),
) -> list[str]:
    """Return which claims held, which did not, which cannot be told, and which are not measured.

    `told` are claims of no table: the sentence, its verdict, and on how many seeds that rests.
    """
    found: dict[str, dict[str, list[str]]] = {}  # verdict -> claim -> the labelled sets
    rest_on = [n for result in results for n in result.pairs.seeds if n]
    several = {
        one.table.title for one in results for other in results
        if one.table is other.table and one.data != other.data
    }  # fmt: skip
    for result in results:
        on = [result.data] if result.table.title in several else []
        for claim, word in result.verdicts.items():
            sentence = f"{result.table.task}: {claim}"
            found.setdefault(word, {}).setdefault(sentence, []).extend(on)
    if "figure 3" in reproduction.plan["parts"]:
        offsets = read_offsets(reproduction.runs.get(FAR_OFFSETS, []))
        word = offsets.verdict if offsets else MISSING
        rest_on += [offsets.seeds] if offsets else []
        found.setdefault(word, {})["accuracy falls with the offset (Figure 3)"] = []
    for claim, word, seeds in told:
        rest_on += [seeds] if seeds else []
        found.setdefault(word, {})[claim] = []

    def listed(claims: dict[str, list[str]]) -> str:
        return "; ".join(f"{c} ({', '.join(on)})" if on else c for c, on in claims.items())

    waiting = ", ".join(reproduction.waiting)
    alone = [number == 1 for number in rest_on]
    how_many = "All" if all(alone) else "Some"
    on_one_seed = f"{how_many} of these verdicts rest on one seed, and say nothing about others."
    return [
        *(f"{words}: {listed(found[word])}." for word, words in VERDICTS.items() if word in found),
        *([on_one_seed] if any(alone) else []),
        *([f"Cells not begun: {waiting}."] if waiting else []),
        *reproduction.problems,
    ]
