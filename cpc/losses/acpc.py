"""Aligned CPC: K predictions of the next F >= K latents, matched to them in order.

A prediction has no fixed offset: the path through the frames that fits is taken, so that the order
of the latents matters and their times do not (Chorowski et al. 2021, "Aligned contrastive
predictive coding"). Frame 1 belongs to prediction 1, the last frame to the last prediction, and
from frame to frame a path stays with a prediction or goes on to the next: CTC (Graves et al. 2006)
without a blank, with binom(F - 1, K - 1) paths. A block of anchors is scored against all candidates
once for each prediction, and the scores are read once for each frame, whose negatives the rule
decides:

    memory    some 6 arrays of K r n scores, of a block of r anchors and n candidates, and the
              arrays of K F m costs
    time      the 3 products a prediction of CPC, and 2 F exponentials a score for its 1
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cpc.losses.blocks import Plan, anchor_scores
from cpc.losses.cpc_loss import OffsetSums, sum_sequences
from cpc.losses.inputs import check_arguments, check_batch, check_layout, mark_misfit, read_batch
from cpc.losses.masking import Number, check, divide
from cpc.losses.noise_contrastive import info_nce
from cpc.losses.tiles import (
    AnchorScores,
    Latents,
    block_size,
    find_negatives,
    find_positives,
    vary_alike,
)
from cpc.types import AnyPosition, CPCOutputs, NegativeSampler, Rule, UserError

#: Above every cost; finite, so that differences are no NaN.
FAR = 1e30


class Aligned(NamedTuple):
    """What is known of each anchor and prediction, (k, b, a); zero where not counted.

    Candidates, and what follows them, are means over the frames of the prediction.
    """

    counted: Float[Array, "..."]
    """1 where all frames exist and have a negative."""
    frames: Float[Array, "..."]
    """Frames that the prediction is aligned to; over the predictions they add up to F."""
    loss: Float[Array, "..."]
    n: Float[Array, "..."]
    log_n: Float[Array, "..."]
    chance: Float[Array, "..."]
    top1: Float[Array, "..."]
    pairwise: Float[Array, "..."]


def acpc_loss(
    outputs: CPCOutputs,
    positions: AnyPosition,
    rule: Rule,
    *,
    num_frames: int,
    best: bool = False,
    choose: NegativeSampler | None = None,
    temperature: Number = 1.0,
    rng: Array | None = None,
    where: Bool[Array, "b t ..."] | None = None,
    block: int | None = None,
) -> tuple[Float[Array, ""], OffsetSums, Float[Array, " k"]]:
    """Mean over anchors of K / F times the cost of the alignment of F frames to K predictions.

    L = K / F mean_t C_t,  C_t = -log sum_paths prod_f p(z_(t+f) | path_f), or of the best path,

    p(z_(t+f) | k) = e^s_k(t, t+f) / sum_(candidates) e^s_k, as InfoNCE has it; the candidates are
    the frame itself and the negatives that the rule allows at offset f. With as many frames as
    predictions it is `cpc_loss` of the anchors that have all F latents ahead. It bounds no
    information: the path is chosen by the frames that it is to predict, so that at equal scores the
    sum's C is F log N - log binom(F - 1, K - 1).

    Args:
      outputs, positions, rule, temperature, rng, where: as those of `cpc_loss`.
      num_frames: F. Anchors with fewer latents ahead count for nothing.
      best: whether the best path counts alone, instead of all by their likelihood.
      choose: picks from the allowed, for each frame and prediction by itself.
      block: by default as many as keep K r n scores under 256 MB, or 1 GB off the CPU.

    Returns:
      The loss in nats; sums over anchors of each prediction; mean frames of each prediction.

    """
    check_arguments(outputs, positions, rule, info_nce, choose)
    shape, (num, width) = outputs.z.shape[:-1], outputs.predictions.shape[-2:]
    if not num <= num_frames < shape[1]:
        raise UserError(
            f"{num} predictions are aligned to {num_frames} frames of sequences of {shape[1]} "
            "latents: align them to as many frames or more, and fewer than there are latents"
        )
    check("temperature", temperature, above=0)
    if block is not None:
        check("block", block, least=1)
    (z, _, predictions), anchors = read_batch(outputs, positions, where)
    plan = Plan(rule, None, choose, tuple(range(1, num_frames + 1)), block, None, rule.shard_size)
    fits = check_layout(positions, where, shape, plan, False)
    check_batch(positions, shape, plan)
    b = shape[0]
    num_shards = plan.num_shards(b)

    def split(x):  # (b, ...) -> (shards, b / shards, ...)
        return x.reshape(num_shards, b // num_shards, *x.shape[1:])

    queries = jnp.moveaxis(predictions, -2, 1).reshape(b, num, -1, width)
    queries = jnp.moveaxis(split(divide(queries, temperature, z.dtype)), 2, 1)
    if block is None:
        n = anchors.exists.size // num_shards
        block = block_size(num * n, num * n)
    plan = plan._replace(block=max(1, block // num_shards))
    queries, z, anchors = vary_alike((queries, z, anchors))
    rng = jax.random.key(0) if rng is None else rng

    def of_shard(queries, keys, anchors):  # (k, b, a, d), (b, a, d): all are candidates, too
        candidates = jax.tree.map(jnp.ravel, anchors)
        keys = keys.reshape(-1, width)
        return _summed_costs(queries, keys, anchors, candidates, rng, plan, best)

    costs, found = jax.vmap(of_shard)(
        queries, split(z.reshape(b, -1, width)), jax.tree.map(split, anchors)
    )
    found = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(num, b, -1), found)
    sums = sum_sequences(found.counted, *found[2:])
    scale = num / num_frames / jnp.maximum(sums.anchors[0], 1.0)
    total = scale * costs.sum()
    frames = found.frames.sum((1, 2)) / jnp.maximum(sums.anchors, 1.0)
    return mark_misfit(total, sums.anchors, fits, b == 1 and where is None), sums, frames


def path_cost(costs: Float[Array, "*m f k"], best: bool = False) -> Float[Array, "*m"]:
    """Return the cost of aligning frames to predictions, summed over frames.

    C = -log sum_paths e^(-sum_f costs[f, path_f]), or min_paths sum_f costs[f, path_f]

    costs[f, k] is that of frame f under prediction k; there are no fewer frames than predictions. A
    cost of -log p makes the first the likelihood of the frames when all paths are as likely.

    Equal costs are those of F frames, less the logarithm of the number of paths:

    >>> path_cost(jnp.ones((4, 2))) - (4.0 - jnp.log(3.0))
    Array(0., dtype=float32)
    """

    def one_frame(total, cost):
        before = jnp.pad(
            total[..., :-1], [(0, 0)] * (total.ndim - 1) + [(1, 0)], constant_values=FAR
        )
        reached = jnp.minimum(total, before) if best else -jnp.logaddexp(-total, -before)
        return cost + reached, None

    frames = jnp.moveaxis(costs.astype(jnp.float32), -2, 0)
    first = jnp.where(jnp.arange(costs.shape[-1]) == 0, frames[0], FAR)
    return jax.lax.scan(one_frame, first, frames[1:])[0][..., -1]


def path_weights(costs: Float[Array, "*m f k"], best: bool = False) -> Float[Array, "*m f k"]:
    """Return how likely each frame is each prediction's: the derivatives of the cost by the costs.

    Of each frame they add up to 1; under `best` they are 1 along the path, which ties share.
    No gradient.

    >>> path_weights(jnp.array([[0.0, 9.0], [0.0, 9.0], [9.0, 0.0]]), best=True).tolist()
    [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    costs = jax.lax.stop_gradient(costs.astype(jnp.float32))
    total = functools.partial(path_cost, best=best)
    return jax.grad(lambda costs: total(costs).sum())(costs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _summed_costs(queries, keys, anchors, candidates, rng, plan, best):
    found = _all_blocks(queries, keys, anchors, candidates, rng, plan, best, gradients=False)
    return found[:2]


def _forward(queries, keys, anchors, candidates, rng, plan, best):
    cost, found, *gradients = _all_blocks(
        queries, keys, anchors, candidates, rng, plan, best, gradients=True
    )
    return (cost, found), gradients


def _backward(plan, best, gradients, cotangents):
    dqueries, dkeys = ((cotangents[0] * x).astype(x.dtype) for x in gradients)
    return dqueries, dkeys, None, None, None


_summed_costs.defvjp(_forward, _backward)


def _all_blocks(queries, keys, anchors, candidates, rng, plan, best, gradients):
    """The sum of costs, `Aligned` of each anchor, and the derivatives of the sum."""
    _, b, a, _ = queries.shape
    # Blocks are cut along the latents of a sequence, not along b, which devices share.
    size = min(a, max(1, plan.block // b))
    num_blocks = -(-a // size)

    def cut(x, axis, fill=0):  # (..., a, ...) -> (blocks, ..., size, ...)
        pads = [(0, 0)] * x.ndim
        pads[axis] = (0, num_blocks * size - a)
        x = jnp.pad(x, pads, constant_values=fill)
        return jnp.moveaxis(
            x.reshape(*x.shape[:axis], num_blocks, size, *x.shape[axis + 1 :]), axis, 0
        )

    def one_block(dkeys, inputs):
        index, q, here = inputs
        key = jax.random.fold_in(rng, index)

        def cost_of(q, keys):
            return _align_block(q, keys, here, candidates, key, plan, best)

        if not gradients:
            cost, found = cost_of(q, keys)
            return None, (cost, found, None)
        (cost, found), (dq, more) = jax.value_and_grad(cost_of, (0, 1), has_aux=True)(q, keys)
        return dkeys + more.astype(jnp.float32), (cost, found, dq)

    positions = jax.tree.map(lambda p: cut(p, 1, -1), anchors.positions)
    blocks = Latents(positions, cut(anchors.exists, 1, False))
    zero = jnp.zeros(keys.shape, jnp.float32) if gradients else None
    zero, _ = vary_alike((zero, keys))
    inputs = (jnp.arange(num_blocks), cut(queries, 2), blocks)
    dkeys, (costs, found, dqueries) = jax.lax.scan(one_block, zero, inputs)

    def join(x):  # (blocks, k, b, size, ...) -> (k, b, a, ...)
        x = jnp.moveaxis(x, 0, 2)
        return x.reshape(*x.shape[:2], -1, *x.shape[4:])[:, :, :a]

    found, dqueries = jax.tree.map(join, (found, dqueries))
    return costs.sum(), found, dqueries, None if dkeys is None else dkeys.astype(keys.dtype)


def _align_block(q, keys, anchors, candidates, rng, plan, best):
    """The sum of costs of some anchors (b, a) with queries (k, b, a, d), and `Aligned` of each."""
    k, b, a, d = q.shape
    num_frames, rows = len(plan.offsets), jax.tree.map(jnp.ravel, anchors)
    scores = jnp.matmul(q.reshape(-1, d), keys.T, preferred_element_type=jnp.float32)
    scores = scores.reshape(k, b * a, -1)

    @jax.checkpoint  # the exponentials of one frame are in memory at a time
    def one_frame(f):
        is_frame = find_positives(rows, candidates, f)
        allowed = find_negatives(rows, candidates, plan.rule, f) & ~is_frame
        where = jnp.broadcast_to(allowed & is_frame.any(-1, keepdims=True), scores.shape)
        positive = jnp.where(is_frame, scores, 0.0).sum(-1).ravel()
        negatives, where = (x.reshape(-1, x.shape[-1]) for x in (scores, where))
        if plan.choose is not None:
            negatives, where = plan.choose(jax.random.fold_in(rng, f), positive, negatives, where)
        loss = info_nce(positive, negatives, where)
        return anchor_scores(loss, positive, negatives, where)

    frames: AnchorScores = jax.lax.map(one_frame, jnp.array(plan.offsets))
    frames = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(num_frames, k, -1), -1, 0), frames)
    costs, counted = frames.loss, (frames.counted > 0).all((1, 2))  # (m, f, k), (m,)
    cost = jnp.where(counted, path_cost(costs, best), 0.0)
    found = _describe_anchors(jax.lax.stop_gradient((frames, cost)), counted, best)
    return cost.sum(), jax.tree.map(lambda x: x.T.reshape(k, b, a), found)


def _describe_anchors(given: Any, counted: Any, best: bool) -> Aligned:
    """`Aligned` of anchors (m, k), from the scores of each frame and prediction (m, f, k)."""
    (frames, cost), (_, num_frames, k) = given, given[0].loss.shape
    weights = path_weights(frames.loss, best) * counted[:, None, None]
    number = weights.sum(1)
    own = (weights * frames.loss).sum(1)
    # The cost of all paths is below the mean of theirs; the difference is shared alike.
    loss = k / num_frames * (own + (cost - own.sum(-1))[:, None] / k)

    def mean(x):
        return (weights * x).sum(1) / jnp.maximum(number, 1.0)

    n = 1 + frames.num_negatives
    return Aligned(
        counted=jnp.broadcast_to(counted[:, None], number.shape).astype(jnp.float32),
        frames=number,
        loss=loss,
        n=mean(n),
        log_n=mean(jnp.log(n)),
        chance=mean(1 / n),
        top1=mean(frames.rank == 0),
        pairwise=mean(frames.wins / jnp.maximum(frames.num_negatives, 1.0)),
    )
