"""InfoNCE: the likelihood of the index of the positive among the candidates."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from cpc.losses.masking import Number, log_sum_exp, mean_where, read_rows, scale


def info_nce(
    positive: Float[Array, " m"] | Float[Array, "m p"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    where_positive: Bool[Array, "m p"] | None = None,
    temperature: Number = 1.0,
) -> Float[Array, " m"]:
    """Loss of each anchor, in nats.

    L = log [ e^s+ + sum_j e^s_j ] - s+, over the negatives j (van den Oord et al. 2018, eq. 4).

    The optimal score is log p(x|c) / q(x) + h(c) with negatives from q, for any number of them.
    log N - L, with N = 1 + negatives, bounds the mutual information from below when the negatives
    are independent draws from the marginal; otherwise it is an estimate.

    An anchor with several positives has the mean of their losses, each against the negatives alone:
    the other positives are not in its denominator.

    Args:
      positive: scores of the positives, (m,) or (m, p).
      negatives: scores of the negatives.
      where: which negatives count. The others may be NaN and get a gradient of exactly zero; an
        anchor without any negative has loss 0.
      where_positive: which of several positives count, likewise.
      temperature: divides all scores.

    Returns:
      Losses in float32, whatever comes in.

    Equal scores give exactly log N:

    >>> info_nce(jnp.zeros(1), jnp.zeros((1, 3))) - jnp.log(4.0)
    Array([0.], dtype=float32)
    """
    rows = scale(read_rows(positive, negatives, where, where_positive), temperature)
    if positive.ndim == 2:
        noise = log_sum_exp(rows.negatives, rows.where)[:, None]
        loss = mean_where(jax.nn.softplus(noise - rows.positive), rows.where_positive)
        return jnp.where(rows.counted, loss, 0.0)
    positive = rows.positive[:, 0]
    negatives = jnp.where(rows.where, rows.negatives, -jnp.inf)
    highest = jnp.maximum(positive, jnp.max(negatives, axis=-1, initial=-jnp.inf))
    highest = lax.stop_gradient(highest)
    total = jnp.exp(positive - highest) + jnp.exp(negatives - highest[:, None]).sum(-1)
    return jnp.log(total) + (highest - positive)
