"""The loss where each share of the batch has its own negatives, as each device of the paper had.

Scores of one share's anchors and another's latents count for nothing, so they are not made:
1 / shares of the work of the blocks, with the same result.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cpc.losses.blocks import Plan, summed_losses
from cpc.losses.tiles import AnchorScores, Places


def shared_losses(
    queries: Float[Array, "k b a d"],
    keys: Float[Array, "*own n d"],
    anchors: Places,
    candidates: Places,
    rng: Array,
    plan: Plan,
) -> tuple[Float[Array, " k"], AnchorScores]:
    """`summed_losses`, share by share where the rule is marked with a number of them.

    Shares are of equal size, of the batch's sequences in order. Negatives that are drawn are drawn
    for the whole batch, so that the draws are those of the rule alone.
    """
    b, a = queries.shape[1:3]
    num_shares = getattr(plan.rule, "num_shares", 1)
    if num_shares == 1 or plan.choose is not None or b % num_shares or keys.shape[-2] != b * a:
        return summed_losses(queries, keys, anchors, candidates, rng, plan)
    block = plan.choose_block(b * a // num_shares)
    plan_of_share = plan._replace(block=max(1, block // num_shares))

    def split(x):  # (b, ...) or (b a, ...) -> (shares, ...)
        return x.reshape(num_shares, -1, *x.shape[1:])

    def of_share(queries, keys, anchors, candidates):
        return summed_losses(queries, keys, anchors, candidates, rng, plan_of_share)

    of_shares = jax.vmap(of_share, in_axes=(1, -3, 0, 0), out_axes=(0, 1))
    queries = queries.reshape(len(queries), num_shares, -1, *queries.shape[2:])
    keys = keys.reshape(*keys.shape[:-2], num_shares, -1, keys.shape[-1])
    anchors, candidates = jax.tree.map(split, (anchors, candidates))
    losses, scores = of_shares(queries, keys, anchors, candidates)
    whole: Any = jax.tree.map(lambda x: x.reshape(len(x), b, a), scores)
    return jnp.sum(losses, 0), whole
