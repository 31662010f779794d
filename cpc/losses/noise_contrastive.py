"""InfoNCE and its kin: noise of known density, debiased or hard negatives.

`decoupled` leaves the positive out of the denominator, `debiased` takes the false negatives out of
it, and `hard_weighted` tilts it to negatives that score high.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from cpc.losses.masking import (
    Number,
    OfNegatives,
    OfPositive,
    check,
    log_sum_exp,
    logistic_loss,
    mean_where,
    read_rows,
    read_single,
    scale,
    subtract,
)
from cpc.types import UserError


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

    Negatives outside of `where`, and positives outside of `where_positive`, may be NaN and get a
    gradient of exactly zero. The temperature divides all scores.

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


def ranking_nce(
    positive: Float[Array, " m"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    log_noise_positive: Number | Float[Array, " m"] = 0.0,
    log_noise_negatives: OfNegatives = 0.0,
) -> Float[Array, " m"]:
    """Ranking NCE of each anchor, in nats: InfoNCE of the scores less the log density of the noise.

    L = -log [ e^(s_0 - log q_0) / sum_(j = 0..K) e^(s_j - log q_j) ]  (Ma & Collins 2018)

    The correction is on every candidate, the positive too. The optimal score is log p(x|c) + h(c)
    for every K, with negatives drawn independently from q and accidental hits kept: the normaliser
    may depend on c freely. Log q of the negatives is one number, (n,) or (m, n).

    A candidate that the noise draws three times as often weighs a third:

    >>> log_q = jnp.log(jnp.array([1.0, 3.0, 3.0]))
    >>> loss = ranking_nce(jnp.zeros(1), jnp.zeros((1, 3)), log_noise_negatives=log_q)
    >>> loss - jnp.log(1 + 1 + 2 / 3)
    Array([0.], dtype=float32)
    """
    rows = read_single(positive, negatives, where)
    rows = subtract(rows, log_noise_positive, log_noise_negatives)
    return info_nce(rows.positive[:, 0], rows.negatives, rows.where)


def nce(
    positive: Float[Array, " m"] | Float[Array, "m p"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    log_noise_positive: OfPositive,
    log_noise_negatives: OfNegatives,
    log_normalizer: Number | Float[Array, " m"] = 0.0,
) -> Float[Array, " m"]:
    """Binary NCE of each anchor, in nats: is a candidate data, or one of the k noise samples?

    L = -log sigma(D_0) - sum_(j = 1..k) log sigma(-D_j),  D = s - log Z - log(k q)

    (Gutmann & Hyvarinen 2012, section 2; Mnih & Teh 2012). The optimal score is log Z +
    log p(x|c): normalised if log Z is held at 0, while a learned log Z takes the constant.
    There is no log N.

    Args:
      positive: with p of them each is labelled 1 / p, as TensorFlow does: as data with weight
        1 / p, as noise with the rest.
      negatives: scores of the noise samples; accidental hits belong there.
      log_noise_positive: log q: one number, (m,) or (m, p).
      log_noise_negatives: log q: one number, (n,) or (m, n).
      log_normalizer: log Z, for all anchors or for each; it may be learned.

    One noise sample, both candidates as likely under the model as under the noise: two fair coins.

    >>> nce(jnp.zeros(1), jnp.zeros((1, 1)), log_noise_positive=0.0, log_noise_negatives=0.0)
    Array([1.3862944], dtype=float32)
    """
    rows = read_rows(positive, negatives, where)
    constant = (jnp.log(rows.num_negatives) + jnp.asarray(log_normalizer, jnp.float32))[:, None]
    rows = subtract(rows, constant, constant)
    return logistic_loss(subtract(rows, log_noise_positive, log_noise_negatives))


def negative_sampling(
    positive: Float[Array, " m"] | Float[Array, "m p"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
) -> Float[Array, " m"]:
    """Negative sampling of each anchor, in nats: binary NCE that leaves log(k q) in the score.

    L = -log sigma(s_0) - sum_(j = 1..K) log sigma(-s_j)  (Mikolov et al. 2013, eq. 4)

    The optimal score is log p(x|c) / q(x) - log K; with q the marginal, the pointwise mutual
    information less log K (Levy & Goldberg 2014, section 3). There is no log N.
    Several positives count as in `nce`.

    Scores of zero are 1 + K fair coins:

    >>> negative_sampling(jnp.zeros(1), jnp.zeros((1, 3))) / jnp.log(2.0)
    Array([4.], dtype=float32)
    """
    return logistic_loss(read_rows(positive, negatives, where))


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
