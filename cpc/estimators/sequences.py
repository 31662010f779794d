"""The strict bound: each other sequence of the batch gives one negative."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cpc.losses import AnchorScores, OffsetSums, info_nce, sum_anchors


def bound_over_sequences(
    z: Float[Array, "b t *lanes d"],
    predictions: Float[Array, "b t *lanes k d"],
    offsets: tuple[int, ...] | None = None,
) -> OffsetSums:
    """Sums for log b - L with the latents at the positive's place in all sequences as candidates.

    I(z_(t+k); c_t) >= log b - E [ log sum_j e^s(c_t of i, z_(t+k) of j) - s(i, i) ]

    Sequences drawn independently make the candidates independent draws from the marginal, so that
    this is a lower bound for any scores (van den Oord et al. 2018, section 2.3). It equals the CPC
    loss under the rule `one_per_sequence`, at b / t of the work. Entry i of the predictions is of
    offsets[i]; 1 to k by default.
    """
    b, length = z.shape[:2]
    num_offsets, width = predictions.shape[-2:]
    diagonal = jnp.eye(b, dtype=bool)

    def at_place(z, predictions):  # (b, d) each: one time and lane, all sequences
        scores = jnp.matmul(predictions, z.T, preferred_element_type=jnp.float32)
        positive = jnp.diagonal(scores)
        loss = info_nce(positive, scores, ~diagonal)
        wins = jnp.where(diagonal, 0.0, jnp.sign(positive[:, None] - scores)).sum(-1)
        return AnchorScores(
            loss=loss,
            num_negatives=jnp.full(b, b - 1.0),
            top1=(wins == b - 1).astype(jnp.float32),
            pairwise=0.5 + 0.5 * wins / max(b - 1, 1),
            counted=jnp.ones(b),
        )

    rows = []
    for i, k in enumerate(offsets or range(1, num_offsets + 1)):
        ahead = z[:, k:].reshape(b, -1, width)
        predicted = predictions[:, : length - k, ..., i, :].reshape(b, -1, width)
        rows.append(sum_anchors(jax.vmap(at_place, in_axes=1, out_axes=1)(ahead, predicted)))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
