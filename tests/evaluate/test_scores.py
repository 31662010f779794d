import json

import jax.numpy as jnp
import numpy as np
import pytest

from cpc.evaluate import (
    answer_rows,
    bootstrap_interval,
    feature_spread,
    fit_probe,
    frame_correct,
    majority_accuracy,
    predict,
    probe_rows,
    utterance_correct,
)
from cpc.types import UserError


def test_frame_and_utterance_accuracy():
    probabilities = np.log([[0.6, 0.4], [0.9, 0.1], [0.4, 0.6], [0.001, 0.999], [0.4, 0.6]])
    labels, utterances = np.array([0, 0, 1, 1, 1]), np.array([5, 5, 5, 2, 2])
    labels_of_frames = np.array([0, 0, 0, 1, 1])
    correct, count = frame_correct(probabilities, labels, utterances)
    np.testing.assert_array_equal(correct, [2, 3])
    np.testing.assert_array_equal(count, [2, 3])
    np.testing.assert_array_equal(
        utterance_correct(probabilities, labels_of_frames, utterances), [True, True]
    )


def test_utterance_takes_the_mean_of_logs_not_the_vote():
    probabilities = np.log([[0.6, 0.4], [0.6, 0.4], [0.01, 0.99]])
    one = np.zeros(3, int)
    assert utterance_correct(probabilities, one + 1, one).tolist() == [True]


def test_majority_is_of_the_training_labels():
    assert majority_accuracy(np.array([2, 2, 1]), np.array([1, 1, 1, 2])) == 0.25


def test_interval_covers_the_truth_and_shrinks():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        correct = rng.binomial(20, rng.beta(6, 4, 60)).astype(float)  # utterances differ: mean 0.6
        low, high = bootstrap_interval(correct, np.full(60, 20), num_resamples=400, seed=trial)
        covered += low <= 0.6 <= high
    assert 0.89 <= covered / 200 <= 0.99
    few = bootstrap_interval(np.tile([0.0, 1.0], 10), np.ones(20, int))
    many = bootstrap_interval(np.tile([0.0, 1.0], 1000), np.ones(2000, int))
    assert (few[1] - few[0]) / (many[1] - many[0]) == pytest.approx(10, rel=0.2)


def test_interval_is_seeded_and_weighs_by_frames():
    correct, count = np.array([0.0, 90.0]), np.array([10, 90])
    assert bootstrap_interval(correct, count) == bootstrap_interval(correct, count)
    assert bootstrap_interval(correct, count) == (0.0, 1.0)
    long_are_right = np.tile([0.0, 90.0], 50), np.tile([10, 90], 50)  # 0.9 of the frames
    assert 0.8 < bootstrap_interval(*long_are_right)[0] < 0.9
    assert bootstrap_interval(np.array([3.0]), np.array([4])) == (0.75, 0.75)


def test_spread_of_known_covariances():
    rng = np.random.default_rng(0)
    std, rank = feature_spread(3 * rng.standard_normal((20_000, 10)).astype(np.float32) + 7)
    assert float(std) == pytest.approx(3, rel=0.01)
    assert float(rank) == pytest.approx(10, rel=0.01)
    line = rng.standard_normal((1000, 1)).astype(np.float32) * np.ones((1, 10), np.float32)
    assert float(feature_spread(line)[1]) == pytest.approx(1, abs=0.01)
    # Shares 0.8 and 0.2 of the variance: exp of their entropy.
    two = np.array([[2, 0], [-2, 0], [0, 1], [0, -1]], np.float32)
    assert float(feature_spread(two)[1]) == pytest.approx(
        np.exp(-0.8 * np.log(0.8) - 0.2 * np.log(0.2)), rel=1e-4
    )


@pytest.mark.parametrize("value", [0.0, 0.1, 1e4, -3e-9])
def test_constant_features_have_no_spread(value):
    std, rank = feature_spread(jnp.full((777, 5), value))
    assert (float(std), float(rank)) == (0, 0)


def test_spread_does_not_depend_on_scale():
    x = np.random.default_rng(3).standard_normal((500, 6)).astype(np.float32)
    small, large = feature_spread(1e-17 * x), feature_spread(1e6 * x)
    assert float(small[1]) == pytest.approx(float(large[1]), rel=1e-3)
    assert float(large[0]) == pytest.approx(1e23 * float(small[0]), rel=1e-3)
    assert feature_spread(x.astype(jnp.bfloat16))[0].dtype == jnp.float32


def speakers_data(num_utterances, seed):
    """Utterances of 3 speakers: "good" features tell them apart, "bad" ones do not."""
    rng = np.random.default_rng(seed)
    labels = [int(s) for s in np.arange(num_utterances) % 3]
    frames = [int(n) for n in rng.integers(3, 9, num_utterances)]
    good = [
        np.eye(3, dtype=np.float32)[s] + 0.6 * rng.standard_normal((n, 3), dtype=np.float32)
        for s, n in zip(labels, frames, strict=True)
    ]
    bad = [rng.standard_normal((n, 4), dtype=np.float32) for n in frames]
    return {"good": good, "bad": bad}, labels


def test_rows_say_what_they_measure():
    train, train_labels = speakers_data(120, 0)
    test, test_labels = speakers_data(60, 1)
    rows = list(
        probe_rows(
            train,
            test,
            train_labels,
            test_labels,
            task="speakers",
            data="toy",
            num_classes=3,
            hidden_widths=(0, 8),
            units=("frame", "utterance"),
            min_updates=300,
            batch_size=64,
        )
    )
    assert len(rows) == 8
    assert {row["probe"] for row in rows} == {"linear", "hidden"}
    scores = {(r["features"], r["probe"], r["unit"]): r for r in json.loads(json.dumps(rows))}
    frame = scores["good", "linear", "frame"]
    utterance = scores["good", "linear", "utterance"]
    assert frame["accuracy"] < utterance["accuracy"]
    assert utterance["accuracy"] > 0.8
    assert utterance["majority"] == pytest.approx(1 / 3)
    assert scores["bad", "linear", "frame"]["accuracy"] < 0.5
    for row in rows:
        assert row["low"] <= row["accuracy"] <= row["high"]
        assert row["num_train"] == sum(len(f) for f in train["good"])
        assert row["num_test"] == sum(len(f) for f in test["good"])
        assert row["num_test_utterances"] == 60


def test_rows_of_answers_are_those_of_the_probe_that_gave_them():
    rng = np.random.default_rng(0)
    labels = [np.full(n, i % 2) for i, n in enumerate(rng.integers(3, 9, 12))]
    for utterance in labels:
        utterance[0] = -1
    features = [(y[:, None] + rng.standard_normal((len(y), 2))).astype(np.float32) for y in labels]
    options = {"task": "speakers", "data": "toy", "num_classes": 2, "units": ("frame", "utterance")}
    fit_options = {"weight_decays": (0.1,), "min_updates": 30}
    rows = list(
        probe_rows({"c": features}, {"c": features}, labels, labels, **options, **fit_options)
    )
    flat, utterances = np.concatenate(labels), np.repeat(np.arange(12), list(map(len, labels)))
    probe = fit_probe(np.concatenate(features), flat, utterances, num_classes=2, **fit_options)
    answers = [predict(probe, one) for one in features]
    again = answer_rows(answers, labels, labels, features="c", weight_decay=0.1, **options)
    assert list(again) == rows
    assert rows[0]["num_test"] == (flat >= 0).sum()
    wrong = answer_rows(answers, labels, labels[:-1], features="c", **options)
    with pytest.raises(UserError, match=r"answers hold 12 utterances .* 11"):
        list(wrong)


def test_rows_by_frame_skip_unlabelled_frames():
    rng = np.random.default_rng(0)
    labels = [rng.integers(-1, 2, 50) for _ in range(20)]
    features = {"c": [np.stack([y, y**2], axis=1).astype(np.float32) for y in labels]}
    options = {"task": "phones", "data": "toy", "num_classes": 2, "min_updates": 300}
    (row,) = probe_rows(features, features, labels, labels, **options)
    assert row["accuracy"] == 1
    assert row["num_test"] == sum((y >= 0).sum() for y in labels)


def test_rows_name_the_user_mistake():
    features = {"c": [np.zeros((5, 2), np.float32)] * 4}
    options = {"task": "phones", "data": "toy", "num_classes": 2}
    wrong = [np.zeros(5, int)] * 3 + [np.zeros(4, int)]
    with pytest.raises(UserError, match=r"utterance 3 .* 5 frames but 4 labels"):
        list(probe_rows(features, features, wrong, wrong, **options))
    with pytest.raises(UserError, match="one speaker"):
        list(probe_rows(features, features, [0] * 4, [0] * 4, **options))
    with pytest.raises(UserError, match="no frame"):
        list(probe_rows(features, features, [-1] * 4, [-1] * 4, **options))
    with pytest.raises(UserError, match=r"4 utterances .* 3"):
        list(probe_rows(features, features, [0] * 3, [0] * 4, **options))
