"""Losses for views, pairs and several positives, and the alignment and uniformity of embeddings.

`logistic_pairs` and `softmax_pairs` treat each positive of an anchor as a separate example. All
positives of an anchor share its negatives, as the words of a skip-gram window do, so negatives are
scored once. For each pair the loss equals a loss such as `nce` of the corrected scores.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from cpc.losses.masking import (
    Number,
    highest_where,
    log_sum_exp,
    logistic_loss,
    mean_where,
    read_mask,
    read_rows,
    read_single,
    scale,
    softmax_loss,
    subtract,
)
from cpc.losses.noise_contrastive import info_nce
from cpc.types import ArrayLike, UserError, check_number, check_shape, check_type

MINING = ("hard", "semi_hard", "all")


def view_scores(
    first: Float[Array, "b d"], second: Float[Array, "b d"]
) -> tuple[Float[Array, " m"], Float[Array, "m n"]]:
    """Return cosine scores of the 2b views of b items: positives (2b,) and negatives (2b, 2b - 2).

    The anchors are the first views, followed by the second views. The positive is the other view of
    the same item, and negatives are all views of other items (Chen et al. 2020, section 2.1).

    >>> positive, negatives = view_scores(jnp.eye(2), 3.0 * jnp.eye(2))
    >>> positive
    Array([1., 1., 1., 1.], dtype=float32)
    >>> negatives.shape, float(abs(negatives).max())
    ((4, 2), 0.0)
    """
    check_shape("first", first, "b", "d")
    check_shape("second", second, *first.shape)
    b = first.shape[0]
    z = jnp.concatenate([first, second]).astype(jnp.float32)
    squared = jnp.square(z).sum(-1, keepdims=True)
    is_zero = squared < 1e-24  # cosines of zero vectors are defined as 0, without a gradient
    z = jnp.where(is_zero, 0.0, z) * lax.rsqrt(jnp.where(is_zero, 1.0, squared))
    scores = jnp.matmul(z, z.T, preferred_element_type=jnp.float32)
    anchor, step = jnp.arange(2 * b)[:, None], jnp.arange(1, b)
    others = (anchor + jnp.concatenate([step, b + step])) % (2 * b)  # skips both views of the item
    positive = scores[anchor[:, 0], (anchor[:, 0] + b) % (2 * b)]
    return positive, jnp.take_along_axis(scores, others, axis=1)


def nt_xent(
    positive: Float[Array, " m"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    temperature: Number = 0.5,
) -> Float[Array, " m"]:
    """Return the NT-Xent loss of each anchor, in nats.

    L = -log [ e^(s_0 / tau) / sum_(j = 0..K) e^(s_j / tau) ]  (Chen et al. 2020, eq. 1)

    This is InfoNCE of cosine scores s with both views as anchors, where s_0 is the positive's score
    and K is the number of negatives. `view_scores` computes the scores, with N = 2b - 1 candidates.
    The optimal score is log p(x|c) / p(x) + h(c), within the range of a cosine divided by tau.
    log N - L is not a bound, because negatives come in pairs of views.

    Four identical views of two items give log N for N = 3 candidates:

    >>> nt_xent(*view_scores(jnp.ones((2, 5)), jnp.ones((2, 5)))) - jnp.log(3.0)
    Array([0., 0., 0., 0.], dtype=float32)
    """
    read_single(positive, negatives, where)
    return info_nce(positive, negatives, where, temperature=temperature)


def sup_con(
    positive: Float[Array, " m"] | Float[Array, "m p"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    where_positive: Bool[Array, "m p"] | None = None,
    temperature: Number = 1.0,
    inside: bool = False,
) -> Float[Array, " m"]:
    """Return the supervised contrastive loss of each anchor, in nats.

    L_out = mean_p -log [ e^(s_p / tau) / sum_a e^(s_a / tau) ]
    L_in  = -log [ mean_p e^(s_p / tau) / sum_a e^(s_a / tau) ]

    (Khosla et al. 2020, eq. 2 and 3), where p runs over the positives of an anchor, and a over its
    positives and negatives. L_in <= L_out, and the paper prefers L_out. If there is one positive,
    both equal NT-Xent. The optimal score is not a density ratio, so log N - L is not a bound.

    Args:
      positive: cosine scores of the other latents in the anchor's class.
      negatives: cosine scores of latents in other classes.
      where_positive: mask of the positives. An anchor without a positive or without a negative has
        loss 0 and should be excluded from the mean.
      inside: compute L_in, with the mean over positives inside the logarithm.

    Equal scores of two positives and three negatives give log N for N = 5 candidates:

    >>> sup_con(jnp.ones((1, 2)), jnp.ones((1, 3)), temperature=0.1) - jnp.log(5.0)
    Array([0.], dtype=float32)
    """
    rows = scale(read_rows(positive, negatives, where, where_positive), temperature)
    if not inside:
        return softmax_loss(rows)
    gap = log_sum_exp(rows.negatives, rows.where) - log_sum_exp(rows.positive, rows.where_positive)
    num_positives = jnp.maximum(rows.where_positive.sum(-1, dtype=jnp.float32), 1)
    return jnp.where(rows.counted, jnp.log(num_positives) + jax.nn.softplus(gap), 0.0)


def alignment(
    z: Float[Array, "m d"], z_positive: Float[Array, "m d"], power: float | int = 2
) -> Float[Array, ""]:
    """Return the mean distance between positives, `mean |z - z+|^power`.

    Latents must have unit length (Wang & Isola 2020, section 4.1). A collapsed embedding gives 0.

    >>> alignment(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]]))
    Array(2., dtype=float32)
    """
    check_number("power", power, above=0)
    check_shape("z", z, "m", "d")
    check_shape("z_positive", z_positive, *z.shape)
    squared = jnp.square(z.astype(jnp.float32) - z_positive.astype(jnp.float32)).sum(-1)
    differs = squared > 0  # the gradient of a root is infinite at 0
    return jnp.where(differs, jnp.where(differs, squared, 1.0) ** (power / 2), 0.0).mean()


def uniformity(z: Float[Array, "m d"], scale: float | int = 2.0) -> Float[Array, ""]:
    """Return a measure of how evenly latents are spread, `log mean e^(-t |z_i - z_j|^2)`.

    The mean is over pairs i != j, t is `scale`, and latents must have unit length (Wang & Isola
    2020, section 4.1). Lower values are more even. A collapsed embedding has the maximum, 0.

    The squared distance between two opposite points is 4:

    >>> uniformity(jnp.array([[1.0, 0.0], [-1.0, 0.0]]))
    Array(-8., dtype=float32)
    """
    check_number("scale", scale, above=0)
    check_shape("z", z, "m", "d")
    m = len(z)
    check_number("the number of latents", m, least=2)
    z = z.astype(jnp.float32)
    norms = jnp.square(z).sum(-1)
    products = jnp.matmul(z, z.T, preferred_element_type=jnp.float32)
    squared = jnp.maximum(norms[:, None] + norms - 2.0 * products, 0.0)
    pairs = ~jnp.eye(m, dtype=bool)
    return jax.nn.logsumexp(-scale * squared, where=pairs) - jnp.log(m * (m - 1.0))


def logistic_pairs(
    positive: Float[Array, "m p"],
    negatives: Float[Array, "m n"],
    where_positive: Bool[Array, "m p"],
    where: Bool[Array, "m p n"] | None = None,
    *,
    weight: Number = 1.0,
) -> Float[Array, " m"]:
    """Return the logistic loss of each anchor, in nats, summed over its positives.

    L = sum_p [ -log sigma(s_p) - w sum_n log sigma(-s_n) ]

    w (`weight`) sets the ratio of negatives to positives. If w = k / n, n shared negatives give the
    expected loss of k separate negatives per pair, so many anchors can share a large sample.
    `where` is a mask of each positive's negatives. Masked entries may be NaN.

    >>> two = jnp.ones((1, 2), bool)
    >>> logistic_pairs(jnp.zeros((1, 2)), jnp.zeros((1, 3)), two) / jnp.log(2.0)
    Array([8.], dtype=float32)
    """
    positive = read_pairs(positive, negatives, where_positive, where)
    counts = where_positive[..., None] if where is None else where & where_positive[..., None]
    negatives = jnp.where(counts.any(1), negatives, 0).astype(jnp.float32)
    noise = jax.nn.softplus(negatives) * counts.sum(1)  # times the number of pairs of each negative
    data = jnp.where(where_positive, jax.nn.softplus(-positive), 0.0)
    return data.sum(-1) + jnp.asarray(weight, jnp.float32) * noise.sum(-1)


def softmax_pairs(
    positive: Float[Array, "m p"],
    negatives: Float[Array, "m n"],
    where_positive: Bool[Array, "m p"],
    where: Bool[Array, "m p n"] | None = None,
) -> Float[Array, " m"]:
    """Return the softmax loss of each anchor, in nats, summed over its positives.

    L = sum_p [ log(e^s_p + sum_n e^s_n) - s_p ]

    Positives are not negatives of each other. The arguments are the same as for `logistic_pairs`.

    >>> two = jnp.ones((1, 2), bool)
    >>> softmax_pairs(jnp.zeros((1, 2)), jnp.zeros((1, 3)), two) / jnp.log(2.0)
    Array([4.], dtype=float32)
    """
    positive = read_pairs(positive, negatives, where_positive, where)
    negatives = negatives.astype(jnp.float32)
    if where is None:
        rest = log_sum_exp(negatives, jnp.ones(negatives.shape, bool))[:, None]
        loss = jnp.logaddexp(positive, rest) - positive
    else:
        where = where & where_positive[..., None]
        m, p, n = where.shape
        rows = jnp.broadcast_to(negatives[:, None], where.shape).reshape(m * p, n)
        rest = log_sum_exp(rows, where.reshape(m * p, n)).reshape(m, p)
        some = where.any(-1)
        loss = jnp.where(some, jnp.logaddexp(positive, jnp.where(some, rest, 0.0)) - positive, 0.0)
    return jnp.where(where_positive, loss, 0.0).sum(-1)


def read_pairs(positive: Any, negatives: Any, where_positive: Any, where: Any) -> Any:
    """Validate pair scores and their masks, and return the positives, with zeros if masked."""
    check_shape("positive", positive, "m", "p")
    check_shape("negatives", negatives, len(positive), "n")
    fix = f"pass booleans of shape {positive.shape}"
    check_type("where_positive", where_positive, ArrayLike, fix)
    read_mask("where_positive", where_positive, positive.shape)
    if where is not None:
        read_mask("where", where, (*positive.shape, negatives.shape[1]))
    return jnp.where(where_positive, positive, 0).astype(jnp.float32)


def sigmoid(
    positive: Float[Array, " m"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    temperature: Number = 1.0,
    bias: Number = 0.0,
) -> Float[Array, " m"]:
    """Return the sigmoid loss of each anchor, in nats, summed over one decision per candidate.

    L = -log sigma(s_0 / tau + b) - sum_j log sigma(-s_j / tau - b)  (Zhai et al. 2023, section 3.2)

    For K negatives, the optimal logit s / tau + b is log p(x|c) / p(x) - log K. The bias b
    compensates for the number of negatives. The paper learns both, starting at tau = 1 / 10 (its t
    is 1 / tau) and b = -10.

    Logits of 0 give (1 + K) log 2:

    >>> sigmoid(jnp.ones(1), jnp.ones((1, 3)), temperature=0.1, bias=-10) / jnp.log(2.0)
    Array([4.], dtype=float32)
    """
    rows = scale(read_single(positive, negatives, where), temperature)
    bias = jnp.asarray(bias, jnp.float32)
    return logistic_loss(subtract(rows, -bias, -bias))


def triplet(
    positive: Float[Array, " m"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    margin: Number,
    mining: str = "hard",
) -> Float[Array, " m"]:
    """Return the triplet loss of each anchor, in the unit of the scores.

    L = max(0, d_p - d_n + margin),  d = -s  (Schroff et al. 2015, section 3)

    Scores s are similarities. To use a distance, pass its negative. All scores that satisfy the
    margin are optimal, so scores estimate no quantity, and log N - L is not defined.

    Args:
      margin: required difference between the distances of negative and positive, at least 0.
      mining: how to select the negative n. "hard" selects the nearest. "semi_hard" selects the
        nearest with d_p < d_n < d_p + margin, or the farthest of all negatives if there is none.
        "all" uses every negative, and L is the mean over all of them, including zeros.

    A positive at distance 1, and negatives at distances 0.5, 1.25, 4 and 8:

    >>> far = -jnp.array([[0.5, 1.25, 4.0, 8.0]])
    >>> [float(triplet(-jnp.ones(1), far, margin=0.5, mining=word)[0])
    ...     for word in ("hard", "semi_hard", "all")]
    [1.0, 0.25, 0.3125]
    """
    if mining not in MINING:
        raise UserError(f"mining is unknown (got {mining!r}): choose one of {', '.join(MINING)}")
    check_number("margin", margin, least=0)
    margin = jnp.asarray(margin, jnp.float32)
    rows = read_single(positive, negatives, where)
    scores, own = rows.negatives, rows.positive

    if mining == "all":
        return mean_where(jax.nn.relu(scores - own + margin), rows.where)
    chosen = highest_where(scores, rows.where)
    if mining == "semi_hard":
        inside = rows.where & (scores < own) & (scores > own - margin)
        farthest = -highest_where(-scores, rows.where)
        chosen = jnp.where(inside.any(-1), highest_where(scores, inside), farthest)
    return jnp.where(rows.counted, jax.nn.relu(chosen - own[:, 0] + margin), 0.0)
