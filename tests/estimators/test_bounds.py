"""Estimators of score matrices: goldens, twins, labels, certificates and input checks."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import estimators
from cpc.estimators.tracker import saturation
from cpc.types import UserError
from tests.goldens.goldens import load_golden

META, CASES = load_golden("mi_bounds.npz")
RTOL, ATOL = META["tolerance"]["f32_rtol"], META["tolerance"]["f32_atol"]
ALPHAS = np.array([0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.99, 0.0, 1.0])
CLIPS = np.array([1.0, 5.0, np.inf])
#: Beyond the float32 range, values are continued linearly and must be finite.
LARGEST = 3e37
GRADIENTS = ("infonce", "nwj", "dv", "tuba", "js")
#: Sizes compiled by day; other sizes are tested at night.
SIZES = (2, 5, 6, 8)


# Compiled for a dozen shapes and run a few times each, so without optimization.
@functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
def everything(scores, log_baseline, u, alpha, clip, log_average):
    def over_alpha(log_baseline):
        return jax.vmap(lambda a: estimators.interpolated(scores, log_baseline, a).value)(alpha)

    def differentiated(scores):
        return jnp.stack([
            estimators.info_nce(scores).value,
            estimators.nwj(scores).value,
            estimators.donsker_varadhan(scores).value,
            estimators.tuba(scores, log_baseline).value,
            estimators.js_objective(scores),
            *jax.vmap(lambda average: estimators.mine(scores, average)[0].value)(log_average),
        ])  # fmt: skip

    values = differentiated(scores)
    return {
        **dict(zip(("infonce", "nwj", "dv", "tuba", "js_objective"), values, strict=False)),
        "mine": values[5:],
        "log_average": jax.vmap(lambda average: estimators.mine(scores, average)[1])(log_average),
        "nwj_shifted": estimators.js(scores).value,
        "smile": jax.vmap(lambda c: estimators.smile(scores, c).value)(clip),
        "interpolated": over_alpha(log_baseline),
        "interpolated_zero_baseline": over_alpha(0.0),
        "ml_cpc": jnp.stack([estimators.ml_cpc(scores).value, estimators.ml_cpc(scores, 1).value]),
        "flo": estimators.flo(scores, u).value,
        "club": estimators.club(scores).value,
        "gradients": jax.jacrev(differentiated)(scores),
    }


def run(scores, log_baseline, u=None, log_average=(0.0, math.log(50.0))):
    u = np.zeros(len(scores)) if u is None else u
    arrays = (scores, log_baseline, u, ALPHAS, CLIPS, np.array(log_average))
    out = everything(*(jnp.asarray(array, jnp.float32) for array in arrays))
    return {name: np.asarray(value, np.float64) for name, value in out.items()}


def assert_close(actual, expected):
    expected = np.asarray(expected)
    assert np.isfinite(actual).all()
    if np.abs(expected).max() > LARGEST:
        assert (actual[expected < -LARGEST] < -1e30).all()
        return
    atol = ATOL + RTOL * np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=atol)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] * (params["N"] not in SIZES))
        for name, (params, _, _) in CASES.items()
    ],
)
def test_values_and_gradients_equal_goldens(name):
    _, inputs, expected = CASES[name]
    scores = inputs["scores"]
    for suffix, matrix in (("", scores), ("_T", scores.T)):
        out = run(matrix, inputs["log_baseline"])
        for key in ("infonce", "nwj", "dv", "tuba", "js_objective", "nwj_shifted"):
            assert_close(out[key], expected[key + suffix])
        assert_close(out["nwj"], expected["js" + suffix])  # JS as read out by public code
        for i, clip in enumerate(("1", "5", "inf")):
            assert_close(out["smile"][i], expected[f"smile_{clip}{suffix}"])
        for kind in ("interpolated", "interpolated_zero_baseline"):
            for value, want in zip(out[kind], expected[kind + suffix], strict=False):
                assert_close(value, want)
        for i in (0, 1):
            assert_close(out["interpolated"][i - 2], expected[f"interpolated_alpha{i}{suffix}"])
    out = run(scores, inputs["log_baseline"])
    for gradient, key in zip(out["gradients"], GRADIENTS, strict=False):
        assert_close(gradient, expected[f"grad_{key}"])
    assert_close(out["gradients"][4], expected["grad_smile_5"])  # SMILE trains like JS
    for i, buffer in enumerate(("1", "50")):
        if f"mine_grad_buf{buffer}" not in expected:
            continue
        assert_close(out["mine"][i], expected[f"mine_value_buf{buffer}"])
        assert_close(out["gradients"][5 + i], expected[f"mine_grad_buf{buffer}"])
        average = 0.9 * float(buffer) + 0.1 * expected[f"mine_partition_buf{buffer}"]
        assert_close(out["log_average"][i], np.log(max(average, 1e-4)))


def naive(f, u):
    """Return formulas without goldens, entry by entry in float64."""
    n = len(f)
    off = [(i, j) for i in range(n) for j in range(n) if i != j]
    joint = sum(f[i, i] for i in range(n)) / n

    def ml_cpc_value(alpha):
        total = alpha * sum(np.exp(f[i, i]) for i in range(n))
        total += (n - alpha) / (n - 1) * sum(np.exp(f[i, j]) for i, j in off)
        return sum(np.log(n * n * np.exp(f[i, i]) / total) for i in range(n)) / n

    others = sum(np.exp(f[i, j] - f[i, i] - u[i]) for i, j in off) / (n - 1)
    return {
        "ml_cpc": [ml_cpc_value(n / (n * (n - 1) + 1)), ml_cpc_value(1)],
        "flo": 1 - (sum(u) + others) / n,
        "club": joint - sum(f[i, j] for i, j in off) / len(off),
    }


def test_equal_naive_twin():
    rng = np.random.default_rng(0)
    for n, scale in itertools.product((2, 5), (0.1, 1.0, 3.0)):
        scores, u = np.float32(scale * rng.normal(size=(n, n))), np.float32(rng.normal(size=n))
        out = run(scores, rng.normal(size=n), u)
        for name, expected in naive(scores.astype(float), u.astype(float)).items():
            size = max(np.abs(expected).max(), np.abs(scores).max())
            np.testing.assert_allclose(out[name], expected, rtol=0, atol=2e-5 * size, err_msg=name)


ESTIMATORS = {
    "info_nce": estimators.info_nce,
    "donsker_varadhan": estimators.donsker_varadhan,
    "mine": lambda scores: estimators.mine(scores, 0.0)[0],
    "tuba": functools.partial(estimators.tuba, log_baseline=0.5),
    "nwj": estimators.nwj,
    "js": estimators.js,
    "smile": functools.partial(estimators.smile, clip=5.0),
    "interpolated": functools.partial(estimators.interpolated, log_baseline=0.0, alpha=0.1),
    "ml_cpc": estimators.ml_cpc,
    "flo": lambda scores: estimators.flo(scores, -jnp.diagonal(scores)),
    "club": estimators.club,
}


@jax.jit
def estimates(scores):
    return {name: estimator(scores) for name, estimator in ESTIMATORS.items()}


def test_half_precision_is_computed_in_float32():
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(5, 5)), jnp.bfloat16)
    exact = estimates(scores.astype(jnp.float32))
    for name, estimate in estimates(scores).items():
        assert estimate.value.dtype == jnp.float32, name
        assert float(estimate.value) == pytest.approx(float(exact[name].value), rel=1e-5), name


def test_estimates_have_labels_and_ceilings():
    inf = math.inf
    labels = {
        name: (estimate.is_bound, estimate.side, round(float(estimate.ceiling), 3))
        for name, estimate in estimates(jnp.zeros((5, 5))).items()
    }
    assert labels == {
        "info_nce": (True, "lower", 1.609),  # log 5
        "donsker_varadhan": (False, "", inf),
        "mine": (False, "", inf),
        "tuba": (True, "lower", inf),
        "nwj": (True, "lower", inf),
        "js": (True, "lower", inf),
        "smile": (False, "", inf),
        "interpolated": (True, "lower", 4.689),  # 1 + log(4 / 0.1)
        "ml_cpc": (True, "lower", 3.045),  # log(5 * 4 + 1)
        "flo": (True, "lower", inf),
        "club": (False, "upper", inf),
    }
    ends = jax.vmap(lambda alpha: estimators.interpolated(jnp.zeros((5, 5)), 0.0, alpha).ceiling)
    ends = jax.jit(ends)(jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(ends, [inf, math.log(4)], rtol=1e-6)


@jax.jit
def values_and_slopes(scores):
    possible = {name: ESTIMATORS[name] for name in ESTIMATORS if name != "club"}  # truly infinite
    bind = functools.partial
    ends = {f"{a:g}": bind(estimators.interpolated, log_baseline=0.0, alpha=a) for a in (0.0, 1.0)}

    def values(scores):
        return {name: one(scores).value for name, one in (possible | ends).items()}

    return values(scores), jax.grad(lambda scores: sum(values(scores).values()))(scores)


@pytest.mark.parametrize("symbols", [(0, 0, 1, 1, 2, 3), (0, 1, 2, 3, 4, 5)])
def test_impossible_pairs_equal_very_low_scores(symbols):
    """The exact critic of a noiseless code is -inf for other symbols."""
    same = jnp.array(symbols)[:, None] == jnp.array(symbols)
    exact, low = (jnp.where(same, math.log(6), floor) for floor in (-math.inf, -1e4))
    (got, slope), (want, _) = values_and_slopes(exact), values_and_slopes(low)
    if len(set(symbols)) == 6:  # nothing to average for this bound
        assert min(got.pop(name) for name in ("donsker_varadhan", "mine")) > 1e4
    for name, value in got.items():
        assert float(value) == pytest.approx(float(want[name]), rel=1e-5), name
    assert np.isfinite(slope).all()


def test_mine_average_has_a_floor():
    _, log_average = estimators.mine(jnp.full((3, 3), -50.0), -50.0)
    assert float(log_average) == pytest.approx(math.log(1e-4))


def test_scores_must_be_square(unchecked):
    of_flo = {"flo": lambda scores: estimators.flo(scores, jnp.zeros(1))}
    for estimator in (ESTIMATORS | of_flo).values():
        for shape in ((1, 1), (2, 3), (4,), (0, 0)):
            with pytest.raises(UserError, match="scores has the shape"):
                estimator(jnp.zeros(shape))


@pytest.mark.parametrize(("call", "words"), [
    (lambda s: estimators.smile(s, 0), "clip .*got 0"),
    (lambda s: estimators.interpolated(s, 0.0, jnp.ones(4)), "alpha .*got shape"),
    (lambda s: estimators.ml_cpc(s, jnp.ones(4)), "alpha .*got shape"),
    (lambda s: estimators.interpolated(s, 0.0, 1.5), "alpha .*got 1.5"),
    (lambda s: estimators.ml_cpc(s, 0.2), "alpha .*got 0.2.* 0.3076"),
    (lambda s: estimators.ml_cpc(s, 1.1), "alpha .*got 1.1"),
    (lambda s: estimators.flo(s, jnp.zeros(3)), "u .*got shape"),
])  # fmt: skip
def test_invalid_arguments_are_rejected(call, words, unchecked):
    with pytest.raises(UserError, match=words):
        call(jnp.zeros((4, 4)))


SHIFTS = {"tuba": 0.5, "nwj": 1.0}


def relabelled(estimator, side="lower", ceiling=math.inf):
    return lambda scores: estimators.Estimate(estimator(scores).value, True, ceiling, side)


def info_nce_of_columns(scores):
    """Return InfoNCE of the transposed matrix in plain exponentials."""
    total = jnp.log(jnp.exp(scores).mean(0))
    return estimators.Estimate(
        (jnp.diagonal(scores) - total).mean(), True, math.log(len(scores)), "lower"
    )


MUTANTS = {
    "smile as a bound with a ceiling": (
        relabelled(functools.partial(estimators.smile, clip=1.0), ceiling=1.0),
        "exact critic", "Gaussian, I = 2, N = 64", "Gaussian, I = 10, N = 64, median",
        "highest of any 8 pairs",
    ),
    "club as an upper bound for every critic": (relabelled(estimators.club, "upper"), "worst of"),
    "transposed, with overflow": (info_nce_of_columns, "change by h(y), of columns", "not finite"),
}  # fmt: skip


@functools.cache
def certificate(name):
    return estimators.certify(ESTIMATORS[name], SHIFTS.get(name, 0.0))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.nightly] * (n != "info_nce")) for n in ESTIMATORS]
)
def test_estimators_pass_their_certificate(name):
    table = certificate(name)
    assert table.passed, str(table)
    assert any(row.passed for row in table.rows)


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_labels_fail_the_certificate(name):
    estimator, *where = MUTANTS[name]
    table = estimators.certify(estimator)
    assert not table.passed
    failed = [row.check for row in table.rows if row.passed is False]
    for check in where:
        assert any(name.startswith(check) for name in failed), str(table)
    assert "FAIL" in str(table)


def test_certificate_rows_of_info_nce():
    """The identity, the oracle table, the freedom per row and the ceiling."""
    rows = {row.check: row for row in certificate("info_nce").rows}
    exact = next(row for check, row in rows.items() if check.startswith("exact critic (log N - L"))
    assert f"{exact.measured:.4g}" in exact.check  # I - KL, by another enumeration
    assert exact.expected == "at most 0.1941"
    assert rows["Gaussian, I = 2, N = 64"].measured == pytest.approx(1.8145, abs=4 * 0.02)
    assert rows["Gaussian, I = 2, N = 64"].spread == pytest.approx(0.198, rel=0.3)
    assert rows["Gaussian, I = 10, N = 128, median"].measured == pytest.approx(4.79, abs=0.02)
    biases = {"fine": (0, 0.12), "warn": (0.12, 0.40), "saturated": (0.26, 1)}  # of `Tracker`
    for nats, n in itertools.product((2, 4, 6, 8, 10), (64, 128)):
        (value,) = [r.measured for r in rows.values() if f"I = {nats}, N = {n}" in r.check]
        low, high = biases[saturation(value, math.log(n), value)]
        assert low <= 1 - value / nats <= high, (nats, n)
    assert rows["change by h(x), of rows"].measured == pytest.approx(0.0, abs=1e-5)
    assert rows["change by h(y), of columns"].measured > 0.1
    assert rows["highest of any 8 pairs"].measured == pytest.approx(math.log(8))
    assert str(certificate("info_nce")).startswith("lower bound, ceiling 1.386 of 4 pairs\n")


def test_unlabelled_estimators_promise_nothing():
    """Without a label, only the checks for every estimator are judged."""
    table = estimators.certify(lambda scores: jnp.diagonal(scores).mean() - scores.mean())
    assert table.promise == "a bare number"
    assert table.passed
    judged = [row.check for row in table.rows if row.passed is not None]
    assert judged == ["change by h(y), of columns", "not finite at +-1e4, NaN at -inf"]


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (lambda scores: float(np.mean(scores)), "JAX cannot trace the estimator"),
        (lambda scores: estimators.Estimate(scores.mean(), is_bound=True), "got ''"),
    ],
)
def test_invalid_estimators_cannot_be_certified(estimator, words):
    with pytest.raises(UserError, match=words):
        estimators.certify(estimator)
