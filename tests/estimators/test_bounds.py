"""Estimators of score matrices: goldens, a naive float64 twin, huge scores, bad input."""

import functools
import inspect
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.estimators import (
    club,
    donsker_varadhan,
    flo,
    info_nce,
    interpolated,
    js,
    js_objective,
    mine,
    ml_cpc,
    nwj,
    smile,
    tuba,
)
from cpc.types import UserError
from tests.goldens.goldens import load_golden

META, CASES = load_golden("mi_bounds.npz")
RTOL, ATOL = META["tolerance"]["f32_rtol"], META["tolerance"]["f32_atol"]
ALPHAS = np.array([0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.99, 0.0, 1.0])
CLIPS = np.array([1.0, 5.0, np.inf])
#: Beyond this float32 has no number; values there are continued by a line and must be finite.
LARGEST = 3e37
GRADIENTS = ("infonce", "nwj", "dv", "tuba", "js")


#: Sizes with a program of their own; the cases of other sizes are run each night.
SIZES = (2, 5, 6, 8)
golden_cases = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] * (params["N"] not in SIZES))
        for name, (params, _, _) in CASES.items()
    ],
)


# Compiled for a dozen shapes and run a few times each: the compiler need not try hard.
@functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
def everything(scores, log_baseline, u, alpha, clip, log_average):
    """All estimates of one matrix, under the names of the golden file, with gradients."""

    def over_alpha(log_baseline):
        return jax.vmap(lambda a: interpolated(scores, log_baseline, a).value)(alpha)

    def differentiated(scores):
        return jnp.stack(
            [
                info_nce(scores).value,
                nwj(scores).value,
                donsker_varadhan(scores).value,
                tuba(scores, log_baseline).value,
                js_objective(scores),
                *jax.vmap(lambda average: mine(scores, average)[0].value)(log_average),
            ]
        )

    values = differentiated(scores)
    return {
        "infonce": values[0],
        "nwj": values[1],
        "dv": values[2],
        "tuba": values[3],
        "js_objective": values[4],
        "mine": values[5:],
        "log_average": jax.vmap(lambda average: mine(scores, average)[1])(log_average),
        "nwj_shifted": js(scores).value,
        "smile": jax.vmap(lambda c: smile(scores, c).value)(clip),
        "interpolated": over_alpha(log_baseline),
        "interpolated_zero_baseline": over_alpha(0.0),
        "ml_cpc": jnp.stack([ml_cpc(scores).value, ml_cpc(scores, 1).value]),
        "flo": flo(scores, u).value,
        "club": club(scores).value,
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


@golden_cases
def test_goldens(name):
    _, inputs, expected = CASES[name]
    scores = inputs["scores"]
    for suffix, matrix in (("", scores), ("_T", scores.T)):
        out = run(matrix, inputs["log_baseline"])
        for key in ("infonce", "nwj", "dv", "tuba", "js_objective", "nwj_shifted"):
            assert_close(out[key], expected[key + suffix])
        assert_close(out["nwj"], expected["js" + suffix])  # what public code reads out for JS
        for i, clip in enumerate(("1", "5", "inf")):
            assert_close(out["smile"][i], expected[f"smile_{clip}{suffix}"])
        for i, value in enumerate(expected["interpolated" + suffix]):
            assert_close(out["interpolated"][i], value)
            zero = expected["interpolated_zero_baseline" + suffix][i]
            assert_close(out["interpolated_zero_baseline"][i], zero)
        assert_close(out["interpolated"][-2], expected["interpolated_alpha0" + suffix])
        assert_close(out["interpolated"][-1], expected["interpolated_alpha1" + suffix])


@golden_cases
def test_golden_gradients(name):
    _, inputs, expected = CASES[name]
    out = run(inputs["scores"], inputs["log_baseline"])
    for gradient, key in zip(out["gradients"], GRADIENTS, strict=False):
        assert_close(gradient, expected[f"grad_{key}"])
    assert_close(out["gradients"][4], expected["grad_smile_5"])  # SMILE trains as JS does
    for i, buffer in enumerate(("1", "50")):
        if f"mine_grad_buf{buffer}" not in expected:
            continue
        assert_close(out["mine"][i], expected[f"mine_value_buf{buffer}"])
        assert_close(out["gradients"][5 + i], expected[f"mine_grad_buf{buffer}"])
        average = 0.9 * float(buffer) + 0.1 * expected[f"mine_partition_buf{buffer}"]
        assert_close(out["log_average"][i], np.log(max(average, 1e-4)))


def naive(f, log_a, u):
    """The formulas, entry by entry, in float64; b_ik the interpolated baseline of row i."""
    n = len(f)
    off = [(i, j) for i in range(n) for j in range(n) if i != j]
    joint = sum(f[i, i] for i in range(n)) / n
    partition = sum(np.exp(f[i, j]) for i, j in off) / len(off)

    def info_nce_value():
        rows = [f[i, i] - np.log(sum(np.exp(f[i, j]) for j in range(n))) for i in range(n)]
        return np.log(n) + sum(rows) / n

    def without(i, k):
        return sum(np.exp(f[i, j]) for j in range(n) if j != k) / (n - 1)

    def interpolated_value(alpha, a):
        b = [[alpha * without(i, k) + (1 - alpha) * a[i] for k in range(n)] for i in range(n)]
        first = sum(f[i, i] - np.log(b[i][j]) for i, j in off) / len(off)
        return 1 + first - sum(np.exp(f[i, j]) / b[i][i] for i, j in off) / len(off)

    def ml_cpc_value(alpha):
        total = alpha * sum(np.exp(f[i, i]) for i in range(n))
        total += (n - alpha) / (n - 1) * sum(np.exp(f[i, j]) for i, j in off)
        return sum(np.log(n * n * np.exp(f[i, i]) / total) for i in range(n)) / n

    def smile_value(clip):
        clipped = sum(np.clip(np.exp(f[i, j]), np.exp(-clip), np.exp(clip)) for i, j in off)
        return joint - np.log(clipped / len(off))

    a = np.exp(log_a)
    return {
        "infonce": info_nce_value(),
        "nwj": joint - partition / np.e,
        "dv": joint - np.log(partition),
        "mine": [joint - np.log(partition)] * 2,
        "log_average": [np.log(0.9 * b + 0.1 * partition) for b in (1.0, 50.0)],
        "tuba": 1
        + sum(f[i, i] - log_a[i] for i in range(n)) / n
        - sum(np.exp(f[i, j]) / a[i] for i, j in off) / len(off),
        "nwj_shifted": 1 + joint - partition,
        "js_objective": -sum(np.log1p(np.exp(-f[i, i])) for i in range(n)) / n
        - sum(np.log1p(np.exp(f[i, j])) for i, j in off) / len(off),
        "smile": [smile_value(clip) for clip in CLIPS],
        "interpolated": [interpolated_value(alpha, a) for alpha in ALPHAS],
        "interpolated_zero_baseline": [interpolated_value(alpha, np.ones(n)) for alpha in ALPHAS],
        "ml_cpc": [ml_cpc_value(n / (n * (n - 1) + 1)), ml_cpc_value(1)],
        "flo": 1
        - sum(
            u[i] + sum(np.exp(f[i, j] - f[i, i] - u[i]) for j in range(n) if j != i) / (n - 1)
            for i in range(n)
        )
        / n,
        "club": joint - sum(f[i, j] for i, j in off) / len(off),
    }


@pytest.mark.parametrize(("n", "scale"), [*itertools.product((2, 5), (0.1, 1.0, 3.0))])
@pytest.mark.parametrize("seed", range(3))
def test_equal_naive_twin(n, seed, scale):
    rng = np.random.default_rng(seed)
    scores, log_baseline, u = (
        scale * rng.normal(size=(n, n)),
        rng.normal(size=n),
        rng.normal(size=n),
    )
    scores, log_baseline, u = (np.float32(x).astype(float) for x in (scores, log_baseline, u))
    out = run(scores, log_baseline, u)
    for name, expected in naive(scores, log_baseline, u).items():
        expected = np.asarray(expected)
        size = max(np.abs(expected).max(), np.abs(scores).max())
        np.testing.assert_allclose(out[name], expected, rtol=0, atol=2e-5 * size, err_msg=name)


def mine_value(scores):
    return mine(scores, 0.0)[0]


ESTIMATORS = {
    "info_nce": info_nce,
    "donsker_varadhan": donsker_varadhan,
    "mine": mine_value,
    "tuba": functools.partial(tuba, log_baseline=0.5),
    "nwj": nwj,
    "js": js,
    "smile": functools.partial(smile, clip=5.0),
    "interpolated": functools.partial(interpolated, log_baseline=0.0, alpha=0.1),
    "ml_cpc": ml_cpc,
    "flo": lambda scores: flo(scores, jnp.zeros(len(scores))),
    "club": club,
}


@jax.jit
def estimates(scores):
    """All of them, which also shows that an Estimate passes jit and vmap."""
    return {name: estimator(scores) for name, estimator in ESTIMATORS.items()}


def test_float32_inside():
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(5, 5)), jnp.bfloat16)
    exact = estimates(scores.astype(jnp.float32))
    for name, estimate in estimates(scores).items():
        assert estimate.value.dtype == jnp.float32, name
        assert float(estimate.value) == pytest.approx(float(exact[name].value), rel=1e-5), name


def test_estimates_pass_vmap():
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 5)), jnp.float32)
    batch = jax.vmap(estimates)(scores)["interpolated"]
    single = estimates(scores[1])["interpolated"]
    assert (batch.is_bound, batch.side) == (True, "lower")
    assert float(batch.value[1]) == pytest.approx(float(single.value), rel=1e-5)
    np.testing.assert_allclose(batch.ceiling, [1 + math.log(4 / 0.1)] * 3, rtol=1e-5)


def test_labels():
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
    ends = jax.vmap(lambda alpha: interpolated(jnp.zeros((5, 5)), 0.0, alpha).ceiling)
    ends = jax.jit(ends)(jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(ends, [inf, math.log(4)], rtol=1e-6)


@jax.jit
def values_and_slopes(scores):
    possible = {name: ESTIMATORS[name] for name in ESTIMATORS if name != "club"}  # inf, rightly
    bind = functools.partial
    ends = {f"{a:g}": bind(interpolated, log_baseline=0.0, alpha=a) for a in (0.0, 1.0)}

    def values(scores):
        return {name: one(scores).value for name, one in (possible | ends).items()}

    return values(scores), jax.jacobian(values)(scores)


@pytest.mark.parametrize("symbols", [(0, 0, 1, 1, 2, 3), (0, 1, 2, 3, 4, 5)])
def test_impossible_pairs_are_as_good_as_pairs_of_a_very_low_score(symbols):
    """The exact critic of a code without noise is -inf off its own symbol, and no NaN comes."""
    same = jnp.array(symbols)[:, None] == jnp.array(symbols)
    exact, low = (jnp.where(same, math.log(6), floor) for floor in (-math.inf, -1e4))
    (got, slopes), (want, _) = values_and_slopes(exact), values_and_slopes(low)
    if len(set(symbols)) == 6:  # there the one kind of bound has nothing to average
        assert min(got.pop(name) for name in ("donsker_varadhan", "mine")) > 1e4
    for name, value in got.items():
        assert float(value) == pytest.approx(float(want[name]), rel=1e-5), name
    for name, slope in slopes.items():
        assert np.isfinite(slope).all(), name


def test_mine_average_has_a_floor():
    _, log_average = mine(jnp.full((3, 3), -50.0), -50.0)
    assert float(log_average) == pytest.approx(math.log(1e-4))


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"nwj", "js"}))  # which are TUBA
def test_scores_must_be_square(name):
    """Without the shape checks of the test session, which would speak first."""
    bare = {
        "mine": lambda scores: inspect.unwrap(mine)(scores, 0.0),
        "tuba": lambda scores: inspect.unwrap(tuba)(scores, 0.0),
        "smile": lambda scores: inspect.unwrap(smile)(scores, 1.0),
        "interpolated": lambda scores: inspect.unwrap(interpolated)(scores, 0.0, 0.5),
        "flo": lambda scores: inspect.unwrap(flo)(scores, jnp.zeros(1)),
    }.get(name) or inspect.unwrap(ESTIMATORS[name])
    for shape in ((1, 1), (2, 3), (4,), (0, 0)):
        with pytest.raises(UserError, match="scores has the shape"):
            bare(jnp.zeros(shape))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: smile(s, 0), "clip is 0"),
        (lambda s: smile(s, math.nan), "clip is nan"),
        (lambda s: smile(s, jnp.float32(0)), "clip is 0.0"),
        (lambda s: inspect.unwrap(smile)(s, jnp.ones(4)), r"clip has the shape \(4,\): it must be"),
        (lambda s: inspect.unwrap(interpolated)(s, 0.0, jnp.ones(4)), "alpha has the shape"),
        (lambda s: inspect.unwrap(ml_cpc)(s, jnp.ones(4)), "alpha has the shape"),
        (lambda s: interpolated(s, 0.0, 1.5), "alpha is 1.5"),
        (lambda s: interpolated(s, 0.0, jnp.float32(2)), "alpha is 2.0"),
        (lambda s: ml_cpc(s, 0.2), "alpha is 0.2: with 4 pairs it must be from 0.3077 to 1"),
        (lambda s: ml_cpc(s, 1.1), "alpha is 1.1"),
        (lambda s: inspect.unwrap(flo)(s, jnp.zeros(3)), "u has the shape"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(UserError, match=words):
        call(jnp.zeros((4, 4)))
