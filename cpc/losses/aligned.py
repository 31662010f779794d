"""The loss against one candidate from each sequence: the latent with the positive's time and lane.

Only b of the b t candidates can be negatives, so only these are scored: 1 / t of the work of the
blocks, with the same result.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cpc.losses.blocks import Plan, anchor_scores, takes_groups
from cpc.losses.info_nce import info_nce
from cpc.losses.tiles import AnchorScores, Latents, find_alike, find_negatives, find_positives


def aligned_losses(
    queries: Float[Array, "k b a d"],
    keys: Float[Array, "b a d"],
    latents: Latents,
    rng: Array,
    plan: Plan,
    num_lanes: int,
) -> tuple[Float[Array, " k"], AnchorScores]:
    """Return the sum of the anchors' losses at each offset, and each anchor's scores.

    Latents are (b, a), `num_lanes` for each time in order, so that an offset of k is k num_lanes
    entries on (`index.is_grid`). Of a sequence that is none of these the positive goes uncounted.
    """
    a = keys.shape[1]
    loss: Any = plan.loss or info_nce
    rows = []
    for i, k in enumerate(plan.offsets):

        def at_index(query, key, here, there, rng, k=k):  # of all sequences: (b, d), (b,)
            scores = jnp.matmul(query, key.T, preferred_element_type=jnp.float32)
            positives = find_positives(here, there, k)
            allowed = find_negatives(here, there, plan.rule, k) & ~positives
            where = allowed & jnp.diagonal(positives)[:, None]
            positive, negatives = jnp.diagonal(scores), scores
            if takes_groups(loss):
                alike = where & find_alike(here, there)
                where, positives = where & ~alike, positives | alike
                value = loss(scores, scores, where, where_positive=positives)
                return anchor_scores(value, positive, negatives, where)
            if plan.choose is not None:
                negatives, where = plan.choose(rng, positive, negatives, where)
            value = loss(positive, negatives, where)
            return anchor_scores(value, positive, negatives, where)

        ahead = k * num_lanes
        here = jax.tree.map(lambda x, end=a - ahead: x[:, :end], latents)
        there = jax.tree.map(lambda x, start=ahead: x[:, start:], latents)
        rngs = jax.random.split(jax.random.fold_in(rng, k), a - ahead)
        scores = jax.vmap(at_index, in_axes=(1, 1, 1, 1, 0), out_axes=1)(
            queries[i, :, : a - ahead], keys[:, ahead:], here, there, rngs
        )
        rows.append(jax.tree.map(lambda x, n=ahead: jnp.pad(x, ((0, 0), (0, n))), scores))
    scores = jax.tree.map(lambda *x: jnp.stack(x), *rows)
    return scores.loss.sum((1, 2)), scores
