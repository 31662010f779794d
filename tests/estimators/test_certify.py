"""The certificate passes what keeps its promises, and fails labels that are wrong."""

import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from cpc.estimators import (
    Estimate,
    certify,
    club,
    donsker_varadhan,
    flo,
    info_nce,
    interpolated,
    js,
    mine,
    ml_cpc,
    nwj,
    smile,
    tuba,
)
from cpc.types import UserError

OURS = {
    "info_nce": (info_nce, 0.0),
    "donsker_varadhan": (donsker_varadhan, 0.0),
    "mine": (lambda scores: mine(scores, 0.0)[0], 0.0),
    "tuba": (functools.partial(tuba, log_baseline=0.5), 0.5),
    "nwj": (nwj, 1.0),
    "js": (js, 0.0),
    "interpolated": (functools.partial(interpolated, log_baseline=0.0, alpha=0.1), 0.0),
    "smile": (functools.partial(smile, clip=5.0), 0.0),
    "ml_cpc": (ml_cpc, 0.0),
    "flo": (lambda scores: flo(scores, -jnp.diagonal(scores)), 0.0),
    "club": (club, 0.0),
}


def relabelled(estimator, side="lower", ceiling=math.inf):
    return lambda scores: Estimate(estimator(scores).value, True, ceiling, side)


def with_quoted_ceiling(scores):
    """log(n / alpha), as often quoted."""
    estimate = interpolated(scores, 0.0, 0.1)
    return Estimate(estimate.value, True, math.log(len(scores) / 0.1), "lower")


def info_nce_of_columns(scores):
    """The matrix transposed, in plain exponentials."""
    total = jnp.log(jnp.exp(scores).mean(0))
    return Estimate((jnp.diagonal(scores) - total).mean(), True, math.log(len(scores)), "lower")


MUTANTS = {
    "smile as a bound": (
        relabelled(functools.partial(smile, clip=1.0)),
        "exact critic",
        "Gaussian, I = 2, N = 64",
        "Gaussian, I = 10, N = 64, median",
    ),
    "club as an upper bound for every critic": (relabelled(club, "upper"), "worst of"),
    "transposed, with overflow": (info_nce_of_columns, "change by h(y), of columns", "not finite"),
    "a ceiling too low": (with_quoted_ceiling, "highest of any 8 pairs"),
}


@functools.cache
def certificate(name):
    return certify(*OURS[name])


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.nightly] * (n != "info_nce")) for n in OURS],
)
def test_ours_keep_their_promises(name):
    table = certificate(name)
    assert table.passed, str(table)
    assert any(row.passed for row in table.rows)


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_labels_fail(name):
    """Each in the row that is there to see it."""
    estimator, *where = MUTANTS[name]
    table = certify(estimator)
    assert not table.passed
    failed = [row.check for row in table.rows if row.passed is False]
    for check in where:
        assert any(name.startswith(check) for name in failed), str(table)
    assert "FAIL" in str(table)


def test_rows_of_info_nce():
    """Known numbers: the identity, the oracle table, the freedom in rows, the ceiling."""
    rows = {row.check: row for row in certificate("info_nce").rows}
    exact = next(row for check, row in rows.items() if check.startswith("exact critic (log N - L"))
    assert f"{exact.measured:.4g}" in exact.check  # I - KL, by another enumeration
    assert exact.expected == "at most 0.1941"
    assert rows["Gaussian, I = 2, N = 64"].measured == pytest.approx(1.8145, abs=4 * 0.02)
    assert rows["Gaussian, I = 2, N = 64"].spread == pytest.approx(0.198, rel=0.3)
    assert rows["Gaussian, I = 10, N = 128, median"].measured == pytest.approx(4.79, abs=0.02)
    assert rows["change by h(x), of rows"].measured == pytest.approx(0.0, abs=1e-5)
    assert rows["change by h(y), of columns"].measured > 0.1
    assert rows["highest of any 8 pairs"].measured == pytest.approx(math.log(8))
    lines = str(certificate("info_nce")).splitlines()
    assert lines[0] == "lower bound, ceiling 1.386 of 4 pairs"
    assert len({line.index("pass") for line in lines if line.endswith("pass")}) == 1  # aligned


@pytest.mark.nightly
def test_biased_upwards_without_a_promise_is_told_and_not_judged():
    rows = {row.check: row for row in certificate("donsker_varadhan").rows}
    row = rows["Gaussian, I = 10, N = 64, median"]
    assert row.measured > 10.5
    assert row.passed is None


def test_a_bare_number_promises_nothing():
    """A user's own, without a label: only what every estimator must do is judged."""
    table = certify(lambda scores: jnp.diagonal(scores).mean() - scores.mean())
    assert table.promise == "a bare number"
    assert table.passed
    judged = [row.check for row in table.rows if row.passed is not None]
    assert judged == ["change by h(y), of columns", "not finite at +-1e4, NaN at -inf"]


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (lambda scores: float(np.mean(scores)), "JAX cannot trace the estimator"),
        (lambda scores: Estimate(scores.mean(), is_bound=True), "got ''"),
    ],
)
def test_estimators_that_cannot_be_certified(estimator, words):
    with pytest.raises(UserError, match=words):
        certify(estimator)
