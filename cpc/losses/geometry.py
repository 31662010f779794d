"""Alignment and uniformity: what a contrastive loss asks of an embedding on the sphere."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cpc.losses.masking import check, check_matrix
from cpc.types import UserError


def alignment(
    z: Float[Array, "m d"], z_positive: Float[Array, "m d"], power: float | int = 2
) -> Float[Array, ""]:
    """How far positives lie apart: `mean |z - z+|^power` (Wang & Isola 2020, section 4.1).

    0 is the best, and what a collapsed embedding has.

    Args:
      z: latents of unit length.
      z_positive: the positive of each.
      power: alpha.

    >>> alignment(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]]))
    Array(2., dtype=float32)
    """
    check("power", power, above=0)
    check_matrix("z", z)
    check_matrix("z_positive", z_positive)
    if z.shape != z_positive.shape:
        raise UserError(f"z_positive has shape {z_positive.shape}: it must be that of z, {z.shape}")
    squared = jnp.square(z.astype(jnp.float32) - z_positive.astype(jnp.float32)).sum(-1)
    apart = squared > 0  # a root has no gradient at 0
    return jnp.where(apart, jnp.where(apart, squared, 1.0) ** (power / 2), 0.0).mean()


def uniformity(z: Float[Array, "m d"], scale: float | int = 2.0) -> Float[Array, ""]:
    """How evenly latents cover the sphere: `log mean e^(-t |z_i - z_j|^2)` over pairs i != j.

    (Wang & Isola 2020, section 4.1.) Lower is more even; a collapsed embedding has 0, the maximum.

    Args:
      z: latents of unit length.
      scale: t.

    Two opposite points are at squared distance 4:

    >>> uniformity(jnp.array([[1.0, 0.0], [-1.0, 0.0]]))
    Array(-8., dtype=float32)
    """
    check("scale", scale, above=0)
    check_matrix("z", z)
    m = z.shape[0]
    if m < 2:
        raise UserError(f"z holds {m} latents: uniformity needs at least 2")
    z = z.astype(jnp.float32)
    norms = jnp.square(z).sum(-1)
    products = jnp.matmul(z, z.T, preferred_element_type=jnp.float32)
    squared = jnp.maximum(norms[:, None] + norms - 2.0 * products, 0.0)
    pairs = ~jnp.eye(m, dtype=bool)
    return jax.nn.logsumexp(-scale * squared, where=pairs) - jnp.log(m * (m - 1.0))
