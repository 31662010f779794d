"""Noise distributions over classes, draws from them, and expected class counts in a sample.

Probabilities are float64 arrays on the host, with one entry per class. Classes with probability 0
are never drawn. `alias_table` prepares a distribution for draws in constant time per draw.

Accidental hits are draws that equal a target. Removing them (`where & ~hits`) and drawing without
replacement are independent choices. The derivations of NCE and ranking NCE keep hits, but sampled
softmax and retrieval remove them.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Bool, Float, Float64, Int, Int32, Key, Num
from scipy.special import xlog1py

from cpc.types import ArrayLike, UserError, check_number


def probabilities(weights: Num[ArrayLike, "..."]) -> Float64[np.ndarray, " n"]:
    """Normalise weights to probabilities: q_i = w_i / sum_j w_j.

    >>> probabilities(np.array([1, 3]))
    array([0.25, 0.75])
    """
    w = np.asarray(weights, np.float64)
    if w.ndim != 1 or not w.size:
        raise UserError(f"weights have shape {w.shape}: pass one number per class")
    wrong = ~(np.isfinite(w) & (w >= 0))
    if wrong.any():
        index = int(wrong.argmax())
        problem = f"the weight of class {index} is {w[index]}"
        raise UserError(f"{problem}: pass weights that are finite, 0 or more")
    highest = w.max()
    if highest == 0:
        raise UserError("all weights are 0: pass a positive weight for at least one class")
    w = w / highest  # so that the sum neither overflows nor underflows
    return w / w.sum()


def uniform(num_classes: int) -> Float64[np.ndarray, " n"]:
    """Return the uniform distribution: q_i = 1 / n.

    >>> uniform(4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    return probabilities(np.ones(max(num_classes, 0)))


def unigram(counts: Num[ArrayLike, "..."], alpha: float | int = 0.75) -> Float64[np.ndarray, " n"]:
    """Return smoothed frequencies: q_i = f_i^alpha / sum_j f_j^alpha.

    Here f_i is the count of class i. alpha = 1 gives the corpus frequencies, alpha = 0 the uniform
    distribution, and alpha = 0.75 the noise of word2vec (Mikolov et al. 2013). Classes with count 0
    have probability 0 for every alpha.

    >>> unigram(np.array([16, 1, 1, 0]), 0.5)
    array([0.66666667, 0.16666667, 0.16666667, 0.        ])
    """
    if not np.isfinite(alpha):
        raise UserError(f"alpha is {alpha}: pass a finite number, usually between 0 and 1")
    frequencies = probabilities(counts)
    seen = frequencies > 0
    powers = np.zeros_like(frequencies)
    logs = alpha * np.log(frequencies[seen])
    powers[seen] = np.exp(logs - logs.max())
    return probabilities(powers)


def log_uniform(num_classes: int) -> Float64[np.ndarray, " n"]:
    """Return Zipfian noise over classes sorted by descending frequency, as in TensorFlow.

    q_i = log((i + 2) / (i + 1)) / log(n + 1)

    >>> log_uniform(3).round(4)
    array([0.5   , 0.2925, 0.2075])
    """
    return probabilities(np.log1p(1 / np.arange(1.0, num_classes + 1)))


def expected_count(
    q: float | Float[np.ndarray, "..."], num_draws: int, *, unique: bool
) -> float | Float[np.ndarray, "..."]:
    """Return the expected count Q of a class in a sample. Sampled losses subtract its logarithm.

    If classes may repeat, Q = K q for K draws. If `unique` is true, Q = 1 - (1 - q)^tries, and
    `num_draws` is the number of tries returned by `draw_unique`.

    >>> expected_count(np.array([0.5, 0.0]), 3, unique=True)
    array([0.875, 0.   ])
    """
    at_least_once = hit_rate(q, num_draws)
    return at_least_once if unique else num_draws * q


def solve_alpha(
    counts: Num[ArrayLike, "..."],
    minority: Int[np.ndarray, " _"] | Bool[np.ndarray, " n"],
    target: float | int,
    *,
    low: float | int = 0.0,
    high: float | int = 1.0,
) -> float:
    """Return the alpha for which `unigram` gives the minority classes a target probability.

    M(alpha) = sum of q over the minority,  dM/dalpha = M (E_minority ln f - E ln f)

    The derivative is at most 0 if the minority classes are rarer than all other classes, so
    bisection finds the unique solution.

    Args:
      counts: f, the count of each class.
      minority: indices or mask of the minority classes.
      target: M, the fraction of draws from the minority.
      low, high: the range of alpha.

    Raises:
      UserError: no alpha in the range gives the target, or the minority is empty, contains all
        classes or is not the rarest.

    With counts 9 and 1, the rare class has probability 1 / (1 + 9^alpha), or 1/4 at alpha = 0.5:

    >>> round(solve_alpha(np.array([9, 1]), np.array([1]), 0.25), 9)
    0.5
    """
    counts = np.asarray(counts)
    rare = np.zeros(counts.shape, bool)
    rare[minority] = True
    if rare.all() or not rare.any():
        raise UserError(f"the minority has {rare.sum()} of {rare.size} classes: pass some, not all")
    if counts[rare].max() > counts[~rare].min():
        got = f"count {counts[rare].max()} and another class only {counts[~rare].min()}"
        raise UserError(f"a minority class has {got}: pass the rarest classes as the minority")

    def mass(alpha):
        return float(unigram(counts, alpha)[rare].sum())

    least, most = mass(high), mass(low)
    slack = 1e-12 * target  # so that both ends of the range are attainable
    if not least - slack <= target <= most + slack:
        reach = f"alpha from {low} to {high} allows {least:.4g} to {most:.4g}"
        raise UserError(f"a minority mass of {target} is out of reach: {reach}")
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mass(middle) > target else (low, middle)
    return (low + high) / 2


def accidental_hits(
    targets: Int[ArrayLike, "m ..."], candidates: Int[ArrayLike, "... n"]
) -> Bool[Array, "m n"]:
    """Return a mask of the candidates whose id equals one of the anchor's targets.

    Candidates have shape (n,) or (m, n), and targets (m,) or (m, t).

    >>> accidental_hits(jnp.array([3, 5]), jnp.array([3, 5, 3, 2]))
    Array([[ True, False,  True, False],
           [False,  True, False, False]], dtype=bool)
    """
    fits = candidates.ndim == 1 or (candidates.ndim == 2 and len(candidates) == len(targets))
    if targets.ndim > 2 or not fits:
        problem = f"targets and candidates do not fit (got {targets.shape}, {candidates.shape})"
        raise UserError(f"{problem}: pass shapes (m,) or (m, t), and (n,) or (m, n)")
    targets = jnp.reshape(targets, (len(targets), -1, 1))
    return (targets == jnp.atleast_2d(candidates)[:, None]).any(1)


def hit_rate(
    density: float | int | Float[np.ndarray, "..."], num_draws: int
) -> float | Float[np.ndarray, "..."]:
    """Return the probability that K independent draws include at least one hit.

    P = 1 - (1 - rho)^K

    rho is the probability of a hit in one draw, such as the fraction of hard negatives in a pool,
    or the probability of a class. 128 draws from 8 x 127 latents include the positive for about an
    eighth of the anchors:

    >>> round(float(hit_rate(1 / (8 * 127), 128)), 4)
    0.1184
    """
    if not np.all((np.asarray(density) >= 0) & (np.asarray(density) <= 1)):
        raise UserError(f"the chance of a hit in one draw is {density}: pass a density in [0, 1]")
    check_number("num_draws", num_draws, least=0)
    return -np.expm1(xlog1py(num_draws, -np.asarray(density, np.float64))) + 0.0  # no -0.0


class AliasTable(NamedTuple):
    """A table for drawing classes in constant time per draw (alias method, Walker 1977).

    All columns have the same mass, and each column is shared by at most two classes.
    """

    threshold: Float[ArrayLike, " n"]
    """Fraction of column i that belongs to class i. `alias_table` returns it in float64."""
    alias: Int[ArrayLike, " n"]
    """Class to which the remaining fraction of column i belongs."""


def alias_table(weights: Num[ArrayLike, "..."]) -> AliasTable:
    """Build the alias table of q = weights / sum on the host.

    Classes with n q >= 1 are heavy, and fill the columns of the light classes in order. This is the
    sweep of Huebschle-Schneider and Sanders (2022), with cumulative sums instead of a loop.

    Class 0 has half of column 0, a quarter of the total mass; class 1 has the rest:

    >>> alias_table(np.array([1, 3]))
    AliasTable(threshold=array([0.5, 1. ]), alias=array([1, 1], dtype=int32))
    """
    mass = probabilities(weights)
    mass *= mass.size  # 1 on average
    is_heavy = mass >= min(1.0, mass.max())  # equal masses may be rounded below 1
    light, heavy = np.flatnonzero(~is_heavy), np.flatnonzero(is_heavy)
    # The columns depend on differences of long sums, so use the highest available precision.
    lacking, spare = (
        np.cumsum(part.clip(0.0), dtype=np.longdouble)
        for part in (1 - mass[light], mass[heavy] - 1)
    )
    threshold, alias = mass.copy(), np.arange(mass.size, dtype=np.int32)
    # A light column is filled by the first heavy class with remaining excess mass ...
    before = np.append(np.longdouble(0), lacking)[:-1]
    giver = np.searchsorted(spare, before, side="left")
    alias[light] = heavy[np.minimum(giver, heavy.size - 1)]
    # ... which may then be overdrawn: the next heavy class fills its column.
    last = np.searchsorted(lacking, spare, side="right")
    overdrawn = np.flatnonzero((last < light.size) & (np.arange(heavy.size) < heavy.size - 1))
    threshold[heavy] = 1.0
    threshold[heavy[overdrawn]] = 1 + spare[overdrawn] - lacking[last[overdrawn]]
    alias[heavy[overdrawn]] = heavy[overdrawn + 1]
    return AliasTable(threshold.clip(0.0, 1.0), alias)


def draw(rng: Key[Array, ""], table: AliasTable, shape: tuple[int, ...]) -> Int32[Array, "..."]:
    """Return independent draws of classes, in constant time per draw.

    Both choices, of a column and of its own class or its alias, use one 64-bit number multiplied by
    the number of columns. The integer part is the column, and the next 32 bits are compared with
    the threshold. Rounding moves at most 1e-7 of a column's mass. Classes with q = 0 are not drawn.

    >>> draw(jax.random.key(0), alias_table(np.array([0.0, 2.0, 0.0])), (2, 3))
    Array([[1, 1, 1],
           [1, 1, 1]], dtype=int32)
    """
    high, low = _two_words(rng, shape)
    num_columns = len(table.threshold)
    carry = _high_product(low, num_columns)
    fraction = high * jnp.uint32(num_columns) + carry
    column = (_high_product(high, num_columns) + (fraction < carry)).astype(jnp.int32)
    threshold = jnp.asarray(table.threshold, jnp.float32)[column]
    # 2^32 - 2^8 is the largest float32 that fits uint32. Clipping does not change the result,
    # because the alias is the class itself if the threshold is 1.
    bits = jnp.minimum(threshold * 2.0**32, 2.0**32 - 2.0**8).astype(jnp.uint32)
    return jnp.where(fraction < bits, column, jnp.asarray(table.alias)[column]).astype(jnp.int32)


def _two_words(rng, shape) -> Any:
    """Return two arrays of random 32-bit words, the two halves of each Threefry block."""
    if "threefry" not in str(jax.random.key_impl(rng)):
        return jax.random.bits(rng, (2, *shape), jnp.uint32)
    count = jnp.arange(2 * math.prod(shape), dtype=jnp.uint32)
    return threefry_2x32(jax.random.key_data(rng), count).reshape(2, *shape)


def _high_product(x, factor: int) -> Any:
    """Return the upper 32 bits of the product of a uint32 array and a factor below 2^32."""
    high, low = jnp.uint32(factor >> 16), jnp.uint32(factor & 0xFFFF)
    x_high, x_low = x >> 16, x & 0xFFFF
    middle, other = x_low * high, x_high * low
    carry = (x_low * low >> 16) + (middle & 0xFFFF) + (other & 0xFFFF)
    return x_high * high + (middle >> 16) + (other >> 16) + (carry >> 16)


def check_distinct(num: int, possible: int) -> None:
    """Raise UserError if more distinct classes are requested than can be drawn."""
    if num > possible:
        problem = f"{num} distinct classes were requested, but only {possible} can be drawn"
        raise UserError(f"{problem}: draw fewer classes, or draw with replacement")


def draw_unique(
    rng: Key[Array, ""], table: AliasTable, num: int
) -> tuple[Int32[Array, " num"], Int32[Array, ""]]:
    """Return `num` distinct classes in the order drawn, and the number of draws this took.

    Classes are drawn with replacement until `num` distinct classes are found, as in TensorFlow's
    unique candidate samplers. `expected_count` computes expected counts from the number of draws.

    Raises:
      UserError: fewer than `num` classes can be drawn. If the table is traced, missing ids are -1.

    >>> ids, num_draws = draw_unique(jax.random.key(0), alias_table(np.array([0.0, 2.0, 3.0])), 2)
    >>> sorted(ids.tolist()), int(num_draws) >= 2
    ([1, 2], True)
    """
    n = len(table.threshold)
    threshold, alias = (jnp.asarray(x) for x in table)
    possible = (threshold > 0).at[alias].max(threshold < 1).sum(dtype=jnp.int32)
    check_distinct(num, n if isinstance(possible, Tracer) else int(possible))
    size = max(num, 1)  # draws per iteration

    def turn(carry):
        ids, found, num_draws, first = carry
        classes = draw(jax.random.fold_in(rng, num_draws), table, (size,))
        when = num_draws + jnp.arange(size, dtype=jnp.int32)
        first = first.at[classes].min(when)  # index of each class's first draw
        place = found + jnp.cumsum(first[classes] == when, dtype=jnp.int32) - 1
        is_new = (first[classes] == when) & (place < num)
        ids = ids.at[jnp.where(is_new, place, num)].set(classes, mode="drop")
        last = jnp.where(is_new & (place == num - 1), when, num_draws + size - 1).min()
        return ids, found + is_new.sum(dtype=jnp.int32), last + 1, first

    def lacks(carry):
        return carry[1] < jnp.minimum(num, possible)

    never = jnp.full(n, jnp.iinfo(jnp.int32).max, jnp.int32)
    zero = jnp.zeros((), jnp.int32)
    start = jnp.full(num, -1, jnp.int32), zero, zero, never
    ids, _, num_draws, _ = jax.lax.while_loop(lacks, turn, start)
    return ids, num_draws
