import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from cpc.evaluate import (
    Updates,
    adam_cosine,
    fit_lbfgs_probe,
    fit_probes,
    fit_ridge_probe,
    knn_predict,
    paper_sgd,
    predict,
    read_rows,
    with_neighbours,
)
from cpc.evaluate import fit_probe as fit_probe_fully
from cpc.evaluate.fit import draw_rows, fit_layers, split_utterances
from cpc.evaluate.probe import join
from cpc.types import UserError

QUICK = {"min_updates": 300, "batch_size": 128}


def fit_probe(*args, **options):
    """Fit a probe by few updates, whose fields may be among the options."""
    given = {name: options.pop(name) for name in Updates._fields if name in options}
    return fit_probe_fully(*args, updates=Updates(**{**QUICK, **given}), **options)


def blobs(num_frames, num_classes=4, width=8, noise=1.0, seed=0):
    """Gaussian classes far from the origin and of unequal scale, in utterances of 20 frames."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).standard_normal((num_classes, width))
    labels = rng.integers(0, num_classes, num_frames)
    features = means[labels] + noise * rng.standard_normal((num_frames, width))
    features = 100 + features * np.logspace(-2, 2, width)
    return features.astype(np.float32), labels, np.arange(num_frames) // 20


def accuracy(probe, features, labels):
    return float(np.mean(predict(probe, features).argmax(axis=1) == labels))


@pytest.mark.parametrize("weight_decay", [1e-4, 1e-2])
def test_linear_probes_are_scikit_learns_at_convergence(weight_decay):
    x, y, utterances = blobs(3000)
    test_x, test_y, _ = blobs(3000, seed=1)
    probe = fit_probe(x, y, utterances, num_classes=4, weight_decays=(weight_decay,))
    assert probe.converged
    scale = x.mean(axis=0), x.std(axis=0)
    reference = LogisticRegression(C=1 / (3000 * weight_decay), tol=1e-8, max_iter=10_000)
    reference.fit((x - scale[0]) / scale[1], y)

    def objective(weight, log_probabilities):
        nats = -log_probabilities[np.arange(3000), y].mean()
        return nats + weight_decay / 2 * np.square(weight).sum()

    theirs = objective(reference.coef_, reference.predict_log_proba((x - scale[0]) / scale[1]))
    ours = objective(np.asarray(probe.params[0][0]), predict(probe, x))
    assert theirs - 1e-5 < ours < theirs + 1e-3
    expected = reference.score((test_x - scale[0]) / scale[1], test_y)
    assert accuracy(probe, test_x, test_y) == pytest.approx(expected, abs=0.003)


def test_slow_directions_are_fitted():
    """Adam with few updates leaves them; a converged fit does not depend on their scale."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 4000)
    common = rng.standard_normal((4000, 1))  # hides the label in each of the features
    x = common + 0.01 * (y[:, None] - 0.5) * [1, -1] + 0.005 * rng.standard_normal((4000, 2))
    x, utterances = x.astype(np.float32), np.arange(4000) // 20
    stopped = fit_probe(x, y, utterances, num_classes=2, optimizer=adam_cosine)
    assert accuracy(fit_probe(x, y, utterances, num_classes=2), x, y) > 0.9
    assert accuracy(stopped, x, y) < 0.8


def test_solves_a_separable_problem_with_a_constant_feature():
    x, y, utterances = blobs(600, noise=0.1)
    x[:, 3] = 1234.5
    probe = fit_probe(x, y, utterances, num_classes=4)
    assert accuracy(probe, x, y) > 0.98
    np.testing.assert_allclose(np.exp(predict(probe, x)).sum(axis=1), 1, rtol=1e-5)


def test_the_hidden_layer_solves_exclusive_or_by_its_seed():
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


def test_unlabelled_frames_change_nothing():
    x, y, utterances = blobs(600)
    more = np.concatenate([x, 1e6 * np.ones_like(x[:50])])
    one = fit_probe(x, y, utterances, num_classes=4)
    two = fit_probe(more, np.append(y, [-1] * 50), np.append(utterances, [999] * 50), num_classes=4)
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)


def test_random_labels_choose_the_strongest_decay():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 100)).astype(np.float32)
    y, utterances = (np.arange(400) % 10 == 0).astype(int), np.arange(400) // 4
    probe = fit_probe(x, y, utterances, num_classes=2, weight_decays=(1e-5, 10.0))
    assert probe.weight_decay == 10.0
    assert np.abs(probe.params[0][0]).max() < 0.05


def test_validation_never_divides_an_utterance():
    labels = np.random.default_rng(0).integers(-1, 3, 500)
    utterances = np.random.default_rng(1).integers(0, 30, 500)
    train, held = split_utterances(labels, utterances, 0.1, np.random.default_rng(0))
    assert not set(utterances[train]) & set(utterances[held])
    assert len(set(utterances[held])) == 3
    assert sorted([*train, *held]) == list(np.flatnonzero(labels >= 0))


def test_refits_on_all_training_utterances_with_the_decay_that_held_out_ones_chose(monkeypatch):
    x, y, utterances = blobs(400)
    train, held = split_utterances(y, utterances, 0.1, np.random.default_rng(0))
    read: dict[int, set] = {}

    def spy(params, state, frames, index, labels, weight_decays, rate, **options):
        rows = np.asarray(frames)[np.unique(index)] * x.std(axis=0) + x.mean(axis=0)
        apart = np.linalg.norm(rows[:, None] - x, axis=-1)
        assert apart.min(axis=1).max() < 1e-3 < np.sort(apart)[:, 1].min()
        read.setdefault(len(weight_decays), set()).update(apart.argmin(axis=1).tolist())
        return fit_layers(params, state, frames, index, labels, weight_decays, rate, **options)

    monkeypatch.setattr("cpc.evaluate.fit.fit_layers", spy)
    fit_probe(x, y, utterances, num_classes=4, optimizer=adam_cosine)
    assert len(held) == 40
    assert read == {3: set(train.tolist()), 1: set(range(400))}


@pytest.mark.parametrize(
    ("min_updates", "updates"), [(10, {3: 60, 1: 200}), (240, {3: 80, 1: 240})]
)
def test_decays_are_compared_after_a_third_of_the_updates(monkeypatch, min_updates, updates):
    """36 and 40 batches of 10 an epoch; the least of updates is of all that a fit makes."""
    x, y, utterances = blobs(400)
    found = {}

    def spy(*args, num_updates, **options):
        found[len(args[5])] = num_updates
        return fit_layers(*args, num_updates=num_updates, **options)

    monkeypatch.setattr("cpc.evaluate.fit.fit_layers", spy)
    options = {"num_epochs": 5, "min_updates": min_updates, "batch_size": 10}
    options["optimizer"] = adam_cosine
    fit_probe(x, y, utterances, num_classes=4, **options)
    assert found == updates


def test_probes_that_are_fitted_side_by_side_are_those_that_are_fitted_alone():
    data, options = blobs(200), {"num_epochs": 1, "min_updates": 30}
    updates = Updates(**{**QUICK, **options})
    together = fit_probes(*data, num_classes=4, hidden_widths=(0, 5), updates=updates)
    assert [len(probe.params) for probe in together] == [1, 2]
    for width, probe in zip((0, 5), together, strict=True):
        alone = fit_probe(*data, num_classes=4, hidden_width=width, **options)
        assert probe.weight_decay == alone.weight_decay
        jax.tree.map(np.testing.assert_array_equal, probe, alone)


def test_every_row_is_drawn_equally_often():
    calls = draw_rows(10, 3, 5, np.random.default_rng(0))
    drawn = np.stack([next(calls) for _ in range(4)])
    assert drawn.shape == (4, 3, 5)
    np.testing.assert_array_equal(np.bincount(drawn.ravel()), np.full(10, 6))
    assert len(set(drawn.ravel()[:10])) == 10


def test_neighbours_laid_side_by_side_or_read_where_they_are_needed():
    x, y, utterances = blobs(600, width=3)
    y[::7] = -1
    stacked = join([with_neighbours(part, 2) for part in np.split(x, 30)])
    copied = read_rows(stacked)
    one, two = (
        fit_probe(rows, y, utterances, num_classes=4, weight_decays=(1e-3,), min_updates=1500)
        for rows in (stacked, copied)
    )
    np.testing.assert_allclose(predict(one, stacked), predict(one, copied), atol=1e-5)
    # Standardised by a frame's own numbers or by those of its place, which hardly differ.
    np.testing.assert_allclose(predict(one, stacked), predict(two, copied), atol=0.2)
    assert accuracy(one, stacked, y) > accuracy(
        fit_probe(x, y, utterances, num_classes=4, weight_decays=(1e-3,)), x, y
    )


def test_predicts_in_chunks_whose_rows_follow_length_and_width(monkeypatch):
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


def test_the_papers_sgd_on_one_row_a_picture_reaches_the_optimum():
    x, y, _ = blobs(1000)
    options = {"weight_decays": [1e-3], "optimizer": paper_sgd, "learning_rate": 0.1}
    probe = fit_probe(x, y, np.arange(1000), num_classes=4, min_updates=2000, **options)
    optimum = fit_lbfgs_probe(x, y, num_classes=4, l2s=[1e-3], tolerance=1e-5)
    np.testing.assert_allclose(probe.params[0][0], optimum.params[0][0], atol=0.01)


def test_the_papers_rates():
    """0.1, 0.01 and 0.001 for 50, 25 and 10 thousand updates, momentum 0.9: scaled down."""
    transform = paper_sgd(0.1, 85)
    state = transform.init(1.0)
    updates, previous = [], 0.0
    for number in range(85):
        update, state = transform.update(1.0, state)
        previous = 0.9 * previous + 1.0
        updates.append(-float(update) / previous)
        assert np.isfinite(updates[number])
    np.testing.assert_allclose(updates, [0.1] * 50 + [0.01] * 25 + [0.001] * 10, rtol=1e-4)


def test_user_mistakes():
    x, y, utterances = blobs(100)
    with pytest.raises(UserError, match="two classes"):
        fit_probe(x, 0 * y, utterances, num_classes=4)
    with pytest.raises(UserError, match=r"0\.\.2"):
        fit_probe(x, y, utterances, num_classes=3)
    with pytest.raises(UserError, match="two labelled training utterances"):
        fit_probe(x, y, 0 * utterances, num_classes=4)
    assert fit_probe(x, y, 0 * utterances, num_classes=4, weight_decays=(1e-4,))


def test_features_that_are_no_numbers_are_refused():
    """Every answer had been the first class, with an interval."""
    x, y, utterances = blobs(100)
    broken = x.copy()
    broken[3, 5] = np.inf
    probe = fit_ridge_probe(x, y, num_classes=4)
    for ask in (
        lambda: fit_probe(broken, y, utterances, num_classes=4),
        lambda: fit_ridge_probe(broken, y, num_classes=4),
        lambda: fit_lbfgs_probe(broken, y, num_classes=4),
        lambda: predict(probe, broken),
        lambda: knn_predict(broken, y, x, num_classes=4),
        lambda: knn_predict(x, y, broken, num_classes=4),
    ):
        with pytest.raises(UserError, match="feature 5 of 8"):
            ask()
