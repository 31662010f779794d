"""InfoNCE, noise-contrastive estimation, and losses with decoupled or reweighted negatives.

`decoupled` removes the positive from the denominator, `debiased` corrects the denominator for false
negatives, and `hard_weighted` gives more weight to negatives with high scores.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from cpc.losses.masking import (
    Number,
    OfNegatives,
    OfPositive,
    log_sum_exp,
    logistic_loss,
    mean_where,
    read_rows,
    read_single,
    scale,
    subtract,
)
from cpc.types import check_number, check_shape


def info_nce(
    positive: Float[Array, " m"] | Float[Array, "m p"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    where_positive: Bool[Array, "m p"] | None = None,
    temperature: Number = 1.0,
) -> Float[Array, " m"]:
    """Return the InfoNCE loss of each anchor, in nats.

    L = log [ e^s+ + sum_j e^s_j ] - s+, over the negatives j (van den Oord et al. 2018, eq. 4).

    For any number of negatives drawn from q, the optimal score is log p(x|c) / q(x) + h(c) with any
    h. Let N be 1 + the number of negatives. log N - L is a lower bound on the mutual information if
    the negatives are independent draws from the marginal. Otherwise it is an estimate.

    If an anchor has several positives, its loss is the mean over them. Positives are not contrasted
    with each other. The temperature divides all scores.

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
    """Return the ranking NCE loss of each anchor, in nats.

    L = -log [ e^(s_0 - log q_0) / sum_(j = 0..K) e^(s_j - log q_j) ]  (Ma & Collins 2018)

    This is InfoNCE after subtracting the log noise density, log q, from each candidate's score, the
    positive's included. If the negatives are drawn independently from q and accidental hits are
    kept, the optimal score is log p(x|c) + h(c) for every K, and its normaliser may depend on c.
    Log q of the negatives is one number, (n,) or (m, n).

    A candidate that the noise draws three times as often has a third of the weight:

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
    """Return the binary NCE loss of each anchor, in nats.

    L = -log sigma(D_0) - sum_(j = 1..k) log sigma(-D_j),  D = s - log Z - log(k q)

    Each candidate is classified as data or noise, with k noise samples from the density q (Gutmann
    & Hyvarinen 2012, section 2; Mnih & Teh 2012). The optimal score is log Z + log p(x|c). If log Z
    is fixed at 0, this is a normalised log probability. log N - L is not defined.

    Args:
      positive: scores of the positives. As in TensorFlow, each of p positives has label 1 / p,
        which means that it is data with weight 1 / p and noise with weight 1 - 1 / p.
      negatives: scores of the noise samples, including accidental hits (draws of the positive).
      log_noise_positive: log q of the positives, as one number, (m,) or (m, p).
      log_noise_negatives: log q of the negatives, as one number, (n,) or (m, n).
      log_normalizer: log Z, as one number or one per anchor. If learned, it absorbs constants.

    If model and noise give both candidates equal probability, the loss is 2 log 2:

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
    """Return the negative sampling loss of each anchor, in nats.

    L = -log sigma(s_0) - sum_(j = 1..K) log sigma(-s_j)  (Mikolov et al. 2013, eq. 4)

    This is binary NCE without the term log(k q). The optimal score is log p(x|c) / q(x) - log K. If
    q is the marginal, this is the pointwise mutual information minus log K (Levy & Goldberg 2014,
    section 3). log N - L is not defined. Several positives are labelled as in `nce`.

    Scores of 0 give (1 + K) log 2:

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
    """Return the decoupled contrastive loss of each anchor, in nats.

    L = -w s_0 / tau + log sum_(j = 1..K) e^(s_j / tau)  (Yeh et al. 2022)

    The denominator does not contain the positive, so the gradient of an easy anchor is not scaled
    down by 1 - p_positive. The loss may be negative. As K grows, the optimal score tends to
    log p(x|c) / q(x) + h(c). For finite K an optimum is guaranteed only for bounded scores, such as
    cosines. log K - L is an estimate with an upward bias. `decoupled_weights` computes w for DCLW.

    Two negatives with the score of the positive cost log 2:

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
    """Return the positives' weights for DCLW, the weighted form of the `decoupled` loss.

    w_i = 2 - m e^(s_i / sigma) / sum_j e^(s_j / sigma)  (Yeh et al. 2022)

    The weights have mean 1, are larger for low scores, depend on all anchors, and have no gradient.

    >>> decoupled_weights(jnp.array([0.7, 0.7]))
    Array([1., 1.], dtype=float32)
    """
    check_number("sigma", sigma, above=0)
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
    """Return the debiased contrastive loss of each anchor, in nats, corrected for false negatives.

    L = -log [ e^(s_0 / tau) / (e^(s_0 / tau) + K g) ]
    g = max { [ mean_j e^(s_j / tau) - pi mean_v e^(s_v / tau) ] / (1 - pi),  e^(-1 / tau) }

    (Chuang et al. 2020, section 4), where j runs over the K negatives and v over draws from the
    anchor's own class. The floor e^(-1 / tau) is the lowest value that a cosine can give. The
    optimal score is log p+ / p- + h(c), the density ratio between the anchor's class and true
    negatives. pi = 0 gives InfoNCE. log N - L is an estimate, not a bound. `cpc_loss` divides the
    scores by its temperature and sets `least` accordingly.

    Args:
      prior: pi, the probability that a random draw has the anchor's class.
      least: lowest possible score, which is -1 for a cosine.
      extra_positives: scores of the draws v. By default the positive is the only draw.

    If all scores are equal, the correction cancels and the loss is log N:

    >>> debiased(jnp.ones(1), jnp.ones((1, 3)), prior=0.1, temperature=0.5) - jnp.log(4.0)
    Array([0.], dtype=float32)
    """
    options: Any = {"temperature": temperature, "least": least, "extra_positives": extra_positives}
    return hard_weighted(positive, negatives, where, prior=prior, concentration=0.0, **options)


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
    """Return the debiased loss of each anchor, in nats, with more weight on hard negatives.

    The mean over negatives in `debiased` becomes mean_j w_j e^(s_j / tau),
    w_j = e^(beta s_j / tau) / mean_i e^(beta s_i / tau)  (Robinson et al. 2021, section 3).

    beta is `concentration`. beta = 0 is the same as `debiased`, and with a large beta only the
    hardest negative has weight. The gradient flows through the weights, as in the authors' code.
    The optimal score is the log ratio of p+ to the reweighted noise, plus h(c). log N - L is an
    estimate, not a bound. The other arguments are those of `debiased`.

    For two negatives with scores log 1 and log 3 and beta = 1, the mean of 2 becomes
    (1 + 9) / (1 + 3) = 2.5:

    >>> negatives = jnp.log(jnp.array([[1.0, 3.0]]))
    >>> hard_weighted(jnp.zeros(1), negatives, prior=0, concentration=1) - jnp.log(1 + 2 * 2.5)
    Array([0.], dtype=float32)
    """
    check_number("prior", prior, least=0, below=1)
    check_number("concentration", concentration, least=0)
    rows = scale(read_single(positive, negatives, where), temperature)
    concentration, tau, least = (
        jnp.asarray(x, jnp.float32) for x in (concentration, temperature, least)
    )
    own = rows.positive
    if extra_positives is not None:
        check_shape("extra_positives", extra_positives, len(positive), "p")
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
    """Return log(e^log_noise - e^log_own), or -inf if the difference is not positive."""
    gap = log_own - log_noise
    positive = gap < 0
    rest = jnp.log(-jnp.expm1(jnp.where(positive, gap, -1.0)))
    return jnp.where(positive, log_noise + rest, -jnp.inf)
