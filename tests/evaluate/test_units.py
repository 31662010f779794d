"""Units, pairs of speakers and weights of layers: closed forms, naive twins and invariances."""

import itertools

import numpy as np
import pytest
import scipy.optimize
import scipy.special
from sklearn.metrics import mutual_info_score, roc_curve

from cpc.evaluate import (
    equal_error_rate,
    fit_layer_weights,
    fit_units,
    layer_weights,
    unit_posteriors,
    unit_scores,
    verification_score,
)
from cpc.evaluate.units import drop_repeats
from cpc.types import UserError

RNG = np.random.default_rng(0)


def scores_of(units, phones, frame_seconds=0.01):
    found = unit_scores(units, phones, frame_seconds, data="d", features="c")
    return {score.metric: score for score in found}


def test_agreement_is_that_of_scikit_learn_on_labelled_frames():
    phones = [RNG.integers(-1, 3, 50) for _ in range(12)]
    units = [np.where(RNG.random(50) < 0.6, one + 1, RNG.integers(0, 5, 50)) for one in phones]
    found = scores_of(units, phones)
    phone, unit = np.concatenate(phones), np.concatenate(units)
    known = phone >= 0
    information = mutual_info_score(phone[known], unit[known])
    expected = information / mutual_info_score(phone[known], phone[known])
    assert found["PNMI"].value == pytest.approx(expected)
    counts = [[np.sum((phone == p) & (unit == k)) for k in range(5)] for p in range(3)]
    assert found["phone purity"].value == pytest.approx(np.max(counts, 0).sum() / known.sum())
    assert found["cluster purity"].value == pytest.approx(np.max(counts, 1).sum() / known.sum())
    assert found["phone purity"].chance == pytest.approx(np.sum(counts, 1).max() / known.sum())
    assert found["PNMI"].num_test == known.sum()
    agreement = [score for score in found.values() if score.task == "units"]
    assert all(0 < one.low < one.value < one.high < 1 for one in agreement)
    # Each utterance twice, and other names of units, change no value; intervals are narrower.
    renamed = scores_of([(2 * one + 1) % 5 for one in units] * 2, phones * 2)
    for one in agreement:
        other = renamed[one.metric]
        assert other.value == pytest.approx(one.value)
        assert other.high - other.low < one.high - one.low
    assert renamed["bits per second"].value == pytest.approx(found["bits per second"].value)


def test_bit_rate_is_of_runs():
    units = np.array([4, 4, 0, 0, 0, 4, 1])
    np.testing.assert_array_equal(drop_repeats(units), [4, 0, 4, 1])
    assert len(drop_repeats(units[:0])) == 0
    # Half of the four runs are unit 4 and a quarter each 0 and 1: 1.5 bits, 4 runs in 0.07 s.
    found = scores_of([units, units], [np.arange(7) % 2] * 2)["bits per second"]
    assert found.value == pytest.approx(1.5 * 4 / 0.07)


def test_units_are_far_clusters_and_posteriors_those_of_gaussians():
    means = 50 * RNG.normal(size=(4, 3))
    frames = (means[RNG.integers(0, 4, 400)] + RNG.normal(size=(400, 3))).astype(np.float32)
    units = fit_units(frames, 4, seed=1)
    distances = np.linalg.norm(units.centers[:, None] - means, axis=2)
    assert distances.min(axis=0).max() < 1
    squares = np.square(frames[:, None] - units.centers).sum(axis=2)
    assert units.temperature == pytest.approx(squares.min(axis=1).mean(), rel=1e-3)
    np.testing.assert_array_equal(units.centers, fit_units(frames, 4, seed=1).centers)
    wide = units._replace(temperature=5000.0)
    expected = np.exp(-squares / 5000) / np.exp(-squares / 5000).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(unit_posteriors(frames, wide), expected, atol=1e-5)
    for of in (units, wide):
        chosen = unit_posteriors(frames, of).argmax(axis=1)
        np.testing.assert_array_equal(chosen, squares.argmin(axis=1))
    with pytest.raises(UserError, match=r"401 units .*got 400"):
        fit_units(frames, 401)
    with pytest.raises(UserError, match="not finite"):
        fit_units(np.where(frames > 50, np.nan, frames), 4)


def twin_error_rate(scores, same):
    """Return where the ROC curve of scikit-learn, interpolated, crosses the diagonal."""
    accepted, right, _ = roc_curve(same, scores, drop_intermediate=False)
    for (a, b), (c, d) in itertools.pairwise(zip(accepted, 1 - right, strict=True)):
        if c >= d:
            return a + (b - a) / ((b - a) + (c - d)) * (c - a)
    raise AssertionError


@pytest.mark.parametrize("ties", [1, 8, 1000])
def test_equal_error_rate_is_that_of_a_roc_curve(ties):
    same = RNG.random(200) < 0.3
    scores = np.round(RNG.normal(size=200) * ties) / ties + same
    found = equal_error_rate(scores, same)
    assert found == pytest.approx(twin_error_rate(scores, same))
    assert equal_error_rate(3 * scores - 1, same) == pytest.approx(found)
    assert equal_error_rate(-scores, ~same) == pytest.approx(found)
    assert equal_error_rate(-scores, same) == pytest.approx(1 - found)
    weights = RNG.integers(0, 4, 200)
    repeated = equal_error_rate(np.repeat(scores, weights), np.repeat(same, weights))
    assert equal_error_rate(scores, same, weights) == pytest.approx(repeated)


def test_equal_error_rate_of_constants():
    assert equal_error_rate(np.ones(9), np.arange(9) < 4) == 0.5
    assert np.isnan(equal_error_rate(np.ones(3), np.ones(3, bool)))


def test_verification_ranks_cosines_of_all_pairs():
    speakers = [f"s{i % 5}" for i in range(40)]
    own = RNG.normal(size=(5, 16))[np.arange(40) % 5]
    told, noise = own + 0.05 * RNG.normal(size=own.shape), RNG.normal(size=own.shape)
    mixed = own + 2 * noise
    found = [verification_score(x, speakers, data="d", features="c") for x in (told, noise, mixed)]
    assert found[0].value == 0
    assert found[1].low < 0.5 < found[1].high
    assert found[2].low < found[2].value < found[2].high < 0.5
    assert found[2].num_test == 40 * 39 / 2
    pairs = [*itertools.combinations(range(40), 2)]
    cosines = [mixed[i] @ mixed[j] / np.linalg.norm(mixed[i]) / np.linalg.norm(mixed[j])
               for i, j in pairs]  # fmt: skip
    same = np.array([speakers[i] == speakers[j] for i, j in pairs])
    assert found[2].value == pytest.approx(twin_error_rate(cosines, same))
    order = RNG.permutation(40)  # and the length of an embedding does not count
    other = verification_score(
        mixed[order] * (1 + order[:, None]), [speakers[i] for i in order], data="d", features="c"
    )
    assert other.value == pytest.approx(found[2].value)


def test_layer_weights_are_those_of_a_joint_fit_in_float64(monkeypatch):
    """Unlabelled frames and a column of padding have no effect, and a strong penalty has one."""
    penalty = 0.1
    monkeypatch.setattr(layer_weights, "L2", penalty)
    labels, means = RNG.integers(0, 3, 600), RNG.normal(size=(3, 4))
    layers = np.stack([means[labels] + s * RNG.normal(size=(600, 4)) for s in (1, 2, 9)], axis=1)
    std = layers.std(axis=0)
    given = np.pad(layers, ((0, 50), (0, 0), (0, 1)))
    given[600:, :, :4] = RNG.normal(50, size=(50, 3, 4))
    known = np.append(labels, [-1] * 50)
    weights, factors = fit_layer_weights(given, known, num_classes=3)
    np.testing.assert_allclose(factors[:, :4] * std, weights[:, None] * np.ones(4), rtol=1e-4)
    x = (layers - layers.mean(axis=0)) / std

    def loss(unknowns):
        weight, bias, logits = np.split(unknowns, [12, 15])
        total = np.einsum("nld,l->nd", x, scipy.special.softmax(logits))
        log_p = scipy.special.log_softmax(total @ weight.reshape(4, 3) + bias, axis=1)
        return -log_p[np.arange(600), labels].mean() + penalty / 2 * np.square(weight).sum()

    joint = scipy.optimize.minimize(loss, np.zeros(18), options={"maxiter": 500})
    np.testing.assert_allclose(weights, scipy.special.softmax(joint.x[15:]), atol=0.03)
    moved, _ = fit_layer_weights(100 * layers[:, ::-1] + 3, labels, num_classes=3)
    np.testing.assert_allclose(moved, weights[::-1], atol=0.01)
