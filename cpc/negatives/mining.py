"""Mining: samplers that look at the scores.

They select by the anchor's own scores, so that the negatives depend on the anchor: log N - L is
an estimate then, no bound on mutual information. A sampler's form is `cpc.types.NegativeSampler`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from cpc.negatives.samplers import Chosen, Mask, Positives, Scores, check_enough, check_num
from cpc.types import NegativeSampler, UserError


def hardest(num: int) -> NegativeSampler:
    """Return a sampler of the `num` allowed negatives with the highest scores, hardest first.

    Equal scores: the first candidate wins. A row that is allowed fewer keeps all of them.

    >>> hardest(2)(
    ...     jax.random.key(0), jnp.zeros(1), jnp.array([[3.0, 1.0, 9.0, 2.0]]),
    ...     jnp.array([[True, True, False, True]])
    ... )
    (Array([[3., 2.]], dtype=float32), Array([[ True,  True]], dtype=bool))
    """
    check_num("hardest", num)

    def choose(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("hardest", num, negatives)
        return _hardest(negatives, where, num)

    return choose


def _hardest(negatives, where, num):
    """The highest scores in falling order, and which of them are allowed."""
    scores = jnp.where(where, negatives, -jnp.inf)
    _, ids = jax.lax.top_k(jax.lax.stop_gradient(scores), num)
    chosen = jnp.arange(num) < where.sum(-1, keepdims=True)
    # A score of -inf ties with what is not allowed: only `where` says which is which.
    chosen = chosen & jnp.take_along_axis(where, ids, -1)
    return jnp.take_along_axis(negatives, ids, -1), chosen


def semi_hard(margin: float | int) -> NegativeSampler:
    """Return a sampler of negatives less than the margin below the positive: s+ - margin < s < s+.

    In distances, d(a, p) < d(a, n) < d(a, p) + margin (Schroff, Kalenichenko, Philbin 2015, eq. 4).
    A row without such a negative falls back on one: the hardest of those below the positive, or, if
    none is below, the lowest of all (Schroff's rule leaves this open).

    The second row has nothing in the band (0, 1), the third nothing below its positive:

    >>> scores = jnp.array([[0.5, 0.9, 2.0], [-3.0, -1.5, 2.0], [4.0, 3.0, 2.0]])
    >>> semi_hard(1.0)(jax.random.key(0), jnp.ones(3), scores, jnp.ones((3, 3), bool))[1]
    Array([[ True,  True, False],
           [False,  True, False],
           [False, False,  True]], dtype=bool)
    """
    if not margin > 0:
        raise UserError(f"the margin of semi_hard is {margin}: it must be above 0")

    def choose(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("semi_hard", 1, negatives)
        below = where & (negatives < positive[:, None])
        band = below & (negatives > positive[:, None] - margin)
        nearest = _first_highest(jnp.where(below, negatives, -jnp.inf)) & below
        easiest = _first_highest(jnp.where(where, -negatives, -jnp.inf)) & where
        fallback = jnp.where(below.any(-1, keepdims=True), nearest, easiest)
        return negatives, jnp.where(band.any(-1, keepdims=True), band, fallback)

    return choose


def _first_highest(scores):
    """One True in each row."""
    return jnp.arange(scores.shape[-1]) == jnp.argmax(scores, -1, keepdims=True)


def percentile_ring(low: float | int, high: float | int) -> NegativeSampler:
    """Return a sampler of the negatives between two percentiles of the row's allowed scores.

    Of r allowed negatives in rising order those from floor(r low / 100) up to and without
    ceil(r high / 100), at least one: (50, 100) is the harder half, and (50, 95) spares the hardest,
    which are most often false negatives (Wu, Mosse, Zhuang, Yamins, Goodman 2021, section 3). All
    that tie with either end count.

    >>> choose = percentile_ring(25, 75)
    >>> scores, where = jnp.array([[4.0, 1.0, 3.0, 2.0]]), jnp.ones((1, 4), bool)
    >>> choose(jax.random.key(0), jnp.zeros(1), scores, where)[1]
    Array([[False, False,  True,  True]], dtype=bool)
    """
    if not 0 <= low < high <= 100:
        raise UserError(
            f"the ring goes from percentile {low} to {high}: percentiles rise between 0 and 100"
        )

    def choose(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("percentile_ring", 1, negatives)
        scores = jnp.where(where, negatives.astype(jnp.float32), jnp.inf)
        # The ranks for any number allowed, on the host: float32 would round 30 % of 10 up to 4.
        num = np.arange(negatives.shape[-1] + 1)
        ranks = np.stack([np.floor(num * low / 100), np.ceil(num * high / 100) - 1])
        ends = jnp.asarray(ranks.clip(0), jnp.int32)[:, where.sum(-1)]
        lowest, highest = nth_lowest(scores, ends)[..., None]
        return negatives, where & (scores >= lowest) & (scores <= highest)

    return choose


def nth_lowest(x: Float[Array, "m n"], ranks: Int[Array, "r m"]) -> Float[Array, "r m"]:
    """Return of each row the number that has so many below it, for each of some ranks.

    The bits of a float, its sign's effect undone, rise with it: they are settled one by one, with a
    count of the row for each. A CPU sorts rows of a thousand in ten times as long. No gradient.

    Args:
      x: rows, in float32; NaN counts as the highest.
      ranks: 0 .. n - 1.

    >>> nth_lowest(jnp.array([[3.0, -1.0, 2.0, 2.0]]), jnp.array([[0], [2], [3]])).ravel()
    Array([-1.,  2.,  3.], dtype=float32)
    """
    sign = jnp.uint32(2**31)
    x = jax.lax.stop_gradient(x).astype(jnp.float32)
    bits = jax.lax.bitcast_convert_type(jnp.where(jnp.isnan(x), jnp.nan, x), jnp.uint32)
    bits = jnp.where(bits >= sign, ~bits, bits | sign)

    def settle(i, found):
        higher = found | (sign >> i.astype(jnp.uint32))
        below = jnp.stack([(bits < row[:, None]).sum(-1, dtype=jnp.int32) for row in higher])
        return jnp.where(below <= ranks, higher, found)

    found = jax.lax.fori_loop(0, 32, settle, jnp.zeros(ranks.shape, jnp.uint32))
    found = jnp.where(found >= sign, found ^ sign, ~found)
    return jax.lax.bitcast_convert_type(found, jnp.float32)


def mixed(num_hardest: int, num_mixed: int) -> NegativeSampler:
    """Return a sampler of all allowed negatives and `num_mixed` mixtures of pairs of the hardest.

    s_new = a s_i + (1 - a) s_j,  i and j two of the `num_hardest`, a uniform in (0, 1)

    (Kalantidis et al. 2020, MoCHi, eq. 4). Scores are linear in the keys, so a mixture of scores is
    the score of the mixed key. Differs from the paper, which stretches the mixed key back to unit
    length: that is not known from scores (`mix_keys` does it), and mixtures are a little easier.
    The paper's mixtures with the query itself are not here either, for the same reason.

    A row with one allowed negative repeats it; a row with none has no mixtures.

    >>> scores, where = mixed(2, 3)(
    ...     jax.random.key(0), jnp.zeros(1), jnp.array([[1.0, 5.0, 6.0]]), jnp.ones((1, 3), bool)
    ... )
    >>> scores.shape, bool(((scores[0, 3:] > 5) & (scores[0, 3:] < 6)).all())
    ((1, 6), True)
    """
    check_num("mixed", num_hardest)
    check_num("mixed", num_mixed)

    def choose(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("mixed", num_hardest, negatives)
        scores, exists = _hardest(negatives, where, num_hardest)
        one, other, fraction = _pairs(rng, exists.sum(-1, dtype=jnp.int32), num_mixed)
        scores = scores.astype(jnp.float32)
        mixtures = fraction * jnp.take_along_axis(scores, one, -1)
        mixtures += (1 - fraction) * jnp.take_along_axis(scores, other, -1)
        real = jnp.broadcast_to(exists[:, :1], mixtures.shape)
        # The masked may be NaN and stay masked; the mixtures are made of real ones alone.
        scores = jnp.concatenate([negatives.astype(jnp.float32), mixtures], -1)
        return scores, jnp.concatenate([where, real], -1)

    return choose


def mix_keys(rng: Array, keys: Float[Array, "m s d"], num_mixed: int) -> Float[Array, "m c d"]:
    """Return mixtures of pairs of each anchor's s keys, stretched to unit length.

        z_new = y / |y|,  y = a z_i + (1 - a) z_j  (Kalantidis et al. 2020, eq. 4)

    for keys that were gathered, such as the hardest of a queue. Returns (m, num_mixed, d); opposite
    keys that cancel give a mixture near zero, never NaN.

    >>> keys = jnp.array([[[1.0, 0.0], [0.0, 1.0]]])
    >>> mixtures = mix_keys(jax.random.key(0), keys, 5)
    >>> mixtures.shape, bool(jnp.allclose(jnp.linalg.norm(mixtures, axis=-1), 1.0))
    ((1, 5, 2), True)
    """
    check_num("mix_keys", num_mixed)
    m, s, _ = keys.shape
    if s == 0:
        raise UserError("mix_keys got no keys to mix: give each anchor at least one")
    one, other, fraction = _pairs(rng, jnp.full((m,), s, jnp.int32), num_mixed)
    wide = keys.astype(jnp.float32)
    y = fraction[..., None] * jnp.take_along_axis(wide, one[..., None], 1)
    y += (1 - fraction)[..., None] * jnp.take_along_axis(wide, other[..., None], 1)
    squared = jnp.maximum(jnp.square(y).sum(-1, keepdims=True), 1e-12)
    return (y * jax.lax.rsqrt(squared)).astype(keys.dtype)


def _pairs(
    rng: Array, num_keys: Int[Array, " m"], num: int
) -> tuple[Int[Array, "m c"], Int[Array, "m c"], Float[Array, "m c"]]:
    """Uniform pairs i != j below each row's number of keys, and a uniform fraction of the first."""
    shape = (num_keys.shape[0], num)
    first, step, fractions = jax.random.split(rng, 3)
    most = jnp.maximum(num_keys, 1)[:, None]
    one = jax.random.randint(first, shape, 0, most, jnp.int32)
    further = jax.random.randint(step, shape, 0, jnp.maximum(most - 1, 1), jnp.int32)
    fraction = jax.random.uniform(fractions, shape, jnp.float32)
    return one, (one + 1 + further) % most, fraction
