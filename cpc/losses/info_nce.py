"""InfoNCE: the likelihood of the index of the positive among the candidates."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from cpc.types import UserError


def info_nce(
    positive: Float[Array, " m"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    temperature: float | int | Float[Array, ""] = 1.0,
) -> Float[Array, " m"]:
    """Loss of each anchor, in nats.

    L = log [ e^s+ + sum_j e^s_j ] - s+, over the negatives j (van den Oord et al. 2018, eq. 4).

    The optimal score is log p(x|c) / q(x) + h(c) with negatives from q, for any number of them.
    log N - L, with N = 1 + negatives, bounds the mutual information from below when the negatives
    are independent draws from the marginal; otherwise it is a score.

    Args:
      positive: scores of the positives.
      negatives: scores of the negatives.
      where: which negatives count. The others may be NaN and get a gradient of exactly zero; an
        anchor without any negative has loss 0.
      temperature: divides all scores.

    Returns:
      Losses in float32, whatever comes in.

    Raises:
      UserError: a temperature known not to be positive.

    Equal scores give exactly log N:

    >>> info_nce(jnp.zeros(1), jnp.zeros((1, 3))) - jnp.log(4.0)
    Array([0.], dtype=float32)
    """
    if isinstance(temperature, int | float) and temperature <= 0:
        raise UserError(f"temperature is {temperature}: it must be above 0")
    positive = positive.astype(jnp.float32) / temperature
    if where is not None:
        negatives = jnp.where(where, negatives, -jnp.inf)
    negatives = negatives.astype(jnp.float32) / temperature
    highest = jnp.maximum(positive, jnp.max(negatives, axis=-1, initial=-jnp.inf))
    highest = lax.stop_gradient(highest)
    total = jnp.exp(positive - highest) + jnp.exp(negatives - highest[:, None]).sum(-1)
    return jnp.log(total) + (highest - positive)
