"""Gaussian and discrete tasks with known mutual information, for tests of estimators."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from cpc.types import UserError, check_number

#: Above this limit, the noise scale e^(-I / d) is below the rounding error of float32.
MAX_NATS_PER_DIMENSION = 9.0


class Task(NamedTuple):
    """A joint distribution of pairs (x, y) whose mutual information is known."""

    name: str
    mutual_information: float
    """The mutual information I(x; y), in nats."""
    sample: Callable[[Key[Array, ""], int], tuple[Float[Array, "n dx"], Float[Array, "n dy"]]]
    """sample(rng, n) returns n independent pairs in float32. It can be jitted with n static."""
    log_ratio: Callable[[Array, Array], Float[Array, "m n"]]
    """log_ratio(x, y)[i, j] = log p(x_i, y_j) / (p(x_i) p(y_j)), in nats, which is the exact
    critic. It is -inf for impossible pairs."""


def gaussian_task(dim: int, mutual_information: float | int, cubic: bool = False) -> Task:
    """Return a task of correlated Gaussians, as in Poole et al. (2019, section 3).

    y = rho x + sqrt(1 - rho^2) e in each of `dim` dimensions, with I = -(dim / 2) ln(1 - rho^2).
    If `cubic` is True, y is replaced by y^3, which is not linear in x and has the same information.

    >>> task = gaussian_task(dim=20, mutual_information=4.0)
    >>> x, y = task.sample(jax.random.key(0), 64)
    >>> x.shape, y.shape, task.log_ratio(x, y).shape
    ((64, 20), (64, 20), (64, 64))
    """
    check_number("dim", dim, least=1)
    most = MAX_NATS_PER_DIMENSION * dim
    check_number("mutual_information", mutual_information, least=0, most=most)

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
    """Draw n pairs of standard normal vectors with I nats in total over `dim` dimensions."""
    rho, noise = correlation(dim, mutual_information)
    x, e = jax.random.normal(rng, (2, n, dim), jnp.float32)
    return x, rho * x + noise * e


def gaussian_log_ratio(
    x: Float[Array, "m d"],
    y: Float[Array, "n d"],
    mutual_information: float | int | Float[Array, ""],
) -> Float[Array, "m n"]:
    """Return the exact log density ratio of `correlated_gaussians` for all pairs (x_i, y_j).

    I + sum_d [ y_j^2 - (y_j - rho x_i)^2 / (1 - rho^2) ] / 2

    The square is not expanded, so that the result is accurate for rho near 1.
    """
    rho, noise = correlation(x.shape[1], mutual_information)
    residual = (y[None] - rho * x[:, None]) / noise  # (m, n, d)
    return mutual_information + 0.5 * (jnp.square(y).sum(-1) - jnp.square(residual).sum(-1))


def correlation(
    dim: int, mutual_information: float | int | Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return rho and sqrt(1 - rho^2) for I nats over `dim` pairs, from 1 - rho^2 = e^(-2 I / dim).

    >>> rho, noise = correlation(20, 4.0)
    >>> round(float(rho), 4), round(float(rho**2 + noise**2), 4)
    (0.5742, 1.0)
    """
    exponent = jnp.asarray(-2.0 * mutual_information / dim, jnp.float32)
    return jnp.sqrt(-jnp.expm1(exponent)), jnp.exp(exponent / 2)


def correlation_information(rho: float | int) -> float:
    """Return I = -ln(1 - rho^2) / 2 nats, the information of normals with correlation rho.

    >>> round(correlation_information(0.75), 4)
    0.4133
    """
    check_number("rho", rho, above=-1, below=1)
    return -0.5 * (math.log1p(-rho) + math.log1p(rho))


def gaussian_information(covariance: Float[np.ndarray, "d d"], dim_x: int) -> float:
    """Return the information between the first dim_x and the other dimensions of a Gaussian.

    I = ln( det S_xx det S_yy / det S ) / 2 nats (Cover and Thomas 2006, section 8.4).

    >>> round(gaussian_information(np.array([[1.0, 0.75], [0.75, 1.0]]), 1), 4)
    0.4133
    """
    parts = covariance[:dim_x, :dim_x], covariance[dim_x:, dim_x:], covariance
    xx, yy, both = (np.linalg.slogdet(part)[1] for part in parts)
    return float(0.5 * (xx + yy - both))


def ar1_information(phi: float | int, k: int) -> float:
    """Return the information between x_t and x_(t+k) for the process x_t = phi x_(t-1) + e_t.

    I = -ln(1 - phi^(2k)) / 2 nats per dimension. The process is Markov: an older x adds nothing.

    >>> round(ar1_information(0.9, 1), 4)
    0.8304
    """
    check_number("phi", phi, above=-1, below=1)
    check_number("k", k, least=1)
    return correlation_information(phi**k)


def discrete_task(name: str, joint: Float[np.ndarray, "p q"]) -> Task:
    """Return a task in which x and y are one-hot vectors, drawn from a joint probability table.

    >>> copy = discrete_task("copy", np.eye(4) / 4)  # I = ln 4
    >>> x, y = copy.sample(jax.random.key(0), 3)
    >>> round(copy.mutual_information, 4), bool((x == y).all())
    (1.3863, True)
    """
    if (joint < 0).any() or abs(joint.sum() - 1) > 1e-6:
        problem = f"joint sums to {joint.sum():g} with least entry {joint.min():g}"
        raise UserError(f"{problem}: pass nonnegative probabilities that sum to 1")
    table = jnp.asarray(_log_ratio(joint), jnp.float32)
    log_joint = jnp.asarray(_log(joint), jnp.float32).ravel()
    p, q = joint.shape

    def sample(rng, n):
        drawn = jax.random.categorical(rng, log_joint, shape=(n,))
        x, y = jnp.divmod(drawn, q)
        return jax.nn.one_hot(x, p, dtype=jnp.float32), jax.nn.one_hot(y, q, dtype=jnp.float32)

    def log_ratio(x, y):
        return table[x.argmax(1)[:, None], y.argmax(1)]

    return Task(name, discrete_information(joint), sample, log_ratio)


def discrete_information(joint: Float[np.ndarray, "p q"]) -> float:
    """Return I = sum_xy p(x, y) ln [ p(x, y) / (p(x) p(y)) ] in float64, with 0 ln 0 = 0.

    >>> round(discrete_information(np.array([[0.5, 0.0], [0.0, 0.5]])), 4)
    0.6931
    """
    occurs = joint > 0
    return float(np.sum(joint[occurs] * _log_ratio(joint)[occurs]))


def one_hot_task(num_classes: int) -> Task:
    """Return a task in which x is a uniform one-hot class and y its copy: I = ln(num_classes)."""
    check_number("num_classes", num_classes, least=1)
    return discrete_task(f"copy-{num_classes}", np.eye(num_classes) / num_classes)


def binary_symmetric_task(p: float | int) -> Task:
    """Return a task in which x is a fair bit and y equals it with probability p.

    I = ln 2 + p ln p + (1 - p) ln(1 - p).

    >>> round(binary_symmetric_task(0.8).mutual_information, 6)
    0.192745
    """
    check_number("p", p, least=0, most=1)
    return discrete_task(f"binary-{p:g}", np.array([[p, 1 - p], [1 - p, p]]) / 2)


def markov_task(
    chain: Float[np.ndarray, "p p"],
    k: int,
    *,
    emissions: Float[np.ndarray, "p q"] | None = None,
    num_speakers: int = 1,
) -> Task:
    """Return a task that pairs a hidden Markov chain's emissions k steps apart, plus a speaker.

    x is the emission at time t together with the speaker, and y is the emission at time t + k with
    the same speaker. For S equally likely speakers that are independent of the chain,
    I = ln S + I(emission_t; emission_(t+k)). As k grows, the second term tends to 0 and ln S
    remains. If negatives have the same speaker, only the second term can be measured.

    Args:
      chain: transition probabilities. Each row sums to 1.
      k: number of steps between the emissions.
      emissions: emission probabilities, one row per state. By default the state itself is emitted.
      num_speakers: S, the number of speakers.

    If consecutive states are independent, only the speaker's information remains:

    >>> task = markov_task(np.full((3, 3), 1 / 3), k=1, num_speakers=4)
    >>> round(task.mutual_information, 4)  # ln 4
    1.3863
    """
    emissions = np.eye(len(chain)) if emissions is None else emissions
    for what, table in (("chain", chain), ("emissions", emissions)):
        if (table < 0).any() or np.abs(table.sum(1) - 1).max() > 1e-6:
            problem = f"a row of {what} is not a distribution"
            raise UserError(f"{problem}: pass rows of nonnegative numbers that sum to 1")
    check_number("k", k, least=1)
    check_number("num_speakers", num_speakers, least=1)
    later = np.linalg.matrix_power(chain, k)
    shown = emissions.T @ (stationary(chain)[:, None] * later) @ emissions
    name = f"markov-{len(chain)}-{num_speakers}-{k}"
    return discrete_task(name, np.kron(np.eye(num_speakers) / num_speakers, shown))


def stationary(chain: Float[np.ndarray, "p p"]) -> Float[np.ndarray, " p"]:
    """Return a Markov chain's stationary distribution in float64, the solution of pi P = pi."""
    equations = np.vstack([chain.T - np.eye(len(chain)), np.ones(len(chain))])
    found = np.linalg.lstsq(equations, np.r_[np.zeros(len(chain)), 1.0], rcond=None)[0]
    found = np.where(found > 1e-12, found, 0.0)  # states that are never entered
    return found / found.sum()


def _log_ratio(joint):
    marginals = joint.sum(1, keepdims=True) * joint.sum(0)
    return _log(np.divide(joint, marginals, out=np.zeros_like(joint), where=marginals > 0))


def _log(p):
    return np.log(p, out=np.full_like(p, -np.inf), where=p > 0)
