"""Losses over many classes from a sample of them, in the shape that TensorFlow gave them."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypedDict, Unpack

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from cpc.losses.sampled import check_labels, sampled_softmax
from cpc.types import UserError, check_function

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
        weights, biases: of all classes.
        labels: the true classes of each input; p of them are labelled 1 / p.
        inputs: what is classified.
        num_sampled: classes drawn.
        sampler: draws them, such as `cpc.negatives.log_uniform_sampler(v)`.
        rng: the key for it.
        sampled_values: what another sampler drew, in place of both: ids, expected count of the
            labels, expected count of the ids.
        loss: `sampled_softmax`, `sampled_logistic`, or one that is called as they are.
        remove_accidental_hits: whether drawn classes that are true of an input do not count.
        subtract_log_q: whether log Q is taken off all scores.

    Raises:
        UserError: neither a sampler with its key nor a sample; shapes that do not match; known
            labels of no class.

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
