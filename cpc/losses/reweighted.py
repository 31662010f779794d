"""InfoNCE with another denominator: without the positive, debiased, tilted to hard negatives."""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from cpc.losses.masking import Number, check, log_sum_exp, read_single, scale
from cpc.types import UserError


def decoupled(
    positive: Float[Array, " m"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    temperature: Number = 1.0,
    positive_weight: Number | Float[Array, " m"] = 1.0,
) -> Float[Array, " m"]:
    """Decoupled contrastive loss of each anchor, in nats: no positive in the denominator.

    L = -w s_0 / tau + log sum_(j = 1..K) e^(s_j / tau)  (Yeh et al. 2022)

    An easy anchor's gradients no longer shrink by its 1 - p_positive. The loss may be negative. The
    optimal score tends to log r + h(c) as K grows; at finite K only bounded scores, such as
    cosines, are sure to have an optimum. log K - L is an estimate, biased upwards.
    `decoupled_weights` makes the w of DCLW.

    Two negatives as good as the positive cost log 2; the positive itself is no rival:

    >>> decoupled(jnp.ones(1), jnp.ones((1, 2)), temperature=0.5) - jnp.log(2.0)
    Array([0.], dtype=float32)
    """
    rows = scale(read_single(positive, negatives, where), temperature)
    attraction = jnp.asarray(positive_weight, jnp.float32) * rows.positive[:, 0]
    loss = log_sum_exp(rows.negatives, rows.where) - attraction
    return jnp.where(rows.counted, loss, 0.0)


def decoupled_weights(
    positive: Float[Array, " m"], *, sigma: float | int = 0.5
) -> Float[Array, " m"]:
    """Weights of the positives in DCLW: far positives weigh more, and the mean is 1.

    w_i = 2 - m e^(s_i / sigma) / sum_j e^(s_j / sigma)  (Yeh et al. 2022)

    They hold no gradient, and unlike a loss they look at all m anchors.

    >>> decoupled_weights(jnp.array([0.7, 0.7]))
    Array([1., 1.], dtype=float32)
    """
    check("sigma", sigma, above=0)
    weight = jax.nn.softmax(lax.stop_gradient(positive.astype(jnp.float32)) / sigma)
    return 2.0 - positive.shape[0] * weight


def debiased(
    positive: Float[Array, " m"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    prior: float | int,
    temperature: Number = 1.0,
    least: Number | Float[Array, " m"] = -1.0,
    extra_positives: Float[Array, "m p"] | None = None,
) -> Float[Array, " m"]:
    """Debiased contrastive loss of each anchor, in nats: takes out the negatives of its own class.

    L = -log [ e^(s_0 / tau) / (e^(s_0 / tau) + K g) ]
    g = max { [ mean_j e^(s_j / tau) - pi mean_v e^(s_v / tau) ] / (1 - pi),  e^(-1 / tau) }

    (Chuang et al. 2020, section 4) over the negatives j and draws v of the anchor's own class.
    The floor is the least that a cosine score can give. The optimal score is log p+ / p- + h(c),
    the ratio to true negatives; pi = 0 is InfoNCE. log N - L is an estimate, no bound. `cpc_loss`,
    whose scores come divided by its temperature, gives the least itself.

    Args:
      prior: pi, the probability that a random draw is of the anchor's class.
      least: the lowest score that can be: -1 of a cosine.
      extra_positives: scores of the draws v; the positive itself if there are none.

    At equal scores the correction takes away as much as it scales up: log N.

    >>> debiased(jnp.ones(1), jnp.ones((1, 3)), prior=0.1, temperature=0.5) - jnp.log(4.0)
    Array([0.], dtype=float32)
    """
    return hard_weighted(
        positive,
        negatives,
        where,
        prior=prior,
        concentration=0.0,
        temperature=temperature,
        least=least,
        extra_positives=extra_positives,
    )


def hard_weighted(
    positive: Float[Array, " m"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    prior: float | int,
    concentration: Number,
    temperature: Number = 1.0,
    least: Number | Float[Array, " m"] = -1.0,
    extra_positives: Float[Array, "m p"] | None = None,
) -> Float[Array, " m"]:
    """Debiased loss of each anchor, in nats, with the negatives tilted towards the anchor.

    The mean over negatives in `debiased` becomes mean_j w_j e^(s_j / tau),
    w_j = e^(beta s_j / tau) / mean_i e^(beta s_i / tau)  (Robinson et al. 2021, section 3).

    beta = 0 is `debiased`; a large beta leaves the hardest negative. The gradient flows through the
    weights, as in the authors' code. The optimal score is log p+ over the tilted noise, + h(c).
    log N - L is an estimate, no bound. The other arguments are those of `debiased`.

    Scores log 1 and log 3 with beta = 1: the mean (1 + 9) / (1 + 3) = 2.5 instead of 2, twice.

    >>> hard_weighted(
    ...     jnp.zeros(1), jnp.log(jnp.array([[1.0, 3.0]])), prior=0, concentration=1, temperature=1
    ... ) - jnp.log(1 + 2 * 2.5)
    Array([0.], dtype=float32)
    """
    if not 0 <= prior < 1:
        raise UserError(f"prior is {prior}: it must be at least 0 and below 1")
    check("concentration", concentration, least=0)
    rows = scale(read_single(positive, negatives, where), temperature)
    concentration, tau, least = (
        jnp.asarray(x, jnp.float32) for x in (concentration, temperature, least)
    )
    own = rows.positive
    if extra_positives is not None:
        if extra_positives.ndim != 2 or extra_positives.shape[0] != positive.shape[0]:
            raise UserError(
                f"extra_positives has shape {extra_positives.shape}: it must be "
                f"({positive.shape[0]}, p)"
            )
        own = extra_positives.astype(jnp.float32) / tau
    # log mean_j w_j e^s_j = log sum_j e^((1 + beta) s_j) - log sum_j e^(beta s_j)
    tilted = log_sum_exp((1.0 + concentration) * rows.negatives, rows.where)
    log_noise = tilted - log_sum_exp(concentration * rows.negatives, rows.where)
    if prior > 0:
        log_own = log_sum_exp(own, jnp.ones(own.shape, bool)) - math.log(own.shape[1])
        log_noise = _log_less_own(log_noise, math.log(prior) + log_own)
        log_noise -= math.log1p(-prior)
    log_noise = jnp.maximum(log_noise, least / tau)
    gap = jnp.log(rows.num_negatives) + log_noise - rows.positive[:, 0]
    return jnp.where(rows.counted, jax.nn.softplus(gap), 0.0)


def _log_less_own(log_noise, log_own):
    """Of a and b, log (e^a - e^b), and -inf where that is negative, for the floor to replace."""
    gap = log_own - log_noise
    positive = gap < 0
    rest = jnp.log(-jnp.expm1(jnp.where(positive, gap, -1.0)))
    return jnp.where(positive, log_noise + rest, -jnp.inf)
