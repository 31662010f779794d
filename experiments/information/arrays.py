"""Functions that read, check, split and scale a user's two arrays."""

import itertools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from cpc.data.series import describe_problem, read_file
from cpc.data.walk import check_file
from cpc.estimators.estimate import column_space
from cpc.types import UserError

#: Minimum number of rows, since batches of a quarter would otherwise be too small.
MIN_ROWS = 200
ROTATIONS = 4
#: Distance from 1 below which a canonical correlation is exact up to rounding.
CORRELATION_TOLERANCE = 1e-10
#: Fraction of distinct values above which a variable is continuous.
MAX_DISTINCT = 0.5
#: Probability of a false remark on the most correlated columns if all are independent.
MAX_FALSE_PAIRS = 0.001
#: Largest correlation of neighboring rows in a column, 4 standard errors for 200 independent rows.
MAX_AUTOCORRELATION = 0.3


class Pairs(NamedTuple):
    """Paired rows of x and y in random order, with remarks on them."""

    x: Float[np.ndarray, "n dx"]
    y: Float[np.ndarray, "n dy"]
    remarks: tuple[str, ...]
    identity: str = ""
    """A sentence on columns of y that are a function of x, for which estimates are too low."""


def read_array(path: str | pathlib.Path) -> Float[np.ndarray, "n d"]:
    """Read finite numbers (n, d) from .npy, .npz, .csv or .parquet; 1-d arrays are columns."""
    path = pathlib.Path(path).expanduser()
    check_file(path)
    try:
        values = np.asarray(read_file(path)[0][:], np.float64)
    except Exception as error:  # readers raise many errors for damaged files
        raise UserError(f"cannot read {path}: {describe_problem(error)}") from None
    is_bad = ~np.isfinite(values).all(axis=1)
    if is_bad.any():
        raise UserError(
            f"{path} has {np.isnan(values).sum():,} NaN and {np.isinf(values).sum():,} infinite "
            f"numbers in {is_bad.sum():,} of {len(values):,} rows: remove the rows in both files"
        )
    if not values.size:
        raise UserError(f"{path} is empty (shape {values.shape}): pass an array with numbers")
    return values


def read_pairs(
    x_path: str | pathlib.Path, y_path: str | pathlib.Path, *, max_rows: int, seed: int
) -> Pairs:
    """Read x and y, check them, and shuffle their rows together."""
    x, y = read_array(x_path), read_array(y_path)
    if len(x) != len(y):
        raise UserError(f"{x_path} has {len(x):,} rows and {y_path} has {len(y):,}: pair the rows")
    if len(x) < MIN_ROWS:
        raise UserError(f"at least {MIN_ROWS} rows are needed (got {len(x)}): add rows")
    for path, values in ((x_path, x), (y_path, y)):
        constant = np.flatnonzero(np.ptp(values, axis=0) == 0)
        if len(constant):
            raise UserError(
                f"{path} has {len(constant)} constant columns of {values.shape[1]}, the first is "
                f"{constant[0]} (counted from 0): remove these columns"
            )
    remarks, identity = (*remark(x, y), *find_pair(x, y)), find_identity(x, y)
    order = np.random.default_rng(seed).permutation(len(x))[:max_rows]
    if len(order) < len(x):
        remarks += (f"A random {len(order):,} of {len(x):,} rows are used (max_rows).",)
    return Pairs(x[order], y[order], remarks, identity)


def find_identity(x: Float[np.ndarray, "n dx"], y: Float[np.ndarray, "n dy"]) -> str:
    """Return a sentence on a one-to-one map between x and y, or "" if none is found.

    Columns and their combinations are tested. Rows cannot show noise too small to reorder them.
    """
    for i, j in itertools.product(range(x.shape[1]), range(y.shape[1])):
        # The first 1,000 rows already rule out most columns.
        if all(is_one_to_one(x[:n, i], y[:n, j]) for n in (1000, len(x))):
            finding, shared = f"Column {j} of y is a one-to-one map of column {i} of x", x[:, i]
            break
    else:
        finding = "A linear combination of the columns of y is one of x"
        if (shared := common_direction(x, y)) is None:
            return ""
    counts = np.unique(shared, return_counts=True)[1]
    entropy = "information without limit"
    if len(counts) <= MAX_DISTINCT * len(shared):
        fraction = counts / len(shared)
        entropy = f"at least its entropy, {-(fraction * np.log(fraction)).sum():.2f} nats"
    return f"{finding} in all rows. If this holds in general, they share {entropy}."


def find_pair(x: Float[np.ndarray, "n dx"], y: Float[np.ndarray, "n dy"]) -> list[str]:
    """Return a sentence on the most correlated pair of columns, or [] if chance can explain it.

    A critic may miss one pair among many columns. The correlation of normal scores is tested by
    Fisher's z with Bonferroni's correction for the number of pairs.
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
    """Return whether b is a monotonic map of a, or a bijection of a if the numbers are discrete."""
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
    """Return values in the column spaces of both x and y, or None if these share no direction."""
    if len(x) <= x.shape[1] + y.shape[1]:
        return None
    of_x, of_y = (column_space(standardize(z, z)) for z in (x, y))
    left, rho, _ = np.linalg.svd(of_x.T @ of_y)
    if rho[0] < 1 - CORRELATION_TOLERANCE:
        return None
    shared = of_x @ left[:, 0]
    return np.round(shared / np.abs(shared).max(), 6)


def remark(x: np.ndarray, y: np.ndarray) -> tuple[str, ...]:
    """Return remarks on signs of dependent rows, since intervals and nulls assume independence."""
    remarks = []
    for name, z in (("x", x), ("y", y)):
        z = (z - z.mean(0)) / z.std(0)
        products = z[1:] * z[:-1]
        # The largest product is left out, since a single pair of rare neighbors could dominate.
        correlation = (products.sum(0) - products.max(0)) / len(products)
        column = int(correlation.argmax())
        if correlation[column] > MAX_AUTOCORRELATION:
            remarks.append(
                f"Neighbouring rows of {name} are alike in column {column}, counted from 0 "
                f"(correlation {correlation[column]:.2f}): rows must be independent draws. Take "
                "distant rows of a series, and remove columns that number the rows; sorted rows "
                "are harmless."
            )
    both = np.concatenate([x, y], axis=1)
    if copies := len(both) - len(np.unique(both, axis=0)):
        remarks.append(
            f"{copies:,} rows are copies of another row: if they are the same measurement, "
            "held-out rows were seen in training; remove the copies."
        )
    return tuple(remarks)


def rotate(
    x: np.ndarray,
    y: np.ndarray,
    num_train: int,
    transform: str,
    shuffle: np.random.Generator | None = None,
) -> tuple[Float[np.ndarray, "4 n dx"], Float[np.ndarray, "4 n dy"]]:
    """Return the rows in four orders, each shifted by a quarter, and scaled by training rows.

    The first half of an order is for training, the third quarter for early stopping, and the last
    quarter for evaluation. The first `num_train` rows define the scale. `shuffle` pairs each x with
    a random y.
    """
    quarter = len(x) // ROTATIONS
    orders = [np.roll(np.arange(ROTATIONS * quarter), -r * quarter) for r in range(ROTATIONS)]
    ys = [y[order] if shuffle is None else y[shuffle.permutation(order)] for order in orders]
    sides = [x[order] for order in orders], ys
    scale = TRANSFORMS[transform]
    x, y = (np.stack([scale(z[:num_train], z) for z in side], dtype=np.float32) for side in sides)
    return x, y


def standardize(known: Float[np.ndarray, "m d"], z: Float[np.ndarray, "n d"]) -> np.ndarray:
    """Scale columns so that the known rows have mean 0 and variance 1."""
    spread = known.std(0)
    return (z - known.mean(0)) / np.where(spread > 0, spread, 1.0)


def normal_scores(known: Float[np.ndarray, "m d"], z: Float[np.ndarray, "n d"]) -> np.ndarray:
    """Replace each number by the normal quantile of its rank among its column's known rows.

    Numbers between two neighboring known numbers become equal, which can only lower a bound.

    >>> normal_scores(np.arange(9.0)[:, None], np.array([[4.0], [4.5], [99.0]])).round(2).ravel()
    array([0.  , 0.13, 1.64])
    """
    from scipy.special import ndtri  # imports for half a second

    columns = []
    for column, values in zip(np.sort(known, axis=0).T, z.T, strict=True):
        rank = sum(np.searchsorted(column, values, side) for side in ("left", "right")) / 2
        columns.append(ndtri((rank + 0.5) / (len(column) + 1)))
    return np.stack(columns, axis=1)


TRANSFORMS: Mapping[str, Callable[[Any, Any], np.ndarray]] = {
    "standardize": standardize,
    "normal_scores": normal_scores,
}
