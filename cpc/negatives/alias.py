"""Draws from any distribution in a time that does not depend on the number of classes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32, Key, Num

from cpc.negatives.noise import probabilities
from cpc.types import ArrayLike


class AliasTable(NamedTuple):
    """Columns of equal mass, each shared by at most two classes (Walker 1977)."""

    threshold: Float[ArrayLike, " n"]
    """Share of column i that is class i's own; float64 as built, so that the table is exact."""
    alias: Int[ArrayLike, " n"]
    """The class that has the rest of column i."""


def alias_table(weights: Num[ArrayLike, "..."]) -> AliasTable:
    """The table of q = weights / sum, made on the host: a tenth of a second a million classes.

    Classes with n q >= 1 fill up the columns of the others, both in their given order. Sums of what
    the light columns lack and of what the heavy ones can spare say who fills which, as in the sweep
    of Huebschle-Schneider and Sanders (2022), so that no loop over classes is needed.

    Raises:
      UserError: as `probabilities`.

    Class 0 has half of its own column, a quarter of all; class 1 has the rest:

    >>> alias_table(np.array([1, 3]))
    AliasTable(threshold=array([0.5, 1. ]), alias=array([1, 1], dtype=int32))
    """
    share = probabilities(weights)
    share *= share.size  # 1 on average
    is_heavy = share >= min(1.0, share.max())  # below 1 by rounding alone, if all are equal
    light, heavy = np.flatnonzero(~is_heavy), np.flatnonzero(is_heavy)
    # Sums of a million numbers, whose differences count: every further digit helps.
    lacking, spare = (
        np.cumsum(part.clip(0.0), dtype=np.longdouble)
        for part in (1 - share[light], share[heavy] - 1)
    )
    threshold, alias = share.copy(), np.arange(share.size, dtype=np.int32)
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
    """Independent draws of classes, O(1) each; runs under jit with a fixed shape.

    A column at random, then its own class with probability `threshold`, else its alias.

    On the device thresholds are float32 and are compared with 32 random bits. That moves at most
    1e-7 of the mass of a column to its other class (of all draws, one in ten million), and a
    class with threshold 0 and no alias of its own stays impossible.

    >>> draw(jax.random.key(0), alias_table(np.array([0.0, 2.0, 0.0])), (2, 3))
    Array([[1, 1, 1],
           [1, 1, 1]], dtype=int32)
    """
    pick, split = jax.random.split(rng)
    column = jax.random.randint(pick, shape, 0, len(table.threshold))
    threshold = jnp.asarray(table.threshold, jnp.float32)[column]
    # 2^32 - 2^8 is the greatest float32 that is a uint32. Where the threshold is 1 the alias is the
    # class itself, so nothing is lost there.
    bits = jnp.minimum(threshold * 2.0**32, 2.0**32 - 2.0**8).astype(jnp.uint32)
    own = jax.random.bits(split, shape, jnp.uint32) < bits
    return jnp.where(own, column, jnp.asarray(table.alias)[column]).astype(jnp.int32)
