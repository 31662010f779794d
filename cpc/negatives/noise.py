"""Noise distributions over classes, draws from them, and how often a class is in a sample.

Probabilities are float64 on the host, one entry a class, and may hold zeros: such classes are never
drawn. `alias_table` makes them ready to draw from, in a time that does not depend on their number.

Removing accidental hits (`where & ~hits`) and drawing without replacement are two switches. NCE and
its ranking form are derived with hits kept; sampled softmax and retrieval remove them.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Bool, Float, Float64, Int, Int32, Key, Num

from cpc.types import ArrayLike, UserError


def probabilities(weights: Num[ArrayLike, "..."]) -> Float64[np.ndarray, " n"]:
    """Any weights, normalised: q_i = w_i / sum_j w_j.

    >>> probabilities(np.array([1, 3]))
    array([0.25, 0.75])
    """
    w = np.asarray(weights, np.float64)
    if w.ndim != 1 or not w.size:
        raise UserError(f"weights have shape {w.shape}: give one number a class")
    wrong = ~(np.isfinite(w) & (w >= 0))
    if wrong.any():
        place = int(wrong.argmax())
        raise UserError(
            f"the weight of class {place} is {w[place]}: weights must be finite, 0 or more"
        )
    highest = w.max()
    if highest == 0:
        raise UserError("all weights are 0: at least one class must be possible")
    w = w / highest  # their sum neither overflows nor underflows
    return w / w.sum()


def uniform(num_classes: int) -> Float64[np.ndarray, " n"]:
    """Every class alike: q_i = 1 / n.

    >>> uniform(4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    return probabilities(np.ones(max(num_classes, 0)))


def unigram(counts: Num[ArrayLike, "..."], alpha: float | int = 0.75) -> Float64[np.ndarray, " n"]:
    """Smoothed frequencies: q_i = f_i^alpha / sum_j f_j^alpha.

    alpha 1 is the corpus, 0 is uniform, 0.75 is word2vec's (Mikolov et al. 2013). A class that was
    never seen is never drawn, at any alpha.

    >>> unigram(np.array([16, 1, 1, 0]), 0.5)
    array([0.66666667, 0.16666667, 0.16666667, 0.        ])
    """
    if not np.isfinite(alpha):
        raise UserError(f"alpha is {alpha}: it must be finite, usually from 0 to 1")
    frequencies = probabilities(counts)
    seen = frequencies > 0
    powers = np.zeros_like(frequencies)
    logs = alpha * np.log(frequencies[seen])
    powers[seen] = np.exp(logs - logs.max())
    return probabilities(powers)


def log_uniform(num_classes: int) -> Float64[np.ndarray, " n"]:
    """Zipfian noise over classes sorted by falling frequency (TensorFlow's candidate sampler).

    q_i = log((i + 2) / (i + 1)) / log(n + 1)

    >>> log_uniform(3).round(4)
    array([0.5   , 0.2925, 0.2075])
    """
    return probabilities(np.log1p(1 / np.arange(1.0, num_classes + 1)))


def expected_count(
    q: float | Float[np.ndarray, "..."], num_draws: int, *, unique: bool
) -> float | Float[np.ndarray, "..."]:
    """Expected count Q of a class in a sample: what sampled losses subtract the log of.

    With replacement Q = K q. Without it, drawing until enough distinct classes are there has taken
    some number of tries (`draw_unique` says how many), and Q = 1 - (1 - q)^tries.

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
    """The alpha at which `unigram` gives the minority classes a wanted mass.

    M(alpha) = sum of q over the minority,  dM/dalpha = M (E_minority ln f - E ln f) <= 0

    for classes that are rarer than all others, so that bisection finds the one solution.

    Args:
      counts: f, of every class.
      minority: their indices, or a mask.
      target: M, the fraction of draws that they shall get.
      low, high: the range of alpha.

    Raises:
      UserError: no alpha of the range gives that mass (the sentence says which masses there are);
        a minority that is empty, everything, or not the rarest; as `unigram`.

    Counts 9 and 1: the rare class has 1 / (1 + 9^alpha), which is a quarter at alpha 0.5.

    >>> round(solve_alpha(np.array([9, 1]), np.array([1]), 0.25), 9)
    0.5
    """
    counts = np.asarray(counts)
    rare = np.zeros(counts.shape, bool)
    rare[minority] = True
    if rare.all() or not rare.any():
        raise UserError(f"the minority has {rare.sum()} of {rare.size} classes: name some, not all")
    if counts[rare].max() > counts[~rare].min():
        raise UserError(
            f"a minority class has count {counts[rare].max()} and another class only "
            f"{counts[~rare].min()}: the minority must be the rarest classes"
        )

    def mass(alpha):
        return float(unigram(counts, alpha)[rare].sum())

    least, most = mass(high), mass(low)
    slack = 1e-12 * target  # the ends themselves are attainable
    if not least - slack <= target <= most + slack:
        raise UserError(
            f"a minority mass of {target} is out of reach: alpha from {low} to {high} gives "
            f"{least:.4g} to {most:.4g}"
        )
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mass(middle) > target else (low, middle)
    return (low + high) / 2


def accidental_hits(
    targets: Int[ArrayLike, "m ..."], candidates: Int[ArrayLike, "... n"]
) -> Bool[Array, "m n"]:
    """Which candidates (n,) or (m, n) carry the id of a target, (m,) or (m, t), of the anchor.

    >>> accidental_hits(jnp.array([3, 5]), jnp.array([3, 5, 3, 2]))
    Array([[ True, False,  True, False],
           [False,  True, False, False]], dtype=bool)
    """
    fits = candidates.ndim == 1 or (candidates.ndim == 2 and len(candidates) == len(targets))
    if targets.ndim > 2 or not fits:
        raise UserError(
            f"targets of shape {targets.shape} and candidates of shape {candidates.shape} do not "
            "fit: give (m,) or (m, t) targets and (n,) or (m, n) candidates"
        )
    targets = jnp.reshape(targets, (len(targets), -1, 1))
    return (targets == jnp.atleast_2d(candidates)[:, None]).any(1)


def hit_rate(
    density: float | int | Float[np.ndarray, "..."], num_draws: int
) -> float | Float[np.ndarray, "..."]:
    """Chance that independent draws hold at least one item of a kind.

    P = 1 - (1 - rho)^K

    rho is the fraction of hard negatives in a pool, the probability of a class, or 1 / n for one
    latent among n: drawing 128 of 8 x 127 latents finds the positive for an eighth of the anchors.

    >>> round(float(hit_rate(1 / (8 * 127), 128)), 4)
    0.1184
    """
    if not np.all((np.asarray(density) >= 0) & (np.asarray(density) <= 1)):
        raise UserError(f"the chance of a hit in one draw is {density}: it must be from 0 to 1")
    if num_draws < 0:
        raise UserError(f"num_draws is {num_draws}: it must be 0 or more")
    with np.errstate(divide="ignore", invalid="ignore"):  # log 0, and 0 log 0
        rate = -np.expm1(num_draws * np.log1p(-np.asarray(density, np.float64)))
    return np.where(np.equal(density, 1), float(num_draws > 0), rate)[()]


class AliasTable(NamedTuple):
    """Columns of equal mass, each shared by at most two classes (Walker 1977)."""

    threshold: Float[ArrayLike, " n"]
    """The part of column i that is class i's own; float64 as built, so that the table is exact."""
    alias: Int[ArrayLike, " n"]
    """The class that has the rest of column i."""


def alias_table(weights: Num[ArrayLike, "..."]) -> AliasTable:
    """The table of q = weights / sum, made on the host: a tenth of a second a million classes.

    Classes with n q >= 1 fill up the columns of the others, both in their given order. Sums of what
    the light columns lack and of what the heavy ones can spare say who fills which, as in the sweep
    of Huebschle-Schneider and Sanders (2022), so that no loop over classes is needed.

    Class 0 has half of its own column, a quarter of all; class 1 has the rest:

    >>> alias_table(np.array([1, 3]))
    AliasTable(threshold=array([0.5, 1. ]), alias=array([1, 1], dtype=int32))
    """
    mass = probabilities(weights)
    mass *= mass.size  # 1 on average
    is_heavy = mass >= min(1.0, mass.max())  # below 1 by rounding alone, if all are equal
    light, heavy = np.flatnonzero(~is_heavy), np.flatnonzero(is_heavy)
    # Sums of a million numbers, whose differences count: every further digit helps.
    lacking, spare = (
        np.cumsum(part.clip(0.0), dtype=np.longdouble)
        for part in (1 - mass[light], mass[heavy] - 1)
    )
    threshold, alias = mass.copy(), np.arange(mass.size, dtype=np.int32)
    # A light column is filled by the first heavy class that is not yet overdrawn ...
    before = np.append(np.longdouble(0), lacking)[:-1]
    giver = np.searchsorted(spare, before, side="left")
    alias[light] = heavy[np.minimum(giver, heavy.size - 1)]
    # ... which then may be: the next heavy class makes up for what it cannot spare.
    last = np.searchsorted(lacking, spare, side="right")
    overdrawn = np.flatnonzero((last < light.size) & (np.arange(heavy.size) < heavy.size - 1))
    threshold[heavy] = 1.0
    threshold[heavy[overdrawn]] = 1 + spare[overdrawn] - lacking[last[overdrawn]]
    alias[heavy[overdrawn]] = heavy[overdrawn + 1]
    return AliasTable(threshold.clip(0.0, 1.0), alias)


def draw(rng: Key[Array, ""], table: AliasTable, shape: tuple[int, ...]) -> Int32[Array, "..."]:
    """Return independent draws of classes, O(1) each; runs under jit with a fixed shape.

    A column at random, then its own class with probability `threshold`, else its alias. Both come
    from one number of 64 bits: times the number of columns, its whole part is the column, and the
    next 32 bits are compared with the threshold.

    On the device thresholds are float32. That moves at most 1e-7 of the mass of a column to its
    other class (of all draws, one in ten million), and a class with threshold 0 and no alias of its
    own stays impossible.

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
    # 2^32 - 2^8 is the greatest float32 that is a uint32. Where the threshold is 1 the alias is the
    # class itself, so nothing is lost there.
    bits = jnp.minimum(threshold * 2.0**32, 2.0**32 - 2.0**8).astype(jnp.uint32)
    return jnp.where(fraction < bits, column, jnp.asarray(table.alias)[column]).astype(jnp.int32)


def _two_words(rng, shape) -> Any:
    """Two arrays of 32 random bits: both halves of a Threefry block, where jax.random takes one."""
    if "threefry" not in str(jax.random.key_impl(rng)):
        return jax.random.bits(rng, (2, *shape), jnp.uint32)
    count = jnp.arange(2 * math.prod(shape), dtype=jnp.uint32)
    return threefry_2x32(jax.random.key_data(rng), count).reshape(2, *shape)


def _high_product(x, factor: int) -> Any:
    """The upper 32 bits of the product of uint32 and a number below 2^32."""
    high, low = jnp.uint32(factor >> 16), jnp.uint32(factor & 0xFFFF)
    x_high, x_low = x >> 16, x & 0xFFFF
    middle, other = x_low * high, x_high * low
    carry = (x_low * low >> 16) + (middle & 0xFFFF) + (other & 0xFFFF)
    return x_high * high + (middle >> 16) + (other >> 16) + (carry >> 16)


def draw_unique(
    rng: Key[Array, ""], table: AliasTable, num: int
) -> tuple[Int32[Array, " num"], Int32[Array, ""]]:
    """Return distinct classes, in the order drawn, and how many draws with repeats that took.

    Classes are drawn until so many distinct ones are there, as by TensorFlow's unique candidate
    samplers; `expected_count` of the number of draws is how often a class is in such a sample.

    Raises:
      UserError: fewer classes are possible than asked for; where the table is traced, ids of -1
        stand for those that are missing.

    >>> ids, num_draws = draw_unique(jax.random.key(0), alias_table(np.array([0.0, 2.0, 3.0])), 2)
    >>> sorted(ids.tolist()), int(num_draws) >= 2
    ([1, 2], True)
    """
    n = len(table.threshold)
    threshold, alias = (jnp.asarray(x) for x in table)
    possible = (threshold > 0).at[alias].max(threshold < 1).sum(dtype=jnp.int32)
    if num > n or (not isinstance(possible, Tracer) and num > possible):
        raise UserError(f"{num} distinct classes are asked for, but only {possible} can be drawn")
    size = max(num, 1)  # draws of a turn

    def turn(carry):
        ids, found, num_draws, first = carry
        classes = draw(jax.random.fold_in(rng, num_draws), table, (size,))
        when = num_draws + jnp.arange(size, dtype=jnp.int32)
        first = first.at[classes].min(when)  # the draw that a class was first seen at
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
