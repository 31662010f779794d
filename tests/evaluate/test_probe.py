import jax
import numpy as np
import pytest

from cpc import evaluate
from cpc.evaluate import Updates, adam_cosine, fit_lbfgs_probe, fit_ridge_probe, predict, read_rows
from cpc.evaluate.fit import fit_layers, split_utterances
from cpc.evaluate.probe import as_stacked, join, keep
from cpc.results import difference
from cpc.types import UserError

QUICK = {"min_updates": 300, "batch_size": 128}


def fit_probe(*args, **options):
    """Fit a probe with few updates; options may include fields of Updates."""
    given = {name: options.pop(name) for name in Updates._fields if name in options}
    return evaluate.fit_probe(*args, updates=Updates(**{**QUICK, **given}), **options)


def blobs(num_frames, num_classes=4, width=8, noise=1.0, seed=0):
    """Return Gaussian classes, off-center and of unequal scale, in utterances of 20 frames."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).standard_normal((num_classes, width))
    labels = rng.integers(0, num_classes, num_frames)
    features = means[labels] + noise * rng.standard_normal((num_frames, width))
    features = 100 + features * np.logspace(-2, 2, width)
    return features.astype(np.float32), labels, np.arange(num_frames) // 20


def accuracy(probe, features, labels):
    return float(np.mean(predict(probe, features).argmax(axis=1) == labels))


def test_linear_probe_equals_a_fit_to_the_labelled_frames():
    x, y, utterances = blobs(400)
    more, known = np.concatenate([x, 1e6 * np.ones_like(x[:50])]), np.append(y, [-1] * 50)
    utterances = np.append(utterances, [999] * 50)
    probe = fit_probe(more, known, utterances, num_classes=4, weight_decays=(1e-3,))
    expected = fit_lbfgs_probe(x, y, num_classes=4, l2s=[1e-3])
    assert probe.converged
    np.testing.assert_allclose(predict(probe, x), predict(expected, x), atol=1e-3)


def test_hidden_layer_solves_xor_reproducibly():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2000, 2)).astype(np.float32)
    y, utterances = (x[:, 0] * x[:, 1] > 0).astype(int), np.arange(2000) // 10
    one, two, other = (
        fit_probe(x, y, utterances, num_classes=2, hidden_width=32, seed=seed) for seed in (3, 3, 4)
    )
    assert accuracy(one, x, y) > 0.97
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)
    assert one.weight_decay == two.weight_decay
    assert not np.array_equal(one.params[0][0], other.params[0][0])


def test_random_labels_select_the_strongest_decay():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 100)).astype(np.float32)
    y, utterances = (np.arange(400) % 10 == 0).astype(int), np.arange(400) // 4
    probe = fit_probe(x, y, utterances, num_classes=2, weight_decays=(1e-5, 10.0))
    assert probe.weight_decay == 10.0
    assert np.abs(probe.params[0][0]).max() < 0.05


def test_validation_split_keeps_utterances_whole():
    labels = np.random.default_rng(0).integers(-1, 3, 500)
    utterances = np.random.default_rng(1).integers(0, 30, 500)
    train, held = split_utterances(labels, utterances, 0.1, np.random.default_rng(0))
    assert not set(utterances[train]) & set(utterances[held])
    assert len(set(utterances[held])) == 3
    assert sorted([*train, *held]) == list(np.flatnonzero(labels >= 0))


@pytest.mark.parametrize(
    ("min_updates", "updates"), [(10, {3: 60, 1: 200}), (240, {3: 80, 1: 240})]
)
def test_probe_is_refitted_on_all_utterances(min_updates, updates, monkeypatch):
    """With all of the updates, after a third for each decay; epochs have 36 and 40 batches."""
    x, y, utterances = blobs(400)
    train, held = split_utterances(y, utterances, 0.1, np.random.default_rng(0))
    read, found = {3: [], 1: []}, {}

    def spy(params, state, frames, index, labels, weight_decays, rate, **options):
        rows = np.asarray(frames)[np.ravel(index)] * x.std(axis=0) + x.mean(axis=0)
        apart = np.linalg.norm(rows[:, None] - x, axis=-1)
        assert apart.min(axis=1).max() < 1e-3 < np.sort(apart)[:, 1].min()
        read[len(weight_decays)].extend(apart.argmin(axis=1).tolist())
        found[len(weight_decays)] = options["num_updates"]
        return fit_layers(params, state, frames, index, labels, weight_decays, rate, **options)

    monkeypatch.setattr("cpc.evaluate.fit.CALL_UPDATES", 50)  # several calls
    monkeypatch.setattr("cpc.evaluate.fit.fit_layers", spy)
    options = {"num_epochs": 5, "batch_size": 10, "optimizer": adam_cosine}
    fit_probe(x, y, utterances, num_classes=4, min_updates=min_updates, **options)
    assert len(held) == 40
    assert found == updates
    for number, rows in ((3, train), (1, np.arange(400))):
        counts = np.bincount(read[number], minlength=400)
        assert counts.sum() == counts[rows].sum()
        assert counts[rows].max() - 1 <= counts[rows].min() > 0  # drawn equally often


def test_joint_fits_equal_single_fits():
    data, options = blobs(200), {"num_epochs": 1, "min_updates": 30}
    updates = Updates(**{**QUICK, **options})
    together = evaluate.fit_probes(*data, num_classes=4, hidden_widths=(0, 5), updates=updates)
    assert [len(probe.params) for probe in together] == [1, 2]
    for width, probe in zip((0, 5), together, strict=True):
        alone = fit_probe(*data, num_classes=4, hidden_width=width, **options)
        assert probe.weight_decay == alone.weight_decay
        jax.tree.map(np.testing.assert_array_equal, probe, alone)


def test_lazy_neighbours_equal_concatenated_ones():
    x, y, utterances = blobs(600, width=3)
    y[::7] = -1
    stacked = join([evaluate.with_neighbours(part, 2) for part in np.split(x, 30)])
    copied = read_rows(stacked)
    one, two = (
        fit_probe(rows, y, utterances, num_classes=4, weight_decays=(1e-3,), min_updates=1500)
        for rows in (stacked, copied)
    )
    np.testing.assert_allclose(predict(one, stacked), predict(one, copied), atol=1e-5)
    # Standardization per frame or per position hardly differs.
    np.testing.assert_allclose(predict(one, stacked), predict(two, copied), atol=0.2)


def test_prediction_chunks_depend_on_length_and_width(monkeypatch):
    x, y, _ = blobs(500)
    probe, shapes = fit_ridge_probe(x, y, num_classes=4), []
    whole = predict(probe, x)
    assert predict(probe, x[:0]).shape == (0, 4)
    monkeypatch.setattr("cpc.evaluate.probe.CHUNK_FRAMES", 64)
    np.testing.assert_allclose(predict(probe, x), whole, rtol=1e-5, atol=1e-5)
    monkeypatch.undo()

    def spy(probe, features):
        shapes.append(features.shape)
        return np.zeros((len(features), 4), np.float32)

    monkeypatch.setattr("cpc.evaluate.probe.log_probabilities", spy)
    for values in (None, 8 * 300):
        if values:
            monkeypatch.setattr("cpc.evaluate.probe.CHUNK_VALUES", values)
        assert predict(probe, x).shape == (500, 4)
    assert shapes == [(512, 8), (300, 8), (300, 8)]


def test_paper_sgd_reaches_the_optimum():
    x, y, _ = blobs(1000)
    options = {"weight_decays": [1e-3], "optimizer": evaluate.paper_sgd, "learning_rate": 0.1}
    probe = fit_probe(x, y, np.arange(1000), num_classes=4, min_updates=2000, **options)
    optimum = fit_lbfgs_probe(x, y, num_classes=4, l2s=[1e-3], tolerance=1e-5)
    np.testing.assert_allclose(probe.params[0][0], optimum.params[0][0], atol=0.01)


def test_paper_sgd_rates():
    """Rates 0.1, 0.01 and 0.001 for 50, 25 and 10 thousand updates, scaled down."""
    transform = evaluate.paper_sgd(0.1, 85)
    state = transform.init(1.0)
    updates, previous = [], 0.0
    for _ in range(85):
        update, state = transform.update(1.0, state)
        previous = 0.9 * previous + 1.0
        updates.append(-float(update) / previous)
    np.testing.assert_allclose(updates, [0.1] * 50 + [0.01] * 25 + [0.001] * 10, rtol=1e-4)


def test_invalid_input_is_rejected():
    x, y, utterances = blobs(100)
    for labels, groups, num_classes, match in (
        (0 * y, utterances, 4, "two classes"),
        (y, utterances, 3, r"0\.\.2"),
        (y, 0 * utterances, 4, "two labelled training utterances"),
    ):
        with pytest.raises(UserError, match=match):
            fit_probe(x, labels, groups, num_classes=num_classes)
    assert fit_probe(x, y, 0 * utterances, num_classes=4, weight_decays=(1e-4,))
    broken = x.copy()
    broken[3, 5] = np.inf
    probe = fit_ridge_probe(x, y, num_classes=4)
    for ask in (
        lambda: fit_probe(broken, y, utterances, num_classes=4),
        lambda: fit_ridge_probe(broken, y, num_classes=4),
        lambda: fit_lbfgs_probe(broken, y, num_classes=4),
        lambda: predict(probe, broken),
        lambda: evaluate.knn_predict(broken, y, x, num_classes=4),
        lambda: evaluate.knn_predict(x, y, broken, num_classes=4),
    ):
        with pytest.raises(UserError, match="feature 5 of 8"):
            ask()


def naive_neighbours(frames, reach):
    rows = []
    for t in range(len(frames)):
        around = [min(max(s, 0), len(frames) - 1) for s in range(t - reach, t + reach + 1)]
        rows.append(np.concatenate([frames[s] for s in around]))
    return np.array(rows)


def utterances_of(*lengths):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((length, 3)).astype(np.float32) for length in lengths]


@pytest.mark.parametrize("reach", [0, 2, 8])
def test_neighbours_equal_the_naive_twin_within_each_utterance(reach):
    parts = utterances_of(30, 1, 5)
    stacked = [evaluate.with_neighbours(part, reach) for part in parts]
    expected = [naive_neighbours(part, reach) for part in parts]
    for one, rows in zip(stacked, expected, strict=True):
        assert one.shape == rows.shape
        np.testing.assert_array_equal(read_rows(one, 2, 4), rows[2:4])
    joined = join(stacked)
    np.testing.assert_array_equal(read_rows(joined), np.concatenate(expected))
    assert len(joined.frames) == 36 + 3 * 2 * reach  # padding frames at each end


def test_keep_copies_only_needed_frames():
    (frames,) = utterances_of(20)
    rows = evaluate.with_neighbours(frames, 2)
    kept = keep(rows, np.array([9, 3]))
    np.testing.assert_array_equal(read_rows(kept), read_rows(rows)[[9, 3]])
    assert len(kept.frames) == 10
    single = keep(as_stacked(frames), np.array([5, 1]))
    np.testing.assert_array_equal(single.frames, frames[[1, 5]])
    np.testing.assert_array_equal(read_rows(single), frames[[5, 1]])


def speakers_data(num_utterances, seed):
    rng, labels = np.random.default_rng(seed), [n % 3 for n in range(num_utterances)]
    bad = [np.float32(rng.standard_normal((rng.integers(3, 9), 3))) for _ in labels]
    good = [
        0.6 * x[::-1] + np.eye(3, dtype=np.float32)[s] for x, s in zip(bad, labels, strict=True)
    ]
    return {"good": good, "bad": bad}, labels


def test_probe_scores_fields():
    train, train_labels = speakers_data(120, 0)
    test, test_labels = speakers_data(60, 1)
    options = {"task": "speakers", "data": "toy", "num_classes": 3, "hidden_widths": (0, 8)}
    options |= {"units": ("frame", "utterance"), "updates": Updates(min_updates=300, batch_size=64)}
    scores = list(evaluate.probe_scores(train, test, train_labels, test_labels, **options))
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
        assert len(score.outcomes.sums) == 60  # per utterance
        assert score.outcomes.sums.sum() / score.outcomes.counts.sum() == score.value
    found = difference(found["good", "linear", "frame"], found["bad", "linear", "frame"])
    assert found.paired == "items"
    assert found.low > 0.2


def test_restricted_accuracy_equals_loops():
    """Class 2 is silence, classes 0 and 1 are a pair."""
    rng = np.random.default_rng(0)
    labels = [rng.integers(-1, 4, n) for n in (7, 9, 8)] + [np.full(4, 2)]
    answers = [rng.normal(size=(len(own), 4)).astype(np.float32) for own in labels]
    speech = np.repeat([[True], [True], [False], [True]], 4, axis=1)
    pair = np.zeros((4, 4), bool)
    pair[:2, :2] = True
    restricted = [evaluate.Restricted("frame", m, r) for m, r in (("a", speech), ("b", pair))]
    units = ("frame", *restricted)
    options = {"task": "phones", "data": "toy", "features": "c", "units": units}
    found = list(evaluate.answer_scores(answers, labels, labels, **options))
    assert [one.metric for one in found] == ["accuracy", "a", "b"]
    flat, rows = np.concatenate(labels), np.concatenate(answers)
    count = np.bincount(flat[flat >= 0])
    for score, rivals in zip(found[1:], (speech, pair), strict=True):
        hits, lucky = [], []
        for label, row in zip(flat, rows, strict=True):
            classes = np.flatnonzero(rivals[label]) if label >= 0 else []
            if len(classes):
                hits.append(max(classes, key=lambda c: row[c]) == label)
                guess = max((c for c in classes if rivals[c].any()), key=lambda c: count[c])
                lucky.append(guess == label)
        assert score.num_test == len(hits)
        assert score.value == pytest.approx(np.mean(hits))
        assert score.chance == pytest.approx(np.mean(lucky))
    absent = [np.full(3, 2)]  # the pair is not tested
    left = evaluate.answer_scores([answers[3][:3]], labels, absent, **options)
    assert [one.metric for one in left] == ["accuracy"]


def test_answer_scores_equal_probe_scores():
    features = speakers_data(12, 0)[0]["good"]
    labels = [np.r_[-1, np.full(len(rows) - 1, i % 3)] for i, rows in enumerate(features)]
    options = {"task": "speakers", "data": "toy", "units": ("frame", "utterance")}
    fit_options = {"num_classes": 3, "weight_decays": (0.1,)}
    given = {"c": features}, {"c": features}, labels, labels
    scores = list(evaluate.probe_scores(*given, **options, **fit_options))
    flat, utterances = np.concatenate(labels), np.repeat(np.arange(12), list(map(len, labels)))
    probe = evaluate.fit_probe(np.concatenate(features), flat, utterances, **fit_options)
    answers = [predict(probe, one) for one in features]
    options["features"] = "c"
    again = evaluate.answer_scores(answers, labels, labels, setting="l2 0.1", **options)
    for one, other in zip(again, scores, strict=True):
        assert one._replace(outcomes=None) == other._replace(outcomes=None)
    assert scores[0].num_test == (flat >= 0).sum()
    moved = [*labels[:-1], np.where(labels[-1] < 0, -1, 1)]
    elsewhere, _ = evaluate.answer_scores(answers, labels, moved, **options)
    assert difference(scores[0], elsewhere).paired == ""
    wrong = evaluate.answer_scores(answers, labels, labels[:-1], **options)
    with pytest.raises(UserError, match=r"answers .*12 utterances .*11"):
        list(wrong)


def test_mismatched_labels_are_named():
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
            list(evaluate.probe_scores(features, features, labels, labels, **options))
