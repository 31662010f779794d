"""Losses at all offsets and their gradients, computed in one pass over blocks of anchors.

The scores of a block stay in the cache for the loss and both gradients, and are then discarded, so
memory is linear in anchors and candidates. Let w_ij be the derivative of the block's losses by the
score of anchor i and candidate j. The gradients are two more matrix products on the same block,

    dq_i = sum_j w_ij z_j        dz_j = sum_i w_ij q_i,

which the cotangent of each offset's sum only scales. InfoNCE has a derivative by hand, and splits
long rows of candidates (`tiles`). Other losses are differentiated within the block.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from cpc.losses.table import AnchorLoss, describe
from cpc.losses.tiles import (
    AnchorScores,
    Latents,
    block_size,
    compare,
    gradient_of_keys,
    make_scores,
    match_varying_axes,
    num_columns,
    same_group_mask,
    score_tiles,
    split_axis,
)
from cpc.types import NegativeRule, NegativeSampler


class Plan(NamedTuple):
    """Static arguments of a pass over the anchors. Options bound to the loss may be traced."""

    rule: NegativeRule
    loss: AnchorLoss | None
    """The loss, or None for InfoNCE, which has a hand-written derivative and can be tiled."""
    sampler: NegativeSampler | None
    offsets: tuple[int, ...]
    """Prediction offset of each set of queries."""
    block: int | None
    """Approximate number of anchors scored at a time in all shards, or None for the default."""
    columns: int | None
    """Number of candidates scored at a time, or None for the default (`tiles.num_columns`)."""
    shard_size: int | None = None
    """Number of consecutive sequences that share their negatives, or None if all do."""
    num_sequences: int = 0
    """Number of sequences whose latents are the first candidates, in order. If it is 0, received
    weights are not computed."""

    @property
    def can_tile(self) -> bool:
        """Whether scores can be split into tiles. Only InfoNCE over all negatives allows it."""
        return self.loss is None and self.sampler is None

    def num_shards(self, num_sequences: int) -> int:
        """Return the number of shards that can be scored separately.

        It is 1 if there is a sampler, because samplers draw for the whole batch.
        """
        if self.shard_size is None or self.sampler is not None or num_sequences % self.shard_size:
            return 1
        return num_sequences // self.shard_size

    def choose_block(self, num_candidates: int) -> int:
        """Return `block`, or the default block size if it is None."""
        if self.block is not None:
            return self.block
        return block_size(num_candidates, self.columns if self.can_tile else num_candidates)


def take_traced(loss: AnchorLoss | None) -> tuple[Any, dict[str, Array]]:
    """Split a loss into a copy without traced keyword arguments, and a dictionary of these.

    Traced values must be arguments of a function with a custom gradient.
    """
    if not isinstance(loss, functools.partial):
        return loss, {}
    traced: dict[str, Any] = {
        name: value
        for name, value in loss.keywords.items()
        if isinstance(value, Tracer) and jnp.issubdtype(value.dtype, jnp.floating)
    }
    known = {name: value for name, value in loss.keywords.items() if name not in traced}
    return functools.partial(loss.func, *loss.args, **known), traced


#: Function with the arguments and results of `summed_losses`, except for `own_index`.
LossReducer: TypeAlias = Callable[
    [Array, Array, Latents, Latents, Array, Plan], tuple[Array, AnchorScores, Array]
]


def summed_losses(
    queries: Float[Array, "k b a d"],
    keys: Float[Array, "*own n d"],
    anchors: Latents,
    candidates: Latents,
    rng: Array,
    plan: Plan,
    own_index: Int[Array, " b"] | None = None,
) -> tuple[Float[Array, " k"], AnchorScores, Float[Array, "k s"]]:
    """Return each offset's summed loss, each anchor's statistics, and `received_weights`.

    Scores are queries[k, i] . keys[j], or queries[k, i] . keys[k, j] if the keys differ between
    offsets. `own_index` is the index of each anchor sequence among the first `plan.num_sequences`
    sequences of the candidates, and by default among anchors. Only the loss has a gradient.
    """
    loss, options = take_traced(plan.loss)
    if own_index is None:
        own_index = jnp.arange(queries.shape[1])
    arrays = match_varying_axes((queries, keys, anchors, candidates, options, own_index))
    return _summed_losses(*arrays, rng, plan._replace(loss=loss))


def sharded_losses(
    queries: Array, keys: Array, anchors: Latents, candidates: Latents, rng: Array, plan: Plan
) -> tuple[Array, AnchorScores, Array]:
    """Return `summed_losses`, computed shard by shard if the plan allows it.

    Anchors have no negatives in other shards, so this gives the same result with less work.
    """
    b, a = queries.shape[1:3]
    num_shards = plan.num_shards(b)
    if num_shards == 1:
        return summed_losses(queries, keys, anchors, candidates, rng, plan)
    block = plan.choose_block(b * a // num_shards)
    shard_plan = plan._replace(
        block=max(1, block // num_shards), num_sequences=plan.num_sequences // num_shards
    )

    def split(x):  # (b, ...) or (b a, ...) -> (shards, ...)
        return x.reshape(num_shards, -1, *x.shape[1:])

    def score_shard(queries, keys, anchors, candidates):
        return summed_losses(queries, keys, anchors, candidates, rng, shard_plan)

    score_shards = jax.vmap(score_shard, in_axes=(1, -3, 0, 0), out_axes=(0, 1, 1))
    queries = queries.reshape(len(queries), num_shards, -1, *queries.shape[2:])
    keys = keys.reshape(*keys.shape[:-2], num_shards, -1, keys.shape[-1])
    anchors, candidates = jax.tree.map(split, (anchors, candidates))
    losses, scores, received = score_shards(queries, keys, anchors, candidates)
    whole: Any = jax.tree.map(lambda x: x.reshape(len(x), b, a), scores)
    return jnp.sum(losses, 0), whole, received.reshape(len(received), -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(7,))
def _summed_losses(*arguments):
    return _forward(*arguments, gradients=False)[0]


def _forward(queries, keys, anchors, candidates, options, index, rng, plan, gradients=True):
    inputs = (queries, keys, anchors, candidates, rng, plan)
    scores, received, *slopes = score_blocks(
        *inputs, options=options, own_index=index, gradients=gradients
    )
    return (scores.loss.sum((1, 2)), scores, received), (keys, options, *slopes)


def _backward(_, residuals, cotangents):
    keys, options, dqueries, dkeys, doptions = residuals
    g = cotangents[0]
    doptions = jax.tree.map(lambda x, d: jnp.tensordot(g, d, 1).astype(x.dtype), options, doptions)
    dqueries = g[:, None, None, None] * dqueries
    dkeys = jnp.einsum("k,kdn->dn" if keys.ndim == 2 else "k,kdn->kdn", g, dkeys)
    dkeys = jnp.swapaxes(dkeys, -1, -2)
    return dqueries.astype(keys.dtype), dkeys.astype(keys.dtype), None, None, doptions, None, None


_summed_losses.defvjp(_forward, _backward)


def score_blocks(
    queries: Float[Array, "k b a d"],
    keys: Float[Array, "*own n d"],
    anchors: Latents,
    candidates: Latents,
    rng: Array,
    plan: Plan,
    *,
    gradients: bool,
    options: dict[str, Array] | None = None,
    weights: Float[Array, "k b a"] | None = None,
    own_index: Int[Array, " b"] | None = None,
) -> tuple[AnchorScores, Any, Any, Any, Any]:
    """Return anchor statistics, received weights, and derivatives by queries, keys and options.

    The derivatives by the keys (k, d, n) and by the loss's `options` (k, ...) are summed over
    anchors, for keys with `weights` if given. If `gradients` is false, all derivatives are None.
    """
    options = options or {}
    b, a, d = queries.shape[1:]
    n = keys.shape[-2]
    # Blocks split the latents of a sequence, not b, which is sharded over devices.
    size = min(a, max(1, plan.choose_block(n) // b))
    width = num_columns(b * size, n, plan.columns) if plan.can_tile else n
    own_keys = keys if keys.ndim == 3 else None
    anchors = jax.tree.map(lambda x: cut_blocks(x, size), anchors)

    def one_offset(_, inputs):
        k, queries, weights, own = inputs
        z, latents = keys if own is None else own, candidates
        if width < n:
            z, latents = jax.tree.map(lambda x: split_axis(x, width), (z, latents))
        zero = (None, None, jnp.zeros(plan.num_sequences, jnp.float32))
        if gradients:
            zeros = jnp.zeros((*z.shape[:-2], d, z.shape[-2]), jnp.float32)
            doptions = {name: jnp.zeros(x.shape, jnp.float32) for name, x in options.items()}
            zero = (zeros, doptions, zero[-1])
        zero, _ = match_varying_axes((zero, z))
        cut_weights = None if weights is None else cut_blocks(weights, size)
        blocks = (jnp.arange(-(-a // size)), cut_blocks(queries, size), anchors, cut_weights)
        shared = k, z, latents, rng, options, own_index, a
        add_block = functools.partial(_add_block, plan, shared)
        (dkeys, doptions, received), found = jax.lax.scan(add_block, zero, blocks)
        scores, dqueries = jax.tree.map(lambda x: join_blocks(x, a), found)
        if width < n and dkeys is not None:
            dkeys = jnp.moveaxis(dkeys, 0, 1).reshape(d, -1)[:, :n]
        return None, (scores, received, dqueries, dkeys, doptions)

    inputs = (jnp.array(plan.offsets), queries, weights, own_keys)
    return jax.lax.scan(one_offset, None, inputs)[1]


def _add_block(plan, shared, sums, block) -> Any:
    """Add a block of anchors (b, size) to the sums, and return its statistics and derivatives."""
    (dkeys, doptions, received), (index, queries, anchors, g) = sums, block
    k, keys, candidates, rng, options, own_index, length = shared
    q = queries.reshape(-1, queries.shape[-1])
    rows = jax.tree.map(jnp.ravel, anchors)
    weighted = q if g is None else (g.reshape(-1, 1) * q).astype(q.dtype)
    sequences = (plan.num_sequences, length)
    if keys.ndim == 3:
        scores, dq, dkeys, by_sequence = score_tiles(
            q, weighted, keys, rows, candidates, plan.rule, k, dkeys, sequences
        )
    else:
        key = jax.random.fold_in(jax.random.fold_in(rng, k), index) if plan.sampler else None
        scores, w, more = _score_block(q, keys, rows, candidates, key, plan, options, k)
        by_sequence = sum_by_sequence(w, *sequences)
        w, dq = w.astype(keys.dtype), None
        if dkeys is not None:
            dq = jnp.matmul(w, keys, preferred_element_type=jnp.float32)
            dkeys += gradient_of_keys(weighted, w)
            doptions = jax.tree.map(jnp.add, doptions, more)
    if own_index is not None and plan.num_sequences:
        received += received_weights(by_sequence, jnp.repeat(own_index, queries.shape[1]))
    scores = jax.tree.map(lambda x: x.reshape(queries.shape[:2]), scores)
    if dq is not None:
        dq = dq.astype(queries.dtype).reshape(queries.shape)
    return (dkeys, doptions, received), (scores, dq)


def cut_blocks(x: Array, size: int, axis: int = 1) -> Array:
    """Reshape (b, a, ...) to (blocks, b, size, ...), with masked padding. `axis` is the a axis."""
    return jnp.moveaxis(split_axis(x, size, axis), axis, 0)


def join_blocks(x: Array, a: int, axis: int = 1) -> Array:
    """Reshape (blocks, b, size, ...) to (b, a, ...), without the padding."""
    x = jnp.moveaxis(x, 0, axis)
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(x, 0, a, axis=axis)


def _score_block(q, keys, anchors, candidates, rng, plan, options, k):
    """Return statistics of anchors, and derivatives of their summed loss by scores and options."""
    loss: Any = plan.loss
    scores, allowed, is_positive = compare(q, keys, anchors, candidates, plan.rule, k)  # (m, n)
    allowed &= is_positive.any(-1, keepdims=True)
    positive = jnp.where(is_positive, scores, 0.0).sum(-1)
    if loss is not None and describe(loss).uses_group_positives:
        same_group = allowed & same_group_mask(anchors, candidates)
        where, positives = allowed & ~same_group, is_positive | same_group
        value, back = jax.vjp(
            lambda s, o: loss(s, s, where, where_positive=positives, **o), scores, options
        )
        return anchor_scores(value, positive, scores, where), *back(jnp.ones_like(value))
    negatives, where, pull_back = scores, allowed, None
    if plan.sampler is not None:
        negatives, pull_back, where = jax.vjp(
            lambda *given: plan.sampler(rng, *given, allowed), positive, scores, has_aux=True
        )
    if loss is None:
        value, dpositive, dscores = _differentiate(positive, negatives, where)
        recorded, doptions = anchor_scores(value, positive, negatives, where), options
    else:
        value, back = jax.vjp(lambda p, n, o: loss(p, n, where, **o), positive, negatives, options)
        recorded = anchor_scores(value, positive, negatives, where)
        dpositive, dscores, doptions = back(recorded.counted.astype(value.dtype))
    if pull_back is not None:
        more, dscores = pull_back(dscores)
        dpositive += more
    weights = dscores + jnp.where(is_positive, dpositive[:, None], 0.0)
    return recorded, jnp.where(recorded.counted[:, None] > 0, weights, 0.0), doptions


def anchor_scores(
    loss: Float[Array, " m"],
    positive: Float[Array, " m"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"],
) -> AnchorScores:
    """Return each anchor's statistics. Anchors without a negative are not counted."""
    # A CPU adds floats faster than integers, and float32 is exact for counts up to 2^24.
    dtype = jnp.float32 if where.shape[-1] <= 2**24 else jnp.int32
    number = where.sum(-1, dtype=dtype)
    beaten = (where & (negatives < positive[:, None])).sum(-1, dtype=dtype)
    tied = (where & (negatives == positive[:, None])).sum(-1, dtype=dtype)
    return make_scores(loss, number > 0, number, beaten, tied)


def _differentiate(positive, negatives, where):
    """Return InfoNCE and its derivatives by the scores. All are 0 if there are no negatives."""
    masked: Any = jnp.where(where, negatives, -jnp.inf)
    highest = jnp.maximum(positive, masked.max(-1))
    exp_negatives = jnp.exp(masked - highest[:, None])
    exp_positive = jnp.exp(positive - highest)
    total = exp_positive + exp_negatives.sum(-1)
    value = jnp.log(total) + (highest - positive)
    # Compute 1 - p_positive from the negatives, which is precise even if it is close to 0.
    return value, -(total - exp_positive) / total, exp_negatives / total[:, None]


def sum_by_sequence(x: Float[Array, "m n"], num_sequences: int, length: int) -> Float[Array, "m b"]:
    """Sum columns by sequence. The sequences' latents are the first columns, in order."""
    return x[:, : num_sequences * length].reshape(len(x), num_sequences, length).sum(-1)


def received_weights(
    weights: Float[Array, "... m b"], own: Int[Array, " m"]
) -> Float[Array, "... b"]:
    """Return the weight that each sequence receives as a negative of the other sequences' anchors.

        r_b = sum_(anchors i not of b) sum_(negatives j of b) p_ij

    where p_ij is the derivative of anchor i's loss by the score of its negative j. For InfoNCE it
    is the softmax weight. To first order, r_b is the amount that sequence b adds to the losses of
    other sequences. The sum of log N - L over the anchors of b, minus r_b, is the contribution of
    sequence b to the estimate, up to a constant.

    `weights` are p_ij summed over each sequence's negatives. An anchor's own sequence is ignored.

    >>> received_weights(jnp.array([[9.0, 0.25, 0.5], [0.5, 9.0, 0.5]]), jnp.array([0, 1]))
    Array([0.5 , 0.25, 1.  ], dtype=float32)
    """
    is_other = own[:, None] != jnp.arange(weights.shape[-1])
    return jnp.where(is_other, weights, 0.0).sum(-2)
