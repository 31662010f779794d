"""Tasks of known mutual information to test estimates on: Gaussians and finite alphabets."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from cpc.types import UserError, check_number

#: Above this limit the noise, e^(-I / d), is below the rounding error of float32.
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

    >>> round(correlation_information(0.75), 4)
    0.4133
    """
    check_number("rho", rho, above=-1, below=1)
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

    >>> round(ar1_information(0.9, 1), 4)
    0.8304
    """
    check_number("phi", phi, above=-1, below=1)
    check_number("k", k, least=1)
    return correlation_information(phi**k)


def discrete_task(name: str, joint: Float[np.ndarray, "p q"]) -> Task:
    """Return pairs of one-hot vectors drawn from a table of joint probabilities.

    >>> copy = discrete_task("copy", np.eye(4) / 4)  # I = ln 4
    >>> x, y = copy.sample(jax.random.key(0), 3)
    >>> round(copy.mutual_information, 4), bool((x == y).all())
    (1.3863, True)
    """
    if (joint < 0).any() or abs(joint.sum() - 1) > 1e-6:
        problem = f"joint sums to {joint.sum():g} with least entry {joint.min():g}"
        raise UserError(f"{problem}: probabilities are 0 or more and sum to 1")
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
    """Return a class and its copy: I = ln(num_classes)."""
    check_number("num_classes", num_classes, least=1)
    return discrete_task(f"copy-{num_classes}", np.eye(num_classes) / num_classes)


def binary_symmetric_task(p: float | int) -> Task:
    """Return a fair bit and a copy that is right with probability p.

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
    """Return two times of a hidden Markov chain, k apart, with a constant speaker.

    x is the emission at s_t and the speaker, y the emission at s_(t+k) and the speaker: I = ln S +
    I(emission_t; emission_(t+k)), for S equally likely speakers independent of the chain. As k
    grows the chain forgets and ln S stays; negatives of the same speaker leave the chain's part.

    Args:
      chain: transition probabilities, rows sum to 1.
      emissions: emission probabilities, one row per state; by default the state itself.
      num_speakers: S.

    A chain that forgets at once leaves the speaker:

    >>> task = markov_task(np.full((3, 3), 1 / 3), k=1, num_speakers=4)
    >>> round(task.mutual_information, 4)  # ln 4
    1.3863
    """
    emissions = np.eye(len(chain)) if emissions is None else emissions
    for what, table in (("chain", chain), ("emissions", emissions)):
        if (table < 0).any() or np.abs(table.sum(1) - 1).max() > 1e-6:
            problem = f"a row of {what} is not a distribution"
            raise UserError(f"{problem}: use rows of 0 or more that sum to 1")
    check_number("k", k, least=1)
    check_number("num_speakers", num_speakers, least=1)
    later = np.linalg.matrix_power(chain, k)
    shown = emissions.T @ (stationary(chain)[:, None] * later) @ emissions
    name = f"markov-{len(chain)}-{num_speakers}-{k}"
    return discrete_task(name, np.kron(np.eye(num_speakers) / num_speakers, shown))


def stationary(chain: Float[np.ndarray, "p p"]) -> Float[np.ndarray, " p"]:
    """Return the stationary distribution of a chain: pi P = pi, float64."""
    equations = np.vstack([chain.T - np.eye(len(chain)), np.ones(len(chain))])
    found = np.linalg.lstsq(equations, np.r_[np.zeros(len(chain)), 1.0], rcond=None)[0]
    found = np.where(found > 1e-12, found, 0.0)  # states that are never entered
    return found / found.sum()


def _log_ratio(joint):
    marginals = joint.sum(1, keepdims=True) * joint.sum(0)
    return _log(np.divide(joint, marginals, out=np.zeros_like(joint), where=marginals > 0))


def _log(p):
    return np.log(p, out=np.full_like(p, -np.inf), where=p > 0)
