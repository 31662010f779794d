"""Units, pairs of speakers and weighted layers: closed forms, naive twins and invariances."""

import itertools

import numpy as np
import pytest
import scipy.optimize
import scipy.special

from cpc.evaluate import (
    bits_per_second,
    drop_repeats,
    equal_error_rate,
    fit_layer_sum,
    fit_units,
    measure_agreement,
    unit_scores,
    verification_score,
)
from cpc.evaluate.verification import draw_pairs
from cpc.evaluate.weighted_layers import L2
from cpc.types import UserError

RNG = np.random.default_rng(0)


def naive_agreement(joint):
    """Return PNMI and purities by loops over probabilities."""
    p = joint / joint.sum()
    phones, units = p.sum(1), p.sum(0)
    information = sum(
        p[i, k] * np.log(p[i, k] / (phones[i] * units[k]))
        for i in range(len(phones)) for k in range(len(units)) if p[i, k] > 0
    )  # fmt: skip
    entropy = -sum(one * np.log(one) for one in phones if one > 0)
    phone_purity = sum(max(p[:, k]) for k in range(len(units)))
    return information / entropy, phone_purity, sum(max(p[i]) for i in range(len(phones)))


def test_agreement_is_that_of_loops_and_its_limits():
    joint = RNG.integers(0, 9, (2, 4, 7)).astype(float)
    joint[:, 2] = joint[:, :, 3] = 0  # an absent phone and an empty unit
    found = measure_agreement(joint)
    for number, one in enumerate(joint):
        expected = naive_agreement(one)
        np.testing.assert_allclose([value[number] for value in found], expected, atol=1e-12)
    independent = np.outer([1, 3], [2, 2, 4])
    np.testing.assert_allclose(measure_agreement(independent), (0, 0.75, 0.5), atol=1e-12)
    np.testing.assert_allclose(measure_agreement(np.eye(3)[[2, 0, 1]]), 1)
    assert np.isnan(measure_agreement(np.array([[4, 4]])).pnmi)


def test_bit_rate_is_of_runs():
    units = np.array([4, 4, 0, 0, 0, 4, 1])
    np.testing.assert_array_equal(drop_repeats(units), [4, 0, 4, 1])
    assert len(drop_repeats(units[:0])) == 0
    # Half of the four runs are unit 4 and a quarter each 0 and 1: 1.5 bits, 4 runs in 0.07 s.
    counts = np.bincount(drop_repeats(units), minlength=6)
    assert float(bits_per_second(counts, 0.07)) == pytest.approx(1.5 * 4 / 0.07)
    assert float(bits_per_second(np.array([9, 0]), 1.0)) == 0


def scores_of(units, phones):
    found = unit_scores(units, phones, 0.01, num_units=5, num_phones=3, data="d", features="c")
    return {score.metric: score for score in found}


def test_scores_count_labelled_frames_and_repeat_utterances():
    phones = [RNG.integers(-1, 3, 50) for _ in range(12)]
    units = [np.where(RNG.random(50) < 0.6, one + 1, RNG.integers(0, 5, 50)) for one in phones]
    found = scores_of(units, phones)
    joint = np.zeros((3, 5))
    for phone, unit in zip(np.concatenate(phones), np.concatenate(units), strict=True):
        joint[phone, unit] += phone >= 0
    values = [found[name].value for name in ("PNMI", "phone purity", "cluster purity")]
    np.testing.assert_allclose(values, naive_agreement(joint))
    assert found["PNMI"].num_test == joint.sum()
    runs = np.concatenate([drop_repeats(one) for one in units])
    rate = bits_per_second(np.bincount(runs), 0.01 * 50 * 12)
    assert found["bits per second"].value == pytest.approx(float(rate))
    assert all(one.low < one.value < one.high for one in found.values())
    # Other names of units, and each utterance twice, change no value; the interval is narrower.
    renamed = scores_of([(one * 2) % 5 for one in units] * 2, phones * 2)
    for name, one in found.items():
        assert renamed[name].value == pytest.approx(one.value)
        assert renamed[name].high - renamed[name].low < one.high - one.low
    alone = scores_of(units[:1], phones[:1])
    assert all(np.isnan(one.low) and np.isnan(one.high) for one in alone.values())


def test_centers_are_those_of_far_clusters_and_the_same_each_time():
    means = 50 * RNG.normal(size=(4, 3))
    frames = (means[RNG.integers(0, 4, 400)] + RNG.normal(size=(400, 3))).astype(np.float32)
    centers = fit_units(frames, 4, seed=1)
    distance = np.linalg.norm(centers[:, None] - means, axis=2)
    assert distance.min(axis=0).max() < 1
    np.testing.assert_array_equal(centers, fit_units(frames, 4, seed=1))
    for number in (1, 401):
        with pytest.raises(UserError, match=rf"2 to the number of frames, 400 \(got {number}\)"):
            fit_units(frames, number)
    with pytest.raises(UserError, match="not finite"):
        fit_units(np.where(frames > 50, np.nan, frames), 4)


def naive_error_rate(scores, same):
    """Return the crossing of both error rates, each counted at every threshold."""
    points = [(0.0, 1.0)]
    for threshold in sorted({*scores}, reverse=True):
        accepted = scores >= threshold
        points.append((accepted[~same].mean(), 1 - accepted[same].mean()))
    for (a, b), (c, d) in itertools.pairwise(points):
        if c >= d:
            return a + (b - a) / ((b - a) + (c - d)) * (c - a)
    raise AssertionError


def test_equal_error_rate_is_that_of_loops():
    for ties in (1, 8, 1000):
        scores = np.round(RNG.normal(size=200) * ties) / ties
        same = RNG.random(200) < 0.3
        scores += same
        found = equal_error_rate(scores, same)
        assert found == pytest.approx(naive_error_rate(scores, same))
        assert equal_error_rate(3 * scores - 1, same) == pytest.approx(found)
        assert equal_error_rate(-scores, ~same) == pytest.approx(found)
        assert equal_error_rate(-scores, same) == pytest.approx(1 - found)
        weights = RNG.integers(0, 4, 200)
        repeated = equal_error_rate(np.repeat(scores, weights), np.repeat(same, weights))
        assert equal_error_rate(scores, same, weights) == pytest.approx(repeated)
    assert equal_error_rate(np.ones(9), np.arange(9) < 4) == 0.5
    assert np.isnan(equal_error_rate(np.ones(3), np.ones(3, bool)))


def test_verification_ranks_cosines_of_all_pairs():
    speakers = [f"s{i % 5}" for i in range(40)]
    own = RNG.normal(size=(5, 16))[np.arange(40) % 5]
    told, noise = own + 0.05 * RNG.normal(size=own.shape), RNG.normal(size=own.shape)
    found = [verification_score(x, speakers, data="d", features="c") for x in (told, noise)]
    assert found[0].value == 0
    assert found[1].low < 0.5 < found[1].high
    assert found[1].num_test == 40 * 39 / 2
    scaled = verification_score(noise * np.arange(1, 41)[:, None], speakers, data="d", features="c")
    assert scaled.value == found[1].value  # the length of an embedding does not count
    few = verification_score(noise, speakers, data="d", features="c", max_pairs=300)
    assert few.num_test == 300
    pairs = {*zip(*(side.tolist() for side in draw_pairs(40, 300)), strict=True)}
    assert len(pairs) == 300
    assert all(left < right for left, right in pairs)
    with pytest.raises(UserError, match="one speaker and of two"):
        verification_score(noise, ["a"] * 40, data="d", features="c")


def test_layer_weights_are_those_of_a_joint_fit_in_float64():
    labels = RNG.integers(0, 3, 600)
    means = RNG.normal(size=(3, 4))
    good, poor = (means[labels] + s * RNG.normal(size=(600, 4)) for s in (1.0, 3.0))
    layers = [poor[:, :2], good, 7 + 0.1 * RNG.normal(size=(600, 3))]
    fitted = fit_layer_sum(layers, labels, num_classes=3)

    def loss(unknowns):
        weight, bias, logits = np.split(unknowns, [12, 15])
        total = np.zeros((600, 4))
        for share, x in zip(scipy.special.softmax(logits), layers, strict=True):
            total[:, : x.shape[1]] += share * (x - x.mean(0)) / x.std(0)
        log_p = scipy.special.log_softmax(total @ weight.reshape(4, 3) + bias, axis=1)
        return -log_p[np.arange(600), labels].mean() + L2 / 2 * np.square(weight).sum()

    joint = scipy.optimize.minimize(loss, np.zeros(18), options={"maxiter": 500})
    assert fitted.converged
    np.testing.assert_allclose(fitted.weights, scipy.special.softmax(joint.x[15:]), atol=0.03)
    assert fitted.weights.argmax() == 1
    # Scales of layers do not count, and weights follow their layers.
    order = [2, 0, 1]
    moved = fit_layer_sum([100 * layers[i] for i in order], labels, num_classes=3)
    np.testing.assert_allclose(moved.weights, fitted.weights[order], atol=0.01)
    np.testing.assert_allclose(
        moved.apply([100 * layers[i] for i in order]), fitted.apply(layers), atol=0.05
    )
    same = fit_layer_sum([good, good], labels, num_classes=3)
    np.testing.assert_allclose(same.weights, 0.5)
