"""The comparison of scores: differences with intervals, paired where seeds or items are shared."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cpc.files import flatten
from cpc.results.run import Run, is_last, last_evaluation, last_scores
from cpc.results.score import (
    QUESTION,
    Frame,
    Outcomes,
    Row,
    Score,
    in_percent,
    mean_outcome,
    share_of,
)
from cpc.types import UserError


class Difference(NamedTuple):
    """How much larger one score is than another."""

    value: float
    low: float
    high: float
    """95 % interval; NaN where nothing gives one."""
    p_value: float = math.nan
    """Of McNemar's exact test that both are equally accurate, of one answer an item."""
    paired: str = ""
    """By what the two are paired: "items", "seeds", or "" of two independent scores."""


UNKNOWN = Difference(math.nan, math.nan, math.nan)


def paired_difference(
    ours: Any, theirs: Any, *, num_resamples: int = 10_000, level: float | int = 0.95, seed: int = 0
) -> Difference:
    """Return the difference of two accuracies on the same test items, ours minus theirs.

    Items on which both agree cancel, which makes the interval narrower than those of the two
    accuracies suggest. The interval is the percentile bootstrap over items: an item gives -1, 0 or
    1, so resampling items is a draw from a multinomial; one item has none. The p-value is McNemar's
    (1947), exact: among items on which they differ, either is right equally often. The interval
    holds zero where that test does not exclude it, and where no draw differs, its end is exact
    (Clopper and Pearson, 1934).

    Args:
        ours, theirs: (m,) whether each item is right.
        num_resamples, level, seed: of the bootstrap.

    Raises:
        UserError: the numbers of items differ.

    >>> ours, theirs = np.array([True] * 8 + [False] * 2), np.array([True] * 3 + [False] * 7)
    >>> difference = paired_difference(ours, theirs)
    >>> difference.value, difference.p_value  # 5 of 5 in our favor: 2 / 2^5
    (0.5, 0.0625)
    >>> difference.low, round(difference.high, 12)
    (0.0, 0.8)
    """
    if len(ours) != len(theirs) or not len(ours):
        raise UserError(
            f"a paired difference of {len(ours)} and {len(theirs)} items: take the same, at "
            "least one, for both"
        )
    count = len(ours)
    wins, losses = int(np.sum(ours & ~theirs)), int(np.sum(theirs & ~ours))
    parts = np.array([wins, losses, count - wins - losses]) / count
    drawn = np.random.default_rng(seed).multinomial(count, parts, size=num_resamples)
    tail = (1 - level) / 2
    low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / count, [tail, 1 - tail])
    from scipy import stats  # half a second, which a start of training need not wait

    p_value = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    value, others = (wins - losses) / count, 1 - tail ** (1 / count)
    if count in (wins, losses, count - wins - losses):  # others have at most that share
        low, high = value - others * (1 + value), value + others * (1 - value)
    if p_value > 1 - level:
        low, high = min(low, 0.0), max(high, 0.0)
    low, high = (low, high) if count > 1 else (math.nan, math.nan)
    return Difference(value, float(low), float(high), float(p_value), "items")


def paired_sums(ours: Outcomes, theirs: Outcomes, num_resamples: int = 2000) -> Difference:
    """Return the difference of two scores on the same items, each with sums and counts.

    The interval is the percentile bootstrap over items, the same ones drawn for both, `as_student`;
    there is none if fewer than two count anything.
    """
    value = mean_outcome(ours) - mean_outcome(theirs)
    num_counted = int(np.sum((ours.counts > 0) & (theirs.counts > 0)))
    if num_counted < 2:
        return Difference(value, math.nan, math.nan, paired="items")
    rng, count = np.random.default_rng(0), len(ours.sums)
    columns = [np.asarray(x, float) for x in (ours.sums, ours.counts, theirs.sums, theirs.counts)]
    found, rows = [], max(1, 2_000_000 // count)  # bounds the memory of one block of draws
    for start in range(0, num_resamples, rows):
        drawn = rng.integers(count, size=(min(rows, num_resamples - start), count))
        a, of_a, b, of_b = sums = np.stack([column[drawn].sum(axis=1) for column in columns])
        a, of_a, b, of_b = sums[:, (of_a > 0) & (of_b > 0)]  # not of items without any count
        found.append(a / of_a - b / of_b)
    low, high = np.quantile(np.concatenate(found), [0.025, 0.975])
    return Difference(value, *as_student(value, low, high, num_counted), paired="items")


#: The share of repetitions whose interval contains the true value.
LEVEL = 0.95


def as_student(
    value: float | int, low: float | int, high: float | int, num_items: int
) -> tuple[float, float]:
    """Return a bootstrap interval of `LEVEL`, widened for few items as Student's is.

    Draws of n items have (n - 1) / n of their variance, and the normal's tails: both make the
    percentile interval too narrow (Hesterberg 2015, "What teachers should know about the
    bootstrap", on its narrowness bias). Its halves become t(n - 1) / z sqrt(n / (n - 1)) of theirs:
    9.2 for two items, 1.2 for ten, 1.01 for two hundred.

    >>> [round(end, 3) for end in as_student(0.0, -0.1, 0.1, num_items=10)]
    [-0.122, 0.122]
    """
    from scipy.special import ndtri, stdtrit

    inside = (1 + LEVEL) / 2
    factor = stdtrit(num_items - 1, inside) / ndtri(inside) * math.sqrt(num_items / (num_items - 1))
    return float(value - factor * (value - low)), float(value + factor * (high - value))


def difference(ours: Row, theirs: Row) -> Difference:
    """Return by how much one score is larger, paired by test item where both are of the same.

    Args:
        ours, theirs: scores, or rows of their frame.
    """
    a, b = ours.outcomes, theirs.outcomes
    if a is not None and b is not None and a.items and a.items == b.items:
        is_single = (a.counts == 1).all() and (b.counts == 1).all()
        if is_single and {*np.unique(a.sums), *np.unique(b.sums)} <= {0, 1}:
            return paired_difference(a.sums.astype(bool), b.sums.astype(bool))
        return paired_sums(a, b)
    return independent_difference(*(_interval(score) for score in (ours, theirs)))


def _interval(score: Row) -> Difference:
    low, high = (math.nan if end is None else end for end in (score.low, score.high))
    return Difference(score.value, low, high)


def independent_difference(a: Difference, b: Difference) -> Difference:
    """Return the difference a - b of independent estimates, from their intervals.

    The method of variance estimates recovery (Zou and Donner 2008, equation 5).

    >>> independent_difference(Difference(0.6, 0.57, 0.63), Difference(0.5, 0.46, 0.54))[:3]
    (0.1, 0.05, 0.15)
    """
    value = a.value - b.value
    low = value - math.hypot(a.value - a.low, b.high - b.value)
    high = value + math.hypot(a.high - a.value, b.value - b.low)
    return Difference(round(value, 12), round(low, 12), round(high, 12))


def over_seeds(values: Sequence[float | int]) -> Difference:
    """Return mean and Student's t-interval of measurements with different seeds.

    mean +- t(0.975, n - 1) s / sqrt(n); t is 4.3027 for three.

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
    """Return the mean of estimates, one a seed, with an interval over seeds and test items.

    mean -+ sqrt(s^2 + u^2): s is Student's half-width over seeds, t(0.975, n - 1) sd / sqrt(n) (0
    for one seed), u the mean of the estimates' own over test items; NaN where one has none. Seeds
    share their test items, so u does not shrink with their number. What lies outside lies outside
    of both intervals, that over seeds and that over items, as the root is no less than either.

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
    """Runs that differ in nothing but the seed."""

    name: str
    runs: list[tuple[str, Run]]


def group_by_seed(runs: Sequence[tuple[str, Run]]) -> list[Cell]:
    """Return a cell for runs whose configs are equal but for the seed, which differs, in order."""
    groups: list[list[tuple[str, Run]]] = []
    for entry in runs:
        for group in groups:
            if all(_are_one_cell(entry, other) for other in group):
                group.append(entry)
                break
        else:
            groups.append([entry])
    names = [stem(group[0][0]) for group in groups]
    return [
        Cell(name if names.count(name) == 1 else group[0][0], group)
        for name, group in zip(names, groups, strict=True)
    ]


def _are_one_cell(a: tuple[str, Run], b: tuple[str, Run]) -> bool:
    """Whether two runs are one cell: by config; where both names end in a seed, by them too."""
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


#: Keys of a config that change no number of a comparison; the seed has its own place there, and
#: what was probed shows in the columns.
ASIDE = (
    "seed",
    "log_every",
    "eval_every",
    "save_every",
    "data.num_threads",
    "probe.tasks",
    "probe.features",
)


def settings(cells: Sequence[Cell]) -> Frame:
    """Return the keys of the configs in which cells differ and that matter, a row a cell."""
    import pandas as pd

    flat = [flatten(cell.runs[0][1].config) for cell in cells]
    keys = dict.fromkeys(key for one in flat for key in one)
    differing = [
        key for key in keys if key not in ASIDE and len({repr(one.get(key)) for one in flat}) > 1
    ]
    rows = [[one.get(key) for key in differing] for one in flat]
    names = pd.Index([cell.name for cell in cells], name="cell")
    return pd.DataFrame(rows, index=names, columns=pd.Index(differing), dtype=object)


def information(run: Run) -> Score | None:
    """Return log N - L of the last evaluation, the mean over offsets, as a score in nats.

    Of the strict bound if there is one; its method says whether the number is a bound.
    """
    for strict in (True, False):
        rows = last_evaluation(run, strict)
        rows = rows[np.isfinite(rows.bound.astype(float))]
        if len(rows):
            kind = "bound" if rows.is_bound.all() else "estimate"
            return Score(
                "information", str(rows.rule.iloc[0]), "offset", "c", kind, "nats",
                float(rows.bound.mean()), chance=0.0, step=int(rows.step.iloc[0]),
                seed=run.seed,
            )  # fmt: skip
    return None


#: Of `compare`: by its two differences, the ends of the names and the fields of `Difference`.
OVER = ("over_untrained", "over_first")
ENDS = {"": "value", "_low": "low", "_high": "high", "_paired": "paired"}
COLUMNS = (
    *("cell", *QUESTION, "num_train", "value", "low", "high", "chance", "higher_is_better"),
    *("by_seed", "at_end", "num_test", *(f"{name}{end}" for name in OVER for end in ENDS)),
)


def compare(cells: Sequence[Cell]) -> Frame:
    """Return the scores of cells, a row for each cell and question, beside those of the first cell.

    Of each cell those seeds count that have come to their last step. Where none has, what they had
    on the way is shown, and differs from nothing. Values and intervals are those of
    `mean_over_seeds`, differences those of `lead`.

    Args:
        cells: as `group_by_seed` makes them.

    Returns:
        A frame with the columns cell, those of `QUESTION`, num_train, value, low, high, chance,
        higher_is_better, by_seed (a list), at_end, num_test, and for each of "over_untrained" (the
        same network at random initialization) and "over_first" (the first cell) the difference with
        its interval: over_first, over_first_low, over_first_high, over_first_paired. Differences
        are ours minus theirs, whichever is better.
    """
    import pandas as pd

    rows, first = [], {}
    for number, cell in enumerate(cells):
        begun: dict[tuple, dict[int, Row]] = {}
        ended: dict[tuple, dict[int, Row]] = {}
        for _, run in cell.runs:
            scores = list(last_scores(run.scores).itertuples())
            own = information(run)
            for question, score in _by_question([own, *scores] if own else scores):
                table = ended if is_last(run, score.step) else begun
                table.setdefault(question, {})[run.seed] = score
        if not number:
            first = ended
        for question in dict.fromkeys([*ended, *begun]):
            untrained = ended.get((*question[:3], f"random {question[3]}", *question[4:]), {})
            ours = ended.get(question, {})
            over = lead(ours, untrained), lead(ours, first.get(question, {})) if number else None
            ours = ours or begun[question]
            one = next(iter(ours.values()))
            value, low, high, *_ = mean_over_seeds(list(ours.values()))
            rows.append(
                {
                    "cell": cell.name,
                    **{name: getattr(one, name) for name in (*QUESTION, "num_train")},
                    **{"value": value, "low": low, "high": high, "chance": one.chance},
                    "higher_is_better": one.higher_is_better,
                    "by_seed": [score.value for score in ours.values()],
                    "at_end": question in ended,
                    "num_test": one.num_test,
                    **{
                        f"{name}{end}": getattr(found or UNKNOWN, field)
                        for name, found in zip(OVER, over, strict=True)
                        for end, field in ENDS.items()
                    },
                }
            )
    return pd.DataFrame(rows, columns=pd.Index(COLUMNS))  # also where nothing has a score


def _by_question(scores: Sequence[Row]) -> Iterator[tuple[tuple, Row]]:
    """Yield a run's scores with what they answer; of a curve over labels, also by which part.

    How many labels a part has may differ by seed, as the split of the files does.
    """
    groups: dict[tuple, list[Row]] = {}
    for score in scores:
        groups.setdefault(tuple(getattr(score, name) for name in QUESTION), []).append(score)
    for question, group in groups.items():
        for score in group:
            part = share_of(score) or str(score.num_train)  # NaN is not equal to itself
            yield (*question, part if len(group) > 1 else None), score


def mean_over_seeds(scores: Sequence[Row]) -> Difference:
    """Return the mean of a score over seeds, within what the metric can be.

    Its interval is that of `over_seeds_and_items`; of what has none of its own, such as log N - L,
    that over seeds alone.
    """
    found = [_interval(score) for score in scores]
    if all(math.isnan(one.low) for one in found):
        mean = over_seeds([one.value for one in found])
    else:
        mean = over_seeds_and_items(found)
    if len(scores) == 1 or not in_percent(scores[0].metric):
        return mean
    # More errors than words are possible; a rate of them has no upper end.
    most = math.inf if scores[0].metric.endswith("error rate") else 1.0
    low, high = np.clip(mean[1:3], 0.0, most)
    return mean._replace(low=float(low), high=float(high))


def lead(ours: Mapping[int, Row], theirs: Mapping[int, Row]) -> Difference | None:
    """Return the difference of two sets of scores by seed, ours minus theirs; None if one is empty.

    Of each seed that both have, d is the `difference` on their test items, and the lead is
    `over_seeds_and_items` of all d: what is common to both, of an item or of a seed, cancels. Of
    what has no interval over items it is `over_seeds` alone. With fewer than two such seeds and
    more of one of them, it is of the two means, as if independent: the one seed does not say how
    far seeds scatter, and the others do.
    """
    if not ours or not theirs:
        return None
    shared = [seed for seed in ours if seed in theirs]
    if len(shared) < 2 and (len(ours) > 1 or len(theirs) > 1 or not shared):
        return independent_difference(*(mean_over_seeds([*of.values()]) for of in (ours, theirs)))
    found = [difference(ours[seed], theirs[seed]) for seed in shared]
    if len(found) == 1 or np.isfinite([one[1:3] for one in found]).all():
        return over_seeds_and_items(found)
    return over_seeds([one.value for one in found])


def is_better(low: float | int, high: float | int, higher_is_better: bool) -> bool | None:
    """Return whether a difference is an improvement, by its interval; None if that holds zero.

    >>> is_better(-0.2, -0.05, higher_is_better=False)
    True
    """
    return bool(low > 0) == higher_is_better if low > 0 or high < 0 else None
