"""Closed forms for the required number of negatives, their hardness, and exclusion windows."""

import bisect
import functools
import math
import warnings
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from cpc.negatives.noise import hit_rate
from cpc.types import UserError, check_number

#: Relative tolerance for rounding errors in comparisons with a required probability.
SLACK = 1e-12


def min_negatives(density: float | int, required_rate: float | int) -> int:
    """Return the number of independent negatives needed for a given chance of a hard one.

    k = ceil( log(1 - h) / log(1 - rho) ),  so that 1 - (1 - rho)^k >= h

    where rho (`density`) is the fraction of hard negatives and h (`required_rate`) is the required
    probability of at least one hard negative. The same formula gives the required size of a queue.

    >>> min_negatives(0.05, 0.95)
    59
    """
    check_number("density", density, least=0, most=1)
    check_number("required_rate", required_rate, least=0, most=1)
    if required_rate == 0:
        return 0
    if density == 1:
        return 1
    if density == 0 or required_rate == 1:
        problem = f"no number of negatives reaches {required_rate} at density {density}"
        raise UserError(f"{problem}: pass a required_rate below 1 and a density above 0")
    return math.ceil(math.log1p(-required_rate) / math.log1p(-density) * (1 - SLACK))


def min_negatives_without_replacement(
    num_hard: int, pool_size: int, required_rate: float | int
) -> int:
    """Return the number of distinct negatives of a pool needed for a given chance of a hard one.

    1 - C(P - H, k) / C(P, k) >= h

    The result is the smallest such k for a pool of P negatives (`pool_size`), of which H are hard
    (`num_hard`), and a probability h (`required_rate`) of at least one hard negative.

    Eight of ten negatives always include a hard negative if three of the ten are hard:

    >>> min_negatives_without_replacement(3, 10, 1.0)
    8
    """
    check_number("required_rate", required_rate, least=0, most=1)
    check_number("num_hard", num_hard, least=0, most=pool_size)
    if required_rate == 0:
        return 0
    if num_hard == 0:
        raise UserError("no number of negatives includes a hard one: pass a num_hard above 0")
    remaining = pool_size - np.arange(pool_size - num_hard)  # pool size before each draw
    log_miss = np.cumsum(np.log1p(-num_hard / remaining))
    log_allowed = math.log1p(-required_rate) * (1 - SLACK) if required_rate < 1 else -math.inf
    return 1 + int(np.count_nonzero(log_miss > log_allowed))


def effective_margin(
    beta: float | int, temperature: float | int, num_negatives: int, *, highest: float | int = 1.0
) -> float:
    """Return the positive's score at which its softmax weight against K negatives is 1/2.

    m = beta + tau log K,  L = log(1 + K e^((beta - a) / tau)) = softplus((m - a) / tau)

    The loss L exceeds the hinge max(0, m - a) / tau by at most log 2. The returned m is a threshold
    for the score a of the positive, against K negatives (`num_negatives`) that score beta.

    Warns:
      UserWarning: m exceeds `highest`, the maximum score, which is infinite for inner products.

    >>> round(effective_margin(0.2, 0.1, 2048), 4)
    0.9625
    """
    check_number("temperature", temperature, above=0)
    check_number("num_negatives", num_negatives, least=1)
    margin = beta + temperature * math.log(num_negatives)
    if margin > highest:
        most = math.floor(math.exp((highest - beta) / temperature))
        warnings.warn(
            f"a positive must score {margin:.3g} against {num_negatives} negatives at "
            f"{beta:.3g}, but no score is above {highest:.3g}: lower the temperature, or use at "
            f"most {most} negatives",
            stacklevel=2,
        )
    return margin


class Window(NamedTuple):
    """Statistics of a sequence's negatives outside an excluded window."""

    width: int
    """Number of excluded latents on each side of the target."""
    candidates: int
    rate: float
    """Fraction of false negatives among the candidates, or NaN if there are no candidates."""
    expected: float
    """Expected number of false negatives among the draws."""
    at_least_one: float
    """Probability of at least one false negative among the draws."""


def exclude_window(
    same: Float[np.ndarray, " t"], target: int, width: int, num_negatives: int
) -> Window:
    """Return the expected number of false negatives outside a window around the target.

    Negatives are drawn from the sequence's latents more than D steps away from the target. P is the
    mean of p(same | lag) over their lags. Among K draws, K P are expected to be false negatives,
    and the probability of at least one is 1 - (1 - P)^K.

    Args:
      same: p(same | lag), the probability that a latent `lag` steps away is a false negative. It
        has one entry per latent of the sequence, starting at lag 0.
      target: index of the positive.
      width: D, in latents.
      num_negatives: K, the number of draws.

    Two draws from two latents, whose probabilities of being a false negative are 1/2 and 0:

    >>> exclude_window(np.array([1.0, 0.5, 0.0]), target=0, width=0, num_negatives=2).expected
    0.5
    """
    check_number("target", target, least=0, below=len(same))
    check_number("width", width, least=0)
    check_number("num_negatives", num_negatives, least=0)
    if not ((same >= 0) & (same <= 1)).all():
        got = f"{same.min()} to {same.max()}"
        raise UserError(f"same must be between 0 and 1 (got {got}): pass probabilities")
    lag = np.abs(np.arange(len(same)) - target)
    kept = lag[lag > width]
    if not kept.size:
        return Window(width, 0, math.nan, math.nan, math.nan)
    rate = float(same[kept].mean())
    at_least_one = float(hit_rate(rate, num_negatives))
    return Window(width, kept.size, rate, num_negatives * rate, at_least_one)


def exclusion_window(
    same: Float[np.ndarray, " t"],
    target: int,
    num_negatives: int,
    max_expected: float | int,
) -> Window:
    """Return the smallest excluded window that leaves at most `max_expected` false negatives.

    See `exclude_window` for the other arguments.

    Raises:
      UserError: no window with at least `num_negatives` candidates has so few false negatives.

    >>> same = np.exp(-np.arange(128) / 6)
    >>> exclusion_window(same, 64, 16, 0.25).width
    12
    """
    windows = [exclude_window(same, target, d, num_negatives) for d in range(len(same))]
    num = max(num_negatives, 1)
    enough = [w for w in windows if w.candidates >= num]
    if not enough:
        problem = f"a sequence of {len(same)} latents has fewer than {num} candidates"
        raise UserError(f"{problem}: decrease num_negatives or use longer sequences")
    for window in enough:
        if window.expected <= max_expected:
            return window
    best = min(enough, key=lambda window: window.expected)
    problem = f"no window has {num} candidates and at most {max_expected} false negatives"
    raise UserError(f"{problem}: pass max_expected {best.expected} for a window of {best.width}")


class Pool(NamedTuple):
    """Properties of a source of negatives (batch or queue), and its costs per training step."""

    negatives: int
    hit_rate: float
    """Probability that the negatives of an anchor include at least one hard negative."""
    embedding_numbers: int
    """Number of embedding values kept in memory."""
    multiply_adds: int
    """Number of multiply-adds to score all anchors."""
    oldest_steps: int
    """Number of steps since the oldest negative was encoded."""
    has_gradient: bool
    """Whether the encoder receives gradients through the negatives."""


def compare_pool(
    batch_size: int, pool_size: int, width: int, density: float | int
) -> tuple[Pool, Pool]:
    """Compare the negatives of a batch with a queue of embeddings from earlier batches.

                  negatives  hit rate                memory  compute  age
        in-batch  B - 1      1 - (1 - rho)^(B - 1)   B d     B^2 d    0
        queue     P          1 - (1 - rho)^P         P d     B P d    up to P / B

    for B embeddings per step, P in the queue and width d, with a fraction rho of hard negatives.

    >>> batch, queue = compare_pool(8, 64, 4, 0.5)
    >>> queue.negatives, queue.multiply_adds, queue.oldest_steps
    (64, 2048, 8)
    """
    sizes = {"batch_size": batch_size, "pool_size": pool_size, "width": width}
    for name, size in sizes.items():
        check_number(name, size, least=1)

    def pool(negatives, kept, age, has_gradient):
        rate = float(hit_rate(density, negatives))
        return Pool(negatives, rate, kept * width, batch_size * kept * width, age, has_gradient)

    return (
        pool(batch_size - 1, batch_size, 0, True),
        pool(pool_size, pool_size, math.ceil(pool_size / batch_size), False),
    )


class LagCounts(NamedTuple):
    """Counts of latent pairs within a sequence, indexed by the lag between the two latents."""

    pairs: Int[np.ndarray, " t"]
    """Pairs with two known labels."""
    same: Int[np.ndarray, " t"]
    """Pairs with two known and equal labels."""


def count_same(labels: Int[np.ndarray, "b t"]) -> LagCounts:
    """Count latent pairs with equal labels, for each lag between the two latents.

    same / pairs estimates p(same | lag) for `exclusion_window`. Labels below 0 are unknown.

    >>> count_same(np.array([[5, 5, 7, -1]]))
    LagCounts(pairs=array([3, 2, 1, 0]), same=array([3, 1, 0, 0]))
    """
    length = labels.shape[1]
    before = [labels[:, : length - lag] for lag in range(length)]
    after = [labels[:, lag:] for lag in range(length)]
    known = [(a >= 0) & (b >= 0) for a, b in zip(before, after, strict=True)]
    same = [k & (a == b) for k, a, b in zip(known, before, after, strict=True)]
    return LagCounts(np.array([k.sum() for k in known]), np.array([s.sum() for s in same]))


def hard_fractions(
    positive: Float[np.ndarray, " m"],
    negatives: Float[np.ndarray, "m n"],
    where: Bool[np.ndarray, "m n"],
    margin: float = 0.0,
) -> Float[np.ndarray, " m"]:
    """Return the fraction rho_i of each anchor's negatives that score above positive - margin.

    The fraction is NaN for anchors without negatives.

    >>> allowed = np.array([[True, True, False]])
    >>> hard_fractions(np.array([1.0]), np.array([[0.0, 2.0, 3.0]]), allowed)
    array([0.5])
    """
    hard = where & (negatives > positive[:, None] - margin)
    counted = where.sum(-1)
    return np.where(counted > 0, hard.sum(-1) / np.maximum(counted, 1), np.nan)


def mean_hit_rate(fractions: Float[np.ndarray, " m"], num_negatives: int) -> float:
    """Return the mean fraction of anchors with a hard negative among k independent draws.

    mean_i 1 - (1 - rho_i)^k <= 1 - (1 - mean rho)^k by Jensen's inequality, so the mean fraction
    would overestimate the rate if anchors differ. Anchors without negatives (NaN) are ignored.

    >>> mean_hit_rate(np.array([0.0, 0.5]), 1)
    0.25
    """
    return float(np.mean(hit_rate(_with_negatives(fractions), num_negatives)))


def min_negatives_for(fractions: Float[np.ndarray, " m"], required_rate: float) -> int:
    """Return the smallest number of negatives whose `mean_hit_rate` reaches the required rate.

    The result equals `min_negatives` if all anchors have the same fraction of hard negatives.

    >>> [min_negatives_for(np.array(each), 0.95) for each in ([0.05, 0.05], [0.9, 0.01])]
    [59, 230]
    """
    check_number("required_rate", required_rate, above=0, below=1)
    fractions = _with_negatives(fractions)
    attainable = float(np.mean(fractions > 0))
    if required_rate >= attainable:
        problem = f"{1 - attainable:.1%} of the anchors have no hard negative (got {required_rate})"
        raise UserError(f"{problem}: pass a required_rate below {attainable:.3f}")
    rate_of = functools.partial(mean_hit_rate, fractions)
    return bisect.bisect_left(range(2**62), required_rate * (1 - SLACK), lo=1, key=rate_of)


def _with_negatives(fractions):
    known = fractions[~np.isnan(fractions)]
    if not known.size:
        problem = f"none of the {fractions.size} anchors has negatives"
        raise UserError(f"{problem}: pass at least one fraction that is not NaN")
    return known
