"""The influence of a sequence on the losses of other sequences, whose negative it is.

Let p_ij be the derivative of anchor i's loss by the score of its negative j, for InfoNCE the
softmax weight. To first order, sequence b adds to the losses of all other sequences

    r_b = sum_(anchors i not of b) sum_(negatives j of b) p_ij,

the weight that its latents receive. The sum of log N - L over its own anchors, less r_b, is its
whole contribution to the estimate, up to a constant.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def sum_by_sequence(x: Float[Array, "m n"], num_sequences: int, length: int) -> Float[Array, "m b"]:
    """Sum over the latents of each sequence, with which the candidates begin."""
    return x[:, : num_sequences * length].reshape(len(x), num_sequences, length).sum(-1)


def received_weights(
    weights: Float[Array, "... m b"], own: Int[Array, " m"]
) -> Float[Array, "... b"]:
    """Return r_b from the weights that each anchor gives to each sequence.

    `own` is the sequence of the anchor, whose column is ignored.

    >>> received_weights(jnp.array([[9.0, 0.25, 0.5], [0.5, 9.0, 0.5]]), jnp.array([0, 1]))
    Array([0.5 , 0.25, 1.  ], dtype=float32)
    """
    is_other = own[:, None] != jnp.arange(weights.shape[-1])
    return jnp.where(is_other, weights, 0.0).sum(-2)
