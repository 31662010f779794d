"""Softmax and logistic losses over a vocabulary, whole or from a sample of it as in TensorFlow."""

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
from cpc.types import UserError, check_function


def sampled_softmax(
    positive: Float[Array, " m"] | Float[Array, "m p"],
    negatives: Float[Array, "m n"],
    where: Bool[Array, "m n"] | None = None,
    *,
    log_q_positive: OfPositive = 0.0,
    log_q_negatives: OfNegatives = 0.0,
) -> Float[Array, " m"]:
    """Sampled softmax of each anchor, in nats.

    L = log sum_j e^(s_j - log Q_j) - (s_0 - log Q_0), j over the positive and the negatives

    (Jean et al. 2015, section 3; Bengio & Senecal 2008), Q the expected count of a class in the
    sample. The optimal score is log p(x|c) + h(c): exactly with independent draws and accidental
    hits kept, which is ranking NCE, or with hits left out if each class enters the sample
    independently; slightly off otherwise. Without the corrections it learns the ratio p / q.

    Args:
      positive: with p of them each is labelled 1 / p, as TensorFlow does, and all stay in the
        denominator.
      where: leave accidental hits out here.
      log_q_positive: log Q: one number, (m,) or (m, p).
      log_q_negatives: log Q: one number, (n,) or (m, n).

    Two equal candidates, of which the sampler expects the negative twice as often:

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
    """Sampled logistic loss of each anchor, in nats: each class a yes or no of its own.

    L = -log sigma(G_0) - sum_j log sigma(-G_j),  G = s - log Q

    (TensorFlow, "Candidate sampling"), Q the expected count of a class in the sample. With
    accidental hits left out the optimal score is the log odds log p(x|c) / (1 - p(x|c)), not
    log p; an anchor whose sample is all hits has loss 0, which at small samples pulls the optimum
    away from them. Arguments are those of `sampled_softmax`.

    A positive with odds of 3 costs log(4 / 3), and so does a negative with odds of 1 / 3:

    >>> log_3 = jnp.log(jnp.full((1, 1), 3.0))
    >>> round(float(jnp.exp(sampled_logistic(log_3, -log_3))[0]), 4)  # 16 / 9
    1.7778
    """
    rows = read_rows(positive, negatives, where)
    return logistic_loss(subtract(rows, log_q_positive, log_q_negatives))


def full_softmax(scores: Float[Array, "m v"], labels: Int[Array, " m"]) -> Float[Array, " m"]:
    """Cross-entropy of each anchor over all v classes, in nats: what sampling approximates.

    L = log sum_v e^s_v - s_y

    The optimal score is log p(x|c) + h(c). H(x) - L bounds the mutual information from below;
    log v - L does so only if all classes are equally frequent. Labels outside 0..v-1 raise
    UserError, or have loss NaN if they are traced.

    >>> full_softmax(jnp.zeros((1, 4)), jnp.array([2])) - jnp.log(4.0)
    Array([0.], dtype=float32)
    """
    is_label = _one_hot(scores, labels)
    log_p = jax.nn.log_softmax(scores.astype(jnp.float32))
    return jnp.where(is_label.any(-1), -jnp.where(is_label, log_p, 0.0).sum(-1), jnp.nan)


def full_logistic(
    scores: Float[Array, "m v"], labels: Int[Array, " m"] | Bool[Array, "m v"]
) -> Float[Array, " m"]:
    """Binary cross-entropies of each anchor summed over all v classes, in nats.

    L = -sum_(v true) log sigma(s_v) - sum_(v false) log sigma(-s_v)

    The optimal score is the log odds log p(x|c) / (1 - p(x|c)). `labels` are the true class of each
    anchor, checked as in `full_softmax`, or a mask of its true classes.

    >>> full_logistic(jnp.zeros((1, 4)), jnp.array([2])) / jnp.log(2.0)
    Array([4.], dtype=float32)
    """
    scores = scores.astype(jnp.float32)
    if labels.ndim == 1:
        labels = _one_hot(scores, labels)
        scores = jnp.where(labels.any(-1, keepdims=True), scores, jnp.nan)
    elif labels.shape != scores.shape:
        raise UserError(
            f"labels has shape {labels.shape}: as a mask it must be {scores.shape} as the scores, "
            f"or ({scores.shape[0]},)"
        )
    return jax.nn.softplus(jnp.where(labels, -scores, scores)).sum(-1)


def _one_hot(scores: Any, labels: Any) -> Any:
    m, v = scores.shape
    if labels.shape != (m,):
        raise UserError(
            f"labels has shape {labels.shape}: with {m} rows of scores it must be ({m},)"
        )
    check_labels(labels, v)
    return labels[:, None] == jnp.arange(v)


def check_labels(labels: Any, num_classes: int) -> None:
    """Check that labels, where they are known, are of a class."""
    if not isinstance(labels, Tracer):
        known = np.asarray(labels)  # also under a trace that has closed over them
        outside = known[(known < 0) | (known >= num_classes)]
        if outside.size:
            raise UserError(
                f"labels holds {outside[0]}: with {num_classes} classes it must be 0 to "
                f"{num_classes - 1}"
            )


#: sample(rng, labels (m, p), num) -> ids (n,), expected count of the labels (m, p) and ids (n,).
Sampler: TypeAlias = Callable[[Array, Array, int], tuple[Array, Array, Array]]


class SamplingOptions(TypedDict, total=False):
    """Further keyword arguments of `candidate_sampling`, True by default."""

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
    """Return the loss of each input over v classes, from a sample that all inputs share, in nats.

    A class scores w_v . x + b_v, less log Q if it is subtracted. With `sampled_softmax` these are
    the numbers of tf.nn.sampled_softmax_loss, with `sampled_logistic` those of tf.nn.nce_loss
    (whose default keeps accidental hits). To train and then evaluate, take the loss over all
    classes for the second: `full_softmax` or `full_logistic` of inputs @ weights.T + biases.

    Args:
        labels: the true classes of each input; p of them are labelled 1 / p.
        num_sampled: classes drawn.
        sampler: draws them with the key `rng`, such as `cpc.negatives.log_uniform_sampler(v)`.
        sampled_values: what another sampler drew instead: ids, expected count of the labels,
            expected count of the ids.
        loss: `sampled_softmax`, `sampled_logistic`, or one that is called as they are.
        remove_accidental_hits: whether drawn classes that are true of an input do not count.
        subtract_log_q: whether log Q is taken off all scores.

    >>> w, b, x = jnp.zeros((4, 2)), jnp.zeros(4), jnp.ones((1, 2))
    >>> drawn = jnp.array([1, 3]), jnp.ones((1, 1)), jnp.ones(2)
    >>> candidate_sampling(w, b, jnp.array([0]), x, 2, sampled_values=drawn) - jnp.log(3.0)
    Array([0.], dtype=float32)
    """
    check_function("loss", loss, 3, "pass a function such as cpc.losses.sampled_softmax")
    if sampler is not None:
        check_function("sampler", sampler, 3, "pass one such as cpc.negatives.uniform_sampler(v)")
    m, d = inputs.shape
    if weights.shape[1] != d or biases.shape != weights.shape[:1] or len(labels) != m:
        raise UserError(
            f"weights {weights.shape}, biases {biases.shape}, labels {labels.shape} and inputs "
            f"{inputs.shape} do not fit: give (v, d), (v,), (m,) or (m, p), and (m, d)"
        )
    check_labels(labels, len(weights))
    labels = labels.reshape(m, -1)
    if sampled_values is None:
        if sampler is None or rng is None:
            raise UserError("give a sampler and its key rng, or sampled_values")
        sampled_values = sampler(rng, labels, num_sampled)
    if len(sampled_values[0]) != num_sampled:
        raise UserError(
            f"num_sampled is {num_sampled}, and the sample has {len(sampled_values[0])} classes"
        )
    scores, corrections = _score_sample(weights, biases, labels, inputs, sampled_values, **options)
    return loss(*scores, **corrections)


def _score_sample(
    weights, biases, labels, inputs, sample, remove_accidental_hits=True, subtract_log_q=True
) -> Any:
    """Return scores of labels, scores of the sample and its mask; corrections by keyword."""
    ids, of_true, of_sampled = sample
    is_known = not isinstance(of_true, Tracer)  # also under a trace that has closed over it
    if subtract_log_q and is_known and not (np.asarray(of_true) > 0).all():
        raise UserError(
            "the sampler never draws the class of a label, whose log q is -inf: give every class a "
            "count, or take out what has none"
        )
    positive = jnp.einsum("mpd,md->mp", weights[labels], inputs) + biases[labels]
    negatives = inputs @ weights[ids].T + biases[ids]
    where = jnp.ones(negatives.shape, bool)
    if remove_accidental_hits:
        where = (labels[:, :, None] != ids).all(1)
    if not subtract_log_q:
        return (positive, negatives, where), {}
    log_q = {
        "log_q_positive": jnp.log(jnp.maximum(of_true, 1e-30)),
        "log_q_negatives": jnp.log(of_sampled),
    }
    return (positive, negatives, where), log_q
