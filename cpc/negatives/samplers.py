"""Uniform samplers: which of the allowed negatives an anchor uses.

A sampler is a `cpc.types.NegativeSampler`. One of fewer than 1 negative, or, when it chooses, of
more than there are candidates, raises `UserError`.
"""

from typing import TypeAlias

import jax
import jax.numpy as jnp
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

    Scores are gathered, never vectors. An anchor without an allowed negative gets none; one with
    fewer than `num` still gets `num`. Drawing cannot make dependent candidates independent: two
    draws of one sequence are as dependent as its latents. Log N - L is an estimate and no bound
    under any rule, for N counts repeats: of one allowed negative, drawn often, it can exceed log 2.

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
