"""Aligned CPC, in which K predictions are matched in order to the next F >= K latents.

A prediction has no fixed offset, but is aligned to one or more of the next F latents (frames). The
loss depends on the order of the latents, but not on their exact times (Chorowski et al. 2021,
"Aligned contrastive predictive coding"). The first frame belongs to prediction 1 and the last frame
to prediction K. From one frame to the next, a path keeps its prediction or advances to the next.
This is CTC (Graves et al. 2006) without a blank symbol, with binom(F - 1, K - 1) paths.

Each block of anchors is scored once per prediction against all candidates. The scores are then read
once per frame, because the rule may allow different negatives at each frame:

    memory    about 6 arrays of K r n scores for a block of r anchors and n candidates, and the
              arrays of K F m costs
    time      the 3 products per prediction of CPC, and 2 F exponentials per score instead of 1
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cpc.losses.blocks import Plan, anchor_scores, cut_blocks, join_blocks
from cpc.losses.cpc_loss import OffsetSums, sum_sequences
from cpc.losses.inputs import check_arguments, check_batch, check_layout, mark_misfit, read_batch
from cpc.losses.masking import Number, divide
from cpc.losses.noise_contrastive import info_nce
from cpc.losses.tiles import (
    AnchorScores,
    block_size,
    find_negatives,
    find_positives,
    match_varying_axes,
)
from cpc.types import AnyPosition, CPCOutputs, NegativeSampler, Rule, check_number

#: Cost of a state that no path reaches. The value is finite so that differences are never NaN.
MAX_COST = 1e30


def acpc_loss(
    outputs: CPCOutputs,
    positions: AnyPosition,
    rule: Rule,
    *,
    num_frames: int,
    best: bool = False,
    sampler: NegativeSampler | None = None,
    temperature: Number = 1.0,
    rng: Array | None = None,
    where: Bool[Array, "b t ..."] | None = None,
    block: int | None = None,
) -> tuple[Float[Array, ""], OffsetSums, Float[Array, " k"]]:
    """Return the aligned CPC loss of F frames and K predictions, averaged over anchors.

    L = K / F mean_t C_t,  C_t = -log sum_paths prod_f p(z_(t+f) | path_f)

    p(z_(t+f) | k) = e^s_k(t, t+f) / sum_(candidates) e^s_k, as in InfoNCE. The candidates are the
    frame itself and the negatives that the rule allows at offset f. If F = K, the loss equals
    `cpc_loss` for anchors that have F latents ahead. It does not give a bound on mutual
    information, because the predicted frames also select the path.

    Args:
      outputs, positions, rule, temperature, rng, where: as in `cpc_loss`.
      num_frames: F. Anchors with fewer latents ahead are not counted.
      best: score only the best path instead of the sum over all paths.
      sampler: selects from the allowed negatives, separately for each frame and prediction.
      block: number of anchors scored at a time. By default, the scores of a block fit in 256 MB on
        a CPU or 1 GB on an accelerator.

    Returns:
      The loss in nats, and for each prediction the sums over anchors and the mean number of frames.
    """
    check_arguments(outputs, positions, rule, info_nce, sampler)
    shape, (num, width) = outputs.z.shape[:-1], outputs.predictions.shape[-2:]
    check_number("num_frames", num_frames, least=num, below=shape[1])
    check_number("temperature", temperature, above=0)
    if block is not None:
        check_number("block", block, least=1)
    (z, _, predictions), anchors = read_batch(outputs, positions, where)
    plan = Plan(rule, None, sampler, tuple(range(1, num_frames + 1)), block, None, rule.shard_size)
    fits = check_layout(positions, where, shape, plan, False)
    check_batch(positions, shape, plan)
    b = shape[0]
    num_shards = plan.num_shards(b)

    def split(x):  # (b, ...) -> (shards, b / shards, ...)
        return x.reshape(num_shards, b // num_shards, *x.shape[1:])

    queries = jnp.moveaxis(predictions, -2, 1).reshape(b, num, -1, width)
    queries = jnp.moveaxis(split(divide(queries, temperature, z.dtype)), 2, 1)
    if block is None:
        n = anchors.mask.size // num_shards
        block = block_size(num * n, num * n)
    plan = plan._replace(block=max(1, block // num_shards))
    queries, z, anchors = match_varying_axes((queries, z, anchors))
    rng = jax.random.key(0) if rng is None else rng

    def align_shard(queries, keys, anchors):  # (k, b, a, d), (b, a, d), (b, a)
        candidates = jax.tree.map(jnp.ravel, anchors)
        keys = keys.reshape(-1, width)
        return _summed_costs(queries, keys, anchors, candidates, rng, plan, best)

    costs, found = jax.vmap(align_shard, out_axes=(0, 1))(
        queries, split(z.reshape(b, -1, width)), jax.tree.map(split, anchors)
    )
    counted, frames, *numbers = (x.reshape(num, b, -1) for x in found)
    sums = sum_sequences(counted, *numbers)
    total = num / num_frames / jnp.maximum(sums.anchors[0], 1.0) * costs.sum()
    frames = frames.sum((1, 2)) / jnp.maximum(sums.anchors, 1.0)
    return mark_misfit(total, sums.anchors, fits, b == 1 and where is None), sums, frames


def path_cost(costs: Float[Array, "*m f k"], best: bool = False) -> Float[Array, "*m"]:
    """Return the cost of aligning frames to predictions, summed over frames.

    C = -log sum_paths e^(-sum_f costs[f, path_f]), or min_paths sum_f costs[f, path_f] if `best`

    costs[f, k] is the cost of frame f under prediction k, for at least as many frames as
    predictions. Equal costs give the cost of F frames minus the log of the number of paths:

    >>> path_cost(jnp.ones((4, 2))) - (4.0 - jnp.log(3.0))
    Array(0., dtype=float32)
    """
    is_first = jnp.arange(costs.shape[-1]) == 0

    def one_frame(total, cost):
        before = jnp.where(is_first, MAX_COST, jnp.roll(total, 1, -1))
        reached = jnp.minimum(total, before) if best else -jnp.logaddexp(-total, -before)
        return cost + reached, None

    frames = jnp.moveaxis(costs.astype(jnp.float32), -2, 0)
    first = jnp.where(is_first, frames[0], MAX_COST)
    return jax.lax.scan(one_frame, first, frames[1:])[0][..., -1]


def path_weights(costs: Float[Array, "*m f k"], best: bool = False) -> Float[Array, "*m f k"]:
    """Return the derivative of `path_cost` by each cost.

    Each is the probability that a frame is aligned to a prediction, and has no gradient. If `best`
    is true, it is 1 along the best path and 0 elsewhere. Paths with equal costs share the weight.

    >>> path_weights(jnp.array([[0.0, 9.0], [0.0, 9.0], [9.0, 0.0]]), best=True).tolist()
    [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    costs = jax.lax.stop_gradient(costs.astype(jnp.float32))
    return jax.grad(lambda costs: path_cost(costs, best).sum())(costs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _summed_costs(*arguments):
    return _forward(*arguments, gradients=False)[0]


def _forward(queries, keys, anchors, candidates, rng, plan, best, gradients=True):
    """Return the summed cost and `_describe_anchors` (k, b, a), and derivatives of the cost."""
    _, b, a, _ = queries.shape
    # Blocks split the latents of a sequence, not b, which is sharded over devices.
    size = min(a, max(1, plan.block // b))

    def one_block(dkeys, inputs):
        index, q, here = inputs
        key = jax.random.fold_in(rng, index)

        def compute_cost(q, keys):
            return _align_block(q, keys, here, candidates, key, plan, best)

        if not gradients:
            cost, found = compute_cost(q, keys)
            return None, (cost, found, None)
        cost_and_gradients = jax.value_and_grad(compute_cost, (0, 1), has_aux=True)
        (cost, found), (dq, more) = cost_and_gradients(q, keys)
        return dkeys + more.astype(jnp.float32), (cost, found, dq)

    blocks = jax.tree.map(lambda x: cut_blocks(x, size), anchors)
    zero = jnp.zeros(keys.shape, jnp.float32) if gradients else None
    zero, _ = match_varying_axes((zero, keys))
    inputs = (jnp.arange(-(-a // size)), cut_blocks(queries, size, 2), blocks)
    dkeys, (costs, found, dqueries) = jax.lax.scan(one_block, zero, inputs)

    found, dqueries = jax.tree.map(lambda x: join_blocks(x, a, 2), (found, dqueries))
    dkeys = None if dkeys is None else dkeys.astype(keys.dtype)
    return (costs.sum(), found), (dqueries, dkeys)


def _backward(plan, best, gradients, cotangents):
    dqueries, dkeys = ((cotangents[0] * x).astype(x.dtype) for x in gradients)
    return dqueries, dkeys, None, None, None


_summed_costs.defvjp(_forward, _backward)


def _align_block(q, keys, anchors, candidates, rng, plan, best):
    """Return the summed cost and statistics of one block of anchors, with queries (k, b, a, d)."""
    k, b, a, d = q.shape
    num_frames, rows = len(plan.offsets), jax.tree.map(jnp.ravel, anchors)
    scores = jnp.matmul(q.reshape(-1, d), keys.T, preferred_element_type=jnp.float32)
    scores = scores.reshape(k, b * a, -1)

    @jax.checkpoint  # keeps the exponentials of one frame in memory at a time
    def one_frame(f):
        is_frame = find_positives(rows, candidates, f)
        allowed = find_negatives(rows, candidates, plan.rule, f) & ~is_frame
        where = jnp.broadcast_to(allowed & is_frame.any(-1, keepdims=True), scores.shape)
        positive = jnp.where(is_frame, scores, 0.0).sum(-1).ravel()
        negatives, where = (x.reshape(-1, x.shape[-1]) for x in (scores, where))
        if plan.sampler is not None:
            negatives, where = plan.sampler(jax.random.fold_in(rng, f), positive, negatives, where)
        loss = info_nce(positive, negatives, where)
        return anchor_scores(loss, positive, negatives, where)

    frames: AnchorScores = jax.lax.map(one_frame, jnp.array(plan.offsets))
    frames = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(num_frames, k, -1), -1, 0), frames)
    costs, counted = frames.loss, (frames.counted > 0).all((1, 2))  # (m, f, k), (m,)
    cost = jnp.where(counted, path_cost(costs, best), 0.0)
    found = _describe_anchors(jax.lax.stop_gradient((frames, cost)), counted, best)
    return cost.sum(), jax.tree.map(lambda x: x.T.reshape(k, b, a), found)


def _describe_anchors(given: Any, counted: Any, best: bool) -> tuple[Any, ...]:
    """Return statistics of anchors (m, k) from scores for each frame and prediction (m, f, k).

    The statistics are whether the anchor is counted, the number of frames aligned to the
    prediction, and the fields of `OffsetSums` from loss to pairwise as means over these frames.
    Anchors are counted if all frames exist and have negatives. Other anchors have zeros.
    """
    (frames, cost), (_, num_frames, k) = given, given[0].loss.shape
    weights = path_weights(frames.loss, best) * counted[:, None, None]
    number = weights.sum(1)
    own = (weights * frames.loss).sum(1)
    # The cost over all paths is below the weighted sum. Split the difference equally.
    loss = k / num_frames * (own + (cost - own.sum(-1))[:, None] / k)

    def mean(x):
        return (weights * x).sum(1) / jnp.maximum(number, 1.0)

    n = 1 + frames.num_negatives
    wins = frames.wins / jnp.maximum(frames.num_negatives, 1.0)
    counted = jnp.broadcast_to(counted[:, None], number.shape).astype(jnp.float32)
    return counted, number, loss, *map(mean, (n, jnp.log(n), 1 / n, frames.rank == 0, wins))
