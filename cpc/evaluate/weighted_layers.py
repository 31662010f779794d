"""A learned weighted sum of layers as a feature (SUPERB, Yang et al. 2021)."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from jaxtyping import Float, Int

from cpc.evaluate.convex import Rows, solve_path
from cpc.evaluate.probe import check_finite, check_labels, standardisation
from cpc.types import Array, ArrayLike

#: Weight of the L2 penalty, and most rows, while the layers' weights are learned.
L2, MAX_ROWS = 1e-3, 2**15
#: Gradient in nats per logit at which they are learned, most iterations, and largest logit.
TOLERANCE, MAX_ITERATIONS, MAX_LOGIT = 2e-3, 30, 4.0


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
    """Learn the weights of layers together with a linear probe of their sum.

    Minimises the mean of -log p(label | sum) + `(L2 / 2) |W|^2`, from equal weights on: L-BFGS-B
    over the logits of the weights, at the probe's optimum for each. The sum is that of
    `sum_layers`. At most 32,768 labelled rows, drawn by the seed, are used.

    Args:
        layers: (n, width) each.
        labels: 0 .. num_classes - 1; rows with -1 are ignored.
    """
    check_labels(labels, num_classes)
    rows = np.flatnonzero(labels >= 0)
    if len(rows) > MAX_ROWS:
        rows = np.sort(np.random.default_rng(seed).choice(rows, MAX_ROWS, replace=False))
    kept, y = (
        [np.asarray(layer[rows], np.float32) for layer in layers],
        labels[rows].astype(np.int32),
    )
    scales = tuple(jax.device_get(standardisation(layer)) for layer in kept)
    check_finite(*(end for scale in scales for end in scale))
    x, first, last = standardise(kept, scales), np.arange(len(rows), dtype=np.int32), None

    def value_and_gradient(logits: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal last
        shares = jnp.asarray(logits, jnp.float32)
        frames = sum_layers(x, jax.nn.softmax(shares))
        (last,) = solve_path(Rows(frames, first, y, 1), num_classes, [L2], last)
        layer = (jnp.asarray(one, jnp.float32) for one in last[:2])
        nats, gradient = nats_by_logits(shares, *layer, x, y)
        return float(nats) + L2 / 2 * float(np.square(last.weight).sum()), np.asarray(
            gradient, "f8"
        )

    found = scipy.optimize.minimize(
        value_and_gradient,
        np.zeros(len(layers)),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-MAX_LOGIT, MAX_LOGIT)] * len(layers),
        options={"gtol": TOLERANCE, "ftol": 0.0, "maxiter": MAX_ITERATIONS},
    )
    weights = np.asarray(jax.nn.softmax(jnp.asarray(found.x, jnp.float32)))
    return LayerSum(weights, scales, bool(found.success))


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
@jax.value_and_grad
def nats_by_logits(
    logits: Float[Array, " l"],
    weight: Float[Array, "d c"],
    bias: Float[Array, " c"],
    layers: tuple[Array, ...],
    labels: Int[ArrayLike, " n"],
) -> Array:
    """Return the mean nats of a probe, and their gradient by the logits of the layers' weights."""
    with jax.default_matmul_precision("highest"):
        scores = sum_layers(layers, jax.nn.softmax(logits)) @ weight + bias
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()
