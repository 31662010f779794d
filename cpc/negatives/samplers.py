"""Samplers: which of the allowed negatives an anchor uses.

A sampler is a `cpc.types.NegativeSampler`. One of fewer than 1 negative, or, when it chooses, of
more than there are candidates, raises `UserError`. Those that look at the scores (mining,
proposals) make the negatives depend on the anchor: log N - L is an estimate then, not a bound.

A proposal is noise that is learned, or follows the model. It needs q > 0 wherever the data have
p > 0; the losses of `cpc.losses` that take log_noise or log_q correct for it exactly.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from cpc.types import NegativeSampler, UserError

#: The arguments and the result of a `cpc.types.NegativeSampler`.
Positives: TypeAlias = Float[Array, " m"]
Scores: TypeAlias = Float[Array, "m n"]
Mask: TypeAlias = Bool[Array, "m n"]
Chosen: TypeAlias = tuple[Float[Array, "m c"], Bool[Array, "m c"]]


def sample_uniform(
    rng: Array, allowed: Bool[Array, "m n"], num_negatives: int
) -> Bool[Array, "m n"]:
    """Return some of each anchor's allowed negatives, every subset of that size equally likely.

    Anchors that are allowed fewer keep all of them.

    >>> mask = jnp.ones((2, 9), bool).at[1, 2:].set(False)
    >>> sample_uniform(jax.random.key(0), mask, 3).sum(-1)
    Array([3, 2], dtype=int32)
    """
    if num_negatives >= allowed.shape[1]:
        return allowed
    last = jnp.uint32(2**32 - 1)
    order = jnp.where(allowed, distinct_bits(rng, *allowed.shape), last)
    wanted = jnp.minimum(num_negatives, allowed.sum(1, dtype=jnp.int32))

    def halve(state):
        """Settle one more bit of the threshold up to which there are as many as wanted."""
        bit, low, threshold, found = state
        highest = low | (bit - 1)
        number = (order <= highest[:, None]).sum(1, dtype=jnp.int32)
        is_exact = number == wanted
        low = jnp.where(number < wanted, low | bit, low)
        return bit >> 1, low, jnp.where(is_exact, highest, threshold), found | is_exact

    zeros = jnp.zeros_like(wanted, jnp.uint32)
    start = jnp.uint32(2**31), zeros, zeros + last, zeros > 0
    _, _, threshold, _ = jax.lax.while_loop(
        lambda state: (state[0] > 0) & ~state[3].all(), halve, start
    )
    return allowed & (order <= threshold[:, None])


def distinct_bits(rng: Array, m: int, n: int) -> UInt32[Array, "m n"]:
    """Return random bits, no two of a row equal, far cheaper on a CPU than threefry's.

    The number of each entry under a bijection of 32 bits that the key chooses: twice the finaliser
    of MurmurHash3 (Appleby 2011), with half of the key before and half between. Good enough to draw
    with, and for nothing that must not be guessed.
    """
    key = jax.random.key_data(rng).astype(jnp.uint32).ravel()
    numbers = jnp.arange(m, dtype=jnp.uint32)[:, None] * n + jnp.arange(n, dtype=jnp.uint32)
    return _murmur(_murmur(numbers ^ key[0]) + key[-1])


def _murmur(h):
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)


def uniform_subset(num: int) -> NegativeSampler:
    """Return a sampler of `num` negatives without replacement, as `sample_uniform`.

    Log N - L stays what it was under the rule: a subset of independent negatives is independent.

    >>> _, where = uniform_subset(3)(
    ...     jax.random.key(0), jnp.zeros(1), jnp.zeros((1, 9)), jnp.ones((1, 9), bool)
    ... )
    >>> where.shape, int(where.sum())
    ((1, 9), 3)
    """
    check_num("uniform_subset", num)

    def choose(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("uniform_subset", num, negatives)
        return negatives, sample_uniform(rng, where, num)

    return choose


def with_zero() -> NegativeSampler:
    """Return a sampler of all negatives and one further candidate whose score is always 0.

    So the code of Quick-Thoughts (Logeswaran and Lee 2018) treats the own sentence, which it means
    to leave out: it sets its score to 0 before the softmax, where only minus infinity leaves out.
    That candidate is no draw from the data, so log N - L is no bound under any rule.

    >>> scores, where = with_zero()(
    ...     jax.random.key(0), jnp.ones(1), jnp.ones((1, 2)), jnp.ones((1, 2), bool)
    ... )
    >>> scores.tolist(), where.tolist()
    ([[1.0, 1.0, 0.0]], [[True, True, True]])
    """

    def choose(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        counts = where.any(axis=-1, keepdims=True)  # an anchor without negatives is none
        zero = jnp.zeros_like(negatives[:, :1])
        return jnp.concatenate([negatives, zero], -1), jnp.concatenate([where, counts], -1)

    return choose


def uniform_draws(num: int) -> NegativeSampler:
    """Return a sampler of `num` negatives with replacement: independent draws, repeats included.

    An anchor without an allowed negative gets none; one with fewer than `num` still gets `num`. Log
    N - L is an estimate and no bound under any rule, for N counts repeats: of one allowed negative,
    drawn often, it can exceed log 2.

    The only allowed negative is drawn three times:

    >>> uniform_draws(3)(
    ...     jax.random.key(0), jnp.zeros(1), jnp.array([[5.0, 7.0]]), jnp.array([[False, True]])
    ... )
    (Array([[7., 7., 7.]], dtype=float32), Array([[ True,  True,  True]], dtype=bool))
    """
    check_num("uniform_draws", num)

    def choose(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("uniform_draws", 1, negatives)
        ids, drawn = draw_by_units(rng, where.astype(jnp.int32), num)
        return jnp.take_along_axis(negatives, ids, -1), drawn

    return choose


def draw_by_units(
    rng: Array, units: Int[Array, "m n"], num: int
) -> tuple[Int[Array, "m c"], Bool[Array, "m c"]]:
    """Draw candidate ids with replacement, each row's in proportion to its units.

    Whole units, so that the running sum is exact and what has none is never drawn. False marks the
    draws of a row that has no units at all. A row's units must sum to less than 2^31.
    """
    m, n = units.shape
    upto = jnp.cumsum(units, -1)
    total = upto[:, -1:]
    drawn = jax.random.randint(rng, (m, num), 0, jnp.maximum(total, 1), jnp.int32)
    ids = jax.vmap(lambda edges, u: jnp.searchsorted(edges, u, side="right"))(upto, drawn)
    return jnp.minimum(ids, n - 1), jnp.broadcast_to(total > 0, (m, num))


def check_num(name: str, num: int) -> None:
    """Refuse a sampler of no negatives."""
    if num < 1:
        raise UserError(f"{name} is asked for {num} negatives: ask for 1 or more")


def check_enough(name: str, num: int, negatives: Scores) -> None:
    """Refuse a sampler that needs more negatives than there are candidates."""
    if num > negatives.shape[-1]:
        raise UserError(
            f"{name} needs {num} negatives, but there are {negatives.shape[-1]} candidates: "
            "ask for fewer, or make the batch larger"
        )


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
    count of the row for each. A CPU sorts rows of a thousand in ten times as long. NaN counts as
    the highest. No gradient.

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
    length (`mix_keys` does), and also mixes keys with the query: neither is known from scores.

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


#: What the gradient sees of the proposal.
GradientMode: TypeAlias = Literal["through", "stopped", "fixed"]


class Proposal(NamedTuple):
    """Draws from q, and log q of all classes; one distribution (v,) or one for each anchor."""

    ids: Int[Array, "*m c"]
    log_q: Float[Array, "*m c"]
    """Of the drawn; -inf, as all of the row, where nothing could be drawn."""
    table: Float[Array, "*m v"]

    def log_q_of(self, ids: Int[Array, "..."]) -> Float[Array, "..."]:
        """Of any classes, such as the positives (m,); the mode holds for them too.

        >>> propose(jax.random.key(0), jnp.zeros(4), 2, "fixed").log_q_of(jnp.array([3, 1, 0]))
        Array([-1.3862944, -1.3862944, -1.3862944], dtype=float32)
        """
        if self.table.ndim == 1:
            return self.table[ids]
        columns = ids if ids.ndim == 2 else ids[:, None]
        return jnp.take_along_axis(self.table, columns, -1).reshape(ids.shape)


def propose(
    rng: Array,
    logits: Float[Array, "*m v"],
    num: int,
    mode: GradientMode,
    where: Bool[Array, "*m v"] | None = None,
) -> Proposal:
    """Draw classes with replacement from q = softmax(logits), with log q.

    What becomes of noise-contrastive estimation with noise q = p_theta, the model itself:

        fixed    q does not depend on what is trained, or it is an error: consistent
        stopped  q follows the model, and the gradient does not see it: k / (k + 1) times the
                 likelihood's gradient, consistent (self-contrastive estimation, Goodfellow 2015)
        through  the gradient flows into log q too: the objective is constant, nothing is learned

    A proposal with parameters of its own learns through its own loss, or, with "through", from
    this one. The draws themselves have no gradient.

    Probabilities are drawn in steps of 2^-30: what is rarer than half a step is never drawn.

    Args:
      logits: (v,) for all anchors, or (m, v); unnormalised log q.
      where: classes that may be drawn. The others may be NaN, have log q = -inf, and no gradient.

    >>> proposal = propose(jax.random.key(0), jnp.array([-jnp.inf, 0.0]), 3, "stopped")
    >>> proposal.ids, proposal.log_q
    (Array([1, 1, 1], dtype=int32), Array([0., 0., 0.], dtype=float32))
    """
    check_num("propose", num)
    if mode not in ("through", "stopped", "fixed"):
        raise UserError(f'the proposal\'s mode is {mode!r}: choose "through", "stopped" or "fixed"')
    if logits.shape[-1] == 0:
        raise UserError("the proposal has no classes: give logits of one or more")
    if mode == "fixed":
        logits = _fixed(logits)
    elif mode == "stopped":
        logits = jax.lax.stop_gradient(logits)
    if where is not None:
        logits = jnp.where(where, logits, -jnp.inf)
    logits = logits.astype(jnp.float32)
    some = (logits > -jnp.inf).any(-1, keepdims=True)  # else -inf throughout, not NaN
    log_p = jax.nn.log_softmax(jnp.where(some, logits, 0.0))
    table = jnp.where(some, log_p, -jnp.inf)
    rows = jnp.atleast_2d(jax.lax.stop_gradient(table))
    units = jnp.floor(jnp.exp(rows) * 2.0**30 + 0.5).astype(jnp.int32)
    ids, _ = draw_by_units(rng, units, num)
    ids = ids.reshape(*logits.shape[:-1], num)
    return Proposal(ids, jnp.take_along_axis(table, ids, -1), table)


@jax.custom_jvp
def _fixed(logits):
    return logits


@_fixed.defjvp
def _differentiated(primals, tangents):
    raise UserError(
        'the logits of a "fixed" proposal depend on what is being trained: hold them apart from '
        'the parameters, or choose "stopped"'
    )


def proposed(num: int, mode: GradientMode, sharpness: float | int = 1.0) -> NegativeSampler:
    """Return a sampler of `num` negatives drawn by their scores, corrected for it.

    q_j proportional to exp(sharpness s_j) over the r allowed negatives; what comes back is
    s_j - log(r q_j), so that the sum of exponentials has the mean of `num` uniform draws, with a
    variance that falls as q nears exp(s). With sharpness 1 every draw equals log mean_j exp(s_j):
    InfoNCE over all allowed negatives, at N = num + 1. With sharpness 0 it is uniform_draws.

    The positive, which is not drawn, is not corrected: a self-normalised importance estimate, whose
    bias falls with num. The negatives depend on the anchor: log N - L is an estimate. N counts
    draws, repeats included, and accuracies are of corrected scores: with sharpness 1, of whether
    the positive is above log mean_j exp(s_j), and not of whether it beats negatives.

    >>> scores, where = jnp.log(jnp.array([[1.0, 5.0]])), jnp.ones((1, 2), bool)
    >>> scores, _ = proposed(2, "stopped")(jax.random.key(0), jnp.zeros(1), scores, where)
    >>> bool(jnp.allclose(scores, jnp.log(3.0)))
    True
    """
    check_num("proposed", num)
    if mode == "fixed":
        raise UserError('a proposal by scores cannot be "fixed": choose "through" or "stopped"')

    def choose(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("proposed", 1, negatives)
        scores = jnp.where(where, negatives, 0.0).astype(jnp.float32)
        ids, log_q, _ = propose(rng, sharpness * scores, num, mode, where)
        num_allowed = where.sum(-1, keepdims=True, dtype=jnp.float32)
        drawn = jnp.broadcast_to(num_allowed > 0, ids.shape)
        correction = jnp.where(drawn, log_q, 0.0) + jnp.log(jnp.maximum(num_allowed, 1))
        return jnp.take_along_axis(scores, ids, -1) - correction, drawn

    return choose


class SamplerEntry(NamedTuple):
    """A sampler that configs may name."""

    make: Callable[..., NegativeSampler]
    options: tuple[str, ...]
    """Options of a config's `negatives` that are the arguments of `make`, in order."""


#: Samplers by the word that configs have for them.
SAMPLERS = {
    "uniform": SamplerEntry(uniform_subset, ("num_sampled",)),
    "hardest": SamplerEntry(hardest, ("num_sampled",)),
    "semi_hard": SamplerEntry(semi_hard, ("margin",)),
    "ring": SamplerEntry(percentile_ring, ("ring_low", "ring_high")),
    "mixed": SamplerEntry(mixed, ("num_sampled", "num_sampled")),
    "proposed": SamplerEntry(proposed, ("num_sampled", "proposal")),
    "with_zero": SamplerEntry(with_zero, ()),
}
