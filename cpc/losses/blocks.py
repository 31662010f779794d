"""InfoNCE of all offsets, loss and gradients in one pass over blocks of anchors.

A block's scores live in the cache, are used for everything at once, and are never kept: memory is
linear in anchors and candidates. With p_ij the softmax over the positive and the allowed negatives,
the gradients of sum_i L_i are

    dq_i = sum_j (p_ij - [j is i's positive]) z_j        dz_j = sum_i (p_ij - [...]) q_i,

two more products on the same block. A cotangent for each offset's sum only scales them.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cpc.types import NegativeRule, Position


class AnchorScores(NamedTuple):
    """What is known of each anchor at each offset, shape (k, b, a); zero where not counted."""

    loss: Float[Array, "*k b a"]
    num_negatives: Float[Array, "*k b a"]
    top1: Float[Array, "*k b a"]
    """1 where the positive beats every negative."""
    pairwise: Float[Array, "*k b a"]
    """Share of negatives that the positive beats, a tie counting one half."""
    counted: Float[Array, "*k b a"]
    """1 where the anchor has a positive and at least one negative."""


class Candidates(NamedTuple):
    """Who can be contrasted: places (b, a), which of them exist, and a key for sampling."""

    positions: Position
    exists: Bool[Array, "b a"]
    rng: Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def summed_info_nce(
    queries: Float[Array, "k b a d"],
    keys: Float[Array, "b a d"],
    candidates: Candidates,
    rule: NegativeRule,
    sample: Callable[[Array, Array], Array] | None,
    block: int,
) -> tuple[Float[Array, " k"], AnchorScores]:
    """Sum of the anchors' losses at each offset, and each anchor's scores (no gradient).

    Anchor and candidate share the places (b, a): a sequence's latents in any order. The score of
    anchor i and candidate j at offset k is queries[k - 1, i] . keys[j]; `block` anchors are scored
    at a time.
    """
    anchors, _, _ = _pass(queries, keys, candidates, rule, sample, block, gradients=False)
    return anchors.loss.sum((1, 2)), anchors


def _forward(queries, keys, candidates, rule, sample, block):
    anchors, dqueries, dkeys = _pass(queries, keys, candidates, rule, sample, block, gradients=True)
    return (anchors.loss.sum((1, 2)), anchors), (dqueries, dkeys)


def _backward(rule, sample, block, gradients, cotangents):
    dqueries, dkeys = gradients
    g = cotangents[0]
    dtype = dqueries.dtype  # of queries and keys
    dqueries = (g[:, None, None, None] * dqueries).astype(dtype)
    return dqueries, jnp.einsum("k,kbad->bad", g, dkeys).astype(dtype), None


summed_info_nce.defvjp(_forward, _backward)


def _pass(queries, keys, candidates, rule, sample, block, *, gradients):
    num_offsets, b, a, d = queries.shape
    # Blocks are cut along the places of a sequence, not along b, which devices share.
    size = min(a, -(-block // b))
    num_blocks = -(-a // size)
    pad = num_blocks * size - a

    def cut(x, fill):  # (b, a, ...) -> (blocks, b, size, ...)
        x = jnp.pad(x, [(0, 0), (0, pad)] + [(0, 0)] * (x.ndim - 2), constant_values=fill)
        return jnp.moveaxis(x.reshape(b, num_blocks, size, *x.shape[2:]), 1, 0)

    anchors = Position(*(cut(p, -1) for p in candidates.positions))
    exists = cut(candidates.exists, False)
    flat_keys = keys.reshape(-1, d)
    flat = Candidates(
        Position(*(p.reshape(1, -1) for p in candidates.positions)),
        candidates.exists.reshape(1, -1),
        candidates.rng,
    )

    def one_offset(_, inputs):
        k, queries = inputs

        def one_block(dkeys, inputs):
            index, q, anchors, exists = inputs
            rows = Position(*(p.reshape(-1, 1) for p in anchors))
            rng = jax.random.fold_in(jax.random.fold_in(flat.rng, k), index) if sample else None
            scores, weights = _score_block(
                q.reshape(-1, d), flat_keys, rows, exists.reshape(-1), flat, rule, sample, k, rng
            )
            scores = AnchorScores(*(x.reshape(b, size) for x in scores))
            if not gradients:
                return dkeys, (scores, None)
            w = weights.astype(keys.dtype)
            dq = jnp.matmul(w, flat_keys, preferred_element_type=jnp.float32)
            dk = jnp.matmul(w.T, q.reshape(-1, d), preferred_element_type=jnp.float32)
            return dkeys + dk, (scores, dq.astype(queries.dtype).reshape(b, size, d))

        zero = jnp.zeros((flat_keys.shape[0], d) if gradients else (), jnp.float32)
        blocks = (jnp.arange(num_blocks), cut(queries, 0), anchors, exists)
        dkeys, (scores, dqueries) = jax.lax.scan(one_block, zero, blocks)
        joined = jax.tree.map(lambda x: _join(x, a), (scores, dqueries))
        return None, (*joined, dkeys)

    offsets = jnp.arange(1, num_offsets + 1)
    _, (scores, dqueries, dkeys) = jax.lax.scan(one_offset, None, (offsets, queries))
    return scores, dqueries, dkeys.reshape(num_offsets, b, a, d) if gradients else None


def _join(x, a):
    """(blocks, b, size, ...) -> (b, a, ...), without the padding."""
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :a]


def _score_block(q, keys, anchors, anchor_exists, candidates, rule, sample, k, rng):
    """Scores of some anchors, and the derivative of their summed loss by the score matrix."""
    scores = jnp.matmul(q, keys.T, preferred_element_type=jnp.float32)  # (m, n)
    positions, exists = candidates.positions, candidates.exists
    is_positive = (
        (anchors.sequence == positions.sequence)
        & (anchors.lane == positions.lane)
        & (anchors.time + k == positions.time)
        & exists
    )
    allowed = jnp.broadcast_to(rule(anchors, positions, k), scores.shape) & exists
    if sample is not None:
        allowed = sample(rng, allowed)
    positive = jnp.where(is_positive, scores, 0.0).sum(-1)
    negatives = jnp.where(allowed, scores, -jnp.inf)
    num_negatives = allowed.sum(-1)
    counted = is_positive.any(-1) & anchor_exists & (num_negatives > 0)

    hardest = negatives.max(-1)
    highest = jnp.maximum(positive, hardest)
    exp_negatives = jnp.exp(negatives - highest[:, None])
    exp_positive = jnp.exp(positive - highest)
    total = exp_positive + exp_negatives.sum(-1)
    loss = jnp.log(total) + (highest - positive)
    beaten = jnp.where(allowed, jnp.sign(positive[:, None] - scores), 0.0).sum(-1)

    one = counted.astype(jnp.float32)
    stats = AnchorScores(
        loss=jnp.where(counted, loss, 0.0),
        num_negatives=one * num_negatives,
        top1=one * (positive > hardest),
        pairwise=one * (0.5 + 0.5 * beaten / jnp.maximum(num_negatives, 1)),
        counted=one,
    )
    # 1 - p_positive is summed from the negatives: no cancellation when the positive wins.
    share = one / total
    weights = exp_negatives * share[:, None] - jnp.where(
        is_positive, ((total - exp_positive) * share)[:, None], 0.0
    )
    return stats, weights
