"""Tasks of known mutual information to test estimates on."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from cpc.types import UserError

#: Beyond this the noise, e^(-I / d), drowns in the rounding of float32.
MAX_NATS_PER_DIMENSION = 9.0


class Task(NamedTuple):
    """Pairs (x, y) whose mutual information is known."""

    name: str
    mutual_information: float
    """I(x; y), nats."""
    sample: Callable[[Key[Array, ""], int], tuple[Float[Array, "n dx"], Float[Array, "n dy"]]]
    """sample(rng, n): n independent pairs, float32; jittable with n static."""
    log_ratio: Callable[[Array, Array], Float[Array, "m n"]]
    """log_ratio(x, y)[i, j] = log p(x_i, y_j) / (p(x_i) p(y_j)), nats: the best critic; -inf for
    impossible pairs."""


def gaussian_task(dim: int, mutual_information: float | int, cubic: bool = False) -> Task:
    """Return correlated Gaussians, the staircase of Poole et al. (2019, section 3).

    y = rho x + sqrt(1 - rho^2) e in each of `dim` dimensions, with I = -(dim / 2) ln(1 - rho^2).
    `cubic` returns y^3, which is not linear in x and has the same information.

    Raises:
      UserError: no dimension, or an information that is negative or too large for float32.

    >>> task = gaussian_task(dim=20, mutual_information=4.0)
    >>> x, y = task.sample(jax.random.key(0), 64)
    >>> x.shape, y.shape, task.log_ratio(x, y).shape
    ((64, 20), (64, 20), (64, 64))
    """
    if dim < 1:
        raise UserError(f"dim is {dim}: a task needs 1 dimension or more")
    if not 0 <= mutual_information <= MAX_NATS_PER_DIMENSION * dim:
        raise UserError(
            f"mutual_information is {mutual_information} nats in {dim} dimensions: it must be from "
            f"0 to {MAX_NATS_PER_DIMENSION:g} nats a dimension, beyond which float32 loses it"
        )

    def sample(rng, n):
        x, y = correlated_gaussians(rng, n, dim, mutual_information)
        return (x, y**3) if cubic else (x, y)

    def log_ratio(x, y):
        return gaussian_log_ratio(x, jnp.cbrt(y) if cubic else y, mutual_information)

    name = f"{'cubic' if cubic else 'gaussian'}-{dim}-{mutual_information:g}"
    return Task(name, float(mutual_information), sample, log_ratio)


def correlated_gaussians(
    rng: Key[Array, ""], n: int, dim: int, mutual_information: float | int | Float[Array, ""]
) -> tuple[Float[Array, "n d"], Float[Array, "n d"]]:
    """Draw n pairs of standard normals with I nats, possibly traced, spread over `dim`."""
    rho, noise = correlation(dim, mutual_information)
    x, e = jax.random.normal(rng, (2, n, dim), jnp.float32)
    return x, rho * x + noise * e


def gaussian_log_ratio(
    x: Float[Array, "m d"],
    y: Float[Array, "n d"],
    mutual_information: float | int | Float[Array, ""],
) -> Float[Array, "m n"]:
    """Score x_i with y_j by the exact log ratio of `correlated_gaussians`.

    I + sum_d [ y_j^2 - (y_j - rho x_i)^2 / (1 - rho^2) ] / 2, which is accurate for rho near 1,
    unlike the expanded square.
    """
    rho, noise = correlation(x.shape[1], mutual_information)
    residual = (y[None] - rho * x[:, None]) / noise  # (m, n, d)
    return mutual_information + 0.5 * (jnp.square(y).sum(-1) - jnp.square(residual).sum(-1))


def correlation(
    dim: int, mutual_information: float | int | Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return rho and sqrt(1 - rho^2) of `dim` pairs with I nats: 1 - rho^2 = e^(-2 I / dim).

    >>> rho, noise = correlation(20, 4.0)
    >>> round(float(rho), 4), round(float(rho**2 + noise**2), 4)
    (0.5742, 1.0)
    """
    exponent = jnp.asarray(-2.0 * mutual_information / dim, jnp.float32)
    return jnp.sqrt(-jnp.expm1(exponent)), jnp.exp(exponent / 2)


def correlation_information(rho: float | int) -> float:
    """Return the information of two normals with correlation rho: I = -ln(1 - rho^2) / 2 nats.

    Raises:
      UserError: a correlation that is not strictly between -1 and 1.

    >>> round(correlation_information(0.75), 4)
    0.4133
    """
    if not -1 < rho < 1:
        raise UserError(f"a correlation must be strictly between -1 and 1 (got {rho})")
    return -0.5 * (math.log1p(-rho) + math.log1p(rho))


def gaussian_information(covariance: Float[np.ndarray, "d d"], dim_x: int) -> float:
    """Return the information of the first dim_x and the other dimensions of a normal law.

    I = ln( det S_xx det S_yy / det S ) / 2 nats (Cover and Thomas 2006, section 8.4).

    >>> round(gaussian_information(np.array([[1.0, 0.75], [0.75, 1.0]]), 1), 4)
    0.4133
    """
    parts = covariance[:dim_x, :dim_x], covariance[dim_x:, dim_x:], covariance
    xx, yy, both = (np.linalg.slogdet(part)[1] for part in parts)
    return float(0.5 * (xx + yy - both))


def ar1_information(phi: float | int, k: int) -> float:
    """Return the information of x_t and x_(t+k) of x_t = phi x_(t-1) + e_t, per dimension.

    I = -ln(1 - phi^(2k)) / 2 nats. The past before x_t adds nothing: the process is Markov.

    Raises:
      UserError: a process that is not stationary, or an offset below 1.

    >>> round(ar1_information(0.9, 1), 4)
    0.8304
    """
    if not -1 < phi < 1:
        raise UserError(f"phi is {phi}: the process is stationary only between -1 and 1")
    if k < 1:
        raise UserError(f"k is {k}: offsets are 1 or more")
    return correlation_information(phi**k)
