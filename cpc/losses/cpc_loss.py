"""The loss of contrastive predictive coding: InfoNCE at each offset, over the global batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cpc.losses.blocks import AnchorScores, Candidates, summed_info_nce
from cpc.types import CPCOutputs, NegativeRule, Position, UserError


class OffsetSums(NamedTuple):
    """Sums over the counted anchors of each offset, shape (k,): they add up over steps.

    Anchors without a negative are not counted. v_b and a_b are a sequence's own sums of
    log N_i - L_i and of anchors: their moments give an interval by blocks of sequences.
    """

    anchors: Float[Array, " k"]
    loss: Float[Array, " k"]
    n: Float[Array, " k"]
    """Candidates N_i, the positive included."""
    log_n: Float[Array, " k"]
    top1: Float[Array, " k"]
    """Anchors whose positive beats every negative; a tie is lost."""
    pairwise: Float[Array, " k"]
    """Share of negatives that the positive beats; a tie counts one half."""
    sequences: Float[Array, " k"]
    value_squared: Float[Array, " k"]
    """Sum over sequences of v_b^2."""
    value_anchors: Float[Array, " k"]
    """Sum over sequences of v_b a_b."""
    anchors_squared: Float[Array, " k"]
    """Sum over sequences of a_b^2."""


def cpc_loss(
    outputs: CPCOutputs,
    positions: Position,
    rule: NegativeRule,
    *,
    temperature: float | int | Float[Array, ""] = 1.0,
    sample: Callable[[Array, Array], Array] | None = None,
    rng: Array | None = None,
    where: Bool[Array, "b t ..."] | None = None,
    block: int = 512,
) -> tuple[Float[Array, ""], OffsetSums]:
    """Sum over offsets k of the mean InfoNCE loss of the anchors that have a latent k ahead.

    L = sum_k mean_(anchors t) -log [ e^s(t, t+k) / sum_(candidates) e^s ],  s = z . (W_k c_t) / tau

    (van den Oord et al. 2018, eq. 4). Candidates are the positive and all latents of the batch that
    the rule allows; the batch is the global one, however many devices hold it.

    Args:
      outputs: z (b, t, ..., d) and predictions (b, t, ..., k, d).
      positions: of the latents; arrays that broadcast to (b, t, ...).
      rule: rule(anchor, candidate, offset) -> bool; it never allows the positive.
      temperature: tau.
      sample: sample(rng, allowed) -> bool thins the allowed negatives (m, n).
      rng: for `sample`.
      where: latents that exist; padding is neither anchor, positive nor candidate.
      block: anchors scored at a time; changes memory and speed, not the result (with `sample`, it
        changes which negatives are drawn).

    Returns:
      The loss in nats, and per offset the sums that metrics are made of. An offset at which no
      anchor has a negative adds nothing.

    Raises:
      UserError: not one anchor has a latent that many steps ahead; a temperature not above 0.
    """
    z, predictions = outputs.z, outputs.predictions
    num_offsets, width = predictions.shape[-2:]
    if num_offsets >= z.shape[1]:
        raise UserError(
            f"{num_offsets} offsets need sequences of more than {num_offsets} latents, but these "
            f"have {z.shape[1]}: lower model.num_offsets or lengthen the window"
        )
    if isinstance(temperature, int | float) and temperature <= 0:
        raise UserError(f"temperature is {temperature}: it must be above 0")
    if where is not None:  # padding may hold anything, and 0 * NaN is NaN
        z = jnp.where(where[..., None], z, 0.0)
        predictions = jnp.where(where[..., None, None], predictions, 0.0)
    b = z.shape[0]
    places = z.shape[:-1]
    candidates = Candidates(
        Position(*(jnp.broadcast_to(p, places).reshape(b, -1) for p in positions)),
        jnp.ones(places, bool).reshape(b, -1) if where is None else where.reshape(b, -1),
        jax.random.key(0) if rng is None else rng,
    )
    queries = jnp.moveaxis(predictions, -2, 0).reshape(num_offsets, b, -1, width)
    queries = (queries / temperature).astype(z.dtype)
    keys = z.reshape(b, -1, width)
    result: Any = summed_info_nce(queries, keys, candidates, rule, sample, block)
    losses, anchors = result
    sums = sum_anchors(anchors)
    return (losses / jnp.maximum(sums.anchors, 1.0)).sum(), sums


def sum_anchors(scores: AnchorScores) -> OffsetSums:
    """Sums over the anchors (..., b, a) of each offset; no gradient."""
    scores = jax.tree.map(jax.lax.stop_gradient, scores)
    n = scores.counted + scores.num_negatives
    log_n = jnp.log(jnp.maximum(n, 1.0))
    own_anchors = scores.counted.sum(-1)  # (k, b)
    own_values = (log_n - scores.loss).sum(-1)
    return OffsetSums(
        anchors=own_anchors.sum(-1),
        loss=scores.loss.sum((-2, -1)),
        n=n.sum((-2, -1)),
        log_n=log_n.sum((-2, -1)),
        top1=scores.top1.sum((-2, -1)),
        pairwise=scores.pairwise.sum((-2, -1)),
        sequences=(own_anchors > 0).astype(jnp.float32).sum(-1),
        value_squared=jnp.square(own_values).sum(-1),
        value_anchors=(own_values * own_anchors).sum(-1),
        anchors_squared=jnp.square(own_anchors).sum(-1),
    )
