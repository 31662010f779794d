"""Has the representation collapsed? Two numbers that are small when it has."""

import jax.numpy as jnp
from jaxtyping import Float

from cpc.types import Array, ArrayLike


def feature_spread(
    features: Float[ArrayLike, "n d"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean standard deviation of the dimensions, and the effective rank of the covariance.

    rank = exp(-sum_i p_i log p_i), p the eigenvalues of the covariance divided by their sum
    (Roy and Vetterli, 2007, on covariance eigenvalues): d when the features fill all directions
    alike, 1 when they lie on a line. Constant features have std 0 and rank 0. Never NaN for
    finite features. Jit-able, float32 inside.

    >>> cross = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> [round(float(value), 3) for value in feature_spread(cross)]
    [0.707, 2.0]
    """
    features = jnp.asarray(features, jnp.float32)
    centred = features - features.mean(axis=0)
    std = jnp.sqrt(jnp.mean(jnp.square(centred), axis=0)).mean()
    # Rounding of the mean leaves dust in constant features; without its removal dust has a rank.
    dust = 1e-6 * jnp.abs(features).max(initial=0.0)
    collapsed = std <= dust
    scaled = centred / jnp.where(collapsed, 1.0, std)
    eigenvalues = jnp.linalg.eigvalsh(scaled.T @ scaled / len(features))
    eigenvalues = jnp.maximum(eigenvalues, 0.0)
    share = eigenvalues / jnp.maximum(eigenvalues.sum(), 1e-30)
    entropy = -jnp.sum(share * jnp.log(jnp.where(share > 0, share, 1.0)))
    return jnp.where(collapsed, 0.0, std), jnp.where(collapsed, 0.0, jnp.exp(entropy))
