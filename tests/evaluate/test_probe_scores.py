import numpy as np
import pytest

from cpc.evaluate import Updates, answer_scores, fit_probe, predict, probe_scores
from cpc.results import difference
from cpc.types import UserError


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


def test_scores_say_what_they_measure():
    train, train_labels = speakers_data(120, 0)
    test, test_labels = speakers_data(60, 1)
    options = {"task": "speakers", "data": "toy", "num_classes": 3, "hidden_widths": (0, 8)}
    options |= {"units": ("frame", "utterance"), "updates": Updates(min_updates=300, batch_size=64)}
    scores = list(probe_scores(train, test, train_labels, test_labels, **options))
    assert len(scores) == 8
    assert {(score.task, score.data, score.metric) for score in scores} == {
        ("speakers", "toy", "accuracy")
    }
    found = {(score.features, score.method, score.unit): score for score in scores}
    frame, utterance = (found["good", "linear", unit] for unit in ("frame", "utterance"))
    assert frame.value < utterance.value
    assert utterance.value > 0.8
    assert utterance.chance == pytest.approx(1 / 3)
    assert found["bad", "linear", "frame"].value < 0.5
    num_frames = sum(len(f) for f in test["good"])
    for score in scores:
        assert score.low <= score.value <= score.high
        assert score.num_train == sum(len(f) for f in train["good"])
        assert score.num_test == {"frame": num_frames, "utterance": 60}[score.unit]
        assert len(score.outcomes.sums) == 60  # of each utterance
        assert score.outcomes.sums.sum() / score.outcomes.counts.sum() == score.value


def test_scores_on_the_same_utterances_are_paired():
    train, train_labels = speakers_data(60, 0)
    test, test_labels = speakers_data(40, 1)
    options = {"task": "speakers", "data": "toy", "num_classes": 3, "weight_decays": (1e-3,)}
    good, bad = probe_scores(train, test, train_labels, test_labels, **options)
    assert difference(good, bad).paired == "items"
    assert difference(good, bad).low > 0.2
    other = [*test_labels[:-1], (test_labels[-1] + 1) % 3]
    only = {"good": train["good"]}, {"good": test["good"]}
    (elsewhere,) = probe_scores(*only, train_labels, other, **options)
    assert difference(good, elsewhere).paired == ""


def test_scores_of_answers_are_those_of_the_probe_that_gave_them():
    rng = np.random.default_rng(0)
    labels = [np.full(n, i % 2) for i, n in enumerate(rng.integers(3, 9, 12))]
    for utterance in labels:
        utterance[0] = -1
    features = [(y[:, None] + rng.standard_normal((len(y), 2))).astype(np.float32) for y in labels]
    options = {"task": "speakers", "data": "toy", "units": ("frame", "utterance")}
    fit_options = {"num_classes": 2, "weight_decays": (0.1,)}
    scores = list(
        probe_scores({"c": features}, {"c": features}, labels, labels, **options, **fit_options)
    )
    flat, utterances = np.concatenate(labels), np.repeat(np.arange(12), list(map(len, labels)))
    probe = fit_probe(np.concatenate(features), flat, utterances, **fit_options)
    answers = [predict(probe, one) for one in features]
    again = answer_scores(answers, labels, labels, features="c", setting="l2 0.1", **options)
    assert [one._replace(outcomes=None) for one in again] == [
        one._replace(outcomes=None) for one in scores
    ]
    assert scores[0].num_test == (flat >= 0).sum()
    wrong = answer_scores(answers, labels, labels[:-1], features="c", **options)
    with pytest.raises(UserError, match=r"answers hold 12 utterances .* 11"):
        list(wrong)


def test_scores_by_frame_skip_unlabeled_frames():
    rng = np.random.default_rng(0)
    labels = [rng.integers(-1, 2, 50) for _ in range(20)]
    features = {"c": [np.stack([y, y**2], axis=1).astype(np.float32) for y in labels]}
    options = {"task": "phones", "data": "toy", "num_classes": 2, "weight_decays": (1e-3,)}
    (score,) = probe_scores(features, features, labels, labels, **options)
    assert score.value == 1
    assert score.num_test == sum((y >= 0).sum() for y in labels)


def test_scores_name_the_user_mistake():
    features = {"c": [np.zeros((5, 2), np.float32)] * 4}
    options = {"task": "phones", "data": "toy", "num_classes": 2}
    wrong = [np.zeros(5, int)] * 3 + [np.zeros(4, int)]
    for labels, words in (
        (wrong, "utterance 3 .* 5 frames but 4 labels"),
        ([0] * 4, "two classes"),
        ([-1] * 4, "no frame"),
        ([0] * 3, "4 utterances .* 3"),
    ):
        with pytest.raises(UserError, match=words):
            list(probe_scores(features, features, labels, labels, **options))
