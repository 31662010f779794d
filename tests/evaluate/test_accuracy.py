import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from cpc.evaluate import bootstrap_interval, feature_spread
from cpc.evaluate.accuracy import frame_correct, utterance_correct


def test_frame_and_utterance_accuracy():
    answers = np.log([[0.6, 0.4], [0.9, 0.1], [0.4, 0.6], [0.001, 0.999], [0.4, 0.6]])
    labels, utterances = np.array([0, 0, 1, 1, 1]), np.array([5, 5, 5, 2, 2])
    correct, count = frame_correct(answers, labels, utterances)
    np.testing.assert_array_equal(correct, [2, 3])
    np.testing.assert_array_equal(count, [2, 3])
    assert utterance_correct(answers, np.array([0, 0, 0, 1, 1]), utterances).tolist() == [True] * 2
    mean_of_logs = np.log([[0.6, 0.4], [0.6, 0.4], [0.01, 0.99]])  # not the vote
    assert utterance_correct(mean_of_logs, np.ones(3, int), np.zeros(3, int)).tolist() == [True]
    # A NaN row is always wrong.
    answers, labels = np.full((4, 2), np.nan), np.array([0, 0, 1, 1])
    assert frame_correct(answers, labels, labels)[0].tolist() == [0, 0]
    assert not utterance_correct(answers, labels, labels).any()


@pytest.mark.parametrize("count", [2, 6, 60])
def test_interval_covers_the_truth_in_95_percent_of_draws(count):
    """Plain percentiles of few utterances cover 0.6 in only 50 and 88 of 100 draws."""
    rng = np.random.default_rng(count)
    correct = np.round(rng.normal(60, 10, (400, count))).clip(0, 100)
    ends = [bootstrap_interval(x, np.full(count, 100), num_resamples=300) for x in correct]
    assert 0.91 <= np.mean([low <= 0.6 <= high for low, high in ends]) <= 0.99


def test_interval_is_seeded_and_weighted_by_frames():
    correct, count = np.array([0.0, 90.0]), np.array([10, 90])
    assert bootstrap_interval(correct, count) == bootstrap_interval(correct, count)
    assert bootstrap_interval(correct, count) == (0.0, 1.0)
    long_are_right = np.tile([0.0, 90.0], 50), np.tile([10, 90], 50)  # 90 % of the frames
    assert 0.8 < bootstrap_interval(*long_are_right)[0] < 0.9


def test_empty_utterances_do_not_affect_the_interval():
    low, high = bootstrap_interval(np.array([3.0, 4.0, 5.0, 0.0]), np.array([9, 8, 9, 0]))
    student = stats.t.ppf(0.975, 2) / stats.norm.ppf(0.975) * 1.5**0.5  # of 3 items
    expected = 12 / 26 - student * (12 / 26 - 3 / 9), 12 / 26 + student * (5 / 9 - 12 / 26)
    assert (low, high) == pytest.approx(expected)
    assert np.isnan(bootstrap_interval(np.array([0.0, 1.0]), np.array([0, 0]))).all()


def test_utterances_without_variation_have_no_interval():
    for x, n in (([3.0], [4]), ([3.0, 0.0], [4, 0]), ([1.0, 1.0], [2, 2]), ([2.0, 2.0], [4, 4])):
        assert np.isnan(bootstrap_interval(np.array(x), np.array(n))).all()


def test_spread_equals_known_covariances():
    rng = np.random.default_rng(0)
    std, rank = feature_spread(3 * rng.standard_normal((20_000, 10)).astype(np.float32) + 7)
    assert float(std) == pytest.approx(3, rel=0.01)
    assert float(rank) == pytest.approx(10, rel=0.01)
    line = rng.standard_normal((1000, 1)).astype(np.float32) * np.ones((1, 10), np.float32)
    assert float(feature_spread(line)[1]) == pytest.approx(1, abs=0.01)
    # The exponential of the entropy of variance shares 0.8 and 0.2.
    two = np.array([[2, 0], [-2, 0], [0, 1], [0, -1]], np.float32)
    assert float(feature_spread(two)[1]) == pytest.approx(0.8**-0.8 * 0.2**-0.2, rel=1e-4)


def test_spread_at_any_scale():
    for value in (0.0, 0.1, 1e4, -3e-9):
        std, rank = feature_spread(jnp.full((500, 6), value))
        assert (float(std), float(rank)) == (0, 0)
    assert feature_spread(jnp.full((1, 6), 0.1)) == (0, 0)
    x = np.random.default_rng(3).standard_normal((500, 6)).astype(np.float32)
    small, large = feature_spread(1e-17 * x), feature_spread(1e6 * x)
    assert float(small[1]) == pytest.approx(float(large[1]), rel=1e-3)
    assert float(large[0]) == pytest.approx(1e23 * float(small[0]), rel=1e-3)
    assert feature_spread(x.astype(jnp.bfloat16))[0].dtype == jnp.float32
