"""Tasks of known information: truths, samples, log ratios and exact critics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.estimators import beyond_normal, gaussian_task, markov_task, tasks
from cpc.estimators.benchmark_tasks import additive_uniform_task, normal_task, student_task
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


def test_information_of_correlations_is_inverted():
    for params, given, expected in golden("mi_from_rho"):
        found = [params["d"] * tasks.correlation_information(rho) for rho in given["rho"]]
        np.testing.assert_allclose(found, expected["mi"], **CLOSE)
    for params, given, expected in golden("rho_from_mi"):
        rho, noise = tasks.correlation(params["d"], jnp.asarray(given["mi"], jnp.float32))
        np.testing.assert_allclose(rho, expected["rho"], rtol=1e-6)
        # Noise stays accurate where rho rounds to 1.
        exact = np.exp(-np.array(given["mi"]) / params["d"])
        np.testing.assert_allclose(noise, exact, rtol=4e-6)


def test_information_of_known_laws():
    for params, given, expected in golden("full_cov"):
        found = tasks.gaussian_information(np.array(given["cov"]), params["dim_x"])
        assert found == pytest.approx(expected["mi"], rel=1e-12)
    for params, given, expected in golden("ar1"):
        found = [tasks.ar1_information(params["phi"], k) for k in given["k"]]
        np.testing.assert_allclose(found, expected["mi"], **CLOSE)
    for _, given, expected in golden("markov"):
        chain = np.array(given["P"])
        np.testing.assert_allclose(tasks.stationary(chain), expected["stationary"], **CLOSE)
        found = [markov_task(chain, k).mutual_information for k in given["k"]]
        np.testing.assert_allclose(found, expected["mi"], **CLOSE)
    for _, given, expected in golden("discrete"):
        found = tasks.discrete_information(np.array(given["P"]))
        assert found == pytest.approx(expected["mi"], rel=1e-12)
    for _, given, expected in golden("additive_uniform"):
        found = additive_uniform_task(given["epsilon"]).mutual_information
        assert found == pytest.approx(expected["mi"], rel=1e-12)


def test_unreachable_state_has_probability_zero():
    rng = np.random.default_rng(0)
    for _ in range(20):
        smaller = rng.dirichlet(np.ones(3), size=4)
        chain = np.pad(smaller, ((0, 0), (1, 0)))
        found = markov_task(chain, 1).mutual_information
        np.testing.assert_allclose(found, markov_task(smaller[1:], 1).mutual_information, atol=1e-9)


#: Prefixes of task names by truth.
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


def test_truths_of_the_forty_tasks():
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
        HIDDEN, markov_task(CHAIN, 1), tasks.one_hot_task(5), tasks.binary_symmetric_task(0.8),
    )},
}  # fmt: skip


def base_of(name):
    """Return the task that a mapped task was made from, if any."""
    return next((TASKS[b] for b in TASKS if name != b and name.endswith(f"-{b}")), TASKS[name])


#: Each law and each map, in few and in many dimensions.
DIFFERENT = [n for n in TASKS if not any(size in n for size in ("-5-5-", "-dense-3-", "-2-2-2"))]
#: Tested by day; the other tasks are tested at night.
FEW = (
    "normal_cdf-1v1-normal", "swissroll_x", "1v1-bimodal", "1v1-additive-0.1",
    "asinh-student-identity-1-1-1", "multinormal-dense-2-2",
    "spiral-normal_cdf-multinormal-sparse-3-3",
)  # fmt: skip


def is_quick(name):
    return name.startswith(FEW) or name not in BEYOND_NORMAL


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.nightly] * (not is_quick(n))) for n in DIFFERENT]
)
def test_samples_and_log_ratio_agree_with_the_truth(name):
    """The mean log ratio is I over joint pairs; e^ratio has mean 1 over independent ones."""
    task, base = TASKS[name], base_of(name)

    @jax.jit
    def draw(rng):
        x, y = task.sample(rng, 800)
        before = base.log_ratio(*base.sample(rng, 800))
        return x, task.log_ratio(x, y), task.log_ratio(x[2:5], y[3:9]), before

    x, ratio, part, before = map(np.float64, draw(jax.random.key(3)))
    n = len(x)
    assert ratio.shape == (n, n)
    assert x.std(0).min() > 0
    # Rows are x, columns are y; entries are independent.
    np.testing.assert_allclose(part, ratio[2:5, 3:9], rtol=1e-3, atol=1e-3)
    # Maps keep the information of each pair; cdfs round near 1, hence the tolerance.
    np.testing.assert_allclose(np.exp(ratio), np.exp(before), rtol=2e-2, atol=2e-2)
    joint = np.diagonal(ratio)
    error = joint.std() / np.sqrt(n)
    assert joint.mean() == pytest.approx(task.mutual_information, abs=4 * error + 1e-6)
    off = np.exp(ratio)[~np.eye(n, dtype=bool)]
    # Row means are 1, so the overall mean varies by 1 / n with a chi-square tail.
    assert off.mean() == pytest.approx(1.0, abs=12 * off.std() / n + 1e-5)


def test_student_and_normal_samples_have_their_law():
    x, y = student_task(2, 3, 3).sample(jax.random.key(6), 20000)
    both = np.concatenate([x, y], axis=1)
    # F(2.3534) = 0.95 for Student's t with 3 degrees of freedom.
    np.testing.assert_allclose((both > 2.3534).mean(0), 0.05, atol=0.007)
    covariance = np.array([[2.0, 0.3, -0.5], [0.3, 1.0, 0.4], [-0.5, 0.4, 1.5]])
    x, y = normal_task("any", covariance, 2).sample(jax.random.key(7), 20000)
    np.testing.assert_allclose(np.cov(np.concatenate([x, y], 1).T), covariance, atol=0.06)


def test_high_information_is_accurate():
    task = gaussian_task(1, 8.0)
    joint = np.diagonal(task.log_ratio(*task.sample(jax.random.key(9), 500)))
    assert joint.mean() == pytest.approx(8.0, abs=4 * joint.std() / np.sqrt(500))


def test_distant_offsets_share_only_the_speaker():
    near, far = (markov_task(CHAIN, k, num_speakers=4).mutual_information for k in (1, 60))
    assert near == pytest.approx(np.log(4) + markov_task(CHAIN, 1).mutual_information)
    assert far == pytest.approx(np.log(4), abs=1e-9)
    assert HIDDEN.mutual_information < np.log(3) + markov_task(CHAIN, 2).mutual_information


@pytest.mark.parametrize(("make", "words"), [
    (lambda: gaussian_task(0, 1.0), "dim .*got 0"),
    (lambda: gaussian_task(2, -1.0), "mutual_information .*got -1.0"),
    (lambda: gaussian_task(2, 20), "got 20.* 18"),
    (lambda: tasks.correlation_information(1.0), "rho .*got 1.0"),
    (lambda: tasks.ar1_information(1.0, 1), "phi .*got 1.0"),
    (lambda: additive_uniform_task(0.0), "epsilon .*got 0.0"),
    (lambda: student_task(1, 1, 0), "df .*got 0"),
    (lambda: tasks.one_hot_task(0), "num_classes .*got 0"),
    (lambda: tasks.binary_symmetric_task(1.2), "p .*got 1.2"),
    (lambda: tasks.discrete_task("d", np.ones((2, 2))), "joint sums to 4"),
    (lambda: tasks.discrete_task("d", np.array([[1.5, -0.5]])), "least entry -0.5"),
    (lambda: markov_task(np.ones((2, 2)), 1), "a row of chain"),
    (lambda: markov_task(CHAIN, 0), "k .*got 0"),
    (lambda: markov_task(CHAIN, 1, num_speakers=0), "num_speakers .*got 0"),
    (lambda: markov_task(CHAIN, 1, emissions=np.ones((3, 2))), "a row of emissions"),
])  # fmt: skip
def test_invalid_input_is_rejected(make, words):
    with pytest.raises(UserError, match=words):
        make()
