"""The forty benchmark tasks of Czyz et al. (2023) with known mutual information.

"Beyond Normal: On the Evaluation of Mutual Information Estimators". A task is a distribution of x
and y, possibly transformed by smooth maps. The maps do not change the mutual information.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float

from cpc.estimators.tasks import Task, gaussian_information
from cpc.types import check_number


def beyond_normal() -> tuple[Task, ...]:
    """Return the forty tasks, named and ordered as in the public benchmark.

    The public benchmark rescales all tasks to unit variance. This does not change the information.
    To reproduce it, divide samples by their standard deviation.

    >>> tasks = beyond_normal()
    >>> len(tasks), tasks[0].name, round(tasks[0].mutual_information, 4)
    (40, '1v1-normal-0.75', 0.4133)
    """
    normal = normal_task("1v1-normal-0.75", np.array([[1.0, 0.75], [0.75, 1.0]]), 1)
    uniform = mapped("normal_cdf", normal, NORMAL_CDF)
    student = student_task(1, 1, 1)
    pairs = {d: two_pairs_task(d) for d in (2, 3, 5, 25)}
    wide = [pairs[d] for d in (3, 5, 25)]
    cdfs = [mapped("normal_cdf", task, NORMAL_CDF) for task in wide]
    students = [
        student_task(d, d, df) for d, df in ((2, 1), (2, 2), (3, 2), (3, 3), (5, 2), (5, 3))
    ]
    return (
        normal,
        uniform,
        additive_uniform_task(0.1),
        additive_uniform_task(0.75),
        mapped("", uniform, BIMODAL_X, BIMODAL_Y)._replace(name="1v1-bimodal-0.75"),
        mapped("wiggly", normal, WIGGLY_X, WIGGLY_Y),
        mapped("half_cube", normal, HALF_CUBE),
        student,
        mapped("asinh", student, ASINH),
        mapped("swissroll_x", uniform, SWISS_ROLL, IDENTITY),
        *(dense_task(d) for d in (2, 3, 5, 25, 50)),
        *pairs.values(),
        *students,
        *cdfs,
        *(mapped("half_cube", task, HALF_CUBE) for task in wide),
        *(mapped("spiral", task, spiral(0, 1), spiral(1, 2)) for task in (*wide, *cdfs)),
        *(mapped("asinh", students[i], ASINH) for i in (0, 2, 4)),
    )


def normal_task(name: str, covariance: Float[np.ndarray, "d d"], dim_x: int) -> Task:
    """Return a Gaussian task in which the first dim_x dimensions are x and the others are y."""
    root = jnp.asarray(np.linalg.cholesky(covariance), jnp.float32)
    # |x whiten_x|^2 = -2 log p(x) + const. A quadratic form with a matrix of equal entries would be
    # wrong under jit on the CPU, because jaxlib 0.10.2 fuses the product.
    whiten = _whitening(covariance)
    whiten_x, whiten_y = (_whitening(covariance[i, i]) for i in (slice(dim_x), slice(dim_x, None)))
    information = gaussian_information(covariance, dim_x)

    def sample(rng, n):
        both = jax.random.normal(rng, (n, len(covariance)), jnp.float32) @ root.T
        return both[:, :dim_x], both[:, dim_x:]

    def log_ratio(x, y):
        a, b = x @ whiten[:dim_x], y @ whiten[dim_x:]
        only_x = jnp.square(a).sum(1) - jnp.square(x @ whiten_x).sum(1)
        only_y = jnp.square(b).sum(1) - jnp.square(y @ whiten_y).sum(1)
        return information - 0.5 * (only_x[:, None] + only_y) - a @ b.T

    return Task(name, information, sample, log_ratio)


def _whitening(covariance):
    return jnp.asarray(np.linalg.cholesky(np.linalg.inv(covariance)), jnp.float32)


def dense_task(dim: int) -> Task:
    """Return a Gaussian task in which all pairs of dimensions have correlation 1/2.

    The only nonzero canonical correlation is d / (d + 1).
    """
    covariance = np.full((2 * dim, 2 * dim), 0.5) + 0.5 * np.eye(2 * dim)
    return normal_task(f"multinormal-dense-{dim}-{dim}-0.5", covariance, dim)


def two_pairs_task(dim: int) -> Task:
    """Return a Gaussian task with correlation 0.8 between x_1 and y_1, and between x_2 and y_2.

    All other correlations are 0, so I = -ln(1 - 0.64).
    """
    covariance = np.eye(2 * dim)
    for i in range(2):
        covariance[i, dim + i] = covariance[dim + i, i] = 0.8
    return normal_task(f"multinormal-sparse-{dim}-{dim}-2-2.0", covariance, dim)


def student_task(dim_x: int, dim_y: int, df: int) -> Task:
    """Return a task of an uncorrelated Student's t-distribution, in which x and y share a scale.

    (x, y) = z sqrt(df / chi^2_df), with z standard normal. I is `student_information`. None of it
    comes from linear dependence.
    """
    information = student_information(dim_x, dim_y, df)

    def sample(rng, n):
        z = jax.random.normal(rng, (n, dim_x + dim_y + df), jnp.float32)
        chi_squared = jnp.square(z[:, dim_x + dim_y :]).sum(1, keepdims=True)
        both = z[:, : dim_x + dim_y] * jnp.sqrt(df / chi_squared)
        return both[:, :dim_x], both[:, dim_x:]

    def log_constant(dim):
        return math.lgamma((df + dim) / 2) - math.lgamma(df / 2)

    constant = log_constant(dim_x + dim_y) - log_constant(dim_x) - log_constant(dim_y)

    def log_ratio(x, y):
        x, y = jnp.square(x).sum(1, keepdims=True) / df, jnp.square(y).sum(1) / df
        own = (df + dim_x) / 2 * jnp.log1p(x) + (df + dim_y) / 2 * jnp.log1p(y)
        return constant + own - (df + dim_x + dim_y) / 2 * jnp.log1p(x + y)

    return Task(f"student-identity-{dim_x}-{dim_y}-{df}", information, sample, log_ratio)


def student_information(dim_x: int, dim_y: int, df: int) -> float:
    """Return the information of an uncorrelated t-distribution with df degrees of freedom.

    I = g(df) + g(df + m + n) - g(df + m) - g(df + n) nats, where m is `dim_x`, n is `dim_y`, and
    g(a) = ln Gamma(a / 2) - (a / 2) psi(a / 2) (after Arellano-Valle et al. 2013).

    >>> round(student_information(1, 1, 1), 4)
    0.2242
    """
    for name, value in (("dim_x", dim_x), ("dim_y", dim_y), ("df", df)):
        check_number(name, value, least=1)
    from scipy.special import digamma  # imported late because it takes a third of a second

    def g(a):
        return math.lgamma(a / 2) - a / 2 * digamma(a / 2)

    return float(g(df) + g(df + dim_x + dim_y) - g(df + dim_x) - g(df + dim_y))


def additive_uniform_task(epsilon: float | int) -> Task:
    """Return a task with x uniform on [0, 1] and y = x + uniform noise on [-epsilon, epsilon].

    I = epsilon - ln(2 epsilon) for epsilon up to 1/2, and 1 / (4 epsilon) for larger epsilon.
    """
    check_number("epsilon", epsilon, above=0)
    small = epsilon <= 0.5
    information = epsilon - math.log(2 * epsilon) if small else 1 / (4 * epsilon)

    def sample(rng, n):
        x, noise = jax.random.uniform(rng, (2, n, 1), jnp.float32)
        return x, x + epsilon * (2 * noise - 1)

    def log_ratio(x, y):
        y = y[:, 0]
        # p(y) is the length of the interval of x within epsilon of y, divided by 2 epsilon.
        reach = jnp.minimum(y + epsilon, 1) - jnp.maximum(y - epsilon, 0)
        # The tolerance keeps sampled pairs inside despite rounding.
        near = jnp.abs(y - x) <= epsilon + 1e-6
        return jnp.where(near, -jnp.log(jnp.maximum(reach, 1e-6)), -jnp.inf)

    return Task(f"1v1-additive-{epsilon:g}", information, sample, log_ratio)


class Map(NamedTuple):
    """An invertible smooth map of x or y, with its inverse. Maps keep the mutual information."""

    forward: Callable[[Array], Array]
    inverse: Callable[[Array], Array]


def mapped(name: str, task: Task, map_x: Map, map_y: Map | None = None) -> Task:
    """Return a copy of a task with x and y transformed. `map_y` defaults to `map_x`."""
    map_y = map_y or map_x

    def sample(rng, n):
        x, y = task.sample(rng, n)
        return map_x.forward(x), map_y.forward(y)

    def log_ratio(x, y):
        return task.log_ratio(map_x.inverse(x), map_y.inverse(y))

    return Task(f"{name}-{task.name}", task.mutual_information, sample, log_ratio)


def spiral(i: int, j: int) -> Map:
    """Return the map that rotates dimensions i and j by the mean square of x over dimensions."""

    def turn(x, sign):
        angle = sign * jnp.square(x).sum(1) / x.shape[1]
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        turned = x.at[:, i].set(cos * x[:, i] - sin * x[:, j])
        return turned.at[:, j].set(sin * x[:, i] + cos * x[:, j])

    return Map(lambda x: turn(x, 1.0), lambda x: turn(x, -1.0))


def _increasing(function: Callable, low: float, high: float) -> Map:
    """Return the map of an increasing function, with an inverse by bisection in [low, high]."""

    def inverse(target):
        def halve(_, ends):
            middle = (ends[0] + ends[1]) / 2
            below = function(middle) < target
            return jnp.where(below, middle, ends[0]), jnp.where(below, ends[1], middle)

        ends = jnp.full_like(target, low), jnp.full_like(target, high)
        lower, upper = jax.lax.fori_loop(0, 40, halve, ends)
        return (lower + upper) / 2

    return Map(function, inverse)


def _wiggly_x(x):
    return x + 0.4 * jnp.sin(x) + 0.2 * jnp.sin(1.7 * x + 1) + 0.03 * jnp.sin(3.3 * x - 2.5)


def _wiggly_y(y):
    return (
        y - 0.4 * jnp.sin(0.4 * y) + 0.17 * jnp.sin(1.3 * y + 3.5) + 0.02 * jnp.sin(4.3 * y - 2.5)
    )


def _roll(x):
    angle = 1.5 * jnp.pi * (1 + 2 * x)
    return jnp.concatenate([angle * jnp.cos(angle), angle * jnp.sin(angle)], axis=1) / 21


def _unroll(x):
    angle = 21 * jnp.sqrt(jnp.square(x).sum(1, keepdims=True))
    return (angle / (1.5 * jnp.pi) - 1) / 2


IDENTITY = Map(lambda x: x, lambda x: x)
#: The clipping keeps the inverse finite above 5.4, where ndtr rounds to 1.
NORMAL_CDF = Map(ndtr, lambda u: ndtri(jnp.clip(u, 1e-30, 1 - 2.0**-24)))
HALF_CUBE = Map(lambda x: x * jnp.sqrt(jnp.abs(x)), lambda x: jnp.sign(x) * jnp.abs(x) ** (2 / 3))
ASINH = Map(jnp.arcsinh, jnp.sinh)
SWISS_ROLL = Map(_roll, _unroll)
WIGGLY_X = _increasing(_wiggly_x, -12.0, 12.0)
WIGGLY_Y = _increasing(_wiggly_y, -12.0, 12.0)
#: Maps from uniform variables to mixtures of two normals, by the inverse cdf of each mixture.
BIMODAL_X = Map(*_increasing(lambda x: 0.3 * ndtr(x) + 0.7 * ndtr(x - 5), -15.0, 15.0)[::-1])
BIMODAL_Y = Map(*_increasing(lambda y: 0.5 * ndtr(y + 1) + 0.5 * ndtr(y - 3), -15.0, 15.0)[::-1])
