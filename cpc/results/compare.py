"""Differences between scores with confidence intervals, paired by shared seeds or test items."""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cpc.files import flatten
from cpc.results.run import Run, headline_rows, is_last, last_evaluation, last_scores, offset_ranges
from cpc.results.score import (
    QUESTION,
    Frame,
    Outcomes,
    Row,
    Score,
    in_percent,
    label_fraction,
    mean_outcome,
)
from cpc.types import UserError

#: Confidence level of all intervals: the probability that an interval contains the true value.
LEVEL = 0.95
TAIL = (1 - LEVEL) / 2


class Difference(NamedTuple):
    """The difference between two scores, with its 95 % confidence interval."""

    value: float
    low: float
    high: float
    """Upper end of the interval. Both ends are NaN if there is no interval."""
    p_value: float = math.nan
    """P-value of McNemar's exact test. NaN except for scores with one answer per item."""
    paired: str = ""
    """How the scores were paired: "items", "seeds", "seeds and items", or "" if not paired."""


UNKNOWN = Difference(math.nan, math.nan, math.nan)


def paired_difference(
    ours: Any, theirs: Any, *, num_resamples: int = 10_000, seed: int = 0
) -> Difference:
    """Return the accuracy of `ours` minus that of `theirs`, two models' results on the same items.

    Items on which both models agree cancel, so the interval is narrower than the two separate
    intervals suggest. It is a percentile bootstrap over items: each item contributes -1, 0 or 1, so
    a resample is a draw from a multinomial distribution. The p-value is from McNemar's exact test
    (1947). Its null hypothesis is that either model is equally often right on the items where they
    differ. If the test does not reject this hypothesis, the interval is extended to contain zero.
    If all items contribute the same value, the ends are exact (Clopper and Pearson, 1934). For a
    single item, the ends are NaN.

    Args:
        ours, theirs: (m,) booleans that are true if the model answers the item correctly.
        num_resamples, seed: number of bootstrap resamples, and seed of their random numbers.

    >>> ours, theirs = np.array([True] * 8 + [False] * 2), np.array([True] * 3 + [False] * 7)
    >>> difference = paired_difference(ours, theirs)
    >>> difference.value, difference.p_value  # 5 of 5 in our favor: 2 / 2^5
    (0.5, 0.0625)
    >>> difference.low, round(difference.high, 12)
    (0.0, 0.8)
    """
    if len(ours) != len(theirs) or not len(ours):
        raise UserError(
            f"a paired difference needs an equal number of items, at least one, in ours and theirs "
            f"(got {len(ours)} and {len(theirs)})"
        )
    from scipy import stats  # takes half a second to import, so training does not load it

    count = len(ours)
    wins, losses = int(np.sum(ours & ~theirs)), int(np.sum(theirs & ~ours))
    value, p_value = (wins - losses) / count, 1.0
    if wins + losses:
        p_value = float(stats.binomtest(wins, wins + losses).pvalue)
    if count == 1:
        return Difference(value, math.nan, math.nan, p_value, "items")
    ties = count - wins - losses
    parts = np.array([wins, losses, ties]) / count
    drawn = np.random.default_rng(seed).multinomial(count, parts, size=num_resamples)
    low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / count, [TAIL, 1 - TAIL])
    if count in (wins, losses, ties):  # the two values that never occur have at most this share
        others = 1 - TAIL ** (1 / count)
        low, high = value - others * (1 + value), value + others * (1 - value)
    if p_value > 1 - LEVEL:
        low, high = min(low, 0.0), max(high, 0.0)
    return Difference(value, float(low), float(high), p_value, "items")


def draw_items(num_resamples: int, count: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield chunks of bootstrap resamples, as item indices (resamples, count), to save memory."""
    rng, rows = np.random.default_rng(seed), max(1, 2_000_000 // count)
    for start in range(0, num_resamples, rows):
        yield rng.integers(count, size=(min(rows, num_resamples - start), count))


def paired_sums(ours: Outcomes, theirs: Outcomes) -> Difference:
    """Return the score with outcomes `ours` minus the score with `theirs`, on the same items.

    The interval is a percentile bootstrap over items, widened by `as_student`. If fewer than two
    items have positive counts in both scores, the ends are NaN.
    """
    value = mean_outcome(ours) - mean_outcome(theirs)
    num_counted = int(np.sum((ours.counts > 0) & (theirs.counts > 0)))
    if num_counted < 2:
        return Difference(value, math.nan, math.nan, paired="items")
    columns = [np.asarray(x, float) for x in (ours.sums, ours.counts, theirs.sums, theirs.counts)]
    found = []
    for drawn in draw_items(2000, len(ours.sums)):
        sums = np.stack([column[drawn].sum(axis=1) for column in columns])
        # Drop resamples in which no item counts, because their scores are undefined.
        a, of_a, b, of_b = sums[:, (sums[1] > 0) & (sums[3] > 0)]
        found.append(a / of_a - b / of_b)
    low, high = np.quantile(np.concatenate(found), [TAIL, 1 - TAIL])
    return Difference(value, *as_student(value, low, high, num_counted), paired="items")


def as_student(
    value: float | int, low: float | int, high: float | int, num_items: int
) -> tuple[float, float]:
    """Widen a bootstrap interval at level `LEVEL`, because it is too narrow for few items.

    For n items, the bootstrap distribution has only (n - 1) / n of the unbiased variance, and the
    tails of a normal distribution instead of Student's. Both make the percentile interval too
    narrow (Hesterberg 2015, "What teachers should know about the bootstrap"). So each half of the
    interval is multiplied by t(n - 1) / z sqrt(n / (n - 1)), where t and z are quantiles of the two
    distributions. The factor is 9.2 for two items, 1.2 for ten, and 1.01 for two hundred.

    >>> [round(end, 3) for end in as_student(0.0, -0.1, 0.1, num_items=10)]
    [-0.122, 0.122]
    """
    from scipy.special import ndtri, stdtrit

    inside = (1 + LEVEL) / 2
    factor = stdtrit(num_items - 1, inside) / ndtri(inside) * math.sqrt(num_items / (num_items - 1))
    return float(value - factor * (value - low)), float(value + factor * (high - value))


def difference(ours: Row, theirs: Row) -> Difference:
    """Return score `ours` minus score `theirs`, paired if both have the same test items."""
    a, b = ours.outcomes, theirs.outcomes
    if a is not None and b is not None and a.items and a.items == b.items:
        is_single = (a.counts == 1).all() and (b.counts == 1).all()
        if is_single and {*np.unique(a.sums), *np.unique(b.sums)} <= {0, 1}:
            return paired_difference(a.sums.astype(bool), b.sums.astype(bool))
        return paired_sums(a, b)
    return independent_difference(_interval(ours), _interval(theirs))


def _interval(score: Row) -> Difference:
    low, high = (math.nan if end is None else end for end in (score.low, score.high))
    return Difference(score.value, low, high)


def independent_difference(a: Difference, b: Difference) -> Difference:
    """Return the difference a - b between independent estimates that have intervals.

    The method is variance estimates recovery (MOVER; Zou and Donner 2008, equation 5).

    >>> independent_difference(Difference(0.6, 0.57, 0.63), Difference(0.5, 0.46, 0.54))[:3]
    (0.1, 0.05, 0.15)
    """
    value = a.value - b.value
    low = value - math.hypot(a.value - a.low, b.high - b.value)
    high = value + math.hypot(a.high - a.value, b.value - b.low)
    return Difference(round(value, 12), round(low, 12), round(high, 12))


def over_seeds(values: Sequence[float | int]) -> Difference:
    """Return the mean of measurements with different seeds, with Student's t-interval.

    The interval is mean +- t(0.975, n - 1) s / sqrt(n), where n is the number of measurements, s
    their standard deviation, and t a quantile of Student's distribution: 4.3027 for n = 3.

    >>> estimate = over_seeds([1.0, 2.0, 3.0])
    >>> estimate.value, round(estimate.high - 2, 4), round(4.30265 / 3**0.5, 4)
    (2.0, 2.4841, 2.4841)
    """
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Difference(mean, math.nan, math.nan)
    from scipy.special import stdtrit

    half = stdtrit(count - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(count)
    return Difference(mean, float(mean - half), float(mean + half), paired="seeds")


def over_seeds_and_items(estimates: Sequence[Difference]) -> Difference:
    """Return the mean of one estimate per seed, with an interval over seeds and test items.

    The interval is mean -+ sqrt(s^2 + u^2), where s is the half-width of the interval from
    `over_seeds`, and u is the mean half-width of the estimates' intervals over test items. All
    seeds share their test items, so u does not shrink with the number of seeds. If an estimate has
    no interval, the ends are NaN.

    >>> one = Difference(0.5, 0.46, 0.54, paired="items")
    >>> over_seeds_and_items([one, one])
    Difference(value=0.5, low=0.46, high=0.54, p_value=nan, paired='seeds and items')
    """
    if len(estimates) == 1:
        return estimates[0]
    values, lows, highs = np.array([one[:3] for one in estimates]).T
    mean, low, *_ = over_seeds(values.tolist())
    down, up = (math.hypot(mean - low, one.mean()) for one in (values - lows, highs - values))
    return Difference(mean, round(mean - down, 12), round(mean + up, 12), paired="seeds and items")


class Cell(NamedTuple):
    """A group of named runs whose configs differ only in the seed."""

    name: str
    runs: list[tuple[str, Run]]


def group_by_seed(runs: Sequence[tuple[str, Run]]) -> list[Cell]:
    """Group named runs whose configs differ only in the seed, in order of their first run."""
    groups: list[list[tuple[str, Run]]] = []
    for entry in runs:
        fits = (group for group in groups if all(_are_one_cell(entry, one) for one in group))
        group = next(fits, None)
        if group is None:
            groups.append(group := [])
        group.append(entry)
    names = [stem(group[0][0]) for group in groups]
    return [
        Cell(name if names.count(name) == 1 else group[0][0], group)
        for name, group in zip(names, groups, strict=True)
    ]


def _are_one_cell(a: tuple[str, Run], b: tuple[str, Run]) -> bool:
    """Return whether two runs, and their names if both contain a seed, differ only in the seed."""
    one, other = dict(a[1].config), dict(b[1].config)
    if one.pop("seed", None) == other.pop("seed", None) or one != other:
        return False
    return a[0] == stem(a[0]) or b[0] == stem(b[0]) or stem(a[0]) == stem(b[0])


def stem(name: str) -> str:
    """Return a run's name without its seed.

    >>> stem("norm,seed=3"), stem("voices")
    ('norm', 'voices')
    """
    return re.sub(r"[,_-]seed[=_-]?\d+$", "", name) or name


#: Config keys omitted by `settings`. They do not affect the numbers, or other columns show them.
IGNORED_KEYS = (
    *("seed", "log_every", "eval_every", "save_every"),
    *("data.num_threads", "probe.tasks", "probe.features"),
)


def settings(cells: Sequence[Cell]) -> Frame:
    """Return a frame with one row per cell and one column per config key in which cells differ."""
    import pandas as pd

    flat = [flatten(cell.runs[0][1].config) for cell in cells]
    keys = dict.fromkeys(key for one in flat for key in one if key not in IGNORED_KEYS)
    differing = [key for key in keys if len({repr(one.get(key)) for one in flat}) > 1]
    rows = [[one.get(key) for key in differing] for one in flat]
    names = pd.Index([cell.name for cell in cells], name="cell")
    return pd.DataFrame(rows, index=names, columns=pd.Index(differing), dtype=object)


def information(run: Run, among: Collection[int] | None = None) -> Score | None:
    """Return the last evaluation's log N - L as a score in nats, averaged over offsets.

    The offsets are those of `headline_rows`. If some of them are in `among`, only these are
    averaged. If an evaluation has a log N - L that is a bound, it is preferred. The score's method
    is "bound" or "estimate", and its setting lists the offsets. If no log N - L was recorded, the
    result is None.
    """
    for strict in (True, False):
        rows = last_evaluation(run, strict)
        rows = headline_rows(rows[np.isfinite(rows.bound.astype(float))])
        shared = rows.offset.isin([*(among or ())])
        rows = rows[shared] if shared.any() else rows
        if len(rows):
            kind = "bound" if rows.is_bound.all() else "estimate"
            return Score(
                "information", str(rows.rule.iloc[0]), "offset", "c", kind, "nats",
                float(rows.bound.mean()), chance=0.0, step=int(rows.step.iloc[0]),
                seed=run.seed, setting=f"k = {offset_ranges(rows.offset)}",
            )  # fmt: skip
    return None


def shared_headline(runs: Iterable[Run]) -> set[int] | None:
    """Return the offsets that the `headline_rows` of all runs share, or None if none is shared."""
    found = [last_evaluation(run, strict=True) for run in runs]
    found = [{*headline_rows(rows).offset} for rows in found if rows.bound.notna().any()]
    return (set.intersection(*found) if found else set()) or None


#: Fields of a score in the frame of `compare`, and suffixes of the columns of its differences.
SHARED = (*QUESTION, "num_train", "chance", "higher_is_better", "num_test", "setting")
ENDS = {"": "value", "_low": "low", "_high": "high", "_paired": "paired"}
COLUMNS = (
    "cell", *QUESTION, "num_train", "value", "low", "high", "chance", "higher_is_better",
    "by_seed", "at_end", "num_test", "setting",
    *(f"{name}{end}" for name in ("over_untrained", "over_first") for end in ENDS),
)  # fmt: skip


def compare(cells: Sequence[Cell]) -> Frame:
    """Return a frame with the scores of cells and their differences from two baselines.

    The frame has the columns `COLUMNS`, and one row per cell and question (measured quantity).
    Values and intervals are from `mean_over_seeds`, and by_seed lists each seed's value. `lead`
    computes the differences from the same network before training and from the first cell. Only
    runs that have reached their last step are used. If a cell has no such run, the row contains the
    latest scores without differences. log N - L is averaged over the offsets of `shared_headline`.
    """
    import pandas as pd

    rows, first = [], {}
    among = shared_headline(run for cell in cells for _, run in cell.runs)
    for number, cell in enumerate(cells):
        begun: dict[tuple, dict[int, Row]] = {}
        ended: dict[tuple, dict[int, Row]] = {}
        for _, run in cell.runs:
            scores = list(last_scores(run.scores).itertuples())
            own = information(run, among)
            for question, score in _by_question([own, *scores] if own else scores):
                table = ended if is_last(run, score.step) else begun
                table.setdefault(question, {})[run.seed] = score
        for question in dict.fromkeys([*ended, *begun]):
            ours = ended.get(question, {})
            untrained = ended.get((*question[:3], f"random {question[3]}", *question[4:]), {})
            leads = {"over_untrained": lead(ours, untrained)}
            leads["over_first"] = lead(ours, first.get(question, {}))
            scores = list((ours or begun[question]).values())
            row = {name: getattr(scores[0], name) for name in SHARED}
            row |= mean_over_seeds(scores)._asdict()
            for name, found in leads.items():
                row |= {f"{name}{end}": getattr(found, key) for end, key in ENDS.items()}
            by_seed = [score.value for score in scores]
            rows.append({**row, "cell": cell.name, "by_seed": by_seed, "at_end": question in ended})
        if not number:
            first = ended
    return pd.DataFrame(rows, columns=pd.Index(COLUMNS))  # also if nothing has a score


def _by_question(scores: Sequence[Row]) -> Iterator[tuple[tuple, Row]]:
    """Yield each score with its question: the `QUESTION` fields and, in learning curves, the share.

    The share of labels is used because the number of labels in it may differ between seeds.
    """
    groups: dict[tuple, list[Row]] = {}
    for score in scores:
        groups.setdefault(tuple(getattr(score, name) for name in QUESTION), []).append(score)
    for question, group in groups.items():
        for score in group:
            part = label_fraction(score) or str(score.num_train)  # a text, because NaN != NaN
            yield (*question, part if len(group) > 1 else None), score


def mean_over_seeds(scores: Sequence[Row]) -> Difference:
    """Return a score's mean over seeds, with an interval clipped to the metric's range.

    `over_seeds_and_items` makes the interval. If no score has an interval, `over_seeds` does.
    """
    found = [_interval(score) for score in scores]
    if all(math.isnan(one.low) for one in found):
        mean = over_seeds([one.value for one in found])
    else:
        mean = over_seeds_and_items(found)
    if len(scores) == 1 or not in_percent(scores[0].metric):
        return mean
    # An error rate can exceed 1, because there can be more errors than words.
    highest = math.inf if scores[0].metric.endswith("error rate") else 1.0
    low, high = np.clip(mean[1:3], 0.0, highest)
    return mean._replace(low=float(low), high=float(high))


def lead(ours: Mapping[int, Row], theirs: Mapping[int, Row]) -> Difference:
    """Return the mean of `ours` minus `theirs`, two mappings from seeds to scores.

    The `difference` of each shared seed is averaged by `over_seeds_and_items`, or by `over_seeds`
    if a difference has no interval. If fewer than two seeds are shared but one mapping has several,
    the two means are compared as independent estimates, because a single seed does not show the
    variance over seeds. If one mapping is empty, the result is `UNKNOWN`.
    """
    if not ours or not theirs:
        return UNKNOWN
    shared = [seed for seed in ours if seed in theirs]
    if len(shared) < 2 and (len(ours) > 1 or len(theirs) > 1 or not shared):
        means = (mean_over_seeds(list(scores.values())) for scores in (ours, theirs))
        return independent_difference(*means)
    found = [difference(ours[seed], theirs[seed]) for seed in shared]
    if len(found) == 1 or np.isfinite([one[1:3] for one in found]).all():
        return over_seeds_and_items(found)
    return over_seeds([one.value for one in found])


def is_better(low: float | int, high: float | int, higher_is_better: bool) -> bool | None:
    """Return whether a difference is an improvement, or None if its interval contains zero.

    >>> is_better(-0.2, -0.05, higher_is_better=False)
    True
    """
    return bool(low > 0) == higher_is_better if low > 0 or high < 0 else None
