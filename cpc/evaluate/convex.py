"""Linear probes with one optimum and nothing to tune: logistic regression, ridge regression.

Both work along the principal axes of the standardised features, where ridge regression is a
division and logistic regression takes few steps.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from cpc.evaluate.few_labels import label_subset
from cpc.evaluate.probe import Probe, check_finite, check_labels, predict, standardisation
from cpc.types import Array, ArrayLike, UserError

#: For each l2. From about 50 on, the accuracy of probes of real images stands still.
MAX_ITERATIONS = 200
#: Of the gradient along the scaled axes, in nats.
TOLERANCE = 1e-5
#: Of the rows: what an l2 is chosen on.
VALIDATION_FRACTION = 0.1


def fit_lbfgs_probe(
    features: Float[ArrayLike, "n d"],
    labels: Int[np.ndarray, " n"],
    *,
    num_classes: int,
    l2s: Sequence[float | int] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
) -> Probe:
    """Multinomial logistic regression by L-BFGS; there is nothing to tune.

    Minimises the mean of -log p(label | features) + `(l2 / 2) |W|^2` over standardised features,
    the bias free. Without a stratified tenth of the rows, one l2 after the other is fitted, from
    the strongest down, until the nats on that share rise; with the best of them the probe is
    refitted on all rows.

    The unknowns are scaled by the root of their mean curvature: along the principal axes, of
    variances v, it is mean(p (1 - p)) v + l2, so that steps are few however unequal the axes are.
    Each l2 has at most 200 steps, from the optimum of the one before: enough for the optimum to
    float32, except where rows differ much in p (1 - p) and l2 is small, as with separable classes
    or raw pixels; there the last 1e-3 nats are left, which change no accuracy.

    Args:
        features: one row an image; all are put on the device.
        labels: 0 .. num_classes - 1; rows with -1 are ignored.
        l2s: the grid; with one entry nothing is set aside for validation.

    Returns:
        A probe for `predict`; its `weight_decay` is the chosen l2.

    Raises:
        UserError: labels out of range, fewer than two classes, no l2 or one that is not above
            zero, or too few rows to set any aside.

    >>> features, labels = np.array([[0.0], [1.0], [3.0], [4.0]]), np.array([0, 0, 1, 1])
    >>> predict(fit_lbfgs_probe(features, labels, num_classes=2, l2s=[0.1]), features).argmax(1)
    array([0, 0, 1, 1])
    """
    check_labels(labels, num_classes)
    check_grid(l2s)
    labelled = np.flatnonzero(labels >= 0)
    x, y = np.asarray(features)[labelled], labels[labelled]
    if len(l2s) == 1:
        return next(fit_path(x, y, num_classes, l2s))

    held = label_subset(y, VALIDATION_FRACTION, seed=0)
    held = held[np.bincount(y)[y[held]] > 1]  # a class of one row stays with the training
    if not len(held):
        raise UserError(
            "a probe that chooses its l2 sets rows aside for validation, but each class has a "
            "single row: give it more labels or a single l2"
        )
    kept = np.setdiff1d(np.arange(len(y)), held)
    chosen, fewest = 0.0, np.inf
    for probe in fit_path(x[kept], y[kept], num_classes, l2s):
        nats = -predict(probe, x[held])[np.arange(len(held)), y[held]].mean()
        if nats >= fewest:
            break
        chosen, fewest = probe.weight_decay, nats
    *_, probe = fit_path(x, y, num_classes, [l2 for l2 in l2s if l2 >= chosen])
    return probe


def fit_ridge_probe(
    features: Float[ArrayLike, "n d"],
    labels: Int[np.ndarray, " n"],
    *,
    num_classes: int,
    l2s: Sequence[float | int] = tuple(10.0**power for power in range(-6, 3)),
) -> Probe:
    """Least squares on one-hot labels in closed form, its l2 chosen by leaving each row out.

    W = (X'X / n + l2)^-1 X'Y / n over standardised features, the bias free. With h the leverages,
    the error at a row that was left out is (y - W'x) / (1 - h) (Allen, 1974), so that one
    eigendecomposition serves the whole grid. Scores are no log-likelihoods: use their argmax.

    Args:
        features: one row an image; all are put on the device.
        labels: 0 .. num_classes - 1; rows with -1 are ignored.
        l2s: the grid; the one with the least squared error of rows left out is taken.

    Returns:
        A probe for `predict`; its `weight_decay` is the chosen l2.

    Raises:
        UserError: labels out of range, fewer than two classes, no l2 or one not above zero.

    >>> features, labels = np.array([[0.0], [1.0], [3.0], [4.0]]), np.array([0, 0, 1, 1])
    >>> predict(fit_ridge_probe(features, labels, num_classes=2), features).argmax(1)
    array([0, 0, 1, 1])
    """
    check_labels(labels, num_classes)
    check_grid(l2s)
    labelled = np.flatnonzero(labels >= 0)
    x = jnp.asarray(np.asarray(features)[labelled], jnp.float32)
    mean, std = standardisation(x)
    check_finite(mean, std)
    y = jax.nn.one_hot(labels[labelled], num_classes, dtype=jnp.float32)
    errors, weights = ridge_path((x - mean) / std, y, jnp.array(l2s, jnp.float32))
    best = int(np.argmin(errors))
    return Probe(((weights[best], y.mean(axis=0)),), mean, std, float(l2s[best]))


@jax.jit
def ridge_path(
    x: Float[Array, "n d"], y: Float[Array, "n c"], l2s: Float[Array, " g"]
) -> tuple[Float[Array, " g"], Float[Array, "g d c"]]:
    """Squared error of rows left out, and weights, for each l2; x is centred."""
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


def fit_path(
    features: Float[ArrayLike, "n d"],
    labels: Int[np.ndarray, " n"],
    num_classes: int,
    l2s: Sequence[float | int],
) -> Iterator[Probe]:
    """A logistic probe for each l2, strongest first, each fit starting at the one before."""
    x, y = jnp.asarray(features, jnp.float32), jnp.asarray(labels, jnp.int32)
    mean, std = standardisation(x)
    check_finite(mean, std)
    variances, axes, along = rotate(x, mean, std)
    del x
    nothing = jnp.zeros((along.shape[1] + 1, num_classes), jnp.float32)
    solution = nothing[:-1], nothing[-1]
    for l2 in sorted(l2s, reverse=True):
        solution = solve_logistic(solution, along, y, variances, l2)
        yield Probe(((axes @ solution[0], solution[1]),), mean, std, float(l2))


@jax.jit
def rotate(
    x: Float[Array, "n d"], mean: Float[Array, " d"], std: Float[Array, " d"]
) -> tuple[Float[Array, " a"], Float[Array, "d a"], Float[Array, "n a"]]:
    """Variances and axes of the standardised features, and the features along them."""
    with jax.default_matmul_precision("highest"):
        x = (x - mean) / std
        variances, axes = principal_axes(x)
        return variances, axes, x @ axes


def principal_axes(x: Float[Array, "n d"]) -> tuple[Float[Array, " a"], Float[Array, "d a"]]:
    """Variances along the min(n, d) principal axes of centred features, and the axes.

    A penalised linear probe has no weight outside of the span of its features.
    """
    if x.shape[0] <= x.shape[1]:
        _, singular, axes = jnp.linalg.svd(x, full_matrices=False)
        return jnp.square(singular) / len(x), axes.T
    variances, axes = jnp.linalg.eigh(x.T @ x / len(x))
    return jnp.maximum(variances, 0), axes


@jax.jit
def solve_logistic(
    start: tuple[Float[Array, "a c"], Float[Array, " c"]],
    along: Float[Array, "n a"],
    y: Int[Array, " n"],
    variances: Float[Array, " a"],
    l2: float | Float[Array, ""],
) -> tuple[Float[Array, "a c"], Float[Array, " c"]]:
    """Weight along the axes and bias at the optimum; curvature is taken at the start."""
    share = jax.nn.softmax(along @ start[0] + start[1])
    curvature = jnp.mean(share * (1 - share))
    scale = jax.lax.rsqrt(curvature * variances + l2)[:, None]
    optimizer = optax.lbfgs()

    def loss(params: tuple[Array, Array]) -> Array:
        weight, bias = params[0] * scale, params[1]
        scores = along @ weight + bias
        right = jnp.take_along_axis(scores, y[:, None], axis=1)
        # Wrong scores relative to the right one: 1 - p of a row that is well classified would
        # round to zero, and separable classes would never get to their optimum.
        wrong = jnp.where(jnp.arange(scores.shape[1]) == y[:, None], -jnp.inf, scores - right)
        nats = jax.nn.softplus(jax.nn.logsumexp(wrong, axis=1)).mean()
        return nats + l2 / 2 * jnp.sum(jnp.square(weight))

    value_and_grad = optax.value_and_grad_from_state(loss)

    def step(carry):
        number, params, state, _ = carry
        value, grad = value_and_grad(params, state=state)
        updates, state = optimizer.update(
            grad, state, params, value=value, grad=grad, value_fn=loss
        )
        size = optax.tree.norm(optax.tree.get(state, "grad"))
        return number + 1, optax.apply_updates(params, updates), state, size

    def goes_on(carry):
        number, _, _, size = carry
        return (number < MAX_ITERATIONS) & (size > TOLERANCE)

    with jax.default_matmul_precision("highest"):
        params = start[0] / scale, start[1]
        first = (0, params, optimizer.init(params), jnp.inf)
        solution: Any = jax.lax.while_loop(goes_on, step, first)[1]
    return solution[0] * scale, solution[1]


def check_grid(l2s: Sequence[float | int]) -> None:
    """Raise a UserError for a grid that leaves an optimum undefined."""
    if not len(l2s) or min(l2s) <= 0:
        raise UserError(
            f"l2s is {list(l2s)}: give at least one, each above zero, or separable classes have "
            "no optimum"
        )
