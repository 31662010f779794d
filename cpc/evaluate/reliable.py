"""Reliable statistics for a few runs of an agent, whose scores vary between seeds.

The formulas are from "Deep reinforcement learning at the edge of the statistical precipice"
(Agarwal et al. 2021). Scores are arrays (..., runs, tasks) with one run per seed. Leading axes are
optional, for example points of a learning curve. Tasks that are averaged must have the same scale.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from cpc.types import UserError

#: One number for each entry of the leading axes.
Values: TypeAlias = Float[np.ndarray, "*s"] | float


def interquartile_mean(scores: Float[np.ndarray, "*s runs tasks"]) -> Values:
    """Return the mean of the middle half of all scores, pooled over runs and tasks.

    A quarter of the scores, rounded down, is left out at each end. One lucky or failed seed does
    not change the result, and fewer runs are needed than for a median. A NaN makes the result NaN.

    >>> float(interquartile_mean(np.array([[-90.0], [1.0], [2.0], [3.0], [4.0], [1e3]])))
    2.5
    """
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    middle = flat[..., cut : flat.shape[-1] - cut].mean(axis=-1)
    return np.where(np.isnan(flat[..., -1]), np.nan, middle)  # a NaN is sorted to the end


def probability_of_improvement(
    ours: Float[np.ndarray, "*s m tasks"], theirs: Float[np.ndarray, "*s n tasks"]
) -> Values:
    """Return the probability that one method's run scores higher than another method's run.

    `ours` and `theirs` are the two methods' scores. The probability is P(X > Y) + P(X = Y) / 2 over
    all pairs of a run X in `ours` and Y in `theirs` on a task, averaged over tasks. This is
    U / (m n) in the test of Mann and Whitney (1947). A NaN makes the result NaN.

    >>> float(probability_of_improvement(np.array([[1.0], [3.0]]), np.array([[1.0], [2.0]])))
    0.625
    """
    ours, theirs = ours[..., :, None, :], theirs[..., None, :, :]
    better = (ours > theirs) + (ours == theirs) / 2
    return np.where(np.isnan(ours + theirs), np.nan, better).mean(axis=(-3, -2, -1))


def optimality_gap(scores: Float[np.ndarray, "*s runs tasks"], target: float | int = 1.0) -> Values:
    """Return the scores' mean shortfall below a target; a score above the target has none.

    >>> float(optimality_gap(np.array([[0.5], [3.0]])))
    0.25
    """
    return target - np.minimum(scores, target).mean(axis=(-2, -1))


def performance_profile(
    scores: Float[np.ndarray, "*s runs tasks"], thresholds: Float[np.ndarray, " p"]
) -> Float[np.ndarray, "*s p"]:
    """Return the fraction of scores above each threshold.

    >>> performance_profile(np.array([[0.5], [3.0]]), np.array([0.0, 1.0, 3.0]))
    array([1. , 0.5, 0. ])
    """
    return (scores[..., None] > thresholds).mean(axis=(-3, -2))


def area_under_curve(steps: Float[np.ndarray, " p"], returns: Float[np.ndarray, "*s p"]) -> Values:
    """Return the area under learning curves by the trapezoidal rule, divided by the range of steps.

    >>> float(area_under_curve(np.array([0.0, 1.0, 4.0]), np.array([0.0, 1.0, 1.0])))
    0.875
    """
    return np.trapezoid(returns, steps, axis=-1) / (steps[-1] - steps[0])


def steps_to_level(
    steps: Float[np.ndarray, " p"], returns: Float[np.ndarray, "*s p"], level: float | int
) -> Float[np.ndarray, "*s"]:
    """Return the first step at which each learning curve reaches a level, or NaN if it never does.

    >>> curves = np.array([[-1.0, 0.5, -1.0], [-1.0, -0.5, -0.1]])
    >>> steps_to_level(np.array([10.0, 20.0, 30.0]), curves, level=0.0)
    array([20., nan])
    """
    is_reached = returns >= level
    return np.where(is_reached.any(axis=-1), steps[is_reached.argmax(axis=-1)], np.nan)


def stratified_interval(
    statistic: Callable[..., Values],
    *samples: Float[np.ndarray, "..."],
    num_resamples: int = 2000,
    level: float = 0.95,
) -> tuple[Values, Values]:
    """Return both ends of a statistic's stratified bootstrap percentile interval.

    Runs are drawn with replacement within each task, independently for each sample. All entries of
    the leading axes share draws, for example a learning curve's points or methods paired by seed.
    With few runs the interval is too narrow: with 3 runs, a nominal 95 % interval contains the true
    value less often.

    Args:
      statistic: a function from arrays like the samples, but with an additional leading axis of
        resamples, to values with the same leading axis.
      samples: arrays (..., runs, tasks).

    For the difference of two paired methods, stack them along a leading axis:

    >>> both = np.stack([np.arange(8.0), np.arange(8.0) - 1])[..., None]
    >>> difference = lambda x: interquartile_mean(x[..., 0, :, :] - x[..., 1, :, :])
    >>> [float(end) for end in stratified_interval(difference, both)]
    [1.0, 1.0]
    """
    for sample in samples:
        if sample.ndim < 2 or not sample.size:
            raise UserError(
                f"scores have shape {sample.shape}: pass non-empty arrays (..., runs, tasks)"
            )
    rng = np.random.default_rng(0)
    rows = max(1, 2_000_000 // max(sample.size for sample in samples))  # bounds the memory
    found = []
    for start in range(0, num_resamples, rows):
        number = min(rows, num_resamples - start)
        resampled = []
        for sample in samples:
            runs, tasks = sample.shape[-2:]
            drawn = rng.integers(runs, size=(number, *(1,) * (sample.ndim - 2), runs, tasks))
            resampled.append(np.take_along_axis(sample[None], drawn, axis=-2))
        found.append(statistic(*resampled))
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(found), [tail, 1 - tail], axis=0)
    return low, high
