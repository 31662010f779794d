"""Statistics of few runs, compared with rliable and closed forms."""

import numpy as np
import pytest
from scipy import stats

from cpc.evaluate import (
    interquartile_mean,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    steps_to_level,
    stratified_interval,
)
from cpc.types import UserError
from tests.goldens.goldens import load_golden

META, CASES = load_golden("reliable.json")


def mean(scores):
    return scores.mean((-2, -1))


@pytest.mark.parametrize("name", CASES)
def test_equals_rliable(name):
    params, inputs, outputs = CASES[name]
    x, y = np.array(inputs["x"]), np.array(inputs["y"])
    ours = {
        "interquartile_mean": interquartile_mean(x),
        "optimality_gap": optimality_gap(x, params["target"]),
        "probability_of_improvement": probability_of_improvement(x, y),
        "performance_profile": performance_profile(x, np.array(params["thresholds"])),
    }
    for key, value in ours.items():
        np.testing.assert_allclose(value, outputs[key], rtol=META["tolerance"]["rtol"], err_msg=key)
    if name == "one_run":
        return
    atol = META["tolerance"]["interval_atol"]
    found = stratified_interval(interquartile_mean, x, num_resamples=10_000)
    np.testing.assert_allclose(found, outputs["interval_of_interquartile_mean"], atol=atol)
    found = stratified_interval(probability_of_improvement, x, y, num_resamples=4000)
    np.testing.assert_allclose(found, outputs["interval_of_probability"], atol=atol)


def test_failed_and_extreme_runs_are_kept():
    whole, failed = np.array([[1.0], [2.0]]), np.array([[1.0], [np.nan]])
    assert np.isnan(probability_of_improvement(whole, failed))
    assert np.isnan(probability_of_improvement(failed, whole))
    scores = np.arange(8.0)[:, None]
    far = scores.copy()
    far[-1] = 1e9
    assert interquartile_mean(far) == interquartile_mean(scores) == 3.5
    far[-1] = np.nan  # not hidden by trimming
    assert np.isnan(interquartile_mean(far))


def test_steps_to_level_equal_a_loop():
    rng = np.random.default_rng(0)
    steps, curves = np.cumsum(rng.random(6)), rng.normal(-1, 1, (4, 50, 6))
    curves[0, 0, 0] = np.nan  # before the first episode ended
    found = steps_to_level(steps, curves, 0.0)
    for index in np.ndindex(4, 50):
        reached = [s for s, value in zip(steps, curves[index], strict=True) if value >= 0]
        np.testing.assert_equal(found[index], reached[0] if reached else np.nan)
    assert np.isnan(found).any()


def test_interval_level():
    x = np.random.default_rng(0).normal(size=(400, 1))
    low, high = stratified_interval(mean, x, num_resamples=10_000, level=0.5)
    np.testing.assert_allclose(high - low, 2 * stats.norm.ppf(0.75) / 20 * x.std(), rtol=0.05)


def test_tasks_are_strata():
    """Differences between tasks do not widen the interval."""
    x = np.random.default_rng(0).normal(size=(10, 2))
    far = stratified_interval(mean, x + np.array([0.0, 1e3]))
    np.testing.assert_allclose(np.array(far) - 500, stratified_interval(mean, x), atol=1e-9)
    # Tasks are resampled independently.
    one, two = (np.subtract(*stratified_interval(mean, x[:, tasks])) for tasks in ([0], [0, 0]))
    np.testing.assert_allclose(two, one / np.sqrt(2), rtol=0.1)


def test_stacked_scores_share_resamples():
    rng = np.random.default_rng(0)
    seeds = 100 * rng.normal(size=(10, 1))
    both = np.stack([seeds + 1, seeds])

    def paired(both):
        return interquartile_mean(both[..., 0, :, :]) - interquartile_mean(both[..., 1, :, :])

    np.testing.assert_allclose(stratified_interval(paired, both), 1)
    low, high = stratified_interval(
        lambda ours, theirs: interquartile_mean(ours) - interquartile_mean(theirs), *both
    )
    assert low < -20
    assert high > 20
    low, high = stratified_interval(interquartile_mean, np.stack([seeds] * 5))
    assert low.shape == high.shape == (5,)
    assert len(set(low)) == 1


def test_resamples_in_blocks_are_all_used():
    seen = []

    def count(scores):
        seen.append(len(scores))
        return mean(scores)

    stratified_interval(count, np.zeros((900_000, 1)), num_resamples=5)
    assert seen == [2, 2, 1]


@pytest.mark.parametrize("shape", [(10,), (0, 1), (3, 0)])
def test_empty_scores_are_rejected(shape):
    with pytest.raises(UserError, match="runs, tasks"):
        stratified_interval(interquartile_mean, np.zeros(shape))
