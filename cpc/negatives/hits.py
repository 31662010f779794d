"""Accidental hits: drawn negatives that are the anchor's own positive.

Removing them (`where & ~hits`) and drawing without replacement are two switches, not one. Noise
contrastive estimation and its ranking form are derived with hits kept; sampled softmax and
retrieval remove them. Where candidates are latents and not classes, `is_positive` says of their
positions what `accidental_hits` says of ids.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from cpc.types import ArrayLike, UserError


def accidental_hits(
    targets: Int[ArrayLike, "m ..."], candidates: Int[ArrayLike, "... n"]
) -> Bool[Array, "m n"]:
    """Which candidates carry the id of a target of the anchor; every copy does, not only the last.

    Args:
      targets: ids of the positives, (m,), or (m, t) where an anchor has several.
      candidates: ids drawn, (n,) for all anchors together or (m, n) for each its own.

    >>> accidental_hits(jnp.array([3, 5]), jnp.array([3, 5, 3, 2]))
    Array([[ True, False,  True, False],
           [False,  True, False, False]], dtype=bool)
    """
    fits = candidates.ndim == 1 or (candidates.ndim == 2 and len(candidates) == len(targets))
    if targets.ndim > 2 or not fits:
        raise UserError(
            f"targets of shape {targets.shape} and candidates of shape {candidates.shape} do not "
            "fit: give (m,) or (m, t) targets and (n,) or (m, n) candidates"
        )
    targets = jnp.reshape(targets, (len(targets), -1, 1))
    return (targets == jnp.atleast_2d(candidates)[:, None]).any(1)


def hit_rate(
    density: float | int | Float[np.ndarray, "..."], num_draws: int
) -> float | Float[np.ndarray, "..."]:
    """Chance that independent draws hold at least one item of a kind.

    P = 1 - (1 - rho)^K

    rho is the fraction of hard negatives in a pool, the probability of a class, or 1 / n for one
    latent among n: drawing 128 of 8 x 127 latents finds the positive for an eighth of the anchors.

    Args:
      density: rho, elementwise.
      num_draws: K.

    >>> round(float(hit_rate(1 / (8 * 127), 128)), 4)
    0.1184
    """
    if not np.all((np.asarray(density) >= 0) & (np.asarray(density) <= 1)):
        raise UserError(f"the chance of a hit in one draw is {density}: it must be from 0 to 1")
    if num_draws < 0:
        raise UserError(f"num_draws is {num_draws}: it must be 0 or more")
    with np.errstate(divide="ignore", invalid="ignore"):  # log 0, and 0 log 0
        rate = -np.expm1(num_draws * np.log1p(-np.asarray(density, np.float64)))
    return np.where(np.equal(density, 1), float(num_draws > 0), rate)[()]
