"""Samplers, which select the negatives of an anchor from the candidates that a rule allows.

A sampler is a `cpc.types.NegativeSampler`. It raises `UserError` if called with fewer candidates
than it needs. If a sampler uses the scores, as mining and proposals do, the negatives depend on the
anchor, so log N - L is not a bound.

A proposal is a noise distribution q that is learned or follows the model. It needs q > 0 wherever
the data have p > 0. Losses in `cpc.losses` with an argument log_noise or log_q correct for it.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from cpc.types import NegativeSampler, UserError, check_number

#: The arguments and the result of a `cpc.types.NegativeSampler`.
Positives: TypeAlias = Float[Array, " m"]
Scores: TypeAlias = Float[Array, "m n"]
Mask: TypeAlias = Bool[Array, "m n"]
Chosen: TypeAlias = tuple[Float[Array, "m c"], Bool[Array, "m c"]]


def sample_uniform(
    rng: Array, allowed: Bool[Array, "m n"], num_negatives: int
) -> Bool[Array, "m n"]:
    """Return a mask of `num_negatives` allowed negatives per anchor, drawn without replacement.

    All subsets of this size are equally likely. Anchors with fewer allowed negatives keep all.

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
        """Set one bit of the threshold that the wanted number of entries do not exceed."""
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
    """Return random bits that are distinct within each row.

    The index of each entry is mapped by a 32-bit bijection that depends on the key. It applies the
    finaliser of MurmurHash3 (Appleby 2011) twice, and mixes in half of the key before each time.
    This is cheaper on a CPU than threefry. The bits are not suitable for cryptography.
    """
    key = jax.random.key_data(rng).astype(jnp.uint32).ravel()
    numbers = jnp.arange(m, dtype=jnp.uint32)[:, None] * n + jnp.arange(n, dtype=jnp.uint32)
    return _murmur(_murmur(numbers ^ key[0]) + key[-1])


def _murmur(h):
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)


def uniform_subset(num: int) -> NegativeSampler:
    """Return a sampler of `num` negatives, drawn uniformly without replacement.

    A subset of independent negatives is also independent, so if log N - L is a bound for all
    allowed negatives, it is also a bound for the subset.

    >>> scores, where = jnp.zeros((1, 9)), jnp.ones((1, 9), bool)
    >>> uniform_subset(3)(jax.random.key(0), jnp.zeros(1), scores, where)[1].sum()
    Array(3, dtype=int32)
    """
    check_number("num", num, least=1)

    def sample(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("uniform_subset", num, negatives)
        return negatives, sample_uniform(rng, where, num)

    return sample


def with_zero() -> NegativeSampler:
    """Return a sampler of all negatives and an additional candidate whose score is always 0.

    This reproduces the code of Quick-Thoughts (Logeswaran and Lee 2018). To exclude the anchor's
    own sentence, that code sets its score to 0 before the softmax instead of minus infinity.
    The additional candidate is not a draw from the data, so log N - L is not a bound for any rule.

    >>> scores, where = jnp.ones((1, 2)), jnp.ones((1, 2), bool)
    >>> with_zero()(jax.random.key(0), jnp.ones(1), scores, where)
    (Array([[1., 1., 0.]], dtype=float32), Array([[ True,  True,  True]], dtype=bool))
    """

    def sample(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        counts = where.any(axis=-1, keepdims=True)  # exclude anchors without negatives
        zero = jnp.zeros_like(negatives[:, :1])
        return jnp.concatenate([negatives, zero], -1), jnp.concatenate([where, counts], -1)

    return sample


def uniform_draws(num: int) -> NegativeSampler:
    """Return a sampler of `num` independent draws with replacement from the allowed negatives.

    Every anchor with at least one allowed negative gets `num` draws. N counts repeated draws, so
    log N - L is not a bound for any rule. The only allowed negative is drawn three times:

    >>> scores, where = jnp.array([[5.0, 7.0]]), jnp.array([[False, True]])
    >>> uniform_draws(3)(jax.random.key(0), jnp.zeros(1), scores, where)
    (Array([[7., 7., 7.]], dtype=float32), Array([[ True,  True,  True]], dtype=bool))
    """
    check_number("num", num, least=1)

    def sample(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("uniform_draws", 1, negatives)
        ids, drawn = draw_by_units(rng, where.astype(jnp.int32), num)
        return jnp.take_along_axis(negatives, ids, -1), drawn

    return sample


def draw_by_units(
    rng: Array, units: Int[Array, "m n"], num: int
) -> tuple[Int[Array, "m c"], Bool[Array, "m c"]]:
    """Draw candidate ids with replacement, in proportion to each row's integer units.

    The cumulative sum of integers is exact, so candidates with 0 units are never drawn. Each row
    must sum to less than 2^31. The mask is False for rows whose units are all 0.
    """
    m, n = units.shape
    upto = jnp.cumsum(units, -1)
    total = upto[:, -1:]
    drawn = jax.random.randint(rng, (m, num), 0, jnp.maximum(total, 1), jnp.int32)
    ids = jax.vmap(lambda edges, u: jnp.searchsorted(edges, u, side="right"))(upto, drawn)
    return jnp.minimum(ids, n - 1), jnp.broadcast_to(total > 0, (m, num))


def check_enough(name: str, num: int, negatives: Scores) -> None:
    """Raise UserError if a sampler needs more negatives than the number of candidates."""
    if num > negatives.shape[-1]:
        problem = f"{name} needs {num} negatives but got {negatives.shape[-1]} candidates"
        raise UserError(f"{problem}: request fewer negatives or use a larger batch")


def hardest(num: int) -> NegativeSampler:
    """Return a sampler of the `num` allowed negatives with the highest scores, in descending order.

    Ties go to the first candidate. Rows with fewer allowed negatives keep all of them.

    >>> scores, where = jnp.array([[3.0, 9.0, 2.0]]), jnp.array([[True, False, True]])
    >>> hardest(2)(jax.random.key(0), jnp.zeros(1), scores, where)
    (Array([[3., 2.]], dtype=float32), Array([[ True,  True]], dtype=bool))
    """
    check_number("num", num, least=1)

    def sample(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("hardest", num, negatives)
        return _hardest(negatives, where, num)

    return sample


def _hardest(negatives, where, num):
    scores = jnp.where(where, negatives, -jnp.inf)
    _, ids = jax.lax.top_k(jax.lax.stop_gradient(scores), num)
    chosen = jnp.arange(num) < where.sum(-1, keepdims=True)
    # Allowed scores of -inf tie with masked scores, so use `where` to distinguish them.
    chosen = chosen & jnp.take_along_axis(where, ids, -1)
    return jnp.take_along_axis(negatives, ids, -1), chosen


def semi_hard(margin: float | int) -> NegativeSampler:
    """Return a sampler of negatives whose score is below the positive's by less than the margin.

    The scores s satisfy s+ - margin < s < s+ for the positive's score s+ (Schroff, Kalenichenko,
    Philbin 2015, eq. 4). If an anchor has no such negative, a case that the paper leaves open, the
    sampler selects the hardest negative below the positive, or if there is none, the easiest.

    The second row has no score in the band (0, 1), and the third has none below its positive:

    >>> scores = jnp.array([[0.5, 0.9, 2.0], [-3.0, -1.5, 2.0], [4.0, 3.0, 2.0]])
    >>> semi_hard(1.0)(jax.random.key(0), jnp.ones(3), scores, jnp.ones((3, 3), bool))[1]
    Array([[ True,  True, False],
           [False,  True, False],
           [False, False,  True]], dtype=bool)
    """
    check_number("margin", margin, above=0)

    def sample(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("semi_hard", 1, negatives)
        below = where & (negatives < positive[:, None])
        band = below & (negatives > positive[:, None] - margin)
        nearest = _first_highest(jnp.where(below, negatives, -jnp.inf)) & below
        easiest = _first_highest(jnp.where(where, -negatives, -jnp.inf)) & where
        fallback = jnp.where(below.any(-1, keepdims=True), nearest, easiest)
        return negatives, jnp.where(band.any(-1, keepdims=True), band, fallback)

    return sample


def _first_highest(scores):
    """Return a mask of the first maximum in each row."""
    return jnp.arange(scores.shape[-1]) == jnp.argmax(scores, -1, keepdims=True)


def percentile_ring(low: float | int, high: float | int) -> NegativeSampler:
    """Return a sampler of the negatives between two percentiles of each anchor's allowed scores.

    For r allowed negatives in ascending order, it selects ranks floor(r low / 100) up to but not
    including ceil(r high / 100), and at least one rank. Scores equal to the lowest or highest
    selected score are also included. For example, (50, 100) selects the harder half. (50, 95) omits
    the hardest negatives, because they are most often false negatives (Wu, Mosse, Zhuang, Yamins,
    Goodman 2021, section 3).

    >>> choose = percentile_ring(25, 75)
    >>> scores, where = jnp.array([[4.0, 1.0, 3.0, 2.0]]), jnp.ones((1, 4), bool)
    >>> choose(jax.random.key(0), jnp.zeros(1), scores, where)[1]
    Array([[False, False,  True,  True]], dtype=bool)
    """
    if not 0 <= low < high <= 100:
        raise UserError(f"percentiles are {low} and {high}: pass 0 <= low < high <= 100")

    def sample(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("percentile_ring", 1, negatives)
        scores = jnp.where(where, negatives.astype(jnp.float32), jnp.inf)
        # Compute the ranks for each count in float64, because float32 rounds 30 % of 10 up to 4.
        num = np.arange(negatives.shape[-1] + 1)
        ranks = np.stack([np.floor(num * low / 100), np.ceil(num * high / 100) - 1])
        ends = jnp.asarray(ranks.clip(0), jnp.int32)[:, where.sum(-1)]
        lowest, highest = nth_lowest(scores, ends)[..., None]
        return negatives, where & (scores >= lowest) & (scores <= highest)

    return sample


def nth_lowest(x: Float[Array, "m n"], ranks: Int[Array, "r m"]) -> Float[Array, "r m"]:
    """Return each row's values at the given ranks. Rank 0 is the lowest value.

    Floats are mapped to integers of the same order, whose bits are then determined one by one by
    counting smaller entries, which a CPU does ten times faster than sorting rows of a thousand. NaN
    is the highest value. No gradient flows through the result.

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
    """Return a sampler that adds `num_mixed` mixtures of hard negatives to the allowed negatives.

    s_new = a s_i + (1 - a) s_j  (Kalantidis et al. 2020, MoCHi, eq. 4)

    Here i and j are two of the `num_hardest` negatives, and a is uniform in (0, 1). Scores are
    linear in the keys, so a mixture of scores is the score of the mixed key. Unlike in the paper,
    mixed keys are not rescaled to unit length (see `mix_keys`) and keys are not mixed with the
    query, because both need more than the scores.

    A single allowed negative is repeated. Rows without allowed negatives have no mixtures.

    >>> scores, where = jnp.array([[1.0, 5.0, 6.0]]), jnp.ones((1, 3), bool)
    >>> scores, _ = mixed(2, 3)(jax.random.key(0), jnp.zeros(1), scores, where)
    >>> scores.shape, bool(((scores[0, 3:] > 5) & (scores[0, 3:] < 6)).all())
    ((1, 6), True)
    """
    check_number("num_hardest", num_hardest, least=1)
    check_number("num_mixed", num_mixed, least=1)

    def sample(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("mixed", num_hardest, negatives)
        scores, mask = _hardest(negatives, where, num_hardest)
        mixtures = _mix(rng, scores, mask.sum(-1, dtype=jnp.int32), num_mixed)
        real = jnp.broadcast_to(mask[:, :1], mixtures.shape)
        # Masked scores may be NaN. They remain masked, and mixtures use only allowed scores.
        scores = jnp.concatenate([negatives.astype(jnp.float32), mixtures], -1)
        return scores, jnp.concatenate([where, real], -1)

    return sample


def mix_keys(rng: Array, keys: Float[Array, "m s d"], num_mixed: int) -> Float[Array, "m c d"]:
    """Mix random pairs of each anchor's s keys, and rescale the mixtures to unit length.

        z_new = y / |y|,  y = a z_i + (1 - a) z_j  (Kalantidis et al. 2020, eq. 4)

    The keys must be gathered first, for example the hardest keys of a queue. The result has shape
    (m, num_mixed, d). Opposite keys that cancel give a mixture near zero instead of NaN.

    >>> keys = jnp.array([[[1.0, 0.0], [0.0, 1.0]]])
    >>> mixtures = mix_keys(jax.random.key(0), keys, 5)
    >>> mixtures.shape, bool(jnp.allclose(jnp.linalg.norm(mixtures, axis=-1), 1.0))
    ((1, 5, 2), True)
    """
    check_number("num_mixed", num_mixed, least=1)
    m, s, _ = keys.shape
    if s == 0:
        raise UserError("mix_keys got no keys: pass at least one key per anchor")
    y = _mix(rng, keys, jnp.full((m,), s, jnp.int32), num_mixed)
    squared = jnp.maximum(jnp.square(y).sum(-1, keepdims=True), 1e-12)
    return (y * jax.lax.rsqrt(squared)).astype(keys.dtype)


def _mix(rng, x, num_keys, num):
    """Mix random pairs of the first `num_keys` keys in each row of x (m, s, ...)."""
    shape, further_axes = (len(x), num), (1,) * (x.ndim - 2)
    first, step, fractions = jax.random.split(rng, 3)
    most = jnp.maximum(num_keys, 1)[:, None]
    one = jax.random.randint(first, shape, 0, most, jnp.int32)
    further = jax.random.randint(step, shape, 0, jnp.maximum(most - 1, 1), jnp.int32)
    fraction = jax.random.uniform(fractions, shape, jnp.float32)
    x, pairs = x.astype(jnp.float32), (one, (one + 1 + further) % most)
    one, other, fraction = (each.reshape(*shape, *further_axes) for each in (*pairs, fraction))
    mixture = fraction * jnp.take_along_axis(x, one, 1)
    return mixture + (1 - fraction) * jnp.take_along_axis(x, other, 1)


#: Gradient mode of a proposal, as described in `propose`.
GradientMode: TypeAlias = Literal["through", "stopped", "fixed"]


class Proposal(NamedTuple):
    """Draws from a distribution q over classes, shared (v,) or separate for each anchor (m, v)."""

    ids: Int[Array, "*m c"]
    log_q: Float[Array, "*m c"]
    """Log q of the draws, or -inf for rows in which no class can be drawn."""
    table: Float[Array, "*m v"]
    """Log q of all classes."""

    def log_q_of(self, ids: Int[Array, "..."]) -> Float[Array, "..."]:
        """Return log q of the given classes, such as the positives (m,), in the same gradient mode.

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
    """Draw classes with replacement from q = softmax(logits), and return the draws and their log q.

    The mode determines the gradient of noise-contrastive estimation if the noise q is the model:

        fixed    q must not depend on trained parameters, or differentiation raises an error. The
                 estimate is consistent.
        stopped  q follows the model, but has no gradient. The gradient is k / (k + 1) times that of
                 the likelihood, which is consistent (self-contrastive estimation, Goodfellow 2015).
        through  log q is differentiated. The objective is then constant, and nothing is learned.

    A proposal with its own parameters can be trained by a separate loss or, with "through", by the
    loss that uses it. No gradient flows through the draws themselves.

    Probabilities are rounded to multiples of 2^-30, so classes below half of that are never drawn.

    Args:
      logits: unnormalised log q, either (v,) with draws shared by all anchors, or (m, v) with
        separate draws for each anchor.
      where: mask of the classes that may be drawn. Masked logits may be NaN, with log q = -inf.

    >>> proposal = propose(jax.random.key(0), jnp.array([-jnp.inf, 0.0]), 3, "stopped")
    >>> proposal.ids, proposal.log_q
    (Array([1, 1, 1], dtype=int32), Array([0., 0., 0.], dtype=float32))
    """
    check_number("num", num, least=1)
    if mode not in ("through", "stopped", "fixed"):
        raise UserError(f'the proposal mode is {mode!r}: choose "through", "stopped" or "fixed"')
    if logits.shape[-1] == 0:
        raise UserError("logits have no classes: pass logits for at least one class")
    if mode == "fixed":
        logits = _fixed(logits)
    elif mode == "stopped":
        logits = jax.lax.stop_gradient(logits)
    if where is not None:
        logits = jnp.where(where, logits, -jnp.inf)
    logits = logits.astype(jnp.float32)
    some = (logits > -jnp.inf).any(-1, keepdims=True)  # other rows get -inf instead of NaN
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
    problem = 'the logits of a "fixed" proposal depend on trained parameters'
    raise UserError(f'{problem}: compute the logits from constants, or choose "stopped"')


def proposed(num: int, mode: GradientMode, sharpness: float | int = 1.0) -> NegativeSampler:
    """Return a sampler that draws high-scoring negatives more often and corrects their scores.

    The probability q_j of a negative with score s_j is proportional to exp(sharpness s_j) over the
    r allowed negatives. The returned scores are s_j - log(r q_j), so the sum of their exponentials
    has the same mean as with `num` uniform draws. Its variance decreases as q approaches exp(s).
    If sharpness is 1, every returned score is log mean_j exp(s_j), as in InfoNCE over all allowed
    negatives at N = num + 1. If it is 0, the sampler is `uniform_draws`.

    The positive is not drawn and not corrected, so the loss is a self-normalised importance
    estimate whose bias decreases with num. log N - L is not a bound. Accuracies compare corrected
    scores.

    >>> scores, where = jnp.log(jnp.array([[1.0, 5.0]])), jnp.ones((1, 2), bool)
    >>> scores, _ = proposed(2, "stopped")(jax.random.key(0), jnp.zeros(1), scores, where)
    >>> bool(jnp.allclose(scores, jnp.log(3.0)))
    True
    """
    check_number("num", num, least=1)
    if mode == "fixed":
        raise UserError('a proposal by scores cannot be "fixed": choose "through" or "stopped"')

    def sample(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("proposed", 1, negatives)
        scores = jnp.where(where, negatives, 0.0).astype(jnp.float32)
        ids, log_q, _ = propose(rng, sharpness * scores, num, mode, where)
        num_allowed = where.sum(-1, keepdims=True, dtype=jnp.float32)
        drawn = jnp.broadcast_to(num_allowed > 0, ids.shape)
        correction = jnp.where(drawn, log_q, 0.0) + jnp.log(jnp.maximum(num_allowed, 1))
        return jnp.take_along_axis(scores, ids, -1) - correction, drawn

    return sample


class SamplerEntry(NamedTuple):
    """A sampler that can be selected in a config."""

    make: Callable[..., NegativeSampler]
    options: tuple[str, ...]
    """Keys of the config's `negatives` that give the arguments of `make`, in order."""


#: Samplers by the name that configs use.
SAMPLERS = {
    "uniform": SamplerEntry(uniform_subset, ("num_sampled",)),
    "hardest": SamplerEntry(hardest, ("num_sampled",)),
    "semi_hard": SamplerEntry(semi_hard, ("margin",)),
    "ring": SamplerEntry(percentile_ring, ("ring_low", "ring_high")),
    "mixed": SamplerEntry(mixed, ("num_sampled", "num_sampled")),
    "proposed": SamplerEntry(proposed, ("num_sampled", "proposal")),
    "with_zero": SamplerEntry(with_zero, ()),
}
