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

from cpc.losses.influence import received_weights, sum_by_sequence
from cpc.losses.reweighted import debiased, hard_weighted
from cpc.losses.tiles import (
    AnchorScores,
    Latents,
    block_size,
    cut_latents,
    find_alike,
    find_negatives,
    find_positives,
    gradient_of_keys,
    num_columns,
    score_tiles,
    vary_alike,
)
from cpc.losses.views import sup_con
from cpc.types import NegativeRule, NegativeSampler

#: loss(positive (m,), negatives (m, n), where (m, n)) -> (m,) nats; row i depends on row i alone.
AnchorLoss: TypeAlias = Callable[[Array, Array, Array], Array]


class Plan(NamedTuple):
    """What is done with the arrays: all that is static, but for what the loss has bound."""

    rule: NegativeRule
    loss: AnchorLoss | None
    """None is InfoNCE, which has its own derivative and may be cut; options bound to another may be
    traced."""
    choose: NegativeSampler | None
    offsets: tuple[int, ...]
    """What the queries are of, as many as these have offsets."""
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
    def may_cut(self) -> bool:
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
        """`block`, or what it is by default."""
        if self.block is not None:
            return self.block
        return block_size(num_candidates, self.columns if self.may_cut else num_candidates)


def takes_groups(loss: AnchorLoss | None) -> bool:
    """Whether candidates of the anchor's group are positives, beside the one that is predicted.

    >>> takes_groups(functools.partial(sup_con, inside=True)), takes_groups(None)
    (True, False)
    """
    return _function(loss) is sup_con


def takes_least(loss: AnchorLoss | None) -> bool:
    """Whether the loss has a floor, e^(the lowest score that a cosine can give).

    >>> takes_least(functools.partial(debiased, prior=0.1)), takes_least(sup_con)
    (True, False)
    """
    return _function(loss) in (debiased, hard_weighted)


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


def _function(loss):
    """What a partial, or a partial of one, is of."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    return loss


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

    Scores are of each anchor. Received weights (`cpc.losses.influence`) are of each of the
    candidates' sequences. Neither has a gradient.
    """
    loss, options = take_traced(plan.loss)
    if own_index is None:
        own_index = jnp.arange(queries.shape[1])
    arrays = vary_alike((queries, keys, anchors, candidates, options, own_index))
    return _summed_losses(*arrays, rng, plan._replace(loss=loss))


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
    """Scores, received weights and, if asked for, derivatives of each offset's summed losses.

    Those by the queries are of each anchor's own loss; those by the keys (k, d, n) are summed over
    anchors, with the weights if there are any; those by further `options` of the loss (k, ...) over
    anchors.
    """
    rule, loss, choose, offsets, _, columns, _, num_sequences = plan
    options = options or {}
    b, a, d = queries.shape[1:]
    n = keys.shape[-2]
    # Blocks are cut along the latents of a sequence, not along b, which devices share.
    size = min(a, max(1, plan.choose_block(n) // b))
    num_blocks = -(-a // size)
    pad = num_blocks * size - a
    width = num_columns(b * size, n, columns) if plan.may_cut else n
    own_keys = keys if keys.ndim == 3 else None

    def cut(x, fill):  # (b, a, ...) -> (blocks, b, size, ...)
        x = jnp.pad(x, [(0, 0), (0, pad)] + [(0, 0)] * (x.ndim - 2), constant_values=fill)
        return jnp.moveaxis(x.reshape(b, num_blocks, size, *x.shape[2:]), 1, 0)

    positions = jax.tree.map(lambda p: cut(p, -1), anchors.positions)
    anchors = Latents(positions, cut(anchors.exists, False))

    def one_offset(_, inputs):
        k, queries, weights, own = inputs
        z, there = keys if own is None else own, candidates
        if width < n:
            z, there = cut_latents(width, z, there)

        def one_block(sums, inputs):
            (dkeys, doptions, received), (index, q, anchors, g) = sums, inputs
            q = q.reshape(-1, d)
            rows = jax.tree.map(jnp.ravel, anchors)
            weighted = q if g is None else (g.reshape(-1, 1) * q).astype(q.dtype)
            if width < n:
                given = (rule, k, dkeys, (num_sequences, a))
                scores, dq, dkeys, by_sequence = score_tiles(q, weighted, z, rows, there, *given)
            else:
                key = jax.random.fold_in(jax.random.fold_in(rng, k), index) if choose else None
                given = (rule, loss, options, choose, k)
                scores, w, more = _score_block(q, z, rows, there, key, *given)
                by_sequence = sum_by_sequence(w, num_sequences, a)
                w, dq = w.astype(z.dtype), None
                if gradients:
                    dq = jnp.matmul(w, z, preferred_element_type=jnp.float32)
                    dkeys += gradient_of_keys(weighted, w)
                    doptions = jax.tree.map(jnp.add, doptions, more)
            if own_index is not None and num_sequences:
                received += received_weights(by_sequence, jnp.repeat(own_index, size))
            scores = jax.tree.map(lambda x: x.reshape(b, size), scores)
            if dq is not None:
                dq = dq.astype(queries.dtype).reshape(b, size, d)
            return (dkeys, doptions, received), (scores, dq)

        zero = (None, None, jnp.zeros(num_sequences, jnp.float32))
        if gradients:
            zeros = jnp.zeros((*z.shape[:-2], d, z.shape[-2]), jnp.float32)
            of_options = {name: jnp.zeros(x.shape, jnp.float32) for name, x in options.items()}
            zero = (zeros, of_options, zero[-1])
        zero, _ = vary_alike((zero, z))
        cut_weights = None if weights is None else cut(weights, 0)
        blocks = (jnp.arange(num_blocks), cut(queries, 0), anchors, cut_weights)
        (dkeys, doptions, received), (scores, dqueries) = jax.lax.scan(one_block, zero, blocks)
        scores, dqueries = jax.tree.map(lambda x: _join(x, a), (scores, dqueries))
        if width < n and dkeys is not None:
            dkeys = jnp.moveaxis(dkeys, 0, 1).reshape(d, -1)[:, :n]
        return None, (scores, received, dqueries, dkeys, doptions)

    _, result = jax.lax.scan(one_offset, None, (jnp.array(offsets), queries, weights, own_keys))
    return result


def _join(x, a):
    """(blocks, b, size, ...) -> (b, a, ...), without the padding."""
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :a]


def _score_block(q, keys, anchors, candidates, rng, rule, loss, options, choose, k):
    """Scores of some anchors (m,); derivatives of their summed loss by scores and options."""
    scores = jnp.matmul(q, keys.T, preferred_element_type=jnp.float32)  # (m, n)
    is_positive = find_positives(anchors, candidates, k)
    has_positive = is_positive.any(-1, keepdims=True)
    allowed = has_positive & find_negatives(anchors, candidates, rule, k) & ~is_positive
    positive = jnp.where(is_positive, scores, 0.0).sum(-1)
    if loss is not None and takes_groups(loss):
        alike = allowed & find_alike(anchors, candidates)
        where, positives = allowed & ~alike, is_positive | alike
        value, back = jax.vjp(
            lambda s, o: loss(s, s, where, where_positive=positives, **o), scores, options
        )
        return anchor_scores(value, positive, scores, where), *back(jnp.ones_like(value))
    negatives, where, through_choice = _chosen(rng, positive, scores, allowed, choose)
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
