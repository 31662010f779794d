"""Samplers: which of the allowed negatives are used."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool


def sample_uniform(
    rng: Array, allowed: Bool[Array, "m n"], num_negatives: int
) -> Bool[Array, "m n"]:
    """Some of each anchor's allowed negatives, every subset of that size equally likely.

    Anchors that are allowed fewer keep all of them.

    >>> mask = jnp.ones((2, 9), bool).at[1, 2:].set(False)
    >>> sample_uniform(jax.random.key(0), mask, 3).sum(-1)
    Array([3, 2], dtype=int32)
    """
    m, n = allowed.shape
    if num_negatives >= n:
        return allowed
    order = jnp.where(allowed, jax.random.uniform(rng, (m, n)), 2.0)
    _, chosen = jax.lax.top_k(-order, num_negatives)
    return jnp.zeros_like(allowed).at[jnp.arange(m)[:, None], chosen].set(True) & allowed
