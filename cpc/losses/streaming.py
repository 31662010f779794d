"""InfoNCE between arbitrary anchors and candidates, with memory that is linear in their number."""

import functools
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from cpc.losses.blocks import Plan, score_blocks
from cpc.losses.inputs import check_negatives
from cpc.losses.masking import Number, divide, read_mask
from cpc.losses.tiles import AnchorScores, Latents, match_varying_axes
from cpc.types import (
    AnyPosition,
    NegativeRule,
    check_array,
    check_function,
    check_number,
    check_shape,
    check_type,
)


class StreamingOptions(TypedDict, total=False):
    """Further keyword arguments of `streaming_info_nce`, documented there."""

    block: int | None
    columns: int | None


def streaming_info_nce(
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
    **options: Unpack[StreamingOptions],
) -> tuple[Float[Array, " m"], AnchorScores]:
    """Return each anchor's InfoNCE loss, in nats, and score statistics, without storing all scores.

    L_i = log [ e^s_i+ + sum_j e^s_ij ] - s_i+,  s_ij = q_i . k_j / tau  (van den Oord et al. 2018)

    q_i is the query of anchor i, and k_j the key of candidate j. The positive is the candidate of
    the same sequence and lane at time + offset, and the negatives j are the other candidates that
    the rule allows. Values and gradients equal those of `info_nce` on the matrix of scores. The
    loss alone takes 1 matrix product. Loss, rank and both gradients take 3, or 4 if the candidates
    are split into tiles. The keys' gradient assumes the same cotangent for all anchors, as from a
    mean or a sum. Other cotangents are detected at run time and need a second pass.

    Args:
      queries: vectors of the anchors.
      keys: vectors of the candidates, which must have distinct positions.
      anchors, candidates: positions, (m,) and (n,).
      rule: decides which candidates may be negatives.
      offset: number of steps from an anchor to its positive, or 0 for two views of a latent.
      temperature: tau. It divides the queries, before they are cast to the dtype of the keys.
      where_anchors: mask of the anchors. Masked anchors may be NaN, with loss 0 and no gradient.
      where_candidates: mask of the candidates. Masked candidates may be NaN.
      block, columns: as in `cpc_loss`. Each score of a block takes 12 bytes.

    Returns:
      The losses, and `AnchorScores` without a gradient. The loss of an anchor without a positive or
      a negative is 0.

    Raises:
      UserError: positions are known, and no anchor has both a positive and a negative.

    Equal scores give exactly log N, and a tie is half a win:

    >>> from cpc.types import Position
    >>> place = Position(*(field.ravel() for field in Position.grid(1, 4)))
    >>> loss, scores = streaming_info_nce(
    ...     jnp.zeros((4, 2)), jnp.ones((4, 2)), place, place, lambda a, c, k: a.lane == c.lane, 1
    ... )
    >>> loss - jnp.array([jnp.log(4.0)] * 3 + [0.0])  # nothing follows the last
    Array([0., 0., 0., 0.], dtype=float32)
    >>> scores.rank, scores.wins
    (Array([3., 3., 3., 0.], dtype=float32), Array([1.5, 1.5, 1.5, 0. ], dtype=float32))
    """
    check_number("temperature", temperature, above=0)
    check_function("rule", rule, 3, "pass a rule such as cpc.negatives.batch")
    check_type("offset", offset, int | np.integer, "pass one whole number of steps")
    queries, here = _read("anchors", "queries", anchors, queries, where_anchors)
    keys, there = _read("candidates", "keys", candidates, keys, where_candidates)
    check_shape("keys", keys, "n", queries.shape[1])
    check_negatives(anchors, candidates, rule, (offset,))
    inputs = match_varying_axes((divide(queries, temperature, keys.dtype), keys, here, there))
    scores: Any = _losses(*inputs, _make_plan(rule, offset, **options))
    return scores.loss, jax.lax.stop_gradient(scores)


def streaming_symmetric_info_nce(
    queries: Float[Array, "m d"],
    keys: Float[Array, "n d"],
    anchors: AnyPosition,
    candidates: AnyPosition,
    rule: NegativeRule,
    offset: int,
    *,
    where_anchors: Bool[Array, " m"] | None = None,
    where_candidates: Bool[Array, " n"] | None = None,
    **options: Any,
) -> tuple[tuple[Float[Array, " m"], AnchorScores], tuple[Float[Array, " n"], AnchorScores]]:
    """Return `streaming_info_nce` of queries against keys, and of keys against queries.

    In the second direction the offset is negated, so the rule is called with (key's position,
    query's position, -offset). The CLIP loss is half the sum of the two means (Radford et al. 2021,
    fig. 3). Further options apply to both directions.
    """
    here = {"where_anchors": where_anchors, "where_candidates": where_candidates}
    there = {"where_anchors": where_candidates, "where_candidates": where_anchors}
    return (
        streaming_info_nce(queries, keys, anchors, candidates, rule, offset, **here, **options),
        streaming_info_nce(keys, queries, candidates, anchors, rule, -offset, **there, **options),
    )


def _make_plan(rule, offset, block=None, columns=None):
    for name, value in (("block", block), ("columns", columns)):
        if value is not None:
            check_number(name, value, least=1)
    return Plan(rule, None, None, (offset,), block, columns)


def _read(latents, vectors, positions, x, where):
    """Return the vectors, with zeros for masked rows, and their positions, after validation."""
    check_type(f"the positions of {latents}", positions, AnyPosition, "pass a Position of (m,)")
    check_shape(vectors, x, "m", "d")
    check_number(f"the number of {vectors}", len(x), least=1)
    for name, each in positions._asdict().items():
        check_array(f"{name} of {latents}", each, np.integer)
        check_shape(f"{name} of {latents}", each, len(x))
    mask = read_mask(f"where_{latents}", where, x.shape[:1])
    x = x if where is None else jnp.where(mask[:, None], x, 0)
    return x, Latents(jax.tree.map(lambda p: jnp.asarray(p, jnp.int32), positions), mask)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _losses(queries, keys, anchors, candidates, plan):
    return _score((queries, keys, anchors, candidates), None, plan)[0]


def _forward(*inputs_and_plan):
    *inputs, plan = inputs_and_plan
    scores, dqueries, dkeys = _score(inputs, jnp.ones(len(inputs[0]), jnp.float32), plan)
    return scores, (inputs, scores.counted, dqueries, dkeys)


def _backward(plan, saved, cotangents):
    inputs, counted, dqueries, dkeys = saved
    dtype = dqueries.dtype
    g = jnp.where(counted > 0, cotangents.loss, 0.0)
    common = g[jnp.argmax(counted)]
    dkeys = jax.lax.cond(
        jnp.all((g == common) | (counted == 0)),
        lambda: common * dkeys,
        lambda: _score(inputs, g, plan)[2],
    )
    return (g[:, None] * dqueries).astype(dtype), dkeys.astype(dtype), None, None


_losses.defvjp(_forward, _backward)


def _score(inputs, weights, plan):
    """Return statistics of the anchors, and derivatives by queries and keys if given weights."""
    queries, keys, anchors, candidates = inputs
    scores, _, dqueries, dkeys, _ = score_blocks(
        queries[None, None],
        keys,
        jax.tree.map(lambda x: x[None], anchors),
        candidates,
        jax.random.key(0),
        plan,
        gradients=weights is not None,
        weights=None if weights is None else weights[None, None],
    )
    scores, dqueries = jax.tree.map(lambda x: x[0, 0], (scores, dqueries))
    return scores, dqueries, jax.tree.map(lambda x: x[0].T, dkeys)
