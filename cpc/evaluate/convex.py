"""Logistic and ridge regression as linear probes, which have one optimum and no learning rate.

Both work along the principal axes of the standardised features, where ridge regression is a
division and logistic regression needs few steps.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from cpc.evaluate.images import label_subset
from cpc.evaluate.probe import (
    Probe,
    check_finite,
    check_labels,
    predict,
    read_rows_at,
    standardisation,
    standardised,
)
from cpc.types import Array, ArrayLike, UserError

#: Maximum number of L-BFGS iterations for each l2, and number of past steps that it stores.
MAX_ITERATIONS, MEMORY = 200, 10
#: Relative gradient norm at which the final fit and the fits that compare l2s have converged.
TOLERANCE, SELECTION_TOLERANCE = 5e-3, 1e-2
#: The tolerance is relative to the gradient norm at zero weights, but at least to `MIN_NORM`. If
#: labels do not depend on the features, the gradient at zero consists of rounding errors. At 5e-3
#: of `MIN_NORM` the loss is within 1e-8 nats of its minimum.
MIN_NORM = 0.03
#: Maximum number of rows on which l2s are compared.
SELECTION_ROWS = 2**16
#: Rows per compiled call, and minimum number of rows for estimating axes and curvatures.
CHUNK_ROWS, SAMPLE_ROWS = 8192, 16384
#: Fraction of the rows that is held out to choose an l2.
VALIDATION_FRACTION = 0.1


def fit_lbfgs_probe(
    features: Float[ArrayLike, "n d"],
    labels: Int[np.ndarray, " n"],
    *,
    num_classes: int,
    l2s: Sequence[float | int] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
    tolerance: float = TOLERANCE,
) -> Probe:
    """Fit multinomial logistic regression by L-BFGS, which has no learning rate to tune.

    Minimises the mean of -log p(label | features) + `(l2 / 2) |W|^2` over standardised features,
    without a penalty on the bias. A stratified tenth of the rows is held out. Probes are fitted
    with each l2, strongest first, until the held-out loss rises, and the best l2 is refitted on all
    rows. `compare_l2s` limits the number of rows on which l2s are compared.

    A fit ends when the norm of the gradient along the scaled principal axes (see `solve`) is
    `tolerance` times its norm at zero weights, or after 200 iterations (see `Probe.converged`). By
    default, the loss is within about 0.002 nats of the optimum, and the accuracy within 0.1 points.

    Args:
        features: one row per image. All rows are put on the device.
        labels: classes from 0 to num_classes - 1. Rows with -1 are ignored.
        l2s: the values to compare. If there is only one, no rows are held out.

    >>> features, labels = np.array([[0.0], [1.0], [3.0], [4.0]]), np.array([0, 0, 1, 1])
    >>> predict(fit_lbfgs_probe(features, labels, num_classes=2, l2s=[0.1]), features).argmax(1)
    array([0, 0, 1, 1])
    """
    check_labels(labels, num_classes)
    check_grid(l2s)
    labelled = np.flatnonzero(labels >= 0)
    y = labels[labelled]
    rows, mean, std = put_rows(np.asarray(features)[labelled], y)
    if len(l2s) == 1:
        (found,) = solve_path(rows, num_classes, l2s, tolerance=tolerance)
        return as_probe(found, mean, std)

    held = label_subset(y, VALIDATION_FRACTION, seed=0)
    held = held[np.bincount(y)[y[held]] > 1]  # the only row of a class is used for training
    if not len(held):
        raise UserError("no l2 can be chosen with one row per class: add labels, or pass one l2")
    kept = np.setdiff1d(np.arange(len(y)), held)
    loose = max(tolerance, SELECTION_TOLERANCE) if len(kept) > SELECTION_ROWS else tolerance
    chosen, fewest, start = max(l2s), np.inf, None
    for l2, found in compare_l2s(rows, kept, num_classes, l2s, loose):
        answers = predict(as_probe(found, mean, std), np.asarray(features)[labelled[held]])
        nats = -answers[np.arange(len(held)), y[held]].mean()
        if nats >= fewest:
            break
        chosen, fewest, start = l2, nats, found
    (found,) = solve_path(rows, num_classes, [chosen], start, tolerance)
    return as_probe(found, mean, std)


def fit_ridge_probe(
    features: Float[ArrayLike, "n d"],
    labels: Int[np.ndarray, " n"],
    *,
    num_classes: int,
    l2s: Sequence[float | int] = tuple(10.0**power for power in range(-6, 3)),
) -> Probe:
    """Fit least squares to one-hot labels, with the l2 that minimises the leave-one-out error.

    W = (X'X / n + l2)^-1 X'Y / n over standardised features, without a penalty on the bias. The
    error of a left-out row with leverage h is (y - W'x) / (1 - h) (Allen, 1974), so that one
    eigendecomposition serves all l2s. Scores are not log-likelihoods; use their argmax.

    >>> features, labels = np.array([[0.0], [1.0], [3.0], [4.0]]), np.array([0, 0, 1, 1])
    >>> predict(fit_ridge_probe(features, labels, num_classes=2), features).argmax(1)
    array([0, 0, 1, 1])
    """
    check_labels(labels, num_classes)
    check_grid(l2s)
    labelled = np.flatnonzero(labels >= 0)
    rows, mean, std = put_rows(np.asarray(features)[labelled], labels[labelled])
    y = jax.nn.one_hot(rows.labels, num_classes, dtype=jnp.float32)
    errors, weights = ridge_path(rows.frames, y, jnp.array(l2s, jnp.float32))
    best = int(np.argmin(errors))
    return Probe(((weights[best], y.mean(axis=0)),), mean, std, float(l2s[best]))


@jax.jit
def ridge_path(
    x: Float[Array, "n d"], y: Float[Array, "n c"], l2s: Float[Array, " g"]
) -> tuple[Float[Array, " g"], Float[Array, "g d c"]]:
    """Return the leave-one-out squared error and the weights for each l2, given centred x."""
    with jax.default_matmul_precision("highest"):
        variances, axes = principal_axes(x)
        along = x @ axes
        covariance = along.T @ y / len(x)  # (axes, c)

        def one(l2: Array) -> tuple[Array, Array]:
            weight = covariance / (variances + l2)[:, None]
            leverage = 1 / len(x) + jnp.square(along) @ (1 / (variances + l2)) / len(x)
            residual = y - y.mean(axis=0) - along @ weight
            left_out = residual / jnp.maximum(1 - leverage, 1e-6)[:, None]
            return jnp.mean(jnp.square(left_out)), axes @ weight

        return jax.lax.map(one, l2s)


def principal_axes(x: Float[Array, "n d"]) -> tuple[Float[Array, " a"], Float[Array, "d a"]]:
    """Return the min(n, d) principal variances of centred features, and the principal axes.

    The weights of a penalised linear probe are always in the span of its features.
    """
    if x.shape[0] <= x.shape[1]:
        _, singular, axes = jnp.linalg.svd(x, full_matrices=False)
        return jnp.square(singular) / len(x), axes.T
    variances, axes = jnp.linalg.eigh(x.T @ x / len(x))
    return jnp.maximum(variances, 0), axes


class Rows(NamedTuple):
    """The input rows of a fit, each with `num` consecutive standardised frames, on the device."""

    frames: Float[Array, "n d"]
    first: Int[np.ndarray, " rows"]
    labels: Int[np.ndarray, " rows"]
    num: int


class Solution(NamedTuple):
    """The float64 weight and bias of a fit, and whether its gradient reached the tolerance."""

    weight: Float[np.ndarray, "d c"]
    bias: Float[np.ndarray, " c"]
    l2: float
    converged: bool


def put_rows(
    features: Float[ArrayLike, "n d"], labels: Int[np.ndarray, " n"]
) -> tuple[Rows, Float[Array, " d"], Float[Array, " d"]]:
    """Standardise rows on the device, and return them with their mean and standard deviation."""
    x = jnp.asarray(features, jnp.float32)
    mean, std = standardisation(x)
    check_finite(mean, std)
    first = np.arange(len(labels), dtype=np.int32)
    return Rows(standardised(x, mean, std), first, labels.astype(np.int32), 1), mean, std


def compare_l2s(
    rows: Rows,
    kept: Int[np.ndarray, " n"],
    num_classes: int,
    l2s: Sequence[float | int],
    tolerance: float,
) -> Iterator[tuple[float | int, Solution]]:
    """Yield each l2, strongest first, with its optimum on at most `SELECTION_ROWS` rows in `kept`.

    If only a fraction of the rows is used, the penalty is divided by that fraction. Its share of
    the summed nats, and therefore the best l2, stays the same.
    """
    part = kept
    if len(kept) > SELECTION_ROWS:
        part = np.random.default_rng(0).choice(kept, SELECTION_ROWS, replace=False)
    some = rows._replace(first=rows.first[part], labels=rows.labels[part])
    factor = len(kept) / len(part)
    decreasing = sorted(l2s, reverse=True)
    path = solve_path(some, num_classes, [l2 * factor for l2 in decreasing], tolerance=tolerance)
    yield from zip(decreasing, path, strict=True)


def as_probe(solution: Solution, mean: Float[Array, " d"], std: Float[Array, " d"]) -> Probe:
    """Convert a solution for standardised features to a probe."""
    layer = jnp.asarray(solution.weight, jnp.float32), jnp.asarray(solution.bias, jnp.float32)
    return Probe((layer,), mean, std, solution.l2, solution.converged)


def solve_path(
    rows: Rows,
    num_classes: int,
    l2s: Sequence[float | int],
    start: Solution | None = None,
    tolerance: float = TOLERANCE,
) -> Iterator[Solution]:
    """Yield the optimum for each l2, strongest first; each fit starts at the previous optimum."""
    num_sampled = max(SAMPLE_ROWS, 4 * rows.num * rows.frames.shape[1])
    first = rows.first
    if len(first) > num_sampled:
        first = np.sort(np.random.default_rng(0).choice(first, num_sampled, replace=False))
    sample = np.asarray(read_rows_at(rows.frames, jnp.asarray(first), rows.num), np.float64)
    if sample.shape[0] <= sample.shape[1]:
        axes = np.linalg.svd(sample, full_matrices=False)[2].T
    else:
        axes = np.linalg.eigh(sample.T @ sample)[1]
    along = sample @ axes
    counts = np.bincount(rows.labels, minlength=num_classes)
    zero = np.zeros((len(axes), num_classes)), np.log(np.maximum(counts, 0.5) / counts.sum())
    weight, bias = zero if start is None else start[:2]
    gradient = make_gradient(rows)
    for l2 in sorted(l2s, reverse=True):
        found = solve(gradient, (weight, bias), zero, axes, along, float(l2), tolerance)
        weight, bias = found[:2]
        yield found


def solve(
    gradient: Callable[..., tuple[np.ndarray, np.ndarray]],
    start: tuple[Float[np.ndarray, "d c"], Float[np.ndarray, " c"]],
    zero: tuple[Float[np.ndarray, "d c"], Float[np.ndarray, " c"]],
    axes: Float[np.ndarray, "d a"],
    along: Float[np.ndarray, "s a"],
    l2: float,
    tolerance: float,
) -> Solution:
    """Return the optimum for one l2, found by L-BFGS along scaled principal axes.

    Each unknown is scaled by the square root of its curvature at the start, mean(p (1 - p) x^2) +
    l2. Here x is the coordinate `along` an axis over a sample of rows, and p the probability of the
    class. This keeps iterations few even if axes and classes are very unequal. The tolerance is
    relative to the gradient at `zero`.
    """
    import scipy.special  # takes half a second, which would delay the start of training

    shape = along.shape[1], len(start[1])
    p = scipy.special.softmax(along @ (axes.T @ start[0]) + start[1], axis=1)
    curvature = p * (1 - p)
    scale = 1 / np.sqrt(np.square(along).T @ curvature / len(p) + l2)
    bias_scale = 1 / np.sqrt(curvature.mean(axis=0) + l2)

    def unscale(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight, bias = np.split(point, [scale.size])
        return axes @ (scale * weight.reshape(shape)), bias_scale * bias

    def scaled_gradient(point: np.ndarray) -> np.ndarray:
        weight, bias = unscale(point)
        of_weight, of_bias = gradient(weight, bias)
        of_weight = scale * (axes.T @ (of_weight + l2 * weight))
        return np.concatenate([of_weight.ravel(), bias_scale * of_bias])

    begin, origin = (
        np.concatenate([((axes.T @ weight) / scale).ravel(), bias / bias_scale])
        for weight, bias in (start, zero)
    )
    largest = max(float(np.linalg.norm(scaled_gradient(origin))), MIN_NORM)
    point, converged = minimize(scaled_gradient, begin, tolerance * largest)
    return Solution(*unscale(point), l2, converged)


def minimize(
    gradient: Callable[[np.ndarray], np.ndarray], point: np.ndarray, tolerance: float
) -> tuple[np.ndarray, bool]:
    """Return the minimum of a convex function by L-BFGS, and whether the search converged.

    The line search only uses gradients, because differences of a float32 loss vanish long before
    its gradient does. The step starts at 1 and is shortened by the secant rule while the slope at
    its end is positive and more than half as steep as at its start.
    """
    value, pairs = gradient(point), deque(maxlen=MEMORY)
    for _ in range(MAX_ITERATIONS):
        if np.linalg.norm(value) <= tolerance:
            break
        direction = -multiply_inverse(pairs, value)
        slope, step = float(direction @ value), 1.0
        after = gradient(point + direction)
        for _ in range(10):
            end = float(direction @ after)
            if end <= -slope / 2:
                break
            step *= slope / (slope - end)
            after = gradient(point + step * direction)
        move, change = step * direction, after - value
        if move @ change > 1e-10 * np.linalg.norm(move) * np.linalg.norm(change):
            pairs.append((move, change))
        point, value = point + move, after
    return point, bool(np.linalg.norm(value) <= tolerance)


def multiply_inverse(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]], vector: np.ndarray
) -> np.ndarray:
    """Multiply a vector by L-BFGS's inverse Hessian (Nocedal and Wright, 2006, algorithm 7.4)."""
    shares = []
    for move, change in reversed(pairs):
        share = (move @ vector) / (move @ change)
        shares.append(share)
        vector = vector - share * change
    if pairs:
        move, change = pairs[-1]
        vector = vector * ((move @ change) / (change @ change))
    for (move, change), share in zip(pairs, reversed(shares), strict=True):
        vector = vector + (share - (change @ vector) / (move @ change)) * move
    return vector


def make_gradient(rows: Rows) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Return a function from weight and bias to the float64 gradient of the mean nats."""
    num_rows = len(rows.labels)
    size = min(CHUNK_ROWS, 2 ** max(0, num_rows - 1).bit_length())
    padding = (0, -num_rows % size)
    first = np.pad(rows.first, padding).reshape(-1, size)
    labels = np.pad(rows.labels, padding, constant_values=-1).reshape(-1, size)
    chunks = [(jnp.asarray(one), jnp.asarray(y)) for one, y in zip(first, labels, strict=True)]

    def gradient(weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        layer = jnp.asarray(weight, jnp.float32), jnp.asarray(bias, jnp.float32)
        total = jnp.zeros(weight.T.shape, jnp.float32), jnp.zeros(bias.shape, jnp.float32)
        for chunk in chunks:
            total = add_gradient(total, layer, rows.frames, *chunk, num=rows.num)
        of_weight, of_bias = (np.asarray(one, np.float64) / num_rows for one in total)
        return of_weight.T, of_bias

    return gradient


@functools.partial(jax.jit, static_argnames="num", donate_argnames="total")
def add_gradient(
    total: tuple[Float[Array, "c d"], Float[Array, " c"]],
    layer: tuple[Float[Array, "d c"], Float[Array, " c"]],
    frames: Float[Array, "n f"],
    first: Int[Array, " rows"],
    labels: Int[Array, " rows"],
    *,
    num: int,
) -> tuple[Float[Array, "c d"], Float[Array, " c"]]:
    """Add the gradient of the summed nats over a chunk of rows, ignoring rows with the label -1.

    The weight's gradient is transposed: multiplying x.T by the errors would take 3 times as long.
    """
    x = read_rows_at(frames, first, num)
    with jax.default_matmul_precision("highest"):
        share = jax.nn.softmax(x @ layer[0] + layer[1])
        is_right = jnp.arange(share.shape[1]) == labels[:, None]
        # For a well classified row, 1 - p would round to zero.
        wrong = jnp.where(is_right | (labels < 0)[:, None], 0.0, share)
        error = jnp.where(is_right, -wrong.sum(axis=1, keepdims=True), wrong)
        return total[0] + error.T @ x, total[1] + error.sum(axis=0)


def check_grid(l2s: Sequence[float | int]) -> None:
    """Check that every l2 is finite and positive, so that separable classes have an optimum."""
    if not len(l2s) or not all(0 < l2 < np.inf for l2 in l2s):
        raise UserError(f"l2s must be one or more finite numbers above zero (got {list(l2s)})")
