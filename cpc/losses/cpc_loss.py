"""The contrastive predictive coding loss at each offset, over the global batch."""

import functools
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from cpc.losses.blocks import (
    LossReducer,
    Plan,
    anchor_scores,
    received_weights,
    sharded_losses,
    take_traced,
)
from cpc.losses.inputs import check_arguments, check_batch, check_layout, mark_misfit, read_batch
from cpc.losses.masking import Number, divide
from cpc.losses.noise_contrastive import info_nce
from cpc.losses.table import AnchorLoss, describe
from cpc.losses.tiles import AnchorScores, Latents, compare, match_varying_axes, same_group_mask
from cpc.types import (
    AnyPosition,
    CPCOutputs,
    NegativeSampler,
    Rule,
    UserError,
    check_number,
    check_shape,
    check_type,
)


class OffsetSums(NamedTuple):
    """Sums over the counted anchors at each offset, (k,). They can be added over training steps.

    Anchors without a negative are not counted. For each sequence b, a_b is the number of its
    counted anchors, and u_b is their sum of log N_i - L_i minus the weight that the sequence
    receives as a negative (`cpc.losses.blocks.received_weights`). The moments of a_b and u_b give
    the confidence interval of log N - L.
    """

    anchors: Float[Array, " k"]
    loss: Float[Array, " k"]
    n: Float[Array, " k"]
    """Number of candidates N_i, including the positive."""
    log_n: Float[Array, " k"]
    chance: Float[Array, " k"]
    """1 / N_i, the probability that a random guess ranks the positive first."""
    top1: Float[Array, " k"]
    """Number of anchors whose positive scores higher than every negative."""
    pairwise: Float[Array, " k"]
    """Fraction of negatives that score lower than the positive. A tie counts as one half."""
    sequences: Float[Array, " k"]
    projection: Float[Array, " k"]
    """Sum of u_b over sequences. The next fields are the sums of u_b^2, u_b a_b and a_b^2."""
    value_squared: Float[Array, " k"]
    value_anchors: Float[Array, " k"]
    anchors_squared: Float[Array, " k"]


class MemoryBank(NamedTuple):
    """Latents of earlier batches, used as additional candidates without a gradient."""

    keys: Float[Array, "n d"]
    positions: AnyPosition
    """Positions of the keys, (n,). Their sequences must not occur in the batch."""
    mask: Bool[Array, " n"]
    """Mask of the keys. Masked keys may be NaN."""


class CPCOptions(TypedDict, total=False):
    """Further keyword arguments of `cpc_loss`, documented there."""

    maps: Float[Array, "k h d"] | None
    memory: MemoryBank | None
    block: int | None
    columns: int | None
    reducer: LossReducer | None


def cpc_loss(
    outputs: CPCOutputs,
    positions: AnyPosition,
    rule: Rule,
    *,
    loss: AnchorLoss = info_nce,
    sampler: NegativeSampler | None = None,
    temperature: Number = 1.0,
    bias: Number = 0.0,
    rng: Array | None = None,
    where: Bool[Array, "b t ..."] | None = None,
    offsets: tuple[int, ...] | None = None,
    **options: Unpack[CPCOptions],
) -> tuple[Float[Array, ""], OffsetSums]:
    """Return the contrastive predictive coding loss, summed over offsets and averaged over anchors.

    L = sum_k mean_(anchors t) -log [ e^s(t, t+k) / sum_(candidates) e^s ],  s = z . (W_k c_t) / tau

    (van den Oord et al. 2018, eq. 4), or another loss of the same scores. An anchor at offset k is
    a context with a latent k steps ahead. This latent is its positive. An anchor's candidates are
    its positive and all latents that the rule allows in the batch, over all devices.

    Args:
      outputs: z (b, t, ..., d) and predictions (b, t, ..., k, d).
      positions: positions of the latents, as arrays that broadcast to (b, t, ...).
      rule: decides which candidates may be negatives. If it is `aligned`, all sequences must have
        the same lanes and consecutive times from the same start. If it has a `shard_size`, the
        sequences must be ordered by shard. Pairs that these two exclude are not scored.
      loss: loss per anchor, such as those of this package. Options bound by `functools.partial` may
        be learned. InfoNCE has a hand-written derivative and can be tiled. SupCon's positives also
        include all allowed candidates of the anchor's group, and it ignores `sampler`. Debiased and
        hard-weighted losses need z and predictions of unit length. Their floor is -1 / tau.
      sampler: sampler(rng, positive, negatives, where) -> (selected negatives, their mask).
      bias: added to every score, for sigmoid or nce. Debiased and hard-weighted losses need 0.
      where: mask of the latents. Masked latents are not used as anchors, positives or candidates.
      offsets: offsets of the predictions, in ascending order. Defaults to 1 to k.
      maps: the matrices W_k, if predictions are exactly W_k c. On one device, if contexts are
        narrower than latents, scores are computed as c . (W_k^T z). This needs fewer operations and
        is equal up to rounding. Gradients then flow to c and the maps, not to the predictions.
      block: number of anchors scored at a time, by default at least 512 on a CPU and 8192
        elsewhere. It affects only memory and speed, except that a random `sampler` draws different
        negatives.
      columns: number of candidates scored at a time, for InfoNCE without `sampler`. By default all
        are, if the scores of a block fit in 256 MB on a CPU or 1 GB elsewhere.
      reducer: function that sums the losses. Pass `cpc.parallel.make_reducer` if the batch is
        sharded over devices, or None if there is one device or the compiler shards the work.

    Returns:
      The loss in nats, and the sums per offset from which metrics are computed. An offset at which
      no anchor has a negative adds 0.

    Raises:
      UserError: an argument is invalid, no anchor has a positive or a negative, or the positions do
        not have the structure that the rule assumes. If positions are traced, the loss is NaN
        without the structure, or if an unmasked single sequence has no negative. In other batches
        without negatives it is 0, because groups or padding may exclude them by chance.
    """
    check_arguments(outputs, positions, rule, loss, sampler)
    maps, memory, block, columns, reducer = _read_options(outputs, **options)
    shape, num_offsets = outputs.z.shape[:-1], outputs.predictions.shape[-2]
    offsets = tuple(range(1, num_offsets + 1)) if offsets is None else offsets
    _check_offsets(offsets, num_offsets, shape[1])
    of_loss, temperature = _read_loss(loss, temperature, bias)
    is_whole = memory is not None  # latents in the memory do not belong to rows of the batch
    shard_size = None if is_whole else rule.shard_size
    plan = Plan(rule, of_loss, sampler, offsets, block, columns, shard_size, shape[0])
    is_aligned = rule.aligned and not is_whole
    outputs, latents = read_batch(outputs, positions, where)
    fits = check_layout(positions, where, shape, plan, is_aligned)
    if not is_whole:
        check_batch(positions, shape, plan)
    if is_aligned or reducer is not None:  # both need one set of keys for all offsets
        maps = None
    queries, keys, anchors, candidates = _make_arrays(
        outputs, latents, temperature, bias, maps, memory
    )
    rng = jax.random.key(0) if rng is None else rng
    if is_aligned:
        keys = keys.reshape(shape[0], -1, keys.shape[-1])
        num_lanes = keys.shape[1] // shape[1]
        result: Any = aligned_losses(queries, keys, anchors, rng, plan, num_lanes)
    else:
        result = (reducer or sharded_losses)(queries, keys, anchors, candidates, rng, plan)
    losses, scores, received = result
    sums = sum_anchors(scores, received)
    total = (losses / jnp.maximum(sums.anchors, 1.0)).sum()
    is_alone = shape[0] == 1 and where is None and not is_whole
    return mark_misfit(total, sums.anchors, fits, is_alone), sums


def _read_options(
    outputs, maps=None, memory=None, block=None, columns=None, reducer=None
) -> tuple[Any, ...]:
    """Validate the options against the outputs, and return them in the order of the arguments."""
    z, c, predictions = outputs
    if maps is not None:
        *latents, num_offsets, width = predictions.shape
        check_shape("c", c, *latents, "h")
        check_shape("maps", maps, num_offsets, c.shape[-1], width)
    if memory is not None:
        check_type("memory", memory, MemoryBank, "pass MemoryBank(keys, positions, mask)")
        check_shape("memory.keys", memory.keys, *memory.mask.shape, z.shape[-1])
    for name, value in (("block", block), ("columns", columns)):
        if value is not None:
            check_number(name, value, least=1)
    return maps, memory, block, columns, reducer


def _read_loss(loss, temperature, bias) -> tuple[AnchorLoss | None, Any]:
    """Return the loss with its floor, or None for InfoNCE, and the product of the temperatures."""
    check_number("temperature", temperature, above=0)
    about, bound = describe(loss), functools.partial(loss)
    if about.can_tile and not bound.args and bound.keywords.keys() <= {"temperature"}:
        own_temperature = bound.keywords.get("temperature", 1.0)
        check_number("temperature", own_temperature, above=0)
        return None, temperature * own_temperature
    if not about.has_floor:
        return loss, temperature
    if _has_bias(bias):
        problem = "bias shifts the scores, but the floor of the loss assumes cosines"
        raise UserError(f"{problem}: leave bias=0, or choose another loss, such as sigmoid")
    # The floor is the lowest cosine divided by tau, so it follows a learned tau.
    return functools.partial(loss, least=-1.0 / temperature), temperature


def _has_bias(bias):
    return not isinstance(bias, int | float) or bias != 0


def _make_arrays(outputs, anchors, temperature, bias, maps, memory) -> Any:
    """Return queries (k, b, a, d), keys (n, d) or (k, n, d), anchors (b, a) and candidates (n,)."""
    (z, c, predictions), (b, a) = outputs, anchors.mask.shape
    num_offsets, width = predictions.shape[-2:]
    context_width = c.shape[-1]
    keys, candidates = z.reshape(-1, width), jax.tree.map(jnp.ravel, anchors)
    if memory is not None:
        keys, candidates = add_memory(keys, candidates, memory)
    # Operations to project candidates and score contexts, and to predict and score predictions.
    projected = len(keys) * context_width * (width + b * a)
    predicted = b * a * width * (context_width + len(keys))
    if maps is not None and projected < predicted:
        queries = jnp.broadcast_to(c.reshape(b, a, -1), (num_offsets, b, a, context_width))
        # One product per offset, because a single product would need a transpose of the offsets.
        keys = jnp.stack([keys @ w.T for w in maps.astype(keys.dtype)])
    else:
        queries = jnp.moveaxis(predictions, -2, 0).reshape(num_offsets, b, a, width)
    queries = divide(queries, temperature, z.dtype)
    if _has_bias(bias):  # add the bias as one more dimension of the dot product
        queries, keys = _append(queries, bias), _append(keys, 1.0)
    return match_varying_axes((queries, keys, anchors, candidates))


def add_memory(
    keys: Float[Array, "n d"], candidates: Latents, memory: MemoryBank
) -> tuple[Float[Array, "m d"], Latents]:
    """Append the keys and candidates of the memory to those of the batch."""
    held = jnp.where(memory.mask[:, None], memory.keys, 0)  # empty slots may be NaN
    keys = jnp.concatenate([keys, jax.lax.stop_gradient(held).astype(keys.dtype)])
    further = Latents(memory.positions, memory.mask)
    return keys, jax.tree.map(lambda *x: jnp.concatenate(x), candidates, further)


def _check_offsets(offsets, num_offsets, length):
    """Check that offsets ascend, match the predictions and fit the length of the sequences."""
    fix = f"pass {num_offsets} ascending whole numbers, one per prediction"
    check_type("offsets", offsets, tuple | list | range | np.ndarray, fix)
    ascend = all(a < b for a, b in zip((0, *offsets), offsets, strict=False))
    if len(offsets) != num_offsets or not ascend or any(int(k) != k for k in offsets):
        raise UserError(f"offsets do not fit the predictions (got {tuple(offsets)}): {fix}")
    if max(offsets) >= length:
        problem = f"offset {max(offsets)} exceeds the sequences (got {length} latents)"
        raise UserError(f"{problem}: pass smaller offsets or longer sequences")


def _append(x, value):
    """Append a value as a column. Broadcasting in float32 also sums its gradient in float32."""
    column = jnp.broadcast_to(jnp.asarray(value, jnp.float32), x[..., :1].shape)
    return jnp.concatenate([x, column.astype(x.dtype)], -1)


def aligned_losses(
    queries: Float[Array, "k b a d"],
    keys: Float[Array, "b a d"],
    latents: Latents,
    rng: Array,
    plan: Plan,
    num_lanes: int,
) -> tuple[Float[Array, " k"], AnchorScores, Float[Array, "k b"]]:
    """Return `summed_losses` with one candidate per sequence, at the positive's time and lane.

    Skipping the other candidates, which the rule excludes, takes 1 / t of the operations. Latents
    are (b, a) with `num_lanes` entries for each time in order, as `inputs.is_grid` checks.
    """
    b, a = keys.shape[:2]
    loss: Any = plan.loss or info_nce
    plain, options = take_traced(loss)
    fixed: Any = functools.partial(plain, **jax.lax.stop_gradient(options))
    rows, received = [], []
    for i, k in enumerate(plan.offsets):

        def at_index(query, key, here, there, rng, k=k):  # (b, d) and (b,) for all sequences
            scores, allowed, positives = compare(query, key, here, there, plan.rule, k)
            allowed &= jnp.diagonal(positives)[:, None]
            alike = same_group_mask(here, there) if describe(loss).uses_group_positives else None

            def losses_of(scores, loss):
                return _losses_of(scores, loss, positives, allowed, alike, rng, plan.sampler)

            value, chosen = losses_of(scores, loss)
            found = anchor_scores(value, *chosen)
            weights = jax.grad(lambda scores: losses_of(scores, fixed)[0].sum())(
                jax.lax.stop_gradient(scores)
            )
            weights = jnp.where(found.counted[:, None] > 0, weights, 0.0)
            return found, received_weights(weights, jnp.arange(b))

        ahead = k * num_lanes
        here = jax.tree.map(lambda x, end=a - ahead: x[:, :end], latents)
        there = jax.tree.map(lambda x, start=ahead: x[:, start:], latents)
        rngs = jax.random.split(jax.random.fold_in(rng, k), a - ahead)
        scores, of_index = jax.vmap(at_index, in_axes=(1, 1, 1, 1, 0), out_axes=(1, 0))(
            queries[i, :, : a - ahead], keys[:, ahead:], here, there, rngs
        )
        rows.append(jax.tree.map(lambda x, n=ahead: jnp.pad(x, ((0, 0), (0, n))), scores))
        received.append(of_index.sum(0))
    scores = jax.tree.map(lambda *x: jnp.stack(x), *rows)
    return scores.loss.sum((1, 2)), scores, jnp.stack(received)


def _losses_of(scores, loss, positives, allowed, alike, rng, sampler):
    """Return the losses (b,) for scores (b, b), and (positive, negatives, where) of the anchors."""
    positive = jnp.diagonal(scores)
    if alike is not None:
        where, positives = allowed & ~alike, positives | (allowed & alike)
        value = loss(scores, scores, where, where_positive=positives)
        return value, (positive, scores, where)
    negatives, where = scores, allowed
    if sampler is not None:
        negatives, where = sampler(rng, positive, scores, allowed)
    return loss(positive, negatives, where), (positive, negatives, where)


def sum_anchors(scores: AnchorScores, received: Float[Array, "k b"] | None = None) -> OffsetSums:
    """Sum the anchors' statistics (..., b, a) at each offset, without a gradient.

    `received` are the `received_weights`, or None if sequences are not negatives of each other.
    """
    return sum_sequences(scores.counted, *anchor_numbers(scores), received=received)


def anchor_numbers(scores: AnchorScores) -> tuple[Float[Array, "..."], ...]:
    """Return each anchor's terms of the `OffsetSums` fields from `loss` to `pairwise`."""
    n = scores.num_candidates
    return (
        scores.loss,
        n,
        jnp.log(jnp.maximum(n, 1.0)),
        scores.counted / jnp.maximum(n, 1.0),
        scores.counted * (scores.rank == 0),
        scores.wins / jnp.maximum(scores.num_negatives, 1.0),
    )


def sum_sequences(
    counted: Float[Array, "k b a"],
    *numbers: Float[Array, "k b a"],
    received: Float[Array, "k b"] | None = None,
) -> OffsetSums:
    """Return the sums over anchors of `anchor_numbers`, without a gradient.

    The numbers must be 0 for anchors that are not counted.
    """
    known = jax.lax.stop_gradient((counted, *numbers, received))
    known = jax.tree.map(lambda x: x.astype(jnp.float32), known)
    counted, loss, _, log_n, *_, received = known
    own_anchors, own_values = counted.sum(-1), (log_n - loss).sum(-1)  # (k, b)
    if received is not None:
        own_values -= received
    return OffsetSums(
        own_anchors.sum(-1),
        *(x.sum((-2, -1)) for x in known[1:-1]),
        sequences=(own_anchors > 0).astype(jnp.float32).sum(-1),
        projection=own_values.sum(-1),
        value_squared=jnp.square(own_values).sum(-1),
        value_anchors=(own_values * own_anchors).sum(-1),
        anchors_squared=jnp.square(own_anchors).sum(-1),
    )
