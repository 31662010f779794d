"""A learned weighted sum of layers as a feature (SUPERB, Yang et al. 2021)."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from cpc.evaluate.convex import SELECTION_ROWS, SELECTION_TOLERANCE, minimize, principal_axes
from cpc.evaluate.probe import check_finite, check_labels, standardisation
from cpc.types import Array, ArrayLike

#: Weight of the L2 penalty while the layers' weights are learned.
L2 = 1e-4


class LayerSum(NamedTuple):
    """Softmax weights of layers, and the scale of each layer."""

    weights: Float[np.ndarray, " l"]
    scales: tuple[tuple[np.ndarray, np.ndarray], ...]
    """Mean and standard deviation of each layer's dimensions."""
    converged: bool

    def apply(self, layers: Sequence[Float[np.ndarray, "n _"]]) -> Float[np.ndarray, "n d"]:
        """Return the weighted sum of standardised layers."""
        rows, width = len(layers[0]), max(layer.shape[1] for layer in layers)
        total = np.zeros((rows, width), np.float32)
        for weight, (mean, std), layer in zip(self.weights, self.scales, layers, strict=True):
            total[:, : layer.shape[1]] += weight / std * (layer - mean)
        return total


def fit_layer_sum(
    layers: Sequence[Float[np.ndarray, "n _"]],
    labels: Int[np.ndarray, " n"],
    *,
    num_classes: int,
    seed: int = 0,
) -> LayerSum:
    """Learn the weights of layers together with a linear probe of their sum, by L-BFGS.

    Minimises the mean of -log p(label | sum) + `(L2 / 2) |W|^2`, from equal weights on. The sum is
    that of `sum_layers`. At most 65,536 labelled rows, drawn by the seed, are used.

    Args:
        layers: (n, width) each.
        labels: 0 .. num_classes - 1; rows with -1 are ignored.
    """
    check_labels(labels, num_classes)
    rows = np.flatnonzero(labels >= 0)
    if len(rows) > SELECTION_ROWS:
        rows = np.sort(np.random.default_rng(seed).choice(rows, SELECTION_ROWS, replace=False))
    kept = [np.asarray(layer[rows], np.float32) for layer in layers]
    scales = tuple(jax.device_get(standardisation(layer)) for layer in kept)
    check_finite(*(end for scale in scales for end in scale))
    x, y = standardise(kept, scales), jnp.asarray(labels[rows])
    num_layers = len(layers)
    # Unknowns are scaled by the root of their curvature where the probe knows nothing yet.
    variances, axes = principal_axes(sum_layers(x, jnp.full(num_layers, 1 / num_layers)))
    p = np.bincount(labels[rows], minlength=num_classes) / len(rows)
    spread = np.maximum(p * (1 - p), 0.5 / len(rows))
    scale = 1 / np.sqrt(np.asarray(variances, np.float64)[:, None] * spread + L2)
    sizes = np.cumsum([scale.size, num_classes])
    axes = np.asarray(axes, np.float64)

    def unscale(point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        weight, bias, logits = np.split(point, sizes)
        return axes @ (scale * weight.reshape(scale.shape)), bias / np.sqrt(spread), logits

    def gradient(point: np.ndarray) -> np.ndarray:
        unknowns = tuple(jnp.asarray(one, jnp.float32) for one in unscale(point))
        weight, bias, logits = (
            np.asarray(one, np.float64) for one in nats_gradient(unknowns, x, y)
        )
        weight = scale * (axes.T @ weight)
        return np.concatenate([weight.ravel(), bias / np.sqrt(spread), logits])

    bias = np.log(np.maximum(p, 0.5 / len(rows))) * np.sqrt(spread)
    start = np.concatenate([np.zeros(scale.size), bias, np.zeros(num_layers)])
    tolerance = SELECTION_TOLERANCE * float(np.linalg.norm(gradient(start)))
    point, converged = minimize(gradient, start, tolerance)
    weights = np.asarray(jax.nn.softmax(jnp.asarray(unscale(point)[2])), np.float32)
    return LayerSum(weights, scales, converged)


@jax.jit
def standardise(
    layers: Sequence[Float[ArrayLike, "n _"]], scales: Sequence[tuple[ArrayLike, ArrayLike]]
) -> tuple[Float[Array, "n _"], ...]:
    """Return layers less their means, divided by their standard deviations."""
    pairs = zip(layers, scales, strict=True)
    return tuple((layer - mean) / std for layer, (mean, std) in pairs)


@jax.jit
def sum_layers(
    layers: Sequence[Float[ArrayLike, "n _"]], weights: Float[Array, " l"]
) -> Float[Array, "n d"]:
    """Return the weighted sum of layers, the narrower ones filled up with zeros.

    >>> sum_layers([np.array([[1.0]]), np.array([[2.0, 4.0]])], jnp.array([0.5, 0.5])).tolist()
    [[1.5, 2.0]]
    """
    width = max(layer.shape[1] for layer in layers)
    filled = [jnp.pad(layer, ((0, 0), (0, width - layer.shape[1]))) for layer in layers]
    return functools.reduce(jnp.add, (w * x for w, x in zip(weights, filled, strict=True)))


@jax.jit
def nats_gradient(
    unknowns: tuple[Array, Array, Array], layers: tuple[Array, ...], labels: Int[Array, " n"]
) -> tuple[Array, Array, Array]:
    """Return the gradient of the penalised nats by weight, bias and logits of the layers."""

    def nats(unknowns: tuple[Array, Array, Array]) -> Array:
        weight, bias, logits = unknowns
        with jax.default_matmul_precision("highest"):
            scores = sum_layers(layers, jax.nn.softmax(logits)) @ weight + bias
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()
        return loss + L2 / 2 * jnp.square(weight).sum()

    return jax.grad(nats)(unknowns)
