"""Candidate samplers that return class ids with their expected counts, as in TensorFlow.

A sampler is a function `sample(rng, labels, num) -> Sampled`, used by `cpc.losses.sampled`. The
expected count of a class with probability q is K q for K independent draws, and
1 - (1 - q)^tries if classes are drawn until K of them are distinct.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from cpc.negatives.noise import (
    AliasTable,
    alias_table,
    check_distinct,
    draw,
    draw_unique,
    log_uniform,
    probabilities,
    uniform,
    unigram,
)
from cpc.negatives.samplers import draw_by_units
from cpc.types import ArrayLike, check_number


class Sampled(NamedTuple):
    """Sampled classes that all anchors share, in the order of TensorFlow's sampled_values."""

    ids: Int[Array, " n"]
    true_expected_count: Float[Array, "m p"]
    sampled_expected_count: Float[Array, " n"]


#: sample(rng, labels (m, p), num) -> Sampled.
Sampler: TypeAlias = Callable[[Array, Array, int], Sampled]


def fixed_sampler(weights: Num[ArrayLike, "..."], *, unique: bool = True) -> Sampler:
    """Return a sampler that draws distinct classes with the given weights.

    The weights may be any noise distribution, such as `unigram(counts, 0.75)`. If `unique` is
    False, draws are independent and classes may repeat. TensorFlow's default is True.

    >>> sampled = fixed_sampler(np.ones(4))(jax.random.key(0), jnp.zeros((1, 1), int), 4)
    >>> sorted(sampled.ids.tolist())
    [0, 1, 2, 3]
    """
    q = probabilities(weights)
    table = AliasTable(*map(jnp.asarray, alias_table(q)))
    known = jnp.asarray(q, jnp.float32)

    def sample(rng, labels, num):
        if unique:
            check_distinct(num, int((q > 0).sum()))
            ids, tries = draw_unique(rng, table, num)
        else:
            ids, tries = draw(rng, table, (num,)), num
        return Sampled(ids, expect(known[labels], tries, unique), expect(known[ids], tries, unique))

    return sample


def uniform_sampler(num_classes: int) -> Sampler:
    """Return a sampler of uniformly drawn classes (TensorFlow's uniform_candidate_sampler)."""
    return fixed_sampler(uniform(num_classes))


def log_uniform_sampler(num_classes: int) -> Sampler:
    """Return a Zipfian sampler of classes sorted by descending frequency (TensorFlow's default)."""
    return fixed_sampler(log_uniform(num_classes))


def unigram_sampler(counts: Num[ArrayLike, "..."]) -> Sampler:
    """Return a sampler of classes with probabilities proportional to frequency^0.75.

    This is TensorFlow's fixed_unigram with distortion 0.75. For another exponent or repeated
    classes, use `fixed_sampler(unigram(counts, alpha), unique=False)`.
    """
    return fixed_sampler(unigram(counts))


def learned_unigram_sampler(counts: Int[Array, " v"]) -> Sampler:
    """Return a sampler that draws classes with replacement, by observed frequency.

    This is TensorFlow's learned_unigram. The caller keeps the counts, initialises them with ones
    and updates them with `observe` at each step. The counts must sum to less than 2^31.

    >>> counts = observe(jnp.ones(3, int), jnp.array([[2], [2]]))
    >>> learned_unigram_sampler(counts)(jax.random.key(0), jnp.array([[2]]), 5).true_expected_count
    Array([[3.]], dtype=float32)
    """
    q = counts.astype(jnp.float32) / counts.sum()

    def sample(rng, labels, num):
        ids, _ = draw_by_units(rng, counts[None].astype(jnp.int32), num)
        return Sampled(ids[0], num * q[labels], num * q[ids[0]])

    return sample


def observe(counts: Int[Array, " v"], labels: Int[Array, "..."]) -> Int[Array, " v"]:
    """Add labels to the counts of a learned unigram. Negative labels are ignored."""
    labels = labels.ravel()
    return counts.at[labels].add((labels >= 0).astype(counts.dtype), mode="drop")


def expect(q: Array, tries: Array | int, unique: bool) -> Array:
    """Return the expected count of a class from its probability q in one draw."""
    tries = jnp.asarray(tries, jnp.float32)
    return -jnp.expm1(tries * jnp.log1p(-q)) if unique else tries * q


class Bigrams(NamedTuple):
    """A noise distribution of words w conditioned on the previous word c.

    q(w|c) = (1 - b) n(c, w) / n(c) + b u(w), with bigram counts n and unigram noise u.
    """

    starts: Int[ArrayLike, " v1"]
    """Index of each word's first follower. The last entry is the number of all followers."""
    followers: Int[ArrayLike, " f"]
    """Followers of each word, in ascending order."""
    upto: Int[ArrayLike, " f"]
    """Cumulative counts of the followers of each word."""
    table: AliasTable
    """Alias table of u."""
    log_u: Float[ArrayLike, " v"]
    backoff: float
    """The weight b of u. It is 1 for contexts without followers."""


def bigrams(
    words: Int[np.ndarray, " n"],
    weights: Float[np.ndarray, " v"],
    backoff: float = 0.2,
    is_start: np.ndarray | None = None,
) -> Bigrams:
    """Return the bigram noise distribution of a text.

    Args:
      words: word ids of the text, in order.
      weights: the unigram noise u that is mixed with the bigrams, up to a factor.
      backoff: the weight b of u. It must be above 0, so that every word can follow every context.
      is_start: mask of the words that start a sentence. Bigrams do not extend across sentences.

    >>> noise = bigrams(np.array([0, 1, 0, 1, 0, 2]), np.ones(3) / 3, 0.5)
    >>> bigram_log_q(noise, jnp.array([0]), jnp.array([[1]])) - jnp.log(0.5 * 2 / 3 + 0.5 / 3)
    Array([[0.]], dtype=float32)
    """
    check_number("backoff", backoff, above=0, most=1)
    u = probabilities(weights)
    num = len(u)
    first, second = words[:-1].astype(np.int64), words[1:].astype(np.int64)
    if is_start is not None:
        first, second = first[~is_start[1:]], second[~is_start[1:]]
    pairs, counts = np.unique(first * num + second, return_counts=True)
    starts = np.searchsorted(pairs, np.arange(num + 1) * num).astype(np.int32)
    total = np.concatenate([[0], np.cumsum(counts)])
    upto = total[1:] - np.repeat(total[starts[:-1]], np.diff(starts))
    if not len(pairs):  # add an unused entry, because empty arrays cannot be indexed
        pairs, upto = np.zeros((2, 1), np.int64)
    return Bigrams(
        *(jnp.asarray(x, jnp.int32) for x in (starts, pairs % num, upto)),
        table=AliasTable(*map(jnp.asarray, alias_table(u))),
        log_u=jnp.log(jnp.asarray(u, jnp.float32)),
        backoff=backoff,
    )


def draw_bigrams(
    rng: Array, noise: Bigrams, context: Int[Array, " m"], num: int
) -> Int[Array, "m n"]:
    """Draw `num` words per context word, or from the unigram noise if the context is -1."""
    backoff_key, follower_key, unigram_key = jax.random.split(rng, 3)
    start, end, total = _segment(noise, context)
    shape = len(context), num
    rank = jax.random.randint(follower_key, shape, 0, jnp.maximum(total, 1), jnp.int32)
    found = _search(noise.upto, start, end, rank + 1)
    follows = noise.followers[jnp.minimum(found, len(noise.followers) - 1)]
    backs_off = jax.random.uniform(backoff_key, shape, jnp.float32) < noise.backoff
    falls_back = backs_off | (total == 0)
    return jnp.where(falls_back, draw(unigram_key, noise.table, shape), follows)


def bigram_log_q(
    noise: Bigrams, context: Int[Array, " m"], words: Int[Array, "m n"]
) -> Float[Array, "m n"]:
    """Return log q(w|c) for each row's words w and the row's context word c."""
    start, end, total = _segment(noise, context)
    last = len(noise.followers) - 1
    found = _search(noise.followers, start, end, words)
    inside = (found < end) & (noise.followers[jnp.minimum(found, last)] == words)
    before = jnp.where(found > start, noise.upto[jnp.clip(found - 1, 0, last)], 0)
    count = jnp.where(inside, noise.upto[jnp.minimum(found, last)] - before, 0)
    share = jnp.where(total > 0, jnp.float32(noise.backoff), 1.0)
    return jnp.log(
        (1 - share) * count / jnp.maximum(total, 1) + share * jnp.exp(noise.log_u[words])
    )


def _segment(noise, context):
    """Return the range of each context's followers and their total count, as columns (m, 1)."""
    context = context[:, None]
    safe = jnp.maximum(context, 0)
    start = noise.starts[safe]
    end = jnp.where(context >= 0, noise.starts[safe + 1], start)
    return start, end, jnp.where(end > start, noise.upto[jnp.maximum(end - 1, 0)], 0)


def _search(values, start, end, wanted):
    """Return the first index in [start, end) whose value is at least `wanted`, or end."""
    low = jnp.broadcast_to(start, wanted.shape)
    high = jnp.broadcast_to(end, wanted.shape)
    for _ in range(max(len(values), 1).bit_length()):
        middle = (low + high) // 2
        below = values[jnp.minimum(middle, len(values) - 1)] < wanted
        low, high = (
            jnp.where((low < high) & below, middle + 1, low),
            jnp.where((low < high) & ~below, middle, high),
        )
    return low
