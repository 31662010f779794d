"""Tasks of known mutual information: what an estimate is held against."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from cpc.types import UserError

#: Beyond this the noise, e^-I/d, drowns in the rounding of float32.
MAX_NATS_PER_DIMENSION = 9.0


class Task(NamedTuple):
    """Pairs (x, y) whose mutual information is known."""

    name: str
    mutual_information: float
    """I(x; y), nats."""
    sample: Callable[[Key[Array, ""], int], tuple[Float[Array, "n dx"], Float[Array, "n dy"]]]
    """sample(rng, n): n independent pairs, float32; jittable with n static."""
    log_ratio: Callable[[Array, Array], Float[Array, "n n"]] | None = None
    """log_ratio(x, y)[i, j] = log p(x_i, y_j) / (p(x_i) p(y_j)), nats: the critic that no training
    can beat. None where it has no closed form here."""


def gaussian_task(dim: int, mutual_information: float | int, cubic: bool = False) -> Task:
    """Correlated Gaussians, the staircase of Poole et al. (2019, section 3).

    y = rho x + sqrt(1 - rho^2) e in each of `dim` dimensions, with I = -(dim / 2) ln(1 - rho^2).
    `cubic` hands out y^3, which hides the line and leaves I as it is.

    Raises:
      UserError: no dimension, or an information that is negative or more than float32 can carry.

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

    shape = "cubic" if cubic else "gaussian"
    return Task(
        f"{shape}-{dim}-{mutual_information:g}", float(mutual_information), sample, log_ratio
    )


def correlated_gaussians(
    rng: Key[Array, ""], n: int, dim: int, mutual_information: float | int | Float[Array, ""]
) -> tuple[Float[Array, "n d"], Float[Array, "n d"]]:
    """Draw n pairs of standard normals with I nats between them, spread evenly over `dim`.

    1 - rho^2 = e^(-2 I / dim); the information may be traced.
    """
    rho, noise = _correlation(dim, mutual_information)
    x, e = jax.random.normal(rng, (2, n, dim))
    return x, rho * x + noise * e


def gaussian_log_ratio(
    x: Float[Array, "m d"],
    y: Float[Array, "n d"],
    mutual_information: float | int | Float[Array, ""],
) -> Float[Array, "m n"]:
    """Score x_i with y_j by the exact log ratio of `correlated_gaussians`.

    I + sum_d [ y_j^2 - (y_j - rho x_i)^2 / (1 - rho^2) ] / 2, which keeps its digits as rho
    goes to 1, where the expanded square would not.
    """
    rho, noise = _correlation(x.shape[1], mutual_information)
    residual = (y[None] - rho * x[:, None]) / noise  # (m, n, d)
    return mutual_information + 0.5 * (jnp.square(y).sum(-1) - jnp.square(residual).sum(-1))


def _correlation(dim, mutual_information):
    """Correlation rho and sqrt(1 - rho^2), without the cancellation of 1 - rho^2."""
    exponent = -2.0 * mutual_information / dim
    return jnp.sqrt(-jnp.expm1(exponent)), jnp.exp(exponent / 2)
