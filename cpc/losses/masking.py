"""What the losses share: rows of scores checked, in float32, with the masked entries taken out."""

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from cpc.types import UserError, check_array

#: One number for all rows, learnable if it is an array.
Number: TypeAlias = float | int | Float[Array, ""]
#: One number, one for each anchor, or one for each of an anchor's positives.
OfPositive: TypeAlias = Number | Float[Array, " m"] | Float[Array, "m p"]
#: One number, one for each candidate that the anchors share, or one for each entry.
OfNegatives: TypeAlias = Number | Float[Array, " n"] | Float[Array, "m n"]


class Rows(NamedTuple):
    """Scores of m anchors in float32; entries that do not count are 0, whatever they were."""

    positive: Float[Array, "m p"]
    negatives: Float[Array, "m n"]
    where_positive: Bool[Array, "m p"]
    where: Bool[Array, "m n"]
    counted: Bool[Array, " m"]
    """Anchors that have a negative and a positive; the loss of the others is 0."""

    @property
    def num_negatives(self) -> Float[Array, " m"]:
        """Negatives of each anchor, at least 1 so that it can divide and have a logarithm."""
        return jnp.maximum(self.where.sum(-1), 1).astype(jnp.float32)


def read_rows(positive: Any, negatives: Any, where: Any, where_positive: Any = None) -> Rows:
    """Check the shapes and take out what does not count, before any arithmetic can see it."""
    check_array("positive", positive)
    check_array("negatives", negatives)
    if positive.ndim not in (1, 2):
        raise UserError(f"positive has shape {positive.shape}: it must be (m,) or (m, p)")
    m = positive.shape[0]
    if negatives.ndim != 2 or negatives.shape[0] != m:
        raise UserError(
            f"negatives has shape {negatives.shape}: with {m} anchors in positive it must be "
            f"({m}, n)"
        )
    if where is None and where_positive is None and positive.shape == negatives.shape != (m, 1):
        raise UserError(
            f"positive and negatives look like embeddings (got {positive.shape} twice): pass "
            "scores, such as *view_scores(z_a, z_b), or a mask if they are scores"
        )
    if positive.ndim == 1:
        if where_positive is not None:
            raise UserError(
                "where_positive needs several positives: give positive the shape (m, p)"
            )
        positive = positive[:, None]
    where = read_mask("where", where, negatives.shape)
    where_positive = read_mask("where_positive", where_positive, positive.shape)
    return Rows(
        jnp.where(where_positive, positive, 0).astype(jnp.float32),
        jnp.where(where, negatives, 0).astype(jnp.float32),
        where_positive,
        where,
        where.any(-1) & where_positive.any(-1),
    )


def read_single(positive: Any, negatives: Any, where: Any) -> Rows:
    """`read_rows` of anchors with one positive each, for losses that know no more."""
    check_array("positive", positive)
    if positive.ndim != 1:
        raise UserError(
            f"positive has shape {positive.shape}: it must be (m,), one positive an anchor: "
            "pass scores, not embeddings, and give each of several positives a row of its own"
        )
    return read_rows(positive, negatives, where)


def check_matrix(name: str, value: Any) -> None:
    """Check that an argument is a matrix of real numbers."""
    check_array(name, value)
    if value.ndim != 2:
        raise UserError(f"{name} is not a matrix (got shape {value.shape}): pass a row per latent")


def read_mask(name: str, mask: Any, shape: tuple[int, ...]) -> Any:
    """What counts; all of it, if no mask is given."""
    if mask is None:
        return jnp.ones(shape, bool)
    if not hasattr(mask, "dtype"):
        fix = f"pass an array of booleans of the shape {shape}"
        raise UserError(f"{name} is not an array (got {type(mask).__name__}): {fix}")
    if mask.shape != shape or mask.dtype != bool:
        raise UserError(
            f"{name} is {mask.dtype} of shape {mask.shape}: it must be booleans of the shape "
            f"{shape}"
        )
    return mask


def scale(rows: Rows, temperature: Any) -> Rows:
    """Rows with the scores divided by a temperature."""
    check("temperature", temperature, above=0)
    tau = jnp.asarray(temperature, jnp.float32)
    return rows._replace(positive=rows.positive / tau, negatives=rows.negatives / tau)


def divide(queries: Any, temperature: Any, dtype: Any) -> Any:
    """Queries over a temperature, in the dtype of the keys.

    The temperature is read in float32: in the dtype of what it divides its gradient would be summed
    in that, and the sum of many small parts in bfloat16 stops growing.
    """
    scaled = queries / jnp.asarray(temperature, jnp.float32)
    return scaled.astype(jax.dtypes.canonicalize_dtype(dtype))  # NumPy has float64 without x64


def subtract(rows: Rows, from_positive: Any, from_negatives: Any) -> Rows:
    """Rows with corrections taken off the scores; where nothing counts, nothing is read."""
    from_positive = jnp.asarray(from_positive, jnp.float32)
    if from_positive.ndim == 1:
        from_positive = from_positive[:, None]
    from_negatives = jnp.asarray(from_negatives, jnp.float32)
    for name, correction, scores in (
        ("positive", from_positive, rows.positive),
        ("negatives", from_negatives, rows.negatives),
    ):
        if not broadcasts_to(correction.shape, scores.shape):
            raise UserError(
                f"the correction of {name} has shape {correction.shape}: it must be one number or "
                f"fit the scores, {scores.shape}"
            )
    return rows._replace(
        positive=rows.positive - jnp.where(rows.where_positive, from_positive, 0.0),
        negatives=rows.negatives - jnp.where(rows.where, from_negatives, 0.0),
    )


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of the shape can be read as one of the target."""
    try:
        return jnp.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def log_sum_exp(scores: Float[Array, "m n"], where: Bool[Array, "m n"]) -> Float[Array, " m"]:
    """Log of the sum of e^s over a row's counted scores; 0, with no gradient, if it has none."""
    highest = _highest(scores, where)
    total = jnp.exp(jnp.where(where, scores, -jnp.inf) - highest[:, None]).sum(-1)
    return highest + jnp.log(jnp.where(where.any(-1), total, 1.0))


def _highest(scores, where):
    highest = jnp.where(where, scores, -jnp.inf).max(-1, initial=-jnp.inf)
    return lax.stop_gradient(jnp.where(where.any(-1), highest, 0.0))


def mean_where(x: Float[Array, "m p"], where: Bool[Array, "m p"]) -> Float[Array, " m"]:
    """Mean of a row's counted entries; 0 if it has none."""
    return jnp.where(where, x, 0.0).sum(-1) / jnp.maximum(where.sum(-1), 1)


def softmax_loss(rows: Rows) -> Float[Array, " m"]:
    """Cross-entropy of the softmax over positives and negatives, label 1 / p on each positive."""
    scores = jnp.concatenate([rows.positive, rows.negatives], -1)
    where = jnp.concatenate([rows.where_positive, rows.where], -1)
    highest = _highest(scores, where)[:, None]  # leaves first: large scores keep their differences
    total = log_sum_exp(scores - highest, where)[:, None]
    loss = mean_where(total - (rows.positive - highest), rows.where_positive)
    return jnp.where(rows.counted, loss, 0.0)


def logistic_loss(rows: Rows) -> Float[Array, " m"]:
    """Sum of binary cross-entropies: label 1 / p on each positive, 0 on each negative."""
    num_positives = rows.where_positive.sum(-1, keepdims=True, dtype=jnp.float32)
    label = 1 / jnp.maximum(num_positives, 1)
    as_positive = label * jax.nn.softplus(-rows.positive)
    as_negative = (1 - label) * jax.nn.softplus(rows.positive)
    loss = jnp.where(rows.where_positive, as_positive + as_negative, 0.0).sum(-1)
    loss += jnp.where(rows.where, jax.nn.softplus(rows.negatives), 0.0).sum(-1)
    return jnp.where(rows.counted, loss, 0.0)


def check(
    name: str, value: Any, *, above: float | int = -jnp.inf, least: float | int = -jnp.inf
) -> None:
    """Refuse anything but one number, and one that is known and too small or NaN."""
    if not isinstance(value, int | float):
        check_array(name, value)
    if jnp.ndim(value):
        raise UserError(f"{name} has shape {jnp.shape(value)}: it must be one number")
    if isinstance(value, Tracer):
        return
    # Of jax, even an array that is known compares to a tracer within jit.
    if not above < np.asarray(value) >= least:
        limit = f"above {above}" if above > -jnp.inf else f"{least} or more"
        raise UserError(f"{name} is {value}: it must be {limit}")
