"""The loss of contrastive predictive coding at each offset, over the global batch."""

import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from cpc.losses.aligned import aligned_losses
from cpc.losses.blocks import AnchorLoss, LossReducer, Plan, takes_groups, takes_least
from cpc.losses.info_nce import bound_temperature, info_nce
from cpc.losses.layout import check_negatives, is_grid, is_in_shards
from cpc.losses.masking import Number, broadcasts_to, check, divide, read_mask
from cpc.losses.sharded import sharded_losses
from cpc.losses.tiles import AnchorScores, Latents, vary_alike
from cpc.types import (
    AnyPosition,
    CPCOutputs,
    NegativeSampler,
    Rule,
    UserError,
    check_array,
    check_function,
    check_type,
)


class OffsetSums(NamedTuple):
    """Sums over the counted anchors of each offset, shape (k,): they add up over steps.

    Anchors without a negative are not counted. a_b is the number of a sequence's anchors. u_b is
    the sum of log N_i - L_i over them, less the weight that it receives as a negative of
    other sequences (`cpc.losses.influence`). Their moments give the interval of log N - L.
    """

    anchors: Float[Array, " k"]
    loss: Float[Array, " k"]
    n: Float[Array, " k"]
    """Candidates N_i, the positive included."""
    log_n: Float[Array, " k"]
    chance: Float[Array, " k"]
    """1 / N_i: how often a guess beats every negative."""
    top1: Float[Array, " k"]
    """Anchors whose positive beats every negative; a tie is lost."""
    pairwise: Float[Array, " k"]
    """Fraction of negatives that the positive beats; a tie counts one half."""
    sequences: Float[Array, " k"]
    projection: Float[Array, " k"]
    """Sum over sequences of u_b."""
    value_squared: Float[Array, " k"]
    """Sum over sequences of u_b^2."""
    value_anchors: Float[Array, " k"]
    """Sum over sequences of u_b a_b."""
    anchors_squared: Float[Array, " k"]
    """Sum over sequences of a_b^2."""


class MemoryBank(NamedTuple):
    """Latents of earlier batches, as further candidates: they get no gradient."""

    keys: Float[Array, "n d"]
    positions: AnyPosition
    """Of the keys, (n,); their sequences are none of the batch's."""
    exists: Bool[Array, " n"]
    """The other keys may hold NaN."""


def cpc_loss(
    outputs: CPCOutputs,
    positions: AnyPosition,
    rule: Rule,
    *,
    maps: Float[Array, "k h d"] | None = None,
    loss: AnchorLoss = info_nce,
    choose: NegativeSampler | None = None,
    temperature: Number = 1.0,
    bias: Number = 0.0,
    rng: Array | None = None,
    where: Bool[Array, "b t ..."] | None = None,
    offsets: tuple[int, ...] | None = None,
    memory: MemoryBank | None = None,
    block: int | None = None,
    columns: int | None = None,
    reducer: LossReducer | None = None,
) -> tuple[Float[Array, ""], OffsetSums]:
    """Sum over offsets k of the mean loss of the anchors that have a latent k ahead.

    L = sum_k mean_(anchors t) -log [ e^s(t, t+k) / sum_(candidates) e^s ],  s = z . (W_k c_t) / tau

    (van den Oord et al. 2018, eq. 4), or another loss of the positive's and negatives' scores.
    Candidates are the positive and all latents of the batch that the rule allows; the batch is the
    global one, however many devices hold it.

    Args:
      outputs: z (b, t, ..., d) and predictions (b, t, ..., k, d).
      positions: of the latents; arrays that broadcast to (b, t, ...).
      rule: which candidates may be negatives. Pairs that its `aligned` and `shard_size` exclude are
        not scored: 1 / t, or 1 / shards, of the work. Then times must count upwards, from the same
        in all sequences and in the same lanes, or sequences must come shard by shard.
      maps: the W_k, where predictions are W_k c and nothing more. Where contexts are narrower than
        latents, on one device, scores are then made as c . (W_k^T z): the same numbers to rounding
        in fewer operations. Gradients go to c and to the maps, and none to the predictions.
      loss: of each anchor, such as those of this package, with their options bound; those that
        `functools.partial` binds may be learned. InfoNCE, its temperature bound or not, has its
        derivative by hand and can be cut. Under SupCon all allowed candidates of the anchor's group
        are positives, too, without `choose`. Debiased and hard-weighted losses want z and
        predictions of length 1; their floor follows tau.
      choose: choose(rng, positive, negatives, where) -> (negatives, where) picks from the allowed.
      temperature: tau.
      bias: added to every score, for losses that are not blind to it (sigmoid, nce). Debiased and
        hard-weighted losses take none.
      rng: for `choose`.
      where: latents that exist; padding is neither anchor, positive nor candidate.
      offsets: what the predictions are of, ascending; 1 to k by default.
      memory: further candidates.
      block: anchors scored at a time, by default 512 or more on a CPU and 8192 elsewhere; changes
        memory and speed, not the result (with a random `choose`, it changes which negatives are
        drawn). `loss_bytes` says what it takes; that it fits is not checked.
      columns: candidates scored at a time, for InfoNCE without `choose`; by default all of them
        while a block's scores fit 256 MB, or 1 GB off the CPU. Changes memory and speed alone.
      reducer: how the losses are summed: None for one device, or where the compiler shards out
        the work; that of `cpc.parallel.make_reducer` for a batch that devices share.

    Returns:
      The loss in nats, and per offset the sums that metrics are made of. An offset at which no
      anchor has a negative adds nothing. If no anchor has one at any offset, known positions are
      refused; if they are traced, the loss of a single sequence is NaN, and that of several, whose
      groups may leave none by chance, is 0. It is 0 also where padding leaves none.

    Raises:
      UserError: an argument of another type; positions, if they are known, that are not what the
        rule's structure takes for granted (where they are traced, the loss is NaN), or under which
        no anchor has a positive or a negative; not one anchor has a latent that many steps ahead; a
        temperature not above 0; a bias of a loss with a floor; offsets that are not as many as the
        predictions; block or columns below 1; z, predictions and positions whose shapes do not fit;
        where of another shape than the latents, or not of booleans; maps that do not lead from
        contexts to predictions; memory of another width than the latents.
    """
    check_arguments(outputs, positions, rule, loss, choose)
    check_inputs(outputs, positions, maps, memory)
    for name, value in (("block", block), ("columns", columns)):
        if value is not None:
            check(name, value, least=1)
    *latents, num_offsets, width = outputs.predictions.shape
    offsets = tuple(range(1, num_offsets + 1)) if offsets is None else offsets
    _check_offsets(offsets, num_offsets, latents[1])
    check("temperature", temperature, above=0)
    own_temperature = bound_temperature(loss)
    if own_temperature is not None:
        check("temperature", own_temperature, above=0)
        temperature = temperature * own_temperature
    exists = read_mask("where", where, tuple(latents))
    z, c, predictions = outputs if where is None else hide_padding(outputs, where)
    anchors = flatten_latents(positions, exists)
    keys, candidates = z.reshape(-1, width), jax.tree.map(jnp.ravel, anchors)
    if memory is not None:
        keys, candidates = add_memory(keys, candidates, memory)
    has_bias = not isinstance(bias, int | float) or bias != 0
    if has_bias and takes_least(loss):
        raise UserError(
            "bias is added to every score, and debiased and hard-weighted losses have the floor of "
            "cosines without one: leave bias=0, or choose a loss such as sigmoid"
        )
    if takes_least(loss):  # of cosines divided by tau; learned, it moves the floor, too
        loss = functools.partial(cast(Any, loss), least=-1.0 / temperature)
    is_whole = memory is not None  # its latents are of no row of the batch
    shard_size = None if is_whole else rule.shard_size
    of_loss = None if own_temperature is not None else loss
    plan = Plan(rule, of_loss, choose, offsets, block, columns, shard_size, latents[0])
    is_aligned = rule.aligned and not is_whole
    fits = check_layout(positions, where, tuple(latents), plan, is_aligned)
    if memory is None:
        check_batch(positions, tuple(latents), plan)
    b = latents[0]
    if (
        maps is not None
        and reducer is None  # others share out one set of keys for all offsets
        and not is_aligned
        and projection_pays(anchors.exists.size, len(keys), *maps.shape[1:])
    ):
        c = c.reshape(b, -1, c.shape[-1])
        queries, keys = jnp.broadcast_to(c, (num_offsets, *c.shape)), project(keys, maps)
    else:
        queries = jnp.moveaxis(predictions, -2, 0).reshape(num_offsets, b, -1, width)
    queries = divide(queries, temperature, z.dtype)
    if has_bias:  # as one more dimension of the dot product
        queries, keys = _append(queries, bias), _append(keys, 1.0)
    queries, keys, anchors, candidates = vary_alike((queries, keys, anchors, candidates))
    rng = jax.random.key(0) if rng is None else rng
    if is_aligned:
        keys, num_lanes = keys.reshape(b, -1, keys.shape[-1]), anchors.exists.shape[1] // latents[1]
        result: Any = aligned_losses(queries, keys, anchors, rng, plan, num_lanes)
    else:
        result = (reducer or sharded_losses)(queries, keys, anchors, candidates, rng, plan)
    losses, scores, received = result
    sums = sum_anchors(scores, received)
    total = (losses / jnp.maximum(sums.anchors, 1.0)).sum()
    if b == 1 and where is None and memory is None:  # of more, groups may leave none by chance
        fits &= sums.anchors.any()
    return total if fits is True else jnp.where(fits, total, jnp.nan), sums


def check_arguments(outputs: Any, positions: Any, rule: Any, loss: Any, choose: Any) -> None:
    """Check that each argument is of its type, which nothing else would say before the depths.

    Raises:
      UserError: naming the argument and what to pass.
    """
    check_type("outputs", outputs, CPCOutputs, "pass CPCOutputs(z, c, predictions)")
    check_type("positions", positions, AnyPosition, "pass Position.grid(b, t) of cpc.types")
    fix = "pass a rule such as cpc.negatives.batch, or Rule(name, function)"
    check_type("rule", rule, Rule, fix)
    fix = "pass a function (positive, negatives, where) such as cpc.losses.info_nce"
    check_function("loss", loss, 3, fix)
    if choose is not None:
        fix = "pass a sampler such as cpc.negatives.uniform_draws(16)"
        check_function("choose", choose, 4, fix)


def check_batch(positions: AnyPosition, shape: tuple[int, ...], plan: Plan) -> None:
    """Check that some latent of the shape has a negative, if the positions are known.

    Raises:
      UserError: none has.
    """

    def allows(anchor, candidate, offset):
        allowed = plan.rule(anchor, candidate, offset)
        if plan.loss is None or not takes_groups(plan.loss):
            return allowed
        return allowed & ((anchor.group != candidate.group) | (anchor.group < 0))

    if not any(isinstance(p, Tracer) for p in positions):
        flat = jax.tree.map(lambda p: np.broadcast_to(p, shape).ravel(), positions)
        name = getattr(plan.rule, "name", "given")
        check_negatives(flat, flat, Rule(name, allows), plan.offsets)


def check_inputs(
    outputs: CPCOutputs,
    positions: AnyPosition,
    maps: Float[Array, "k h d"] | None,
    memory: MemoryBank | None,
) -> None:
    """Refuse arrays whose shapes do not fit each other.

    Raises:
      UserError: naming the shapes.
    """
    z, c, predictions = outputs
    check_shapes(z, predictions, positions)
    if maps is not None:
        _check_maps(maps, c, predictions)
    if memory is not None:
        check_type("memory", memory, MemoryBank, "pass MemoryBank(keys, positions, exists)")
    if memory is not None and memory.keys.shape != (*memory.exists.shape, z.shape[-1]):
        raise UserError(
            f"the memory's keys have shape {memory.keys.shape}: they must be as wide as z, "
            f"{z.shape[-1]}, and as many as its exists, {memory.exists.shape}"
        )


def hide_padding(outputs: CPCOutputs, where: Bool[Array, "b t ..."]) -> CPCOutputs:
    """Zeros where there is padding, which may hold anything: 0 * NaN is NaN."""
    z, c, predictions = outputs
    return CPCOutputs(
        jnp.where(where[..., None], z, 0.0),
        jnp.where(where[..., None], c, 0.0),
        jnp.where(where[..., None, None], predictions, 0.0),
    )


def add_memory(
    keys: Float[Array, "n d"], candidates: Latents, memory: MemoryBank
) -> tuple[Float[Array, "m d"], Latents]:
    """Return the keys and candidates of the batch, and those of the memory after them."""
    held = jnp.where(memory.exists[:, None], memory.keys, 0)  # empty slots may hold anything
    keys = jnp.concatenate([keys, jax.lax.stop_gradient(held).astype(keys.dtype)])
    further = Latents(memory.positions, memory.exists)
    return keys, jax.tree.map(lambda *x: jnp.concatenate(x), candidates, further)


def check_shapes(z: Array, predictions: Array, positions: AnyPosition) -> None:
    """Refuse predictions and positions that are not of the latents.

    Raises:
      UserError: naming the shapes.
    """
    check_array("z", z)
    check_array("predictions", predictions)
    *latents, width = z.shape
    num_offsets = predictions.shape[-2] if predictions.ndim > 1 else 0
    if z.ndim < 3 or not num_offsets or predictions.shape != (*latents, num_offsets, width):
        raise UserError(
            f"z has shape {z.shape} and predictions {predictions.shape}: they must be "
            "(b, t, ..., d) and (b, t, ..., k, d), with k of 1 or more"
        )
    for name, each in positions._asdict().items():
        if not isinstance(each, int):
            check_array(f"the positions' {name}", each, np.integer)
        if not broadcasts_to(jnp.shape(each), tuple(latents)):
            raise UserError(
                f"the positions' {name} has shape {jnp.shape(each)}: it must broadcast to that of "
                f"the latents, {tuple(latents)}"
            )


def check_layout(
    positions: AnyPosition, where: Any, shape: tuple[int, ...], plan: Any, is_aligned: bool
) -> Any:
    """Return True where the positions are what the structure of the rule takes for granted.

    A traced boolean where they are traced; positions that are known, and are not, are refused.
    """
    num_shards = plan.num_shards(shape[0])
    if is_aligned:
        fits = is_grid(positions, where, shape)
    elif num_shards > 1:
        fits = is_in_shards(positions, where, shape, plan.shard_size)
    else:
        return True
    if fits is False:
        name = plan.rule.name
        raise UserError(
            f"under the rule {name} the times of all sequences must count upwards from the same, "
            "in the same lanes: leave no gap, or pass Rule.aligned=False for the whole batch"
            if is_aligned
            else f"under the rule {name} each {plan.shard_size} sequences after each other must be "
            "a shard: sort the batch by sequence, or pass Rule.shard_size=None"
        )
    return fits


def _check_maps(maps, c, predictions):
    """One map an offset leads from the width of the contexts to that of the predictions."""
    *latents, num_offsets, width = predictions.shape
    wanted = (num_offsets, c.shape[-1], width)
    if maps.shape != wanted or c.shape[:-1] != tuple(latents):
        raise UserError(
            f"maps has shape {maps.shape}, c {c.shape} and predictions {predictions.shape}: they "
            "must be (k, h, d), (b, t, ..., h) and (b, t, ..., k, d)"
        )


def _check_offsets(offsets, num_offsets, length):
    """Offsets ascend, one a prediction, and some anchor has a latent that far ahead."""
    fix = f"name {num_offsets} whole numbers, one a prediction, each above the one before"
    check_type("offsets", offsets, tuple | list | range | np.ndarray, fix)
    ascend = all(a < b for a, b in zip((0, *offsets), offsets, strict=False))
    if len(offsets) != num_offsets or not ascend or any(int(k) != k for k in offsets):
        raise UserError(f"offsets do not fit the predictions (got {tuple(offsets)}): {fix}")
    if max(offsets) >= length:
        raise UserError(
            f"an offset of {max(offsets)} needs sequences of more than {max(offsets)} latents, but "
            f"these have {length}: predict fewer latents ahead, or lengthen the window"
        )


def flatten_latents(positions: AnyPosition, exists: Bool[Array, "b t ..."]) -> Latents:
    """Return the latents of each sequence in a row: (b, t, ...) -> (b, a)."""

    def flatten(x):
        return jnp.broadcast_to(x, exists.shape).reshape(len(exists), -1)

    return jax.tree.map(flatten, Latents(positions, exists))


def projection_pays(m: int, n: int, h: int, d: int) -> bool:
    """Whether n candidates brought down to the width of m contexts take fewer operations.

    n d h + m n h for candidates and scores, against m d h + m n d for predictions and scores.

    >>> projection_pays(1024, 1024, 256, 512), projection_pays(1024, 100_000, 500, 512)
    (True, False)
    """
    return n * d * h + m * n * h < m * d * h + m * n * d


def project(keys: Float[Array, "n d"], maps: Float[Array, "k h d"]) -> Float[Array, "k n h"]:
    """W_k^T z: the candidates of each offset, as wide as the contexts."""
    # One product an offset: of a single one for all, the offsets would have to be moved outwards.
    return jnp.stack([keys @ w.T for w in maps.astype(keys.dtype)])


def _append(x, value):
    """The value as a last column: spread in float32, so that its gradient is summed in float32."""
    column = jnp.broadcast_to(jnp.asarray(value, jnp.float32), x[..., :1].shape)
    return jnp.concatenate([x, column.astype(x.dtype)], -1)


def sum_anchors(scores: AnchorScores, received: Float[Array, "k b"] | None = None) -> OffsetSums:
    """Sums over the anchors (..., b, a) of each offset; no gradient.

    `received` are the sequences' weights as negatives of each other (`cpc.losses.influence`), None
    if they are negatives of none.
    """
    n = scores.num_candidates
    return sum_sequences(
        scores.counted,
        scores.loss,
        n,
        jnp.log(jnp.maximum(n, 1.0)),
        scores.counted / jnp.maximum(n, 1.0),
        scores.counted * (scores.rank == 0),
        scores.wins / jnp.maximum(scores.num_negatives, 1.0),
        received,
    )


def sum_sequences(
    counted: Float[Array, "k b a"],
    loss: Float[Array, "k b a"],
    n: Float[Array, "k b a"],
    log_n: Float[Array, "k b a"],
    chance: Float[Array, "k b a"],
    top1: Float[Array, "k b a"],
    pairwise: Float[Array, "k b a"],
    received: Float[Array, "k b"] | None = None,
) -> OffsetSums:
    """Return the sums of what is known of each anchor, 0 where it is not counted; no gradient."""
    known = jax.lax.stop_gradient((counted, loss, n, log_n, chance, top1, pairwise, received))
    known = jax.tree.map(lambda x: x.astype(jnp.float32), known)
    counted, loss, n, log_n, chance, top1, pairwise, received = known
    own_anchors, own_values = counted.sum(-1), (log_n - loss).sum(-1)  # (k, b)
    if received is not None:
        own_values -= received
    return OffsetSums(
        anchors=own_anchors.sum(-1),
        loss=loss.sum((-2, -1)),
        n=n.sum((-2, -1)),
        log_n=log_n.sum((-2, -1)),
        chance=chance.sum((-2, -1)),
        top1=top1.sum((-2, -1)),
        pairwise=pairwise.sum((-2, -1)),
        sequences=(own_anchors > 0).astype(jnp.float32).sum(-1),
        projection=own_values.sum(-1),
        value_squared=jnp.square(own_values).sum(-1),
        value_anchors=(own_values * own_anchors).sum(-1),
        anchors_squared=jnp.square(own_anchors).sum(-1),
    )
