"""Tests of mutual-information estimators on distributions whose information is known.

For a small discrete distribution all batches are enumerated, so that expected values are exact.
Gaussian batches measure bias and standard deviation for 2 to 10 nats.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cpc.estimators.estimate import Estimate
from cpc.estimators.tasks import correlated_gaussians, gaussian_log_ratio
from cpc.types import UserError

#: Joint probabilities of three x and two y without symmetry, which share 0.194 nats.
LAW = np.array([[0.30, 0.05], [0.10, 0.15], [0.07, 0.33]])
#: Gaussian batches: number of dimensions, information in nats, and number of batches per size.
DIM, NATS, BATCHES = 20, (2.0, 4.0, 6.0, 8.0, 10.0), {64: 100, 128: 50}
#: Tolerance for float32 rounding of values of a few nats.
ROUNDING = 1e-4


class Row(NamedTuple):
    """The result of one check of an estimator."""

    check: str
    expected: str
    measured: float
    passed: bool | None = None
    """None if the estimator guarantees nothing about this value."""
    spread: float = math.nan
    """Standard deviation over batches, or standard error. NaN if the check is not random."""


class Certificate(NamedTuple):
    """An estimator's guarantees and the results of all checks. Printing it gives a table."""

    promise: str
    rows: tuple[Row, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not any(row.passed is False for row in self.rows)

    def __str__(self) -> str:
        """Format the results as a table with aligned columns."""
        lines = [("check", "expected", "measured", "")]
        for row in self.rows:
            spread = "" if math.isnan(row.spread) else f" ± {row.spread:.2f}"
            verdict = {True: "pass", False: "FAIL", None: ""}[row.passed]
            lines.append((row.check, row.expected, f"{row.measured:.4g}{spread}", verdict))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        return "\n".join([self.promise, *table])


class _Label(NamedTuple):
    """An estimator's guarantees: sign is +1 for a lower bound, -1 for an upper one, or else 0."""

    known: bool
    is_bound: bool
    sign: int

    def words(self, truth):
        return ("", "at most ", "at least ")[self.sign] + f"{truth:.4g}"

    def judge(self, excess):
        """Return whether the excess over the truth is allowed, or None without a guarantee."""
        return bool(excess <= ROUNDING) if self.sign else None

    def compare(self, check, truth, measured):
        """Return the row of an expected value."""
        passed = self.judge(self.sign * (measured - truth))
        return Row(check, self.words(truth), float(measured), passed)


def certify(
    estimator: Callable[[Float[Array, "n n"]], Estimate | Float[Array, ""]],
    shift: float | int = 0.0,
) -> Certificate:
    """Check an estimator's guarantees on distributions whose information is known.

    The expected value must be on the `side` of the truth that the estimator declares: for every
    tested critic if `is_bound` is true, and otherwise for the exact critic. On Gaussian batches the
    mean is checked if the partition, mean e^f, is well sampled. At higher information, most batches
    of a correct bound may be on the wrong side, unlike their mean, so only 1 in 20 must be right.

    The `ceiling` must be reached and never exceeded, and rows of scores must be x. Values and
    gradients must be finite for scores of +-1e4, and not NaN for impossible pairs with score -inf.
    Other table rows are not judged. A result that is not an `Estimate` has no guarantees.

    Args:
      estimator: function of scores (n, n) that returns an `Estimate` or a number. It must be
        written in jax.numpy and accept any n of at least 2.
      shift: constant that the best critic adds to the log ratio, such as 1 for `nwj`.

    >>> from cpc.estimators import info_nce
    >>> certificate = certify(info_nce)
    >>> certificate.promise, certificate.passed
    ('lower bound, ceiling 1.386 of 4 pairs', True)
    """
    try:
        result = jax.jit(estimator)(jnp.zeros((4, 4), jnp.float32))
    except jax.errors.JAXTypeError as error:
        raise UserError(
            "JAX cannot trace the estimator: write it in jax.numpy, without float() or NumPy"
        ) from error
    known, estimate = isinstance(result, Estimate), _as_estimate(result)
    if estimate.is_bound and estimate.side not in ("lower", "upper"):
        raise UserError(f'the side of a bound must be "lower" or "upper" (got {estimate.side!r})')

    read = jax.jit(jax.vmap(lambda scores: _as_estimate(estimator(scores)).value))

    def evaluate(scores):  # (r, n, n) -> values (r,)
        return np.asarray(read(jnp.asarray(scores, jnp.float32)), np.float64)

    sign = {"lower": 1, "upper": -1}.get(estimate.side, 0)
    label = _Label(known, estimate.is_bound, sign)
    kind = f"{estimate.side} bound" if estimate.is_bound else f"{estimate.side} estimate".strip()
    return Certificate(
        f"{kind}, ceiling {float(estimate.ceiling):.4g} of 4 pairs" if known else "a bare number",
        (
            *_expectations(evaluate, label, shift),
            *_gaussian_batches(evaluate, label, shift),
            *_offsets(evaluate),
            _ceiling(estimator, evaluate, label),
            _finite(estimator),
        ),
    )


def _as_estimate(result):
    return result if isinstance(result, Estimate) else Estimate(jnp.asarray(result))


def _expectations(evaluate, label, shift):
    """Yield exact expected values of the exact critic, its transposed scores, and other critics.

    log N - L of the exact critic is I - KL(1/N sum_j p(x, y_j) prod_l p(y_l) || p(x) prod p(y)).
    """
    product = np.outer(LAW.sum(1), LAW.sum(0))
    log_ratio = np.log(LAW / product)
    information = float((LAW * log_ratio).sum())
    rng = np.random.default_rng(0)
    others = [  # the exact critic, scaled, shifted and with added noise; a scale of 0 is noise only
        scale * log_ratio + offset + noise * rng.normal(size=LAW.shape)
        for scale, offset, noise in itertools.product((0, 0.5, 1, 2, 5), (-1, 0, 1), (0, 1))
    ]
    critics = np.stack([log_ratio + shift, np.full(LAW.shape, shift), *others])
    for n in (2, 4):
        cells = np.array(list(itertools.product(range(LAW.size), repeat=n)))  # (batches, n)
        x, y = np.unravel_index(cells, LAW.shape)
        scores = critics[:, x[:, :, None], y[:, None, :]]  # (critics, batches, n, n)
        scores = np.concatenate([scores, scores[:1].swapaxes(2, 3)])
        value = evaluate(scores.reshape(-1, n, n)).reshape(len(scores), -1)
        dependent = value @ LAW.ravel()[cells].prod(1)
        independent = value[:-1] @ product.ravel()[cells].prod(1)
        by_rows, by_columns = (_info_nce_exactly(law, n) for law in (LAW, LAW.T))
        name = f"exact critic (log N - L: {by_rows:.4g}), N = {n}"
        yield label.compare(name, information, dependent[0])
        name = f"... transposed (log N - L: {by_columns:.4g}), N = {n}"
        yield Row(name, f"{information:.4g}", float(dependent[-1]))
        name = f"exact critic, independent x and y, N = {n}"
        yield label.compare(name, 0.0, independent[1])
        if label.is_bound:
            worst = [label.sign * max(label.sign * v) for v in (dependent[:-1], independent)]
            name = f"worst of {len(critics)} critics"
            yield label.compare(f"{name}, N = {n}", information, worst[0])
            yield label.compare(f"{name}, independent x and y, N = {n}", 0.0, worst[1])


def _info_nce_exactly(law, n):
    """Return I - KL by enumerating one x and its n candidates. Rows of `law` are x."""
    px, py = law.sum(1), law.sum(0)
    ratio = law / np.outer(px, py)
    candidates = np.array(list(itertools.product(range(len(py)), repeat=n)))
    mixture = ratio[:, candidates].mean(-1)  # (x, candidates)
    kl = px @ (mixture * np.log(mixture)) @ py[candidates].prod(1)
    return (law * np.log(ratio)).sum() - kl


@functools.partial(jax.jit, static_argnums=(0, 1))
def _gaussian_scores(n, batches, shift):
    """Return scores of the exact critic on Gaussian batches (information * batches, n, n)."""

    def scores(rng, nats):
        return gaussian_log_ratio(*correlated_gaussians(rng, n, DIM, nats), nats) + shift

    rngs = jax.random.split(jax.random.key(n), (len(NATS), batches))
    found = jax.vmap(jax.vmap(scores, (0, None)))(rngs, jnp.array(NATS, jnp.float32))
    return found.reshape(-1, n, n)


def _gaussian_batches(evaluate, label, shift):
    """Yield the mean and standard deviation for the exact critic, and the limit for many pairs."""
    means, errors = [], []
    for n, batches in BATCHES.items():
        value = evaluate(_gaussian_scores(n, batches, shift))
        for nats, sample in zip(NATS, value.reshape(len(NATS), batches), strict=True):
            # The variance of the sampled partition is (e^2I - 1) / draws.
            well_sampled = math.expm1(2 * nats) < n * (n - 1) / 16
            excess, error = label.sign * (sample - nats), sample.std() / math.sqrt(batches)
            forbidden = excess.mean() - 4 * error if well_sampled else np.quantile(excess, 0.05)
            yield Row(
                f"Gaussian, I = {nats:g}, N = {n}" + ("" if well_sampled else ", median"),
                label.words(nats),
                float(sample.mean() if well_sampled else np.median(sample)),
                label.judge(forbidden),
                float(sample.std()),
            )
            if nats == NATS[0]:
                means.append(sample.mean())
                errors.append(error)
    # The bias of most estimates falls as 1 / N, so extrapolate from N and 2 N to 1 / N = 0.
    limit, error = 2 * means[1] - means[0], math.hypot(2 * errors[1], errors[0])
    check = f"Gaussian, I = {NATS[0]:g}, on a line to 1 / N = 0"
    yield Row(check, f"{NATS[0]:g}", limit, spread=error)


def _offsets(evaluate):
    """Yield the changes of the value if a constant, h(x) or h(y) is added to the scores."""
    rng = np.random.default_rng(0)
    scores, offset = rng.normal(size=(8, 8)), 2 * rng.normal(size=8)
    value = evaluate(np.stack([scores, scores + 2, scores + offset[:, None], scores + offset]))
    constant, of_x, of_y = np.abs(value[1:] - value[0])
    rows_are_x = bool(of_y > ROUNDING or of_x <= ROUNDING)
    yield Row("change by a constant", "any", float(constant))
    yield Row("change by h(x), of rows", "any", float(of_x))
    yield Row("change by h(y), of columns", "not 0, or both", float(of_y), rows_are_x)


def _ceiling(estimator, evaluate, label):
    """Compare the highest value over confident and random critics with the ceiling."""
    n = 8
    sizes = (-100.0, -10.0, -1.0, 0.0, 1.0, 10.0, 100.0)
    diagonal = np.eye(n, dtype=bool)
    sure = [np.where(diagonal, d, o) for d, o in itertools.product(sizes, repeat=2)]
    random = 10 * np.random.default_rng(0).normal(size=(100, n, n))
    highest = float(evaluate(np.concatenate([sure, random])).max())
    ceiling = float(_as_estimate(estimator(jnp.zeros((n, n), jnp.float32))).ceiling)
    # An estimator without a ceiling must exceed 2 log N + 5, which is more than a lower bound from
    # N pairs can guarantee with high confidence (McAllester & Stratos 2020).
    goal = ceiling - 0.1 if math.isfinite(ceiling) else 2 * math.log(n) + 5
    expected = f"{ceiling:.4g}" if math.isfinite(ceiling) else f"any; {goal:.4g} if without ceiling"
    passed = goal <= highest <= ceiling + ROUNDING if label.known else None
    return Row(f"highest of any {n} pairs", expected, highest, passed)


def _finite(estimator):
    """Count invalid values and gradients for scores of +-1e4, and for impossible pairs."""
    diagonal, signs = np.eye(8, dtype=bool), (-1e4, 0.0, 1e4)
    scores = [np.where(diagonal, d, o) for d, o in itertools.product(signs, repeat=2)]
    scores.append(np.random.default_rng(0).choice(signs, (8, 8)))
    values = jax.vmap(jax.value_and_grad(lambda scores: _as_estimate(estimator(scores)).value))
    symbols = np.array([0, 0, 1, 1, 2, 3, 4, 5])
    scores.append(np.where(symbols[:, None] == symbols, math.log(8), -np.inf))
    leaves = jax.jit(values)(np.stack(scores).astype(np.float32))
    broken = 0
    for leaf in map(np.asarray, leaves):  # the last entry may be infinite, but not NaN
        broken += int((~np.isfinite(leaf[:-1])).sum() + np.isnan(leaf[-1]).sum())
    return Row("not finite at +-1e4, NaN at -inf", "0", broken, broken == 0)
