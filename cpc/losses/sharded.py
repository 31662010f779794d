"""The loss where each shard of the batch has its own negatives, as each device of the paper had.

Scores of one shard's anchors and another's latents count for nothing, so they are not made:
1 / shards of the work of the blocks, with the same result.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cpc.losses.blocks import Plan, summed_losses
from cpc.losses.tiles import AnchorScores, Latents


def sharded_losses(
    queries: Float[Array, "k b a d"],
    keys: Float[Array, "*own n d"],
    anchors: Latents,
    candidates: Latents,
    rng: Array,
    plan: Plan,
) -> tuple[Float[Array, " k"], AnchorScores, Float[Array, "k s"]]:
    """Return `summed_losses`, made shard by shard where the plan has shards."""
    b, a = queries.shape[1:3]
    num_shards = plan.num_shards(b)
    if num_shards == 1:
        return summed_losses(queries, keys, anchors, candidates, rng, plan)
    block = plan.choose_block(b * a // num_shards)
    plan_of_shard = plan._replace(
        block=max(1, block // num_shards), num_sequences=plan.num_sequences // num_shards
    )

    def split(x):  # (b, ...) or (b a, ...) -> (shards, ...)
        return x.reshape(num_shards, -1, *x.shape[1:])

    def of_shard(queries, keys, anchors, candidates):
        return summed_losses(queries, keys, anchors, candidates, rng, plan_of_shard)

    of_shards = jax.vmap(of_shard, in_axes=(1, -3, 0, 0), out_axes=(0, 1, 1))
    queries = queries.reshape(len(queries), num_shards, -1, *queries.shape[2:])
    keys = keys.reshape(*keys.shape[:-2], num_shards, -1, keys.shape[-1])
    anchors, candidates = jax.tree.map(split, (anchors, candidates))
    losses, scores, received = of_shards(queries, keys, anchors, candidates)
    whole: Any = jax.tree.map(lambda x: x.reshape(len(x), b, a), scores)
    return jnp.sum(losses, 0), whole, received.reshape(len(received), -1)
