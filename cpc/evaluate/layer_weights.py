"""Learned weights for averaging a network's layers, as in SUPERB (Yang et al. 2021)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from cpc.evaluate.fit import adam_cosine, run_updates
from cpc.evaluate.probe import check_finite, check_labels, standardisation, standardised
from cpc.types import Array, ArrayLike

#: Number of updates, and number of frames per update.
NUM_UPDATES, BATCH_FRAMES = 1000, 1024
LEARNING_RATE, L2 = 0.02, 1e-3


def fit_layer_weights(
    layers: Float[np.ndarray, "n l d"],
    labels: Int[np.ndarray, " n"],
    *,
    num_classes: int,
    seed: int = 0,
) -> tuple[Float[np.ndarray, " l"], Float[np.ndarray, "l d"]]:
    """Learn softmax weights for layers together with a linear probe on their weighted sum.

    Adam with cosine decay minimises the mean of -log p(label | sum) + `(L2 / 2) |W|^2`, starting
    at equal weights. Unlike in SUPERB, dimensions are standardised, so that the weights do not
    depend on the scale of a layer.

    Args:
        layers: each frame's layers, padded with zeros to the width of the widest.
        labels: classes from 0 to num_classes - 1. Frames with -1 are ignored.

    Returns:
        The weights, which sum to 1, and `factors`, which are the weights divided by the standard
        deviations. `(layers * factors).sum(axis=1)` is the weighted sum up to a constant.
    """
    check_labels(labels, num_classes)
    rng, known = np.random.default_rng(seed), np.flatnonzero(labels >= 0)
    x = jnp.asarray(layers[known], jnp.float32).reshape(len(known), -1)
    mean, std = standardisation(x)
    check_finite(mean, std)
    x, std = standardised(x, mean, std).reshape(-1, *layers.shape[1:]), np.asarray(std)
    batches = rng.integers(len(known), size=(NUM_UPDATES, BATCH_FRAMES))
    weights = np.asarray(learn_weights(x, labels[known], batches, num_classes))
    return weights, weights[:, None] / std.reshape(layers.shape[1:])


@functools.partial(jax.jit, static_argnames="num_classes")
def learn_weights(
    x: Float[Array, "n l d"],
    y: Int[ArrayLike, " n"],
    batches: Int[ArrayLike, "updates batch"],
    num_classes: int,
) -> Float[Array, " l"]:
    """Return the layer weights after one update per batch of frame indices."""
    transform = adam_cosine(LEARNING_RATE, len(batches))

    def loss(params, batch):
        logits, weight, bias = params
        scores = jnp.einsum("nld,l->nd", x[batch], jax.nn.softmax(logits)) @ weight + bias
        nats = optax.softmax_cross_entropy_with_integer_labels(scores, y[batch]).mean()
        return nats + L2 / 2 * jnp.square(weight).sum()

    _, num_layers, width = x.shape
    shapes = num_layers, (width, num_classes), num_classes
    params = tuple(jnp.zeros(shape, jnp.float32) for shape in shapes)
    start = params, transform.init(params)
    (logits, _, _), _ = run_updates(transform, jax.grad(loss), start, batches)
    return jax.nn.softmax(logits)
