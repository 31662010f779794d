"""Arrays of users: read, checked, in quarters that rotate, scaled by the rows that train."""

import itertools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from cpc.data.series import describe_problem, read_file
from cpc.data.walk import check_file
from cpc.types import UserError

#: With fewer rows the batches of a quarter are too small for any claim.
MIN_ROWS = 200
ROTATIONS = 4
#: Canonical correlations nearer to 1 are those of a map and its rounding errors.
CORRELATION_TOLERANCE = 1e-10
#: A variable with a larger share of distinct values is continuous.
MAX_DISTINCT = 0.5
#: Probability that the sentence on the most correlated columns is said of independent ones.
MAX_FALSE_PAIRS = 0.001
#: Correlation of neighboring rows in a column: 4 standard errors of 200 independent rows.
MAX_AUTOCORRELATION = 0.3


class Pairs(NamedTuple):
    """Rows of x and y that belong together, in random order, and sentences on them."""

    x: Float[np.ndarray, "n dx"]
    y: Float[np.ndarray, "n dy"]
    remarks: tuple[str, ...]
    identity: str = ""
    """A sentence on a part of y that is a map of x, so that estimates from samples are too low."""


def read_array(path: str | pathlib.Path) -> Float[np.ndarray, "n d"]:
    """Read a matrix of finite numbers from .npy, .npz, .csv or .parquet; 1-d is a column."""
    path = pathlib.Path(path).expanduser()
    check_file(path)
    try:
        values = np.asarray(read_file(path)[0][:], np.float64)
    except Exception as error:  # whatever a reader makes of a damaged file
        raise UserError(f"cannot read {path}: {describe_problem(error)}") from None
    is_bad = ~np.isfinite(values).all(axis=1)
    if is_bad.any():
        nans = int(np.isnan(values).sum())
        raise UserError(
            f"{path} has {nans:,} NaN and {int(np.isinf(values).sum()):,} infinite numbers in "
            f"{is_bad.sum():,} of {len(values):,} rows: leave those rows out, in both files"
        )
    if not values.size:
        raise UserError(f"{path} has the shape {values.shape}: there is nothing in it")
    constant = np.flatnonzero(values.min(axis=0) == values.max(axis=0))
    if len(constant) and len(values) >= MIN_ROWS:  # of fewer rows, `read_pairs` names the number
        raise UserError(
            f"{path} has {len(constant)} columns of {values.shape[1]} that are constant, the first "
            f"is {constant[0]} (counted from 0): leave them out"
        )
    return values


def read_pairs(
    x_path: str | pathlib.Path, y_path: str | pathlib.Path, *, max_rows: int, seed: int
) -> Pairs:
    """Read x and y, and put their rows in one random order."""
    x, y = read_array(x_path), read_array(y_path)
    if len(x) != len(y):
        raise UserError(
            f"{x_path} has {len(x):,} rows and {y_path} has {len(y):,}: row i of one must belong "
            "to row i of the other"
        )
    if len(x) < MIN_ROWS:
        raise UserError(f"there are {len(x)} rows: {MIN_ROWS} are needed, better thousands")
    remarks, identity = (*remark(x, y), *find_pair(x, y)), find_identity(x, y)
    order = np.random.default_rng(seed).permutation(len(x))[:max_rows]
    if len(order) < len(x):
        remarks += (f"A random {len(order):,} of {len(x):,} rows are used (max_rows).",)
    return Pairs(x[order], y[order], remarks, identity)


def find_identity(x: Float[np.ndarray, "n dx"], y: Float[np.ndarray, "n dy"]) -> str:
    """Return a sentence on a column of y, or a direction, that is a map of x and back; "" if none.

    Rows cannot tell a map from one with noise that is too small to change their order.
    """
    for i, j in itertools.product(range(x.shape[1]), range(y.shape[1])):
        # Most columns differ in the first rows already.
        if all(is_one_to_one(x[:n, i], y[:n, j]) for n in (1000, len(x))):
            what, shared = f"Column {j} of y is a one-to-one map of column {i} of x", x[:, i]
            break
    else:
        what = "A linear combination of the columns of y is one of x"
        shared = common_direction(x, y)
        if shared is None:
            return ""
    counts = np.unique(shared, return_counts=True)[1]
    entropy = "information without limit"
    if len(counts) <= MAX_DISTINCT * len(shared):
        fraction = counts / len(shared)
        entropy = f"at least its entropy, {-(fraction * np.log(fraction)).sum():.2f} nats"
    return f"{what} in all rows. If it always is, they share {entropy}."


def find_pair(x: Float[np.ndarray, "n dx"], y: Float[np.ndarray, "n dy"]) -> list[str]:
    """Return a sentence on the most correlated pair of columns, [] if chance may explain it.

    A critic may miss one pair among many columns. The correlation is that of normal scores, tested
    by Fisher's z with Bonferroni's correction for the number of pairs.
    """
    from scipy.special import ndtri  # as in `normal_scores`

    num_pairs = x.shape[1] * y.shape[1]
    a, b = (standardize(z, z) for z in (normal_scores(x, x), normal_scores(y, y)))
    rho = np.clip(a.T @ b / len(a), -1 + 1e-9, 1 - 1e-9)
    i, j = np.unravel_index(np.abs(rho).argmax(), rho.shape)
    best = rho[i, j]
    quantile = ndtri(1 - MAX_FALSE_PAIRS / (2 * num_pairs))
    if num_pairs == 1 or abs(np.arctanh(best)) * np.sqrt(len(x) - 3) <= quantile:
        return []
    return [
        f"Columns {i} of x and {j} of y, counted from 0, have the largest correlation of "
        f"{num_pairs:,} pairs ({best:.2f} of normal scores): {-0.5 * np.log1p(-(best**2)):.2f} "
        "nats if they are jointly normal."
    ]


def is_one_to_one(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]) -> bool:
    """Return whether b is a rising or falling map of a, or any if the numbers are discrete."""
    order = np.argsort(a, kind="stable")
    rises, moves = np.diff(a[order]) > 0, np.diff(b[order])
    if np.array_equal(rises, moves != 0) and ((moves >= 0).all() or (moves <= 0).all()):
        return True
    if rises.sum() >= MAX_DISTINCT * len(a):
        return False
    pairs = np.unique(np.stack([a, b], axis=1), axis=0)
    return len(pairs) == len(np.unique(a)) == len(np.unique(b))


def common_direction(
    x: Float[np.ndarray, "n dx"], y: Float[np.ndarray, "n dy"]
) -> Float[np.ndarray, " n"] | None:
    """Return a linear combination of the columns of x that is also one of y, or None."""
    if len(x) <= x.shape[1] + y.shape[1]:
        return None
    sides = []
    for z in (x, y):
        u, size, _ = np.linalg.svd(standardize(z, z), full_matrices=False)
        sides.append(u[:, size > CORRELATION_TOLERANCE * size.max()])
    left, rho, _ = np.linalg.svd(sides[0].T @ sides[1])
    if rho[0] < 1 - CORRELATION_TOLERANCE:
        return None
    shared = sides[0] @ left[:, 0]
    return np.round(shared / np.abs(shared).max(), 6)


def remark(x: np.ndarray, y: np.ndarray) -> tuple[str, ...]:
    """Return sentences on rows that are not independent draws, as intervals and null need them."""
    remarks = []
    for name, z in (("x", x), ("y", y)):
        z = (z - z.mean(0)) / z.std(0)
        products = z[1:] * z[:-1]
        # Without the largest, which two rare ones that happen to be neighbors would decide alone.
        correlation = (products.sum(0) - products.max(0)) / len(products)
        column = int(correlation.argmax())
        if correlation[column] > MAX_AUTOCORRELATION:
            remarks.append(
                f"Neighbouring rows of {name} are alike in column {column}, counted from 0 "
                f"(correlation {correlation[column]:.2f}): rows must be independent draws. Of a "
                "series take rows that are far apart, and leave out a column that numbers the "
                "rows; sorted rows do no harm."
            )
    both = np.concatenate([x, y], axis=1)
    if copies := len(both) - len(np.unique(both, axis=0)):
        remarks.append(
            f"{copies:,} rows are copies of another one: if they are the same measurement, "
            "held-out rows were seen in training; leave copies out."
        )
    return tuple(remarks)


def rotate(
    x: np.ndarray,
    y: np.ndarray,
    num_train: int,
    transform: str,
    shuffle: np.random.Generator | None = None,
) -> tuple[Float[np.ndarray, "4 n dx"], Float[np.ndarray, "4 n dy"]]:
    """Return the rows in four orders, each beginning a quarter later, scaled by the first rows.

    The first half of an order trains, of which the first `num_train` rows scale; its third quarter
    chooses the step, the last is read. `shuffle` pairs each x with a random y.
    """
    quarter = len(x) // ROTATIONS
    orders = [np.roll(np.arange(ROTATIONS * quarter), -r * quarter) for r in range(ROTATIONS)]
    ys = [y[order] if shuffle is None else y[shuffle.permutation(order)] for order in orders]
    sides = [x[order] for order in orders], ys
    scale = TRANSFORMS[transform]
    x, y = (np.stack([scale(z[:num_train], z) for z in side], dtype=np.float32) for side in sides)
    return x, y


def standardize(known: Float[np.ndarray, "m d"], z: Float[np.ndarray, "n d"]) -> np.ndarray:
    """Return columns scaled so that known rows have mean 0 and variance 1."""
    spread = known.std(0)
    return (z - known.mean(0)) / np.where(spread > 0, spread, 1.0)


def normal_scores(known: Float[np.ndarray, "m d"], z: Float[np.ndarray, "n d"]) -> np.ndarray:
    """Return the normal quantile of each number's rank among known rows, column by column.

    Numbers between two known ones become equal, by which a bound can only fall.

    >>> normal_scores(np.arange(9.0)[:, None], np.array([[4.0], [4.5], [99.0]])).round(2).ravel()
    array([0.  , 0.13, 1.64])
    """
    from scipy.special import ndtri  # half a second, which no start of training needs

    columns = []
    for column, values in zip(np.sort(known, axis=0).T, z.T, strict=True):
        rank = sum(np.searchsorted(column, values, side) for side in ("left", "right")) / 2
        columns.append(ndtri((rank + 0.5) / (len(column) + 1)))
    return np.stack(columns, axis=1)


TRANSFORMS: Mapping[str, Callable[[Any, Any], np.ndarray]] = {
    "standardize": standardize,
    "normal_scores": normal_scores,
}
