"""NT-Xent and SupCon on cosine scores, and how an embedding lies on the sphere."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from cpc.losses.masking import (
    Number,
    check,
    check_matrix,
    log_sum_exp,
    read_rows,
    read_single,
    scale,
    softmax_loss,
)
from cpc.losses.noise_contrastive import info_nce
from cpc.types import UserError


def view_scores(
    first: Float[Array, "b d"], second: Float[Array, "b d"]
) -> tuple[Float[Array, " m"], Float[Array, "m n"]]:
    """Cosine scores of the 2b views of b items: positives (2b,) and negatives (2b, 2b - 2).

    Anchors are the first views, then the second. An anchor's positive is the other view of its
    item; its negatives are both views of all other items (Chen et al. 2020, section 2.1).

    >>> positive, negatives = view_scores(jnp.eye(2), 3.0 * jnp.eye(2))
    >>> positive
    Array([1., 1., 1., 1.], dtype=float32)
    >>> negatives.shape, float(abs(negatives).max())
    ((4, 2), 0.0)
    """
    check_matrix("first", first)
    check_matrix("second", second)
    if first.shape != second.shape:
        raise UserError(f"second has shape {second.shape}: it must be that of first, {first.shape}")
    b = first.shape[0]
    z = jnp.concatenate([first, second]).astype(jnp.float32)
    squared = jnp.square(z).sum(-1, keepdims=True)
    is_zero = squared < 1e-24  # no direction: its cosines are 0, without a gradient
    z = jnp.where(is_zero, 0.0, z) * lax.rsqrt(jnp.where(is_zero, 1.0, squared))
    scores = jnp.matmul(z, z.T, preferred_element_type=jnp.float32)
    anchor, step = jnp.arange(2 * b)[:, None], jnp.arange(1, b)
    others = (anchor + jnp.concatenate([step, b + step])) % (2 * b)  # neither itself nor its twin
    positive = scores[anchor[:, 0], (anchor[:, 0] + b) % (2 * b)]
    return positive, jnp.take_along_axis(scores, others, axis=1)


def nt_xent(
    positive: Float[Array, " m"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    temperature: Number = 0.5,
) -> Float[Array, " m"]:
    """NT-Xent of each anchor, in nats: InfoNCE of cosine scores, both views as anchors.

    L = -log [ e^(s_0 / tau) / sum_(j = 0..K) e^(s_j / tau) ],  s cosine  (Chen et al. 2020, eq. 1)

    `view_scores` makes the scores: N = 2b - 1 candidates. The optimal score is log r + h(c), as far
    as a cosine over tau can reach. log N - L is an estimate: negatives come in pairs of views.

    Two items whose four views are all alike: chance among 3 candidates.

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
    """Supervised contrastive loss of each anchor, in nats (Khosla et al. 2020, eq. 2 and 3).

    L_out = mean_p -log [ e^(s_p / tau) / sum_a e^(s_a / tau) ]
    L_in  = -log [ mean_p e^(s_p / tau) / sum_a e^(s_a / tau) ]

    over an anchor's positives p, and a over its positives and negatives. L_in <= L_out; the
    published preference is L_out. With one positive both are NT-Xent. The optimal score follows the
    classes, not a density: log N - L is an estimate.

    Args:
      positive: cosine scores of the others of the anchor's class.
      negatives: cosine scores of those of other classes.
      where_positive: which positives count. An anchor without a positive or without a negative has
        loss 0: leave it out of the mean.
      inside: the mean over positives inside the logarithm, L_in.

    Equal scores, two positives and three negatives: chance among 5 candidates.

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
    """How far positives lie apart: `mean |z - z+|^power` (Wang & Isola 2020, section 4.1).

    Latents are of unit length. 0 is the best, and what a collapsed embedding has.

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

    (Wang & Isola 2020, section 4.1.) Latents are of unit length, t is `scale`. Lower is more even;
    a collapsed embedding has 0, the maximum.

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
