"""Tasks of known information: their truths, their samples, their exact log ratios."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.estimators import beyond_normal, gaussian_task, markov_task
from cpc.estimators.benchmark_tasks import additive_uniform_task, normal_task, student_task
from cpc.estimators.tasks import (
    ar1_information,
    binary_symmetric_task,
    correlation,
    correlation_information,
    discrete_information,
    discrete_task,
    gaussian_information,
    one_hot_task,
    stationary,
)
from cpc.types import UserError
from tests.goldens.goldens import load_golden

META, CASES = load_golden("gaussian_mi.json")
CLOSE = {"rtol": META["tolerance"]["rtol"], "atol": META["tolerance"]["atol"]}
BEYOND_NORMAL = {task.name: task for task in beyond_normal()}
CHAIN = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])


def golden(kind):
    cases = [case for case in CASES.values() if case[0]["kind"] == kind]
    assert cases, kind
    return cases


def test_information_of_correlations_and_back():
    for params, given, expected in golden("mi_from_rho"):
        found = [params["d"] * correlation_information(rho) for rho in given["rho"]]
        np.testing.assert_allclose(found, expected["mi"], **CLOSE)
    for params, given, expected in golden("rho_from_mi"):
        rho, noise = correlation(params["d"], jnp.asarray(given["mi"], jnp.float32))
        np.testing.assert_allclose(rho, expected["rho"], rtol=1e-6)
        # The noise keeps its digits where rho rounds to 1.
        exact = np.exp(-np.array(given["mi"]) / params["d"])
        np.testing.assert_allclose(noise, exact, rtol=4e-6)


def test_information_of_laws():
    for params, given, expected in golden("full_cov"):
        found = gaussian_information(np.array(given["cov"]), params["dim_x"])
        assert found == pytest.approx(expected["mi"], rel=1e-12)
    for params, given, expected in golden("ar1"):
        found = [ar1_information(params["phi"], k) for k in given["k"]]
        np.testing.assert_allclose(found, expected["mi"], **CLOSE)
    for _, given, expected in golden("markov"):
        chain = np.array(given["P"])
        np.testing.assert_allclose(stationary(chain), expected["stationary"], **CLOSE)
        found = [markov_task(chain, k).mutual_information for k in given["k"]]
        np.testing.assert_allclose(found, expected["mi"], **CLOSE)
    for _, given, expected in golden("discrete"):
        found = discrete_information(np.array(given["P"]))
        assert found == pytest.approx(expected["mi"], rel=1e-12)
    for _, given, expected in golden("additive_uniform"):
        found = additive_uniform_task(given["epsilon"]).mutual_information
        assert found == pytest.approx(expected["mi"], rel=1e-12)


def test_a_state_that_nothing_enters_has_no_probability():
    rng = np.random.default_rng(0)
    for _ in range(20):
        smaller = rng.dirichlet(np.ones(3), size=4)
        chain = np.pad(smaller, ((0, 0), (1, 0)))
        found = markov_task(chain, 1).mutual_information
        np.testing.assert_allclose(found, markov_task(smaller[1:], 1).mutual_information, atol=1e-9)


#: By truth, the beginnings of the names.
TRUTHS = {
    0.4133: ("1v1-normal-0.75", "normal_cdf-1v1-normal", "wiggly-1v1", "half_cube-1v1",
             "swissroll_x-normal_cdf-1v1", "1v1-bimodal", "multinormal-dense-3-3"),
    1.7094: ("1v1-additive-0.1",),
    0.3333: ("1v1-additive-0.75",),
    0.2242: ("student-identity-1-1-1", "asinh-student-identity-1-1-1"),
    0.2939: ("multinormal-dense-2-2",),
    0.5928: ("multinormal-dense-5-5",),
    1.2922: ("multinormal-dense-25-25",),
    1.6243: ("multinormal-dense-50-50",),
    0.4319: ("student-identity-2-2-1", "asinh-student-identity-2-2-1"),
    0.1931: ("student-identity-2-2-2",),
    0.2909: ("student-identity-3-3-2", "asinh-student-identity-3-3-2"),
    0.1787: ("student-identity-3-3-3",),
    0.4482: ("student-identity-5-5-2", "asinh-student-identity-5-5-2"),
    0.2985: ("student-identity-5-5-3",),
    1.0217: ("multinormal-sparse-2-2", *(
        f"{of}multinormal-sparse-{size}" for size in ("3-3", "5-5", "25-25")
        for of in ("", "normal_cdf-", "half_cube-", "spiral-", "spiral-normal_cdf-")
    )),
}  # fmt: skip


def test_the_forty_truths():
    assert len(BEYOND_NORMAL) == sum(map(len, TRUTHS.values())) == 40
    for truth, prefixes in TRUTHS.items():
        for prefix in prefixes:
            (task,) = [task for name, task in BEYOND_NORMAL.items() if name.startswith(prefix)]
            assert task.mutual_information == pytest.approx(truth, abs=5e-5), prefix


HIDDEN = markov_task(
    CHAIN, 2, emissions=np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]]), num_speakers=3
)
TASKS = {
    **BEYOND_NORMAL,
    **{task.name: task for task in (
        gaussian_task(20, 0.0), gaussian_task(5, 1.5), gaussian_task(5, 1.5, cubic=True),
        HIDDEN, markov_task(CHAIN, 1), one_hot_task(5), binary_symmetric_task(0.8),
    )},
}  # fmt: skip


def base_of(name):
    """The task that a mapped one was made from, if it was."""
    return next((TASKS[b] for b in TASKS if name != b and name.endswith(f"-{b}")), TASKS[name])


#: Each law and each map, in few and in many dimensions; a size between has the same code.
DIFFERENT = [n for n in TASKS if not any(size in n for size in ("-5-5-", "-dense-3-", "-2-2-2"))]
#: Most laws and maps; the others are run each night.
FEW = (
    "normal_cdf-1v1-normal", "swissroll_x", "1v1-bimodal", "1v1-additive-0.1",
    "asinh-student-identity-1-1-1", "multinormal-dense-2-2",
    "spiral-normal_cdf-multinormal-sparse-3-3",
)  # fmt: skip


def is_quick(name):
    return name.startswith(FEW) or name not in BEYOND_NORMAL


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.nightly] * (not is_quick(n))) for n in DIFFERENT],
)
def test_samples_and_log_ratio_agree_with_the_truth(name):
    """Over joint pairs the log ratio is I on average; over independent ones e^ratio is 1."""
    task, base = TASKS[name], base_of(name)

    @jax.jit
    def draw(rng):
        x, y = task.sample(rng, 1500)
        return (
            x,
            task.log_ratio(x, y),
            task.log_ratio(x[2:5], y[3:9]),
            base.log_ratio(*base.sample(rng, 1500)),
        )

    x, ratio, part, before = (np.asarray(a, np.float64) for a in draw(jax.random.key(3)))
    n = len(x)
    assert ratio.shape == (n, n)
    assert x.std(0).min() > 0
    # Rows are x, columns are y, and no entry knows of the others.
    np.testing.assert_allclose(part, ratio[2:5, 3:9], rtol=1e-3, atol=1e-3)
    # A map takes no information from any pair; cdfs round near 1, hence the tolerance.
    np.testing.assert_allclose(np.exp(ratio), np.exp(before), rtol=2e-2, atol=2e-2)
    joint = np.diagonal(ratio)
    error = joint.std() / np.sqrt(n)
    assert joint.mean() == pytest.approx(task.mutual_information, abs=4 * error + 1e-6)
    off = np.exp(ratio)[~np.eye(n, dtype=bool)]
    # Every row's mean is 1, so that the mean of all spreads by 1 / n, with the tail of a square.
    assert off.mean() == pytest.approx(1.0, abs=12 * off.std() / n + 1e-5)


def test_students_and_normals_have_the_law_that_they_claim():
    x, y = student_task(2, 3, 3).sample(jax.random.key(6), 20000)
    both = np.concatenate([x, y], axis=1)
    # F(2.3534) = 0.95 for Student's t with 3 degrees of freedom.
    np.testing.assert_allclose((both > 2.3534).mean(0), 0.05, atol=0.007)
    covariance = np.array([[2.0, 0.3, -0.5], [0.3, 1.0, 0.4], [-0.5, 0.4, 1.5]])
    x, y = normal_task("any", covariance, 2).sample(jax.random.key(7), 20000)
    np.testing.assert_allclose(np.cov(np.concatenate([x, y], 1).T), covariance, atol=0.06)


def test_a_cubic_hides_nothing():
    plain, cubic = gaussian_task(20, 4.0), gaussian_task(20, 4.0, cubic=True)
    x, y = plain.sample(jax.random.key(8), 40)
    u, v = cubic.sample(jax.random.key(8), 40)
    np.testing.assert_array_equal(x, u)
    np.testing.assert_allclose(v, np.asarray(y) ** 3, rtol=1e-5)
    np.testing.assert_allclose(plain.log_ratio(x, y), cubic.log_ratio(u, v), rtol=1e-4, atol=1e-4)


def test_a_high_information_keeps_its_digits():
    task = gaussian_task(1, 8.0)
    x, y = task.sample(jax.random.key(9), 500)
    joint = np.diagonal(task.log_ratio(x, y))
    assert joint.mean() == pytest.approx(8.0, abs=4 * joint.std() / np.sqrt(500))


def test_offsets_forget_the_phone_and_keep_the_speaker():
    near, far = (markov_task(CHAIN, k, num_speakers=4).mutual_information for k in (1, 60))
    assert near == pytest.approx(np.log(4) + markov_task(CHAIN, 1).mutual_information)
    assert far == pytest.approx(np.log(4), abs=1e-9)
    assert HIDDEN.mutual_information < np.log(3) + markov_task(CHAIN, 2).mutual_information


@pytest.mark.parametrize(("make", "words"), [
    (lambda: gaussian_task(0, 1.0), "dim is 0"),
    (lambda: gaussian_task(2, -1.0), "mutual_information is -1.0"),
    (lambda: gaussian_task(2, 20), "9 nats a dimension"),
    (lambda: correlation_information(1.0), "got 1.0"),
    (lambda: ar1_information(1.0, 1), "phi is 1.0"),
    (lambda: additive_uniform_task(0.0), "epsilon is 0.0"),
    (lambda: student_task(1, 1, 0), "df 0"),
    (lambda: one_hot_task(0), "num_classes is 0"),
    (lambda: binary_symmetric_task(1.2), "p is 1.2"),
    (lambda: discrete_task("d", np.ones((2, 2))), "joint sums to 4"),
    (lambda: discrete_task("d", np.array([[1.5, -0.5]])), "least entry -0.5"),
    (lambda: markov_task(np.ones((2, 2)), 1), "a row of chain"),
    (lambda: markov_task(CHAIN, 0), "k is 0"),
    (lambda: markov_task(CHAIN, 1, num_speakers=0), "num_speakers 0"),
    (lambda: markov_task(CHAIN, 1, emissions=np.ones((3, 2))), "a row of emissions"),
])  # fmt: skip
def test_bad_input_is_a_sentence(make, words):
    with pytest.raises(UserError, match=words):
        make()
