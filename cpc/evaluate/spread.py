"""Two numbers that are small if a representation has collapsed."""

import jax.numpy as jnp
from jaxtyping import Bool, Float

from cpc.types import Array, ArrayLike


def feature_spread(
    features: Float[ArrayLike, "n d"], where: Bool[ArrayLike, " n"] | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the mean standard deviation of the dimensions, and the effective rank.

    rank = exp(-sum_i p_i log p_i), p the eigenvalues of the covariance divided by their sum (Roy
    and Vetterli, 2007): d if the features fill all directions equally, 1 if they are on a line, 0
    if they are constant. Jit-able, float32 inside; rows outside of `where` may hold NaN.

    >>> cross = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> [round(float(value), 3) for value in feature_spread(cross)]
    [0.707, 2.0]
    """
    features = jnp.asarray(features, jnp.float32)
    counted = jnp.ones(len(features), bool) if where is None else jnp.asarray(where)
    features = jnp.where(counted[:, None], features, 0.0)
    number = jnp.maximum(counted.sum(), 1)
    centred = jnp.where(counted[:, None], features - features.sum(axis=0) / number, 0.0)
    std = jnp.sqrt(jnp.square(centred).sum(axis=0) / number).mean()
    # Rounding of the mean leaves small values in constant features, which have a rank.
    dust = 1e-6 * jnp.abs(features).max(initial=0.0)
    collapsed = std <= dust
    scaled = centred / jnp.where(collapsed, 1.0, std)
    eigenvalues = jnp.linalg.eigvalsh(scaled.T @ scaled / number)
    eigenvalues = jnp.maximum(eigenvalues, 0.0)
    share = eigenvalues / jnp.maximum(eigenvalues.sum(), 1e-30)
    entropy = -jnp.sum(share * jnp.log(jnp.where(share > 0, share, 1.0)))
    return jnp.where(collapsed, 0.0, std), jnp.where(collapsed, 0.0, jnp.exp(entropy))
