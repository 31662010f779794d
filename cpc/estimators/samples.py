"""Estimates from samples without a critic: nearest neighbours and canonical correlations."""

import math

import numpy as np
from jaxtyping import Array, Float

from cpc.estimators.estimate import Estimate
from cpc.types import UserError


def ksg(
    x: Float[np.ndarray, "n dx"] | Float[Array, "n dx"],
    y: Float[np.ndarray, "n dy"] | Float[Array, "n dy"],
    k: int = 3,
) -> Estimate:
    """Estimate I by nearest neighbours (Kraskov, Stögbauer & Grassberger 2004, algorithm 1).

    psi(k) + psi(n) - mean [ psi(n_x + 1) + psi(n_y + 1) ], n_x the number of points whose x is
    nearer than the k-th neighbour of the pair, in the largest coordinate difference.

    An estimate on either side of I, with the ceiling psi(n) - psi(k); good in few dimensions. Give
    x and y comparable scales. On the host, n log n.

    Raises:
      UserError: k is outside 1 to n - 1, or more than k copies of one pair, as in discrete data.

    >>> x = np.arange(50.0)[:, None]
    >>> round(ksg(x, x).value, 3), round(ksg(x, x).ceiling, 3)  # psi(n) - psi(3)
    (2.979, 2.979)
    """
    x, y = _pairs(x, y)
    n = len(x)
    if not 1 <= k < n:
        raise UserError(f"k is {k}: with {n} pairs it must be from 1 to {n - 1} neighbours")
    pairs = np.concatenate([x, y], axis=1)
    from scipy.spatial import KDTree  # half a second, which no start of training needs
    from scipy.special import digamma

    radius = KDTree(pairs).query(pairs, k=k + 1, p=np.inf)[0][:, -1]  # the first is the pair
    if not radius.all():
        raise UserError(
            f"more than k = {k} pairs are equal: nearest neighbours need continuous data, or a "
            "little noise added"
        )
    inside = np.nextafter(radius, 0)  # strictly nearer
    nearer = [KDTree(z).query_ball_point(z, inside, p=np.inf, return_length=True) for z in (x, y)]
    value = digamma(k) + digamma(n) - sum(digamma(count).mean() for count in nearer)
    return Estimate(float(value), ceiling=float(digamma(n) - digamma(k)))


def cca(
    x: Float[np.ndarray, "n dx"] | Float[Array, "n dx"],
    y: Float[np.ndarray, "n dy"] | Float[Array, "n dy"],
) -> Estimate:
    """Estimate I of jointly Gaussian data by canonical correlations.

    -1/2 sum_i log(1 - rho_i^2), infinite if some direction of y is a linear map of x. Only linear
    dependence counts. On independent Gaussian data it is dx dy / (2 n) too high.

    >>> x = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    >>> y = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    >>> round(cca(x, x + y).value / math.log(2), 6)  # rho^2 = 1/2
    0.5
    """
    x, y = _pairs(x, y)
    if len(x) <= x.shape[1] + y.shape[1]:
        raise UserError(
            f"there are {len(x)} pairs in {x.shape[1]} + {y.shape[1]} dimensions: canonical "
            "correlations need more pairs than that"
        )
    rho = np.linalg.svd(_directions(x).T @ _directions(y), compute_uv=False)
    if (rho > 1 - 1e-12).any():
        return Estimate(math.inf)
    return Estimate(float(-0.5 * np.log1p(-np.square(rho)).sum()))


def _directions(x):
    """Return orthonormal columns that span the centred columns of x (n, d)."""
    u, size, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    return u[:, size > 1e-10 * size.max(initial=0.0)]


def _pairs(x, y):
    try:
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"x or y does not hold numbers ({error}): pass two arrays") from None
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise UserError(f"x is {x.shape} and y is {y.shape}: they must be (n, dx) and (n, dy)")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise UserError("x or y holds values that are not finite: leave those pairs out")
    return x, y
