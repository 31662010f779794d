"""InfoNCE in both directions from one set of tiles, as CLIP and NT-Xent add them up."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cpc.losses.masking import Number, check
from cpc.losses.streaming import read_inputs
from cpc.losses.tiles import (
    AnchorScores,
    add_tile,
    block_size,
    compare,
    cut_latents,
    derivatives,
    find_negatives,
    find_targets,
    finish,
    gradient_of_keys,
    no_negatives,
    score_positives,
    vary_alike,
)
from cpc.types import AnyPosition, NegativeRule


def streaming_symmetric_info_nce(
    queries: Float[Array, "m d"],
    keys: Float[Array, "n d"],
    anchors: AnyPosition,
    candidates: AnyPosition,
    rule: NegativeRule,
    offset: int,
    *,
    temperature: Number = 1.0,
    where_anchors: Bool[Array, " m"] | None = None,
    where_candidates: Bool[Array, " n"] | None = None,
    block: int | None = None,
) -> tuple[tuple[Float[Array, " m"], AnchorScores], tuple[Float[Array, " n"], AnchorScores]]:
    """Losses of the queries among the keys and of the keys among the queries, in nats.

    The same as two calls of `streaming_info_nce`, the second with queries and keys exchanged and
    the offset negative: rule(key's position, query's position, -offset). The scores are shared:
    value and gradient cost 4 products instead of 6, whatever weights the losses get. CLIP is half
    the sum of the two means (Radford et al. 2021, fig. 3). Ranks and wins see ties to float32
    rounding only, where `streaming_info_nce` sees them to the last bit.

    The arguments and errors are those of `streaming_info_nce`, without its `columns` and
    `kernels`.

    >>> from cpc.types import Position
    >>> place = Position(*(field.ravel() for field in Position.grid(3, 1)))
    >>> x = 9.0 * jnp.eye(3)
    >>> (loss, _), (back, _) = streaming_symmetric_info_nce(
    ...     x, x[:2], place, Position(*(p[:2] for p in place)), lambda a, c, k: a.lane == c.lane, 0
    ... )
    >>> loss.shape, back.shape, bool((loss[:2] <= back).all())  # the third query has no positive
    ((3,), (2,), True)
    """
    check("temperature", temperature, above=0)
    block = block_size(len(keys), len(keys)) if block is None else block
    check("block", block, least=1)
    inputs = read_inputs(
        queries,
        keys,
        anchors,
        candidates,
        where_anchors,
        where_candidates,
        rule,
        offset,
        temperature,
    )
    result: Any = _both(*inputs, rule, offset, min(block, len(queries)))
    (here, there), (scores_here, scores_there) = result, jax.lax.stop_gradient(result)
    return (here.loss, scores_here), (there.loss, scores_there)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _both(
    queries, keys, anchors, candidates, rule, offset, block
) -> tuple[AnchorScores, AnchorScores]:
    return _forward(queries, keys, anchors, candidates, rule, offset, block)[0]


def _forward(queries, keys, anchors, candidates, rule, offset, block):
    (m, n), (parts, rows) = (len(queries), len(keys)), cut_latents(block, queries, anchors)
    whole = jax.tree.map(lambda x: x[None], candidates)

    def find_pairs(_, part):
        q, rows = part
        index = find_targets(rows, whole, offset)
        return None, (index, score_positives(q, keys[jnp.maximum(index, 0)], block))

    _, (index, positive) = jax.lax.scan(find_pairs, None, (parts, rows))
    paired = jnp.where(index >= 0, index, n).ravel()
    positive_of_key = jnp.zeros(n, jnp.float32).at[paired].set(positive.ravel(), mode="drop")
    has_query = jnp.zeros(n, bool).at[paired].set(True, mode="drop")

    def collect(of_keys, part):
        q, rows, positive = part
        scores, where, back, _ = _score(q, keys, rows, candidates, rule, offset)
        of_keys = add_tile(of_keys, scores.T, positive_of_key, back)
        return of_keys, add_tile(no_negatives(block), scores, positive, where)

    nothing, _ = vary_alike((no_negatives(n), keys))
    of_keys, of_parts = jax.lax.scan(collect, nothing, (parts, rows, positive))
    of_queries, index, positive = jax.tree.map(lambda x: x.ravel()[:m], (of_parts, index, positive))
    here, size_here = finish(of_queries, positive, index >= 0)
    there, size_there = finish(of_keys, positive_of_key, has_query)
    saved = (queries, keys, anchors, candidates, of_parts, of_keys, size_here, size_there)
    return (here, there), saved


def _backward(rule, offset, block, saved, cotangents):
    queries, keys, anchors, candidates, of_parts, of_keys, size_here, size_there = saved
    parts, rows = cut_latents(block, queries, anchors)
    pad = parts.shape[0] * block - len(queries)
    g = jnp.pad(cotangents[0].loss * size_here, (0, pad)).reshape(-1, block)
    g_back = cotangents[1].loss * size_there

    def differentiate(dkeys, part):
        q, rows, seen, g = part
        scores, where, back, is_positive = _score(q, keys, rows, candidates, rule, offset)
        w = derivatives(scores, where, is_positive, seen.highest, seen.total, g)
        transposed = scores.T, back, is_positive.T
        w += derivatives(*transposed, of_keys.highest, of_keys.total, g_back).T
        w = w.astype(keys.dtype)
        dq = jnp.matmul(w, keys, preferred_element_type=jnp.float32)
        return dkeys + gradient_of_keys(q, w), dq

    xs = (parts, rows, of_parts, g)
    zero, _ = vary_alike((jnp.zeros(keys.shape[::-1], jnp.float32), keys))
    dkeys, dqueries = jax.lax.scan(differentiate, zero, xs)
    dqueries = dqueries.reshape(-1, keys.shape[1])[: len(queries)]
    return dqueries.astype(keys.dtype), dkeys.T.astype(keys.dtype), None, None


_both.defvjp(_forward, _backward)


def _score(q, keys, rows, candidates, rule, offset) -> tuple[Any, Any, Any, Any]:
    """Scores (m, n), negatives of the queries (m, n) and of the keys (n, m), positives (m, n)."""
    scores, where, is_positive = compare(q, keys, rows, candidates, rule, offset)
    back = find_negatives(candidates, rows, rule, -offset) & ~is_positive.T
    return scores, where, back, is_positive
