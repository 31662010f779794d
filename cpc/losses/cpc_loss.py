"""The loss of contrastive predictive coding: InfoNCE at each offset, over the global batch."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cpc.losses.info_nce import info_nce
from cpc.types import CPCOutputs, NegativeRule, Position, UserError


class OffsetSums(NamedTuple):
    """Sums over the counted anchors of each offset, shape (k,): they add up over steps.

    Anchors without a negative are not counted. v_b and a_b are a sequence's own sums of
    log N_i - L_i and of anchors: their moments give an interval by blocks of sequences.
    """

    anchors: Float[Array, "k"]
    loss: Float[Array, "k"]
    n: Float[Array, "k"]
    """Candidates N_i, the positive included."""
    log_n: Float[Array, "k"]
    top1: Float[Array, "k"]
    """Anchors whose positive beats every negative; a tie is lost."""
    pairwise: Float[Array, "k"]
    """Share of negatives that the positive beats; a tie counts one half."""
    sequences: Float[Array, "k"]
    value_squared: Float[Array, "k"]
    """Sum over sequences of v_b^2."""
    value_anchors: Float[Array, "k"]
    """Sum over sequences of v_b a_b."""
    anchors_squared: Float[Array, "k"]
    """Sum over sequences of a_b^2."""


def cpc_loss(
    outputs: CPCOutputs,
    positions: Position,
    rule: NegativeRule,
    *,
    temperature: float | Float[Array, ""] = 1.0,
    sample: Callable[[Array, Array], Array] | None = None,
    rng: Array | None = None,
    where: Bool[Array, "b t ..."] | None = None,
) -> tuple[Float[Array, ""], OffsetSums]:
    """Sum over offsets k of the mean InfoNCE loss of the anchors that have a latent k ahead.

    L = sum_k mean_(anchors t) -log [ e^s(t, t+k) / sum_(candidates) e^s ],  s = z . (W_k c_t) / tau

    (van den Oord et al. 2018, eq. 4). Candidates are the positive and all latents of the batch that
    the rule allows; the batch is the global one, however many devices hold it.

    Args:
      outputs: z (b, t, ..., d) and predictions (b, t, ..., k, d); axis 1 is predicted along.
      positions: of the latents, each array (b, t, ...).
      rule: rule(anchor, candidate, offset) -> bool; it never allows the positive.
      temperature: tau.
      sample: sample(rng, allowed) -> bool, thins the allowed negatives (m, n).
      rng: for `sample`.
      where: latents that exist; padding is neither anchor, positive nor candidate.

    Returns:
      The loss in nats, and per offset the sums that metrics are made of.

    Raises:
      UserError: not one anchor has a latent that many steps ahead.
    """
    num_offsets, length = outputs.predictions.shape[-2], outputs.z.shape[1]
    if num_offsets >= length:
        raise UserError(
            f"{num_offsets} offsets need more than {num_offsets} latents in a sequence, but there "
            f"are {length}: lower model.num_offsets or lengthen the window"
        )
    losses, sums = [], []
    for k in range(1, num_offsets + 1):
        key = None if sample is None or rng is None else jax.random.fold_in(rng, k)
        loss, offset_sums = _offset_loss(
            outputs, positions, rule, k, temperature, sample, key, where
        )
        losses.append(loss)
        sums.append(offset_sums)
    return jnp.stack(losses).sum(), jax.tree.map(lambda *leaves: jnp.stack(leaves), *sums)


def _offset_loss(outputs, positions, rule, k, temperature, sample, rng, where):
    z, predictions = outputs.z, outputs.predictions[..., k - 1, :]
    batch, length, width = z.shape[0], z.shape[1], z.shape[-1]
    queries = predictions[:, : length - k].reshape(-1, width)  # (m, d)
    keys = z.reshape(-1, width)  # (n, d)
    scores = jnp.matmul(queries, keys.T, preferred_element_type=jnp.float32)  # (m, n)
    positive = jnp.sum(
        queries.astype(jnp.float32) * z[:, k:].reshape(-1, width).astype(jnp.float32), axis=-1
    )

    anchor = Position(*(jnp.asarray(p)[:, : length - k].reshape(-1, 1) for p in positions))
    candidate = Position(*(jnp.asarray(p).reshape(1, -1) for p in positions))
    allowed = jnp.broadcast_to(rule(anchor, candidate, k), scores.shape)
    exists = jnp.ones(queries.shape[0], bool)
    if where is not None:
        allowed = allowed & where.reshape(1, -1)
        exists = (where[:, : length - k] & where[:, k:]).reshape(-1)
    if sample is not None:
        allowed = sample(rng, allowed)

    loss = info_nce(positive, scores, allowed, temperature=temperature)
    num_negatives = allowed.sum(-1)
    counted = exists & (num_negatives > 0)
    loss = jnp.where(counted, loss, 0.0)
    sums = _sum_offset(
        *(jax.lax.stop_gradient(x) for x in (loss, positive, scores)),
        allowed,
        num_negatives,
        counted,
        batch,
    )
    return loss.sum() / jnp.maximum(sums.anchors, 1.0), sums


def _sum_offset(loss, positive, scores, allowed, num_negatives, counted, batch):
    beaten = jnp.where(allowed, positive[:, None] > scores, False).sum(-1)
    tied = jnp.where(allowed, positive[:, None] == scores, False).sum(-1)
    highest = jnp.where(allowed, scores, -jnp.inf).max(-1)
    count = counted.astype(jnp.float32)
    n = 1.0 + num_negatives
    log_n = count * jnp.log(n)
    anchors = count.reshape(batch, -1).sum(-1)  # a_b
    values = (log_n - loss).reshape(batch, -1).sum(-1)  # v_b
    return OffsetSums(
        anchors=count.sum(),
        loss=loss.sum(),
        n=(count * n).sum(),
        log_n=log_n.sum(),
        top1=(count * (positive > highest)).sum(),
        pairwise=(count * (beaten + 0.5 * tied) / jnp.maximum(num_negatives, 1)).sum(),
        sequences=(anchors > 0).astype(jnp.float32).sum(),
        value_squared=jnp.square(values).sum(),
        value_anchors=(values * anchors).sum(),
        anchors_squared=jnp.square(anchors).sum(),
    )
