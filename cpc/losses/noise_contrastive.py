"""InfoNCE, and noise-contrastive estimation with a noise of known density."""

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
