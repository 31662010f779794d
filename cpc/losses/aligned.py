"""The loss against one candidate from each sequence: the latent with the positive's time and lane.

Only b of the b t candidates can be negatives, so only these are scored: 1 / t of the work of the
blocks, with the same result.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cpc.losses.blocks import Plan, anchor_scores, take_traced
from cpc.losses.influence import received_weights
from cpc.losses.info_nce import info_nce
from cpc.losses.table import describe
from cpc.losses.tiles import AnchorScores, Latents, find_alike, find_negatives, find_positives


def aligned_losses(
    queries: Float[Array, "k b a d"],
    keys: Float[Array, "b a d"],
    latents: Latents,
    rng: Array,
    plan: Plan,
    num_lanes: int,
) -> tuple[Float[Array, " k"], AnchorScores, Float[Array, "k b"]]:
    """Return the sum of the anchors' losses at each offset, scores and received weights.

    Latents are (b, a), `num_lanes` for each time in order, so that an offset of k is k num_lanes
    entries on (`inputs.is_grid`). Of a sequence that is none of these the positive goes uncounted.
    """
    b, a = keys.shape[:2]
    loss: Any = plan.loss or info_nce
    plain, options = take_traced(loss)
    fixed: Any = functools.partial(plain, **jax.lax.stop_gradient(options))
    rows, received = [], []
    for i, k in enumerate(plan.offsets):

        def at_index(query, key, here, there, rng, k=k):  # of all sequences: (b, d), (b,)
            scores = jnp.matmul(query, key.T, preferred_element_type=jnp.float32)
            positives = find_positives(here, there, k)
            allowed = find_negatives(here, there, plan.rule, k) & ~positives
            allowed &= jnp.diagonal(positives)[:, None]
            alike = find_alike(here, there) if describe(loss).uses_group_positives else None
            given = positives, allowed, alike, rng, plan.choose
            value, chosen = _losses_of(scores, loss, *given)
            found = anchor_scores(value, *chosen)
            weights = jax.grad(lambda scores: _losses_of(scores, fixed, *given)[0].sum())(
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


def _losses_of(scores, loss, positives, allowed, alike, rng, choose):
    """Losses of the anchors (b,) with scores (b, b); scores and mask of what is contrasted."""
    positive = jnp.diagonal(scores)
    if alike is not None:
        where, positives = allowed & ~alike, positives | (allowed & alike)
        value = loss(scores, scores, where, where_positive=positives)
        return value, (positive, scores, where)
    negatives, where = scores, allowed
    if choose is not None:
        negatives, where = choose(rng, positive, scores, allowed)
    return loss(positive, negatives, where), (positive, negatives, where)
