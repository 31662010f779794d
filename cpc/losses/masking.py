"""Validation of scores and masks, and reductions over unmasked scores in float32."""

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from cpc.types import UserError, check_array, check_number, check_shape

#: One value for all rows. An array may be learned.
Number: TypeAlias = float | int | Float[Array, ""]
#: One value, a value per anchor, or a value per anchor and positive.
OfPositive: TypeAlias = Number | Float[Array, " m"] | Float[Array, "m p"]
#: One value, a value per candidate that all anchors share, or a value per anchor and candidate.
OfNegatives: TypeAlias = Number | Float[Array, " n"] | Float[Array, "m n"]


class Rows(NamedTuple):
    """Scores of m anchors in float32, with 0 for masked entries."""

    positive: Float[Array, "m p"]
    negatives: Float[Array, "m n"]
    where_positive: Bool[Array, "m p"]
    where: Bool[Array, "m n"]
    counted: Bool[Array, " m"]
    """Mask of the anchors with a positive and a negative. Other anchors have loss 0."""

    @property
    def num_negatives(self) -> Float[Array, " m"]:
        """Number of negatives per anchor, at least 1 so that its log is finite."""
        return jnp.maximum(self.where.sum(-1), 1).astype(jnp.float32)


def read_rows(positive: Any, negatives: Any, where: Any, where_positive: Any = None) -> Rows:
    """Validate scores and masks, and zero masked entries, which may be NaN."""
    check_array("positive", positive)
    if positive.ndim not in (1, 2):
        raise UserError(f"positive does not fit (got shape {positive.shape}): pass (m,) or (m, p)")
    m = positive.shape[0]
    check_shape("negatives", negatives, m, "n")
    if where is None and where_positive is None and positive.shape == negatives.shape != (m, 1):
        problem = f"positive and negatives look like embeddings (got {positive.shape} twice)"
        raise UserError(f"{problem}: pass scores, as of view_scores, or pass where for scores")
    if positive.ndim == 1:
        if where_positive is not None:
            problem = f"where_positive needs several positives (got shape {positive.shape})"
            raise UserError(f"{problem}: pass positive of shape (m, p)")
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
    """Return `read_rows` for losses that take one positive per anchor."""
    check_shape("positive", positive, "m")
    return read_rows(positive, negatives, where)


def read_mask(name: str, mask: Any, shape: tuple[int, ...]) -> Any:
    """Return the mask after validation, or a mask that is True everywhere if `mask` is None."""
    if mask is None:
        return jnp.ones(shape, bool)
    if not hasattr(mask, "dtype"):
        fix = f"pass an array of booleans of the shape {shape}"
        raise UserError(f"{name} is not an array (got {type(mask).__name__}): {fix}")
    if mask.shape != shape or mask.dtype != bool:
        problem = f"{name} is not a matching mask (got {mask.dtype} of shape {mask.shape})"
        raise UserError(f"{problem}: pass booleans of shape {shape}")
    return mask


def scale(rows: Rows, temperature: Any) -> Rows:
    """Divide all scores by a temperature."""
    check_number("temperature", temperature, above=0)
    tau = jnp.asarray(temperature, jnp.float32)
    return rows._replace(positive=rows.positive / tau, negatives=rows.negatives / tau)


def divide(queries: Any, temperature: Any, dtype: Any) -> Any:
    """Divide queries by a temperature and cast them to `dtype`.

    The division uses float32, because the gradient of the temperature is summed in the dtype of the
    division, and a bfloat16 sum of many small terms stops growing.
    """
    scaled = queries / jnp.asarray(temperature, jnp.float32)
    # A NumPy dtype may be float64 even if jax_enable_x64 is off.
    return scaled.astype(jax.dtypes.canonicalize_dtype(dtype))


def subtract(rows: Rows, from_positive: Any, from_negatives: Any) -> Rows:
    """Subtract corrections, such as log q, from the unmasked scores."""
    from_positive = jnp.asarray(from_positive, jnp.float32)
    if from_positive.ndim == 1:
        from_positive = from_positive[:, None]
    from_negatives = jnp.asarray(from_negatives, jnp.float32)
    check_broadcasts("the correction of positive", from_positive, rows.positive.shape)
    check_broadcasts("the correction of negatives", from_negatives, rows.negatives.shape)
    return rows._replace(
        positive=rows.positive - jnp.where(rows.where_positive, from_positive, 0.0),
        negatives=rows.negatives - jnp.where(rows.where, from_negatives, 0.0),
    )


def check_broadcasts(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Raise UserError unless an array broadcasts to `shape` without changing it."""
    own = jnp.shape(value)
    pairs = zip(reversed(own), reversed(shape), strict=False)
    if len(own) > len(shape) or any(size not in (1, wanted) for size, wanted in pairs):
        problem = f"{name} has the wrong shape (got shape {own})"
        raise UserError(f"{problem}: pass an array that broadcasts to {shape}")


def log_sum_exp(scores: Float[Array, "m n"], where: Bool[Array, "m n"]) -> Float[Array, " m"]:
    """Return log sum e^s over each row's unmasked scores. A fully masked row yields 0."""
    highest = lax.stop_gradient(highest_where(scores, where))
    total = jnp.exp(jnp.where(where, scores, -jnp.inf) - highest[:, None]).sum(-1)
    return highest + jnp.log(jnp.where(where.any(-1), total, 1.0))


def highest_where(scores: Float[Array, "m n"], where: Bool[Array, "m n"]) -> Float[Array, " m"]:
    """Return the highest unmasked score of each row. A fully masked row yields 0."""
    highest = jnp.where(where, scores, -jnp.inf).max(-1, initial=-jnp.inf)
    return jnp.where(where.any(-1), highest, 0.0)


def mean_where(x: Float[Array, "m p"], where: Bool[Array, "m p"]) -> Float[Array, " m"]:
    """Return the mean of each row's unmasked entries. A fully masked row yields 0."""
    return jnp.where(where, x, 0.0).sum(-1) / jnp.maximum(where.sum(-1), 1)


def softmax_loss(rows: Rows) -> Float[Array, " m"]:
    """Return the softmax cross-entropy over all candidates, with label 1 / p per positive."""
    scores = jnp.concatenate([rows.positive, rows.negatives], -1)
    where = jnp.concatenate([rows.where_positive, rows.where], -1)
    highest = lax.stop_gradient(highest_where(scores, where))[:, None]
    # Subtracted first, for precision at large scores.
    total = log_sum_exp(scores - highest, where)[:, None]
    loss = mean_where(total - (rows.positive - highest), rows.where_positive)
    return jnp.where(rows.counted, loss, 0.0)


def logistic_loss(rows: Rows) -> Float[Array, " m"]:
    """Return the summed binary cross-entropy, with label 1 / p per positive and 0 per negative."""
    num_positives = rows.where_positive.sum(-1, keepdims=True, dtype=jnp.float32)
    label = 1 / jnp.maximum(num_positives, 1)
    as_positive = label * jax.nn.softplus(-rows.positive)
    as_negative = (1 - label) * jax.nn.softplus(rows.positive)
    loss = jnp.where(rows.where_positive, as_positive + as_negative, 0.0).sum(-1)
    loss += jnp.where(rows.where, jax.nn.softplus(rows.negatives), 0.0).sum(-1)
    return jnp.where(rows.counted, loss, 0.0)
