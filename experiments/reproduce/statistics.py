"""Statistics of a reproduction: table rows over seeds, claims, orders, trends and curves."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special, stats

from cpc import results
from cpc.files import read_json
from cpc.results import Difference, Frame, Run
from cpc.results.compare import TAIL, UNKNOWN, mean_over_seeds
from cpc.results.compare import lead as lead_by_seed
from cpc.types import UserError
from experiments.command.run_dir import read_failure
from experiments.compare.page import CEILING_TOLERANCE_NATS
from experiments.reproduce.cells import FAR_OFFSETS
from experiments.reproduce.claims import CHANCE, SMALLEST_EFFECT, TABLES, PaperTable, Task
from experiments.training.supervised import AT_LIMIT

#: Effects assumed for power if the paper prints none, and margins for equality, which are half of
#: the smallest effect, both in points and in area under a curve of returns between -1 and 1.
EFFECT_POINTS, EFFECT_RETURN = 1.0, 0.2
EQUAL_POINTS, EQUAL_RETURN = SMALLEST_EFFECT / 2, EFFECT_RETURN / 2
HELD, REFUTED, UNTOLD, MISSING = "held", "did not hold", "cannot be told", "not measured"
HARMS, UNDECIDED, ONE_SEED = "harms", "undecided", "one seed: not judged"
VERDICTS = {
    HELD: "Held",
    REFUTED: "Did not hold",
    HARMS: "Harms, where no gain was expected",
    UNDECIDED: "Undecided, because Holm's correction takes the verdict back",
    UNTOLD: "Cannot be told at this size (the interval is too wide)",
    ONE_SEED: "One seed: not judged",
    MISSING: "Not measured",
}
NUM_DRAWS = 4000
#: Maximum number of rows whose permutations are enumerated for an exact p-value.
MAX_PERMUTED = 8
#: Largest p and smallest number of offsets above chance for a verdict on a curve over offsets. The
#: limit on p is strict because neighboring offsets share windows.
MAX_P, MIN_OFFSETS = 0.01, 3
#: Smallest offset at which bounds of runs are compared, since nearer latents share sound with c.
MIN_FAR_OFFSET = 5
kendalltau: Any = stats.kendalltau


class Reproduction(NamedTuple):
    """The recorded cells of a folder."""

    plan: dict[str, Any]
    runs: dict[str, list[Run]]
    """Runs by cell, one for each seed with records."""
    scores: Frame
    """The scores of all finished runs, with a column for the cell."""
    problems: list[str]
    """A sentence for each failed cell and each damaged file."""
    waiting: list[str]
    """Cells that were not started."""


def read_reproduction(folder: str | Path) -> Reproduction:
    """Read a reproduction folder's plan and its cells' records."""
    folder = Path(folder)
    path = folder / "sweep.json"
    recorded = read_json(path) if path.exists() else {}
    plan = recorded.get("reproduction") if isinstance(recorded, dict) else None
    if not isinstance(plan, dict):
        raise UserError(f"{folder} does not contain a reproduction: pass its --workdir")
    runs: dict[str, list[Run]] = {}
    problems, begun, scores = [], set(), [results.score_frame([]).assign(cell="")]
    for name in recorded["cells"]:
        cell = results.stem(name)
        runs.setdefault(cell, [])
        if failure := read_failure(folder / name):
            problems.append(f"{name}: {failure}")
            begun.add(cell)
        try:
            run = results.read_run(folder / name)
        except UserError:  # without records
            continue
        problems += run.problems
        runs[cell].append(run)
        scores.append(final_scores(run).assign(cell=cell, seed=run.seed))
    waiting = [cell for cell, found in runs.items() if not found and cell not in begun]
    filled = [frame for frame in scores if len(frame)] or scores[:1]
    return Reproduction(plan, runs, pd.concat(filled), problems, waiting)


def final_scores(run: Run) -> Frame:
    """Return the scores at the last step of a finished run."""
    return results.at_end(run, results.last_scores(run.scores))


def in_percent(estimate: Difference) -> Difference:
    """Convert a fraction and its interval to percent."""
    value, low, high = (round(100 * one, 10) for one in estimate[:3])
    return estimate._replace(value=value, low=low, high=high)


def mean_percent(scores: Frame) -> Difference:
    """Return the mean over seeds in percent, or UNKNOWN if there are no scores."""
    return in_percent(mean_over_seeds([*scores.itertuples()])) if len(scores) else UNKNOWN


def lead(ours: Frame, theirs: Frame) -> tuple[Difference, int]:
    """Return the difference of `ours` minus `theirs` in points, and the number of seeds.

    If one has no scores, the difference is NaN and the number is 0.
    """
    a, b = ({score.seed: score for score in rows.itertuples()} for rows in (ours, theirs))
    return in_percent(lead_by_seed(a, b)), len(a.keys() & b.keys()) or min(len(a), len(b))


def select(frame: Frame, **wanted: Any) -> Frame:
    """Return the rows with the given values in the given columns."""
    return frame[(frame[list(wanted)] == pd.Series(wanted)).all(axis=1)]


def linear_scores(scores: Frame, table: PaperTable, features: str) -> Frame:
    """Return the linear probe's scores on the given features for a table's task."""
    how = {"features": features, "method": "linear", "metric": table.metric}
    return select(scores, task=table.task, unit=table.unit, **how)


def reach(over: Difference, relation: str, equal: float) -> dict[str, float]:
    """Return each verdict's margin in half-intervals, which must exceed 1 to reach the verdict."""
    value, low, high = np.asarray(over[:3], float)
    down, up, margin = value - low, high - value, 0.0 if relation == "<" else equal
    with np.errstate(divide="ignore", invalid="ignore"):
        above, below, harm = (value - margin) / down, (-value - margin) / up, -value / up
        inside = min((value + margin) / down, (margin - value) / up)
    if relation == "<":
        return {HELD: above, REFUTED: below}
    if relation == "no gain":
        return {HARMS: harm, HELD: inside, REFUTED: above}
    return {HELD: inside, REFUTED: max(above, below)}


def judge_pair(over: Difference, relation: str = "<", equal: float = EQUAL_POINTS) -> str:
    """Return the verdict on the order of two rows, from the interval of their difference.

    Rows are equal ("=") if the interval is within `equal` of 0. If no gain is expected ("no gain"),
    an interval below 0 is a harm, however small the loss.

    >>> judge_pair(Difference(3.0, 1.5, 4.5)), judge_pair(Difference(0.1, -0.5, 0.7), "=", 1.0)
    ('held', 'held')
    >>> judge_pair(Difference(-0.05, -0.08, -0.02), "no gain", 0.1)
    'harms'
    """
    return next((word for word, far in reach(over, relation, equal).items() if far > 1), UNTOLD)


def power(over: Difference, seeds: int, effect: float, equal: float = 0.0) -> float:
    """Return the power to find an effect with seeds of the same scatter, or NaN if that is unknown.

    This is the probability of an interval above 0, P(T > t) for a noncentral Student's T, as an
    expectation over the standard deviation of the seeds. If `equal` is given, it is the probability
    of an interval within this margin if the true difference is 0.
    """
    if seeds < 2 or not math.isfinite(over.low + over.high):
        return math.nan
    t, levels = special.stdtrit(seeds - 1, 1 - TAIL), (np.arange(2000) + 0.5) / 2000
    needed = t * np.sqrt(stats.chi2.ppf(levels, seeds - 1) / (seeds - 1))
    with np.errstate(divide="ignore"):
        standard_error = np.float64(over.high - over.low) / 2 / t
        found = special.ndtr((equal or effect) / standard_error - needed)
    return float((np.maximum(2 * found - 1, 0) if equal else found).mean())


class Finding(NamedTuple):
    """A claim and its verdict. `data` names the labelled set if the task has several."""

    claim: str
    verdict: str
    p_value: float = math.nan
    power: float = math.nan
    data: str = ""
    before: str = ""


def judge_claim(
    claim: str,
    over: Difference,
    seeds: int,
    effect: float,
    relation: str = "<",
    equal: float = EQUAL_POINTS,
) -> Finding:
    """Judge a claim by a difference over seeds, with its p-value and the power to find an effect.

    The p-value is the two-sided level at which the interval would just decide, by Student's t over
    seeds. It is below 0.05 if `judge_pair` decides, and conservative for the variance over items.
    """
    if seeds < 2:
        return Finding(claim, ONE_SEED if seeds else MISSING)
    word, far = judge_pair(over, relation, equal), reach(over, relation, equal)
    t = special.stdtrit(seeds - 1, 1 - TAIL) * np.fmax(0.0, far.get(word, max(far.values())))
    size = power(over, seeds, effect, equal * (relation != "<"))
    return Finding(claim, word, 2 * float(special.stdtr(seeds - 1, -t)), size)


def correct(findings: Sequence[Finding]) -> list[Finding]:
    """Apply Holm's correction (1979) to the claims of a page, so that some become undecided.

    The probability of any false verdict is then at most 5 %. Claims without a verdict do not count.
    """
    p = np.array([one.p_value for one in findings])
    order = np.argsort(p)[: np.isfinite(p).sum()]  # NaN comes last
    p[order] = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))
    is_lost = [q > 2 * TAIL and f.verdict != UNTOLD for q, f in zip(p, findings, strict=True)]
    return [
        one._replace(verdict=UNDECIDED, before=f"{one.verdict} before it") if lost else one
        for one, lost in zip(findings, is_lost, strict=True)
    ]


def join(verdicts: Sequence[str]) -> str:
    """Return the verdict on a claim: it holds if all pairs hold, and fails if one is refuted."""
    return next((one for one in (REFUTED, MISSING, ONE_SEED, UNTOLD) if one in verdicts), HELD)


class Result(NamedTuple):
    """The measured rows of a table in the paper, on one labelled set."""

    table: PaperTable
    data: str
    rows: Frame
    """Rows by label, with cell, seeds, at_limit (whether supervised training ended at its maximum
    number of steps), and paper, value, low and high in percent, which are NaN if not measured."""
    pairs: Frame
    """One row per pair in each claim, with claim, lower, relation and higher, the difference of the
    pair in points as in `lead` (value, low, high, paired, seeds), verdict, p_value and power as in
    `judge_claim`, and the effect in points."""
    order: Difference | None
    """Kendall's tau between our order and the paper's, with p."""


def read_results(reproduction: Reproduction) -> list[Result]:
    """Return each table of the plan for each labelled set that its task was probed on."""
    scores, found = reproduction.scores, []
    for table in TABLES:
        if f"table {table.number}" in reproduction.plan["parts"]:
            probed = select(scores, task=table.task, unit=table.unit)
            probed = probed[probed.cell.isin({row.cell for row in table.rows})]
            for data in sorted(probed.data.unique()) or [""]:
                found.append(read_result(scores, table, data))
    return found


def read_result(scores: Frame, table: PaperTable, data: str) -> Result:
    """Read the measured rows of a table."""
    found, rows = {}, []
    for row in table.rows:
        mine = select(scores, task=table.task, data=data, unit=table.unit, cell=row.cell)
        if row.features == CHANCE:  # the same for any probe, without an interval
            mine = mine[(mine.metric == "accuracy") & mine.chance.notna()].drop_duplicates("seed")
            mine = mine.assign(value=mine.chance, low=math.nan, high=math.nan, outcomes=None)
        else:
            mine = select(mine, features=row.features, method=row.method, metric=table.metric)
        found[row.label] = mine
        at_limit = bool(mine.setting.str.endswith(AT_LIMIT).any())
        rows.append((row.label, row.cell, row.paper, *mean_percent(mine)[:3], len(mine), at_limit))
    names = ["row", "cell", "paper", "value", "low", "high", "seeds", "at_limit"]
    frame = pd.DataFrame(rows, columns=pd.Index(names)).astype({"paper": float}).set_index("row")
    return Result(table, data, frame, judge(table, found), order_agreement(frame))


def judge(table: PaperTable, found: Mapping[str, Frame]) -> Frame:
    """Judge each pair of rows in a table's claims, and return `Result.pairs`.

    The interval of `lead` decides, so a difference must exceed the scatter over seeds, the scatter
    over test items, and both together.
    """
    rows = []
    for claim in table.claims:
        for low, relation, high in claim.pairs:
            over, seeds = lead(found[high], found[low])
            effect = (table.effect(low, high) or EFFECT_POINTS) if relation == "<" else 0.0
            finding = judge_claim(claim.sentence, over, seeds, effect, relation)
            measured = (*over[:3], over.paired, seeds, *finding[1:4], effect)
            rows.append((claim.sentence, low, relation, high, *measured))
    names = ["claim", "lower", "relation", "higher", "value", "low", "high", "paired", "seeds"]
    return pd.DataFrame(rows, columns=pd.Index([*names, "verdict", "p_value", "power", "effect"]))


def read_findings(
    reproduction: Reproduction, tables: Sequence[Result], more: Sequence[Finding] = ()
) -> list[Finding]:
    """Return all claims of the page, and `more` claims without a table, after Holm's correction."""
    sets, found = Counter(one.table.title for one in tables), []
    for one in tables:
        for claim, rows in one.pairs.groupby("claim", sort=False):
            word, p = join(rows.verdict.tolist()), rows.p_value
            # All pairs must hold, but any pair can refute by chance, so its p is multiplied.
            refuted = len(rows) * p[rows.verdict == REFUTED].min()
            joined = {HELD: p.max(), REFUTED: min(1.0, refuted), UNTOLD: 1.0}.get(word, math.nan)
            data, weakest = one.data * (sets[one.table.title] > 1), rows.power.min(skipna=False)
            found.append(Finding(f"{one.table.task}: {claim}", word, joined, weakest, data))
    if "figure 3" in reproduction.plan["parts"]:
        one = read_offsets(reproduction.runs.get(FAR_OFFSETS, []))
        found.append(one.finding if one else Finding(FALLS, MISSING))
    return correct([*found, *more])


def verdict(
    reproduction: Reproduction, tables: Sequence[Result], more: Sequence[Finding] = ()
) -> list[str]:
    """Return sentences that list the claims by verdict, the cells not started and problems."""
    found: dict[str, dict[str, list[str]]] = {word: {} for word in VERDICTS}
    for one in read_findings(reproduction, tables, more):
        size = f"power {100 * one.power:.0f} %" if math.isfinite(one.power) else ""
        details = ", ".join(filter(None, (one.data, one.before, size)))
        found[one.verdict].setdefault(one.claim, []).extend([details] if details else [])
    sentences = []
    for word, claims in found.items():
        listed = [f"{c} ({'; '.join(on)})" if on else c for c, on in claims.items()]
        sentences += [f"{VERDICTS[word]}: {'; '.join(listed)}."] if listed else []
    if reproduction.waiting:
        sentences.append(f"Cells not begun: {', '.join(reproduction.waiting)}.")
    return [*sentences, *reproduction.problems]


def kendall_tau(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return Kendall's tau-b along the last axis, or NaN if all values are equal.

    >>> float(kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])).round(4))
    0.3333
    """
    i, j = np.triu_indices(x.shape[-1], 1)
    a, b = np.sign(x[..., i] - x[..., j]), np.sign(y[..., i] - y[..., j])
    untied = np.sqrt((a != 0).sum(-1) * (b != 0).sum(-1))
    return np.asarray((a * b).sum(-1) / np.where(untied > 0, untied, np.nan))


def order_agreement(rows: Frame) -> Difference | None:
    """Return Kendall's tau between the paper's values and ours, with 95 % interval and exact p.

    The interval is a parametric bootstrap: each row is drawn from a normal distribution as wide as
    its interval over seeds and test items. p is the fraction of all orders of our rows with a tau
    at least as high. Returns None for fewer than three rows, and NaN if all values are equal.
    """
    both = rows[rows.paper.notna() & rows.value.notna()]
    if len(both) < 3:
        return None
    y, values = both.paper.to_numpy(float), both.value.to_numpy(float)
    spread = (both.high - both.low).to_numpy(float) / (2 * 1.96)
    tau = float(kendall_tau(values, y))
    low = high = p = math.nan
    if np.isfinite(spread).all() and math.isfinite(tau):
        noise = np.random.default_rng(0).standard_normal((NUM_DRAWS, len(values)))
        drawn = kendall_tau(values + spread * noise, y)
        low, high = (float(end) for end in np.nanquantile(drawn, [0.025, 0.975]))
    if len(values) <= MAX_PERMUTED and math.isfinite(tau):
        orders = np.array(list(itertools.permutations(values)))
        p = float((kendall_tau(orders, y) >= tau - 1e-9).mean())
    return Difference(tau, low, high, p)


def rank_correlation(x: Any, y: Any) -> Difference | None:
    """Return Kendall's tau of two columns, with a bootstrap interval over pairs and a p-value.

    Returns None for fewer than four pairs, or if a column is constant.
    """
    a, b = np.asarray(x, float), np.asarray(y, float)
    if len(a) < 4:
        return None
    tau, p = kendalltau(a, b)
    if not math.isfinite(tau):
        return None
    drawn = np.random.default_rng(0).integers(len(a), size=(NUM_DRAWS, len(a)))
    low, high = np.nanquantile(kendall_tau(a[drawn], b[drawn]), [0.025, 0.975])
    return Difference(tau, float(low), float(high), p)


FALLS = "accuracy falls with the offset (Figure 3)"


class Offsets(NamedTuple):
    """The accuracy by offset, as in Figure 3."""

    frame: Frame
    """Columns offset, N, log N, and chance, acc_top1 and acc_pairwise in percent, of which the last
    two have intervals over seeds."""
    tau: float
    p: float
    """Kendall's tau of acc_top1 with the offset, and its p-value if offsets were independent."""
    finding: Finding
    """Whether the curve falls, beyond chance and the scatter of tau over seeds. The p-value covers
    this scatter, and the power is for curves that fall at every offset."""


def read_offsets(runs: Sequence[Run]) -> Offsets | None:
    """Average the accuracy by offset at the last evaluation over seeds, under the training rule."""
    accuracies = ["acc_top1", "acc_pairwise"]
    found = [results.at_end(run, results.last_evaluation(run)) for run in runs]
    found = [one for one in found if len(one) and np.isfinite(one[accuracies]).all(axis=None)]
    if not found:
        return None
    first = found[0]
    columns = {"offset": first.offset.astype(int), "N": first.n, "log N": np.log(first.n)}
    frame = pd.DataFrame({**columns, "chance %": 100 * first.chance_top1}).reset_index(drop=True)
    for name in accuracies:
        by_offset = pd.concat(found).groupby("offset")[name].agg(list)
        means = [in_percent(results.over_seeds(by_offset.loc[k])) for k in frame.offset]
        frame[f"{name} %"] = [tuple(np.clip(mean[:3], 0, 100).tolist()) for mean in means]
    tau, p = kendalltau(frame.offset, [value for value, *_ in frame["acc_top1 %"]])
    over = results.over_seeds([-kendalltau(one.offset, one.acc_top1)[0] for one in found])
    finding = judge_claim(FALLS, over, len(found), effect=1.0)
    word = finding.verdict
    surely = p < MAX_P and all((one.state != "chance").sum() >= MIN_OFFSETS for one in found)
    if word not in (ONE_SEED, UNTOLD):
        word = UNTOLD if not surely else REFUTED if tau > 0 else HELD
    p_value = 1.0 if word == UNTOLD else float(np.maximum(p, finding.p_value))
    return Offsets(frame, tau, p, finding._replace(verdict=word, p_value=p_value))


class BoundAndProbe(NamedTuple):
    """Strict bounds and linear-probe scores on c for the same runs, to compare their orders."""

    points: Frame
    """Columns data, cell, nats (the mean over `offsets`) and percent."""
    offsets: list[int]
    """The common offsets of these runs from `MIN_FAR_OFFSET` on."""
    num_near: int
    num_other: int
    """Numbers of runs excluded for lack of such an offset, and for a clearly different N."""


def bound_and_probe(runs: Mapping[str, Sequence[Run]], table: PaperTable) -> BoundAndProbe:
    """Return the strict bounds and probes of finished runs."""
    found, num_near = [], 0
    for cell, run in ((cell, run) for cell, of_cell in runs.items() for run in of_cell):
        strict = results.at_end(run, results.last_evaluation(run, strict=True))
        scores = linear_scores(final_scores(run), table, "c")
        if len(strict) and len(scores):
            far = strict[strict.offset >= MIN_FAR_OFFSET].set_index("offset")
            num_near += not len(far)
            found += [(cell, far, scores)] if len(far) else []
    ceilings = pd.Series([np.log(far.n.max()) for _, far, _ in found], dtype=float)
    is_alike = (ceilings - ceilings.median()).abs() <= CEILING_TOLERANCE_NATS
    kept = list(itertools.compress(found, is_alike))
    shared = set.intersection(*({*far.index} for _, far, _ in kept)) if kept else set()
    points = [
        (score.data, cell, far.bound[far.index.isin(shared)].mean(skipna=False), 100 * score.value)
        for cell, far, scores in kept
        for score in scores.itertuples()
    ]
    frame = pd.DataFrame(points, columns=pd.Index(["data", "cell", "nats", "percent"]))
    frame = frame.astype({"nats": float, "percent": float})
    points = frame.loc[np.isfinite(frame.nats)].sort_values(by="data", kind="stable")
    return BoundAndProbe(points, sorted(map(int, shared)), num_near, len(found) - len(kept))


class Learned(NamedTuple):
    """Learning curves of a task in two arms, without and with CPC, as in Figure 6."""

    task: Task
    curves: tuple[dict[int, np.ndarray], ...]
    """Frames and returns (2, points) by seed, for each arm."""
    areas: tuple[Difference, ...]
    over: Difference
    """Area under the curves of each arm, and with minus without CPC for `seeds` paired seeds, with
    Student's intervals over seeds."""
    seeds: int
    finding: Finding


def compare_arms(task: Task, *curves: dict[int, np.ndarray]) -> Learned:
    """Compare the areas under learning curves without and with CPC, and judge the task."""
    arms = [
        {seed: float(np.trapezoid(y, x) / (x[-1] - x[0])) for seed, (x, y) in arm.items()}
        for arm in curves
    ]
    areas = tuple(results.over_seeds([*arm.values()]) if arm else UNKNOWN for arm in arms)
    gains = [arms[1][seed] - arms[0][seed] for seed in sorted(arms[0].keys() & arms[1].keys())]
    over = results.over_seeds(gains) if gains else UNKNOWN
    finding = judge_claim(task.claim, over, len(gains), EFFECT_RETURN, task.relation, EQUAL_RETURN)
    return Learned(task, curves, areas, over, len(gains), finding)


def read_curves(runs: Sequence[Run]) -> dict[int, np.ndarray]:
    """Return each finished run's learning curve, frames and returns (2, points), by seed."""
    ended = [run for run in runs if run.step == run.num_steps and "return" in run.train]
    rows = {run.seed: run.train.dropna(subset=["return"]) for run in ended}
    return {k: r[["frames", "return"]].to_numpy(float).T for k, r in rows.items() if len(r) > 1}
