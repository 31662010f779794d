"""The loss against one candidate from each sequence: the latent at the positive's own place.

Only b of the b t candidates can be negatives, so only these are scored: 1 / t of the work of the
blocks, with the same result.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cpc.losses.blocks import AnchorLoss, Choose, anchor_scores
from cpc.losses.tiles import AnchorScores


def same_place_losses(
    queries: Float[Array, "k b a d"],
    keys: Float[Array, "b a d"],
    exists: Bool[Array, "b a"],
    rng: Array,
    loss: AnchorLoss,
    choose: Choose | None,
    offsets: tuple[int, ...],
    lanes: int,
) -> tuple[Float[Array, " k"], AnchorScores]:
    """Sum of the anchors' losses at each offset, and each anchor's scores.

    Places (b, a) are times of `lanes` each, in order: an offset of k is k lanes places on. Some may
    not exist.
    """
    b, a, _ = keys.shape
    others = ~jnp.eye(b, dtype=bool)

    def at_place(query, key, is_anchor, is_key, rng):  # of all sequences: (b, d), (b,)
        scores = jnp.matmul(query, key.T, preferred_element_type=jnp.float32)
        positive, where = jnp.diagonal(scores), others & is_key & (is_anchor & is_key)[:, None]
        negatives = scores
        if choose is not None:
            negatives, where = choose(rng, positive, negatives, where)
        value = loss(positive, negatives, where)
        return anchor_scores(value, positive, negatives, where)

    rows = []
    for i, k in enumerate(offsets):
        ahead = k * lanes
        keys_of_places = jax.random.split(jax.random.fold_in(rng, k), a - ahead)
        scores = jax.vmap(at_place, in_axes=(1, 1, 1, 1, 0), out_axes=1)(
            queries[i, :, : a - ahead],
            keys[:, ahead:],
            exists[:, : a - ahead],
            exists[:, ahead:],
            keys_of_places,
        )
        rows.append(jax.tree.map(lambda x, n=ahead: jnp.pad(x, ((0, 0), (0, n))), scores))
    scores = jax.tree.map(lambda *x: jnp.stack(x), *rows)
    return scores.loss.sum((1, 2)), scores
