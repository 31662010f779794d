"""Alignment in order: frames shared out among fewer predictions, by a dynamic program.

Frame 1 is of prediction 1, the last frame of the last prediction, and from frame to frame one stays
with a prediction or goes on to the next: CTC (Graves et al. 2006) without a blank. Of F frames and
K predictions there are binom(F - 1, K - 1) such paths.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

#: Above every cost; finite, so that differences are no NaN.
FAR = 1e30


def path_cost(costs: Float[Array, "*m f k"], best: bool = False) -> Float[Array, "*m"]:
    """Return the cost of aligning frames to predictions, summed over frames.

    C = -log sum_paths e^(-sum_f costs[f, path_f]), or min_paths sum_f costs[f, path_f]

    A cost of -log p makes the first the likelihood of the frames when all paths are as likely
    beforehand. A column takes 2 operations a prediction: F K in all, for any number of paths.

    Args:
      costs: of frame f under prediction k; no fewer frames than predictions.
      best: whether the cheapest path counts alone.

    Equal costs are those of F frames, less the logarithm of the number of paths:

    >>> path_cost(jnp.ones((4, 2))) - (4.0 - jnp.log(3.0))
    Array(0., dtype=float32)
    """

    def one_frame(total, cost):
        before = jnp.pad(
            total[..., :-1], [(0, 0)] * (total.ndim - 1) + [(1, 0)], constant_values=FAR
        )
        reached = jnp.minimum(total, before) if best else -jnp.logaddexp(-total, -before)
        return cost + reached, None

    frames = jnp.moveaxis(costs.astype(jnp.float32), -2, 0)
    first = jnp.where(jnp.arange(costs.shape[-1]) == 0, frames[0], FAR)
    return jax.lax.scan(one_frame, first, frames[1:])[0][..., -1]


def path_weights(costs: Float[Array, "*m f k"], best: bool = False) -> Float[Array, "*m f k"]:
    """Return how likely each frame is each prediction's: the derivatives of the cost by the costs.

    Of each frame they add up to 1; under `best` they are 1 along the path, which ties share.
    No gradient.

    >>> path_weights(jnp.array([[0.0, 9.0], [0.0, 9.0], [9.0, 0.0]]), best=True).tolist()
    [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    costs = jax.lax.stop_gradient(costs.astype(jnp.float32))
    total = functools.partial(path_cost, best=best)
    return jax.grad(lambda costs: total(costs).sum())(costs)
