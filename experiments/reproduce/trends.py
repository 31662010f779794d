"""What is asked of many runs: does the curve fall, and does the bound predict the probe?"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from cpc.results import Frame, Run, at_end, last_evaluation, last_scores, over_seeds
from experiments.comparison.questions import ALIKE
from experiments.reproduce.claims import PaperTable
from experiments.reproduce.estimates import in_percent, within_0_and_1
from experiments.reproduce.ranks import independence
from experiments.reproduce.read import Reproduction
from experiments.reproduce.verdicts import HELD, REFUTED, UNTOLD

#: Of a curve over offsets: neighbors share windows, so that p is too small; and where all but a
#: few offsets are at chance, there is no curve.
SURE, FEWEST_OFFSETS = 0.01, 3


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
    """Beyond chance, and of several seeds beyond what their own taus scatter."""
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
    frame = pd.DataFrame({**columns, "chance %": 100 * first.chance_top1}).reset_index(drop=True)
    for name in accuracies:
        by_offset = pd.concat(found).groupby("offset")[name].agg(list)
        by_seed = [by_offset.loc[k] for k in frame.offset]
        means = [within_0_and_1(over_seeds(list(values))) for values in by_seed]
        frame[f"{name} %"] = [in_percent(mean)[:3] for mean in means]
    tau, p = independence(frame.offset, [value for value, *_ in frame["acc_top1 %"]])
    _, low, high, *_ = over_seeds([independence(one.offset, one.acc_top1)[0] for one in found])
    surely = p < SURE and (len(found) == 1 or low > 0 or high < 0)
    surely &= all((one.state != "chance").sum() >= FEWEST_OFFSETS for one in found)
    return Offsets(frame, tau, p, [HELD, REFUTED][tau > 0] if surely else UNTOLD, len(found))


def bound_and_probe(reproduction: Reproduction, table: PaperTable) -> Frame:
    """Return strict bound and linear probe of the runs that ended, to see if one predicts another.

    The bound is the mean over those offsets that all runs have; runs whose bound was measured with
    another N than most, beyond what seeds differ by, are left out.

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
    ceilings = pd.Series([np.log(strict.n.max()) for _, strict, _ in found], dtype=float)
    is_alike = (ceilings - ceilings.median()).abs() <= ALIKE
    kept = [one for one, holds in zip(found, is_alike, strict=True) if holds]
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
