"""The loss of all offsets, with its gradients, in one pass over blocks of anchors.

A block's scores live in the cache, are used for everything at once, and are never kept: memory is
linear in anchors and candidates. With w_ij the derivative of the block's losses by the score of
anchor i and candidate j, the gradients are two more products on the same block,

    dq_i = sum_j w_ij z_j        dz_j = sum_i w_ij q_i,

and a cotangent for each offset's sum only scales them. InfoNCE has w_ij = p_ij - [j is i's
positive], p_ij the softmax over the positive and the negatives; other losses are differentiated
within the block. Where a row of scores is too long to keep, InfoNCE cuts the columns too
(`cpc.losses.tiles`).
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
    cut_latents,
    find_alike,
    gradient_of_keys,
    num_columns,
    score_tiles,
    vary_alike,
)
from cpc.types import NegativeRule, NegativeSampler


class Plan(NamedTuple):
    """Static arguments of a pass; options that are bound to the loss may be traced."""

    rule: NegativeRule
    loss: AnchorLoss | None
    """None is InfoNCE, which has its own derivative and may be cut."""
    choose: NegativeSampler | None
    offsets: tuple[int, ...]
    """Prediction offset of each set of queries."""
    block: int | None
    """Anchors scored at a time, about; None to choose."""
    columns: int | None
    """Candidates scored at a time (`tiles.num_columns`)."""
    shard_size: int | None = None
    """Sequences of the batch, in order, that share their negatives; None for all of them."""
    num_sequences: int = 0
    """Sequences with whose latents the candidates begin, in order; 0 if their influence on each
    other's losses is not needed."""

    @property
    def can_tile(self) -> bool:
        """Whether rows of scores can be cut: those of InfoNCE over all negatives."""
        return self.loss is None and self.choose is None

    def num_shards(self, num_sequences: int) -> int:
        """Return the number of shards that can be scored one by one.

        Negatives that are drawn are drawn for the whole batch, so that the draws are those of the
        rule alone.
        """
        if self.shard_size is None or self.choose is not None or num_sequences % self.shard_size:
            return 1
        return num_sequences // self.shard_size

    def choose_block(self, num_candidates: int) -> int:
        """Return `block`, or its default."""
        if self.block is not None:
            return self.block
        return block_size(num_candidates, self.columns if self.can_tile else num_candidates)


def take_traced(loss: AnchorLoss | None) -> tuple[Any, dict[str, Array]]:
    """The loss without the traced numbers that are bound to it, and these, which may be learned.

    A function with a derivative by hand takes them as arguments: it cannot close over them.
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


#: reducer(queries, keys, anchors, candidates, rng, plan), as `summed_losses`.
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
    """Return the sum of the anchors' losses at each offset, scores and received weights.

    Anchors are (b, a), a sequence's latents in any order; candidates are (n,). The score of
    anchor i and candidate j at offsets[k] is queries[k, i] . keys[j], or keys[k, j] where each
    offset has keys of its own. `own_index` is the index of each sequence of anchors among the
    `plan.num_sequences` of the candidates, by default its index among the anchors.

    Scores are of each anchor. Received weights (`received_weights`) are of each of the
    candidates' sequences. Neither has a gradient.
    """
    loss, options = take_traced(plan.loss)
    if own_index is None:
        own_index = jnp.arange(queries.shape[1])
    arrays = vary_alike((queries, keys, anchors, candidates, options, own_index))
    return _summed_losses(*arrays, rng, plan._replace(loss=loss))


def sharded_losses(
    queries: Float[Array, "k b a d"],
    keys: Float[Array, "*own n d"],
    anchors: Latents,
    candidates: Latents,
    rng: Array,
    plan: Plan,
) -> tuple[Float[Array, " k"], AnchorScores, Float[Array, "k s"]]:
    """Return `summed_losses`, computed shard by shard if each shard has its own negatives.

    Scores of one shard's anchors and another's latents do not count, so they are not computed:
    1 / shards of the work of the blocks, with the same result.
    """
    b, a = queries.shape[1:3]
    num_shards = plan.num_shards(b)
    if num_shards == 1:
        return summed_losses(queries, keys, anchors, candidates, rng, plan)
    block = plan.choose_block(b * a // num_shards)
    plan_of_shard = plan._replace(
        block=max(1, block // num_shards), num_sequences=plan.num_sequences // num_shards
    )

    def split(x):  # (b, ...) or (b a, ...) -> (shards, ...)
        return x.reshape(num_shards, -1, *x.shape[1:])

    def of_shard(queries, keys, anchors, candidates):
        return summed_losses(queries, keys, anchors, candidates, rng, plan_of_shard)

    of_shards = jax.vmap(of_shard, in_axes=(1, -3, 0, 0), out_axes=(0, 1, 1))
    queries = queries.reshape(len(queries), num_shards, -1, *queries.shape[2:])
    keys = keys.reshape(*keys.shape[:-2], num_shards, -1, keys.shape[-1])
    anchors, candidates = jax.tree.map(split, (anchors, candidates))
    losses, scores, received = of_shards(queries, keys, anchors, candidates)
    whole: Any = jax.tree.map(lambda x: x.reshape(len(x), b, a), scores)
    return jnp.sum(losses, 0), whole, received.reshape(len(received), -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(7,))
def _summed_losses(queries, keys, anchors, candidates, options, index, rng, plan):
    inputs = (queries, keys, anchors, candidates, rng, plan)
    scores, received, *_ = score_blocks(*inputs, options=options, own_index=index, gradients=False)
    return scores.loss.sum((1, 2)), scores, received


def _forward(queries, keys, anchors, candidates, options, index, rng, plan):
    inputs = (queries, keys, anchors, candidates, rng, plan)
    scores, received, *gradients = score_blocks(
        *inputs, options=options, own_index=index, gradients=True
    )
    return (scores.loss.sum((1, 2)), scores, received), (keys, options, *gradients)


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
    """Return scores, received weights and derivatives of each offset's summed losses.

    With `gradients`, derivatives by the queries are of each anchor's own loss; those by the keys
    (k, d, n) are summed over anchors, with the weights if there are any; those by further `options`
    of the loss (k, ...) are summed over anchors. Without, derivatives are None.
    """
    options = options or {}
    b, a, d = queries.shape[1:]
    n = keys.shape[-2]
    # Blocks are cut along the latents of a sequence, not along b, which devices share.
    size = min(a, max(1, plan.choose_block(n) // b))
    width = num_columns(b * size, n, plan.columns) if plan.can_tile else n
    own_keys = keys if keys.ndim == 3 else None
    positions = jax.tree.map(lambda p: _cut(p, size, -1), anchors.positions)
    anchors = Latents(positions, _cut(anchors.exists, size, False))

    def one_offset(_, inputs):
        k, queries, weights, own = inputs
        z, there = keys if own is None else own, candidates
        if width < n:
            z, there = cut_latents(width, z, there)
        zero = (None, None, jnp.zeros(plan.num_sequences, jnp.float32))
        if gradients:
            zeros = jnp.zeros((*z.shape[:-2], d, z.shape[-2]), jnp.float32)
            of_options = {name: jnp.zeros(x.shape, jnp.float32) for name, x in options.items()}
            zero = (zeros, of_options, zero[-1])
        zero, _ = vary_alike((zero, z))
        cut_weights = None if weights is None else _cut(weights, size, 0)
        blocks = (jnp.arange(-(-a // size)), _cut(queries, size, 0), anchors, cut_weights)
        shared = _Shared(k, z, there, rng, options, own_index, a)
        add_block = functools.partial(_add_block, plan, shared)
        (dkeys, doptions, received), found = jax.lax.scan(add_block, zero, blocks)
        scores, dqueries = jax.tree.map(lambda x: _join(x, a), found)
        if width < n and dkeys is not None:
            dkeys = jnp.moveaxis(dkeys, 0, 1).reshape(d, -1)[:, :n]
        return None, (scores, received, dqueries, dkeys, doptions)

    inputs = (jnp.array(plan.offsets), queries, weights, own_keys)
    return jax.lax.scan(one_offset, None, inputs)[1]


class _Shared(NamedTuple):
    """Inputs that all blocks of an offset share."""

    k: Array
    keys: Float[Array, "*tiles n d"]
    """In tiles if rows of scores are cut."""
    candidates: Latents
    rng: Array
    options: dict[str, Array]
    own_index: Int[Array, " b"] | None
    length: int
    """Latents of a sequence."""


def _add_block(plan, shared, sums, block) -> Any:
    """Add a block of anchors (b, size) to the sums; return scores and derivatives by queries."""
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
        key = jax.random.fold_in(jax.random.fold_in(rng, k), index) if plan.choose else None
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


def _cut(x, size, fill):
    """(b, a, ...) -> (blocks, b, size, ...), with padding."""
    b, a, *rest = x.shape
    x = jnp.pad(x, [(0, 0), (0, -a % size)] + [(0, 0)] * len(rest), constant_values=fill)
    return jnp.moveaxis(x.reshape(b, -1, size, *rest), 1, 0)


def _join(x, a):
    """(blocks, b, size, ...) -> (b, a, ...), without the padding."""
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :a]


def _score_block(q, keys, anchors, candidates, rng, plan, options, k):
    """Scores of some anchors (m,); derivatives of their summed loss by scores and options."""
    loss = plan.loss
    scores, allowed, is_positive = compare(q, keys, anchors, candidates, plan.rule, k)  # (m, n)
    allowed &= is_positive.any(-1, keepdims=True)
    positive = jnp.where(is_positive, scores, 0.0).sum(-1)
    if loss is not None and describe(loss).uses_group_positives:
        alike = allowed & find_alike(anchors, candidates)
        where, positives = allowed & ~alike, is_positive | alike
        value, back = jax.vjp(
            lambda s, o: loss(s, s, where, where_positive=positives, **o), scores, options
        )
        return anchor_scores(value, positive, scores, where), *back(jnp.ones_like(value))
    negatives, where, through_choice = _chosen(rng, positive, scores, allowed, plan.choose)
    value, back = _differentiate(loss, options, positive, negatives, where)
    recorded = anchor_scores(value, positive, negatives, where)
    dpositive, dnegatives, doptions = back(recorded.counted.astype(value.dtype))
    dpositive, dscores = through_choice(dpositive, dnegatives)
    weights = dscores + jnp.where(is_positive, dpositive[:, None], 0.0)
    return recorded, jnp.where(recorded.counted[:, None] > 0, weights, 0.0), doptions


def anchor_scores(
    loss: Float[Array, " m"],
    positive: Float[Array, " m"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"],
) -> AnchorScores:
    """What is recorded of anchors (m,); those without a negative are not counted."""
    # A CPU adds floats faster than integers; up to 2^24 they count exactly.
    number = jnp.float32 if where.shape[-1] <= 2**24 else jnp.int32
    num_negatives = where.sum(-1, dtype=number)
    counted = num_negatives > 0
    beaten = (where & (negatives < positive[:, None])).sum(-1, dtype=number)
    ties = (where & (negatives == positive[:, None])).sum(-1, dtype=number)
    return AnchorScores(
        loss=jnp.where(counted, loss, 0.0),
        num_negatives=num_negatives.astype(jnp.float32),
        rank=(num_negatives - beaten).astype(jnp.float32),
        wins=(beaten + 0.5 * ties).astype(jnp.float32),
        counted=counted.astype(jnp.float32),
    )


def _chosen(rng, positive, scores, allowed, choose):
    """The chosen negatives, and how derivatives by them become derivatives by all scores."""
    if choose is None:
        return scores, allowed, lambda dpositive, dnegatives: (dpositive, dnegatives)
    negatives, back, where = jax.vjp(
        lambda positive, scores: choose(rng, positive, scores, allowed),
        positive,
        scores,
        has_aux=True,
    )

    def through(dpositive, dnegatives):
        more, dscores = back(dnegatives)
        return dpositive + more, dscores

    return negatives, where, through


def _differentiate(loss, options, positive, negatives, where):
    """Losses, and the derivatives of the sum of those that count by positive, negatives, options.

    Which count is given to the derivatives, as 1 and 0.
    """
    if loss is not None:

        def whole(positive, negatives, options):
            return loss(positive, negatives, where, **options)

        return jax.vjp(whole, positive, negatives, options)
    masked: Any = jnp.where(where, negatives, -jnp.inf)
    highest = jnp.maximum(positive, masked.max(-1))
    exp_negatives = jnp.exp(masked - highest[:, None])
    exp_positive = jnp.exp(positive - highest)
    total = exp_positive + exp_negatives.sum(-1)
    value = jnp.log(total) + (highest - positive)
    # 1 - p_positive is summed from the negatives: no cancellation when the positive wins.
    derivatives = -(total - exp_positive) / total, exp_negatives / total[:, None], options
    return value, lambda _: derivatives  # zero where nothing counts


def sum_by_sequence(x: Float[Array, "m n"], num_sequences: int, length: int) -> Float[Array, "m b"]:
    """Sum over the latents of each sequence, with which the candidates begin."""
    return x[:, : num_sequences * length].reshape(len(x), num_sequences, length).sum(-1)


def received_weights(
    weights: Float[Array, "... m b"], own: Int[Array, " m"]
) -> Float[Array, "... b"]:
    """Return the weight that each sequence receives as a negative of the other sequences' anchors.

        r_b = sum_(anchors i not of b) sum_(negatives j of b) p_ij

    with p_ij the derivative of anchor i's loss by the score of its negative j, for InfoNCE the
    softmax weight: to first order, what sequence b adds to all other losses. The sum of log N - L
    over its own anchors, less r_b, is its whole contribution to the estimate, up to a constant.

    `weights` are p_ij summed over the negatives of each sequence; the column of an anchor's own
    sequence is ignored.

    >>> received_weights(jnp.array([[9.0, 0.25, 0.5], [0.5, 9.0, 0.5]]), jnp.array([0, 1]))
    Array([0.5 , 0.25, 1.  ], dtype=float32)
    """
    is_other = own[:, None] != jnp.arange(weights.shape[-1])
    return jnp.where(is_other, weights, 0.0).sum(-2)
