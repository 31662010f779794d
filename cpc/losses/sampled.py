"""Softmax and logistic losses over a vocabulary, or over a sample of it as in TensorFlow.

An accidental hit is a sampled class that is also a true class of the anchor.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from cpc.losses.masking import (
    OfNegatives,
    OfPositive,
    logistic_loss,
    read_rows,
    softmax_loss,
    subtract,
)
from cpc.types import UserError, check_function, check_shape


def sampled_softmax(
    positive: Float[Array, " m"] | Float[Array, "m p"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    log_q_positive: OfPositive = 0.0,
    log_q_negatives: OfNegatives = 0.0,
) -> Float[Array, " m"]:
    """Return the sampled softmax loss of each anchor, in nats.

    L = log sum_j e^(s_j - log Q_j) - (s_0 - log Q_0), j over the positive and the negatives

    (Jean et al. 2015, section 3; Bengio & Senecal 2008), where Q is the expected count of a class
    in the sample. The optimal score is log p(x|c) + h(c). This is exact in two cases: independent
    draws with accidental hits kept, which is ranking NCE, and hits removed if each class enters the
    sample independently. Otherwise it is slightly biased. Without correction it is log p / q.

    Args:
      positive: scores of the positives. As in TensorFlow, each of p positives has label 1 / p, and
        all stay in the denominator.
      where: mask of the negatives, which can exclude accidental hits.
      log_q_positive: log Q of the positives, as one number, (m,) or (m, p).
      log_q_negatives: log Q of the negatives, as one number, (n,) or (m, n).

    Two equal scores, with an expected count of 2 for the negative:

    >>> zero, log_2 = jnp.zeros((1, 1)), jnp.log(2.0)
    >>> sampled_softmax(zero, zero, log_q_negatives=log_2) - jnp.log(1 + 1 / 2)
    Array([0.], dtype=float32)
    """
    rows = read_rows(positive, negatives, where)
    return softmax_loss(subtract(rows, log_q_positive, log_q_negatives))


def sampled_logistic(
    positive: Float[Array, " m"] | Float[Array, "m p"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    log_q_positive: OfPositive = 0.0,
    log_q_negatives: OfNegatives = 0.0,
) -> Float[Array, " m"]:
    """Return the sampled logistic loss of each anchor, in nats, with a binary decision per class.

    L = -log sigma(G_0) - sum_j log sigma(-G_j),  G = s - log Q

    (TensorFlow, "Candidate sampling"), where Q is the expected count of a class in the sample. If
    accidental hits are removed, the optimal score is the log odds log p(x|c) / (1 - p(x|c)), not
    log p. An anchor whose sample contains only hits has loss 0. This biases the optimum for small
    samples. The arguments are the same as for `sampled_softmax`.

    A positive with odds of 3 has loss log(4 / 3), and so has a negative with odds of 1 / 3:

    >>> log_3 = jnp.log(jnp.full((1, 1), 3.0))
    >>> round(float(jnp.exp(sampled_logistic(log_3, -log_3))[0]), 4)  # 16 / 9
    1.7778
    """
    rows = read_rows(positive, negatives, where)
    return logistic_loss(subtract(rows, log_q_positive, log_q_negatives))


def full_softmax(scores: Float[Array, "m v"], labels: Int[Array, " m"]) -> Float[Array, " m"]:
    """Return the softmax cross-entropy of each anchor over all v classes, in nats.

    L = log sum_v e^s_v - s_y, where y is the label

    The optimal score is log p(x|c) + h(c). H(x) - L is a lower bound on the mutual information.
    log v - L is a lower bound only if all classes are equally frequent. Labels must be between 0
    and v - 1. Other labels raise `UserError`, or give a loss of NaN if they are traced.

    >>> full_softmax(jnp.zeros((1, 4)), jnp.array([2])) - jnp.log(4.0)
    Array([0.], dtype=float32)
    """
    is_label = _one_hot(scores, labels)
    log_p = jax.nn.log_softmax(scores.astype(jnp.float32))
    return jnp.where(is_label.any(-1), -jnp.where(is_label, log_p, 0.0).sum(-1), jnp.nan)


def full_logistic(
    scores: Float[Array, "m v"], labels: Int[Array, " m"] | Bool[Array, "m v"]
) -> Float[Array, " m"]:
    """Return the binary cross-entropy of each anchor, in nats, summed over all v classes.

    L = -sum_(v true) log sigma(s_v) - sum_(v false) log sigma(-s_v)

    The optimal score is the log odds log p(x|c) / (1 - p(x|c)). `labels` contains the true class of
    each anchor, validated as in `full_softmax`, or a mask of the true classes.

    >>> full_logistic(jnp.zeros((1, 4)), jnp.array([2])) / jnp.log(2.0)
    Array([4.], dtype=float32)
    """
    scores = scores.astype(jnp.float32)
    if labels.ndim == 1:
        labels = _one_hot(scores, labels)
        scores = jnp.where(labels.any(-1, keepdims=True), scores, jnp.nan)
    elif labels.shape != scores.shape:
        problem = f"labels do not match scores of shape {scores.shape} (got shape {labels.shape})"
        raise UserError(f"{problem}: pass classes ({len(scores)},) or a mask of the scores' shape")
    return jax.nn.softplus(jnp.where(labels, -scores, scores)).sum(-1)


def _one_hot(scores: Any, labels: Any) -> Any:
    m, v = scores.shape
    check_shape("labels", labels, m)
    check_labels(labels, v)
    return labels[:, None] == jnp.arange(v)


def check_labels(labels: Any, num_classes: int) -> None:
    """Validate that labels are class indices, unless they are traced."""
    if not isinstance(labels, Tracer):
        known = np.asarray(labels)  # NumPy also works in a traced function that closes over labels
        outside = known[(known < 0) | (known >= num_classes)]
        if outside.size:
            fix = f"pass integers from 0 to {num_classes - 1}"
            raise UserError(f"labels are not class indices (got {outside[0]}): {fix}")


#: sample(rng, labels (m, p), num) -> ids (n,), expected count of the labels (m, p) and ids (n,).
Sampler: TypeAlias = Callable[[Array, Array, int], tuple[Array, Array, Array]]


class SamplingOptions(TypedDict, total=False):
    """Further keyword arguments of `candidate_sampling`, all True by default."""

    remove_accidental_hits: bool
    subtract_log_q: bool


def candidate_sampling(
    weights: Float[Array, "v d"],
    biases: Float[Array, " v"],
    labels: Int[Array, " m"] | Int[Array, "m p"],
    inputs: Float[Array, "m d"],
    num_sampled: int,
    sampler: Sampler | None = None,
    *,
    rng: Array | None = None,
    sampled_values: tuple[Array, Array, Array] | None = None,
    loss: Callable[..., Float[Array, " m"]] = sampled_softmax,
    **options: Unpack[SamplingOptions],
) -> Float[Array, " m"]:
    """Return each input's loss, in nats, over a sample of the v classes.

    All inputs share the sample. The score of a class with weights w and bias b for input x is
    w . x + b, minus log Q if `subtract_log_q` is True. If the loss is `sampled_softmax`, the result
    equals tf.nn.sampled_softmax_loss. If it is `sampled_logistic`, the result equals tf.nn.nce_loss
    (which keeps accidental hits by default). For evaluation, use the loss over all classes:
    `full_softmax` or `full_logistic` of inputs @ weights.T + biases.

    Args:
      labels: true classes of each input. Each of p classes has label 1 / p.
      num_sampled: number of classes to draw.
      sampler: function that draws classes with the key `rng`, such as
        `cpc.negatives.log_uniform_sampler(v)`.
      sampled_values: a sample to use instead of `sampler`, as a tuple of ids, the labels' expected
        counts, and the ids' expected counts.
      loss: `sampled_softmax`, `sampled_logistic`, or a function with the same arguments.
      remove_accidental_hits: mask sampled classes that are a true class of the input.
      subtract_log_q: subtract log Q from all scores.

    >>> w, b, x = jnp.zeros((4, 2)), jnp.zeros(4), jnp.ones((1, 2))
    >>> drawn = jnp.array([1, 3]), jnp.ones((1, 1)), jnp.ones(2)
    >>> candidate_sampling(w, b, jnp.array([0]), x, 2, sampled_values=drawn) - jnp.log(3.0)
    Array([0.], dtype=float32)
    """
    check_function("loss", loss, 3, "pass a function such as cpc.losses.sampled_softmax")
    if sampler is not None:
        check_function("sampler", sampler, 3, "pass cpc.negatives.uniform_sampler(v), for example")
    check_shape("biases", biases, len(weights))
    check_shape("inputs", inputs, len(labels), weights.shape[1])
    check_labels(labels, len(weights))
    labels = labels.reshape(len(labels), -1)
    if sampled_values is None:
        if sampler is None or rng is None:
            raise UserError("the sample is missing: pass sampler and rng, or sampled_values")
        sampled_values = sampler(rng, labels, num_sampled)
    check_shape("the sample", sampled_values[0], num_sampled)
    scores, corrections = _score_sample(weights, biases, labels, inputs, sampled_values, **options)
    return loss(*scores, **corrections)


def _score_sample(
    weights, biases, labels, inputs, sample, remove_accidental_hits=True, subtract_log_q=True
) -> Any:
    """Return (positive, negatives, where), and corrections as keyword arguments of the loss."""
    ids, label_counts, id_counts = sample
    is_known = not isinstance(label_counts, Tracer)
    if subtract_log_q and is_known and not (np.asarray(label_counts) > 0).all():
        problem = "the sampler never draws the class of a label (got log q = -inf)"
        raise UserError(f"{problem}: pass a positive count per class, or remove unused classes")
    positive = jnp.einsum("mpd,md->mp", weights[labels], inputs) + biases[labels]
    negatives = inputs @ weights[ids].T + biases[ids]
    where = jnp.ones(negatives.shape, bool)
    if remove_accidental_hits:
        where = (labels[:, :, None] != ids).all(1)
    if not subtract_log_q:
        return (positive, negatives, where), {}
    log_q = {
        "log_q_positive": jnp.log(jnp.maximum(label_counts, 1e-30)),
        "log_q_negatives": jnp.log(id_counts),
    }
    return (positive, negatives, where), log_q
