"""Differences of scores with intervals, paired when seeds or test items are shared."""

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

#: The share of repetitions whose interval contains the true value.
LEVEL = 0.95
TAIL = (1 - LEVEL) / 2


class Difference(NamedTuple):
    """How much larger one score is than another."""

    value: float
    low: float
    high: float
    """Upper end of the 95 % interval; both ends are NaN without an interval."""
    p_value: float = math.nan
    """McNemar's exact test of equal accuracy, for scores with one answer per item."""
    paired: str = ""
    """Pairing of the scores: "items", "seeds", "seeds and items", or "" if independent."""


UNKNOWN = Difference(math.nan, math.nan, math.nan)


def paired_difference(
    ours: Any, theirs: Any, *, num_resamples: int = 10_000, seed: int = 0
) -> Difference:
    """Return the difference of two accuracies on the same test items, ours minus theirs.

    Items on which both agree cancel, so the interval is narrower than the two separate intervals
    suggest. It is the percentile bootstrap over items: an item gives -1, 0 or 1, so a resample is a
    draw from a multinomial. The p-value is McNemar's exact test (1947), under which either side is
    equally often right on items where they differ. The interval contains zero unless that test
    rejects it; if no draw differs, its end is exact (Clopper and Pearson, 1934). For a single item
    the interval is NaN.

    Args:
        ours, theirs: (m,) whether each item is right.
        num_resamples, seed: of the bootstrap.

    >>> ours, theirs = np.array([True] * 8 + [False] * 2), np.array([True] * 3 + [False] * 7)
    >>> difference = paired_difference(ours, theirs)
    >>> difference.value, difference.p_value  # 5 of 5 in our favor: 2 / 2^5
    (0.5, 0.0625)
    >>> difference.low, round(difference.high, 12)
    (0.0, 0.8)
    """
    if len(ours) != len(theirs) or not len(ours):
        raise UserError(
            f"a paired difference needs the same items, at least one, on both sides (got "
            f"{len(ours)} and {len(theirs)})"
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
    if count in (wins, losses, ties):  # the others have at most this share
        others = 1 - TAIL ** (1 / count)
        low, high = value - others * (1 + value), value + others * (1 - value)
    if p_value > 1 - LEVEL:
        low, high = min(low, 0.0), max(high, 0.0)
    return Difference(value, float(low), float(high), p_value, "items")


def draw_items(num_resamples: int, count: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield resampled item indices in chunks of shape (rows, count), which bounds the memory."""
    rng, rows = np.random.default_rng(seed), max(1, 2_000_000 // count)
    for start in range(0, num_resamples, rows):
        yield rng.integers(count, size=(min(rows, num_resamples - start), count))


def paired_sums(ours: Outcomes, theirs: Outcomes) -> Difference:
    """Return the difference of two scores on the same items, each with sums and counts.

    The interval is the percentile bootstrap over items, widened by `as_student`; it is NaN if
    fewer than two items count.
    """
    value = mean_outcome(ours) - mean_outcome(theirs)
    num_counted = int(np.sum((ours.counts > 0) & (theirs.counts > 0)))
    if num_counted < 2:
        return Difference(value, math.nan, math.nan, paired="items")
    columns = [np.asarray(x, float) for x in (ours.sums, ours.counts, theirs.sums, theirs.counts)]
    found = []
    for drawn in draw_items(2000, len(ours.sums)):
        sums = np.stack([column[drawn].sum(axis=1) for column in columns])
        a, of_a, b, of_b = sums[:, (sums[1] > 0) & (sums[3] > 0)]  # else nothing is counted
        found.append(a / of_a - b / of_b)
    low, high = np.quantile(np.concatenate(found), [TAIL, 1 - TAIL])
    return Difference(value, *as_student(value, low, high, num_counted), paired="items")


def as_student(
    value: float | int, low: float | int, high: float | int, num_items: int
) -> tuple[float, float]:
    """Widen a bootstrap interval of level `LEVEL` for few items, as Student's t-interval does.

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
    """Return the difference of two scores, or rows of their frame, paired if on the same items."""
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
    """Return the mean of one estimate per seed, with an interval over seeds and test items.

    mean -+ sqrt(s^2 + u^2): s is the half-width of `over_seeds`, u the mean of the estimates' own
    half-widths over test items; NaN if one has none. Seeds share their test items, so u does not
    shrink with their number. The interval contains that over seeds and that over items.

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
    """Runs that differ only in the seed."""

    name: str
    runs: list[tuple[str, Run]]


def group_by_seed(runs: Sequence[tuple[str, Run]]) -> list[Cell]:
    """Group named runs whose configs differ only in the seed, in order."""
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
    """Return whether two runs differ in the seed alone, also by name if both end in a seed."""
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


#: Keys that change no number of a comparison, or that its columns show already.
IGNORED_KEYS = (
    *("seed", "log_every", "eval_every", "save_every"),
    *("data.num_threads", "probe.tasks", "probe.features"),
)


def settings(cells: Sequence[Cell]) -> Frame:
    """Return the config keys in which cells differ, one row per cell, without `IGNORED_KEYS`."""
    import pandas as pd

    flat = [flatten(cell.runs[0][1].config) for cell in cells]
    keys = dict.fromkeys(key for one in flat for key in one if key not in IGNORED_KEYS)
    differing = [key for key in keys if len({repr(one.get(key)) for one in flat}) > 1]
    rows = [[one.get(key) for key in differing] for one in flat]
    names = pd.Index([cell.name for cell in cells], name="cell")
    return pd.DataFrame(rows, index=names, columns=pd.Index(differing), dtype=object)


def information(run: Run, among: Collection[int] | None = None) -> Score | None:
    """Return log N - L of the last evaluation as a score in nats, the mean of `headline_rows`.

    The strict bound is preferred if it was recorded. The method is "bound" or "estimate", and the
    setting lists the averaged offsets, which are restricted to `among` unless none is in it.
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
    """Return the offsets common to the `headline_rows` of all runs; None without any."""
    found = [last_evaluation(run, strict=True) for run in runs]
    found = [{*headline_rows(rows).offset} for rows in found if rows.bound.notna().any()]
    return (set.intersection(*found) if found else set()) or None


#: The two differences in the frame of `compare`, and the columns for each of them.
BASELINES = ("over_untrained", "over_first")
ENDS = {"": "value", "_low": "low", "_high": "high", "_paired": "paired"}
COLUMNS = (
    "cell", *QUESTION, "num_train", "value", "low", "high", "chance", "higher_is_better",
    "by_seed", "at_end", "num_test", "setting",
    *(f"{name}{end}" for name in BASELINES for end in ENDS),
)  # fmt: skip


def compare(cells: Sequence[Cell]) -> Frame:
    """Return the scores of cells, one row per cell and question, compared with the first cell.

    Only seeds that have reached their last step count. If none has, the row contains their latest
    scores without differences. Values and intervals come from `mean_over_seeds`. Differences, ours
    minus theirs, are the `lead` over the same network untrained and over the first cell. log N - L
    is averaged over the offsets common to the `headline_rows` of all runs, if any. The frame has
    the columns `COLUMNS`; by_seed is a list.
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
        if not number:
            first = ended
        for question in dict.fromkeys([*ended, *begun]):
            ours = ended.get(question, {})
            untrained = ended.get((*question[:3], f"random {question[3]}", *question[4:]), {})
            over = lead(ours, untrained), lead(ours, first.get(question, {})) if number else None
            row = _summarize(cell.name, list((ours or begun[question]).values()), over)
            rows.append({**row, "at_end": question in ended})
    return pd.DataFrame(rows, columns=pd.Index(COLUMNS))  # also if nothing has a score


def _summarize(name: str, scores: Sequence[Row], over: Sequence[Difference | None]) -> dict:
    one, (value, low, high, *_) = scores[0], mean_over_seeds(scores)
    own = (*QUESTION, "num_train", "chance", "higher_is_better", "num_test", "setting")
    row = {"cell": name, **{key: getattr(one, key) for key in own}}
    row |= {"value": value, "low": low, "high": high, "by_seed": [s.value for s in scores]}
    for baseline, found in zip(BASELINES, over, strict=True):
        row |= {f"{baseline}{end}": getattr(found or UNKNOWN, key) for end, key in ENDS.items()}
    return row


def _by_question(scores: Sequence[Row]) -> Iterator[tuple[tuple, Row]]:
    """Yield scores with their question, which for a curve over labels includes the share.

    The number of labels in a share may differ by seed, as the split of the files does.
    """
    groups: dict[tuple, list[Row]] = {}
    for score in scores:
        groups.setdefault(tuple(getattr(score, name) for name in QUESTION), []).append(score)
    for question, group in groups.items():
        for score in group:
            part = label_fraction(score) or str(score.num_train)  # NaN is not equal to itself
            yield (*question, part if len(group) > 1 else None), score


def mean_over_seeds(scores: Sequence[Row]) -> Difference:
    """Return the mean of a score over seeds, its interval clipped to the range of the metric.

    The interval is that of `over_seeds_and_items`, or of `over_seeds` for scores without intervals.
    """
    found = [_interval(score) for score in scores]
    if all(math.isnan(one.low) for one in found):
        mean = over_seeds([one.value for one in found])
    else:
        mean = over_seeds_and_items(found)
    if len(scores) == 1 or not in_percent(scores[0].metric):
        return mean
    # There can be more errors than words.
    highest = math.inf if scores[0].metric.endswith("error rate") else 1.0
    low, high = np.clip(mean[1:3], 0.0, highest)
    return mean._replace(low=float(low), high=float(high))


def lead(ours: Mapping[int, Row], theirs: Mapping[int, Row]) -> Difference | None:
    """Return the difference of two sets of scores by seed, ours minus theirs; None if one is empty.

    It is `over_seeds_and_items` of the `difference` of each shared seed, or `over_seeds` if these
    have no intervals. With fewer than two shared seeds, and more on one side, the two means are
    compared as if independent, because one seed does not show how far seeds scatter.
    """
    if not ours or not theirs:
        return None
    shared = [seed for seed in ours if seed in theirs]
    if len(shared) < 2 and (len(ours) > 1 or len(theirs) > 1 or not shared):
        means = (mean_over_seeds(list(scores.values())) for scores in (ours, theirs))
        return independent_difference(*means)
    found = [difference(ours[seed], theirs[seed]) for seed in shared]
    if len(found) == 1 or np.isfinite([one[1:3] for one in found]).all():
        return over_seeds_and_items(found)
    return over_seeds([one.value for one in found])


def is_better(low: float | int, high: float | int, higher_is_better: bool) -> bool | None:
    """Return whether a difference is an improvement; None if its interval contains zero.

    >>> is_better(-0.2, -0.05, higher_is_better=False)
    True
    """
    return bool(low > 0) == higher_is_better if low > 0 or high < 0 else None
