"""Draws from any distribution in a time that does not depend on the number of classes."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Float, Int, Int32, Key, Num

from cpc.negatives.noise import probabilities
from cpc.types import ArrayLike, UserError


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
