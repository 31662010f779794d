import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, RidgeCV

from cpc.evaluate import describe_fit, fit_lbfgs_probe, fit_ridge_probe, label_subset, predict
from cpc.types import UserError


def unequal_axes(n, d, num_classes=3, seed=0):
    """Return off-center features whose informative axes differ in scale by 1000."""
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(rng.standard_normal((d, d)))
    z = rng.standard_normal((n, d))
    labels = (z @ rng.standard_normal((d, num_classes)) + 2 * rng.gumbel(size=(n, 3))).argmax(1)
    return (5 + z * np.logspace(0, -3, d) @ rotation.T).astype(np.float32), labels


def standardise(x):
    x = x.astype(np.float64)
    return (x - x.mean(axis=0)) / x.std(axis=0)


@pytest.mark.parametrize(
    ("n", "d", "l2", "tolerance"),
    [(800, 12, 1e-3, 3e-4), (40, 60, 1e-2, 3e-4)],  # separable, so its optimum is flat
)
def test_logistic_fit_equals_scikit_learn(n, d, l2, tolerance):
    x, y = unequal_axes(n, d)
    probe = fit_lbfgs_probe(x, y, num_classes=3, l2s=[l2], tolerance=3e-6)
    assert probe.converged
    twin = LogisticRegression(C=1 / (n * l2), tol=1e-9, max_iter=20_000)
    twin.fit(standardise(x), y)
    ((weight, bias),) = probe.params
    largest = np.abs(twin.coef_).max()
    np.testing.assert_allclose(weight, twin.coef_.T, atol=tolerance * largest)
    centred = twin.intercept_ - twin.intercept_.mean()
    np.testing.assert_allclose(bias - bias.mean(), centred, atol=tolerance * largest)
    expected = twin.predict_log_proba(standardise(x))
    np.testing.assert_allclose(
        predict(probe, x), expected, atol=tolerance * max(1, np.abs(expected).max())
    )
    assert probe.weight_decay == l2
    assert describe_fit(probe) == f"l2 {l2:g}"


def test_unequal_axes_need_few_steps(monkeypatch):
    """Without scaling the gradient after 40 steps is 1000 times as large."""
    monkeypatch.setattr("cpc.evaluate.convex.MAX_ITERATIONS", 40)
    x, y = unequal_axes(600, 20, seed=1)
    ((weight, bias),) = fit_lbfgs_probe(x, y, num_classes=3, l2s=[1e-5], tolerance=1e-6).params
    x, weight = standardise(x), np.asarray(weight, np.float64)
    scores = x @ weight + np.asarray(bias)
    share = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    gradient = x.T @ (share - np.eye(3)[y]) / len(x) + 1e-5 * weight
    assert np.abs(gradient).max() < 2e-5
    monkeypatch.setattr("cpc.evaluate.convex.MAX_ITERATIONS", 2)
    stopped = fit_lbfgs_probe(np.float32(x), y, num_classes=3, l2s=[1e-3])
    assert not stopped.converged
    assert "not converged" in describe_fit(stopped)


def test_independent_labels_converge():
    """The gradient at zero weights, the reference of the tolerance, is only rounding."""
    x = np.random.default_rng(0).standard_normal((100, 5))
    probe = fit_lbfgs_probe(np.tile(x, (3, 1)), np.repeat([0, 1, 2], 100), num_classes=3, l2s=[0.1])
    assert probe.converged
    np.testing.assert_allclose(probe.params[0][0], 0, atol=1e-4)


@pytest.mark.parametrize("factor", [1e-24, 1e30])
def test_scale_of_features_has_no_effect(factor):
    """Squares would vanish or overflow in float32."""
    x, y = unequal_axes(200, 4)
    want, found = (
        predict(fit_lbfgs_probe(x * s, y, num_classes=3, l2s=[0.1]), x * s) for s in (1, factor)
    )
    np.testing.assert_allclose(found, want, atol=1e-3)


def test_penalty_does_not_depend_on_the_number_of_rows(monkeypatch):
    x, y = unequal_axes(1500, 6)
    options = {"num_classes": 3, "tolerance": 1e-6}
    whole = fit_lbfgs_probe(x, y, **options)
    monkeypatch.setattr("cpc.evaluate.convex.SELECTION_ROWS", 300)
    some = fit_lbfgs_probe(x, y, **options)
    again = fit_lbfgs_probe(x, y, l2s=[some.weight_decay], **options)
    assert 0.09 < some.weight_decay / whole.weight_decay < 11
    np.testing.assert_allclose(some.params[0][0], again.params[0][0], rtol=1e-3, atol=2e-3)


def test_l2_is_chosen_on_held_out_rows_before_refitting():
    x, y = unequal_axes(100, 5)
    grid = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    held = label_subset(y, 0.1, seed=0)
    kept = np.setdiff1d(np.arange(len(y)), held)
    options = {"num_classes": 3, "tolerance": 1e-6}
    probes = [fit_lbfgs_probe(x[kept], y[kept], l2s=[l2], **options) for l2 in grid]
    nats = [-predict(probe, x[held])[np.arange(len(held)), y[held]].mean() for probe in probes]
    best = int(np.argmin(nats))
    assert 0 < best < len(grid) - 1

    chosen = fit_lbfgs_probe(x, y, **options)
    assert chosen.weight_decay == grid[best]
    again = fit_lbfgs_probe(x, y, l2s=[chosen.weight_decay], **options)
    np.testing.assert_allclose(chosen.params[0][0], again.params[0][0], rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(chosen.mean, again.mean)

    noise = np.random.default_rng(0).standard_normal((100, 5)).astype(np.float32)
    assert fit_lbfgs_probe(noise, y, num_classes=3).weight_decay == 1.0


@pytest.mark.parametrize(("n", "d"), [(200, 10), (30, 50)])
def test_ridge_fit_equals_scikit_learn_leave_one_out(n, d):
    x, y = unequal_axes(n, d)
    rng = np.random.default_rng(1)
    y = np.where(rng.uniform(size=n) < 0.7, rng.integers(0, 3, n), y)
    l2s = [1e-6, 1e-3, 1e-2, 1e-1, 1.0, 10.0]
    probe = fit_ridge_probe(x, y, num_classes=3, l2s=l2s)
    twin = RidgeCV(alphas=[n * l2 for l2 in l2s]).fit(standardise(x), np.eye(3)[y])
    assert probe.weight_decay == pytest.approx(twin.alpha_ / n)
    assert probe.weight_decay > l2s[0]  # differs from the first
    ((weight, bias),) = probe.params
    # In a float32 covariance, axes shorter by 1000 are accurate to about 0.001.
    np.testing.assert_allclose(weight, twin.coef_.T, atol=1e-3)
    np.testing.assert_allclose(bias, twin.intercept_, atol=1e-5)


@pytest.mark.parametrize("fit", [fit_lbfgs_probe, fit_ridge_probe])
def test_unlabelled_rows_and_constant_columns_have_no_effect(fit):
    x, y = unequal_axes(100, 5)
    x[:, 2] = 77.7
    more = np.concatenate([x, np.full((7, 5), np.nan, np.float32)])
    one = fit(x, y, num_classes=3, l2s=[0.1])
    two = fit(more, np.append(y, [-1] * 7), num_classes=3, l2s=[0.1])
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert np.isfinite(predict(one, x)).all()


def test_invalid_input_is_rejected():
    x, y = unequal_axes(100, 5)
    for fit in (fit_lbfgs_probe, fit_ridge_probe):
        for labels, num_classes, match in ((0 * y, 3, "two classes"), (y, 2, r"0\.\.1")):
            with pytest.raises(UserError, match=match):
                fit(x, labels, num_classes=num_classes)
        for l2 in (0.0, np.nan, np.inf):
            with pytest.raises(UserError, match="above zero"):
                fit(x, y, num_classes=3, l2s=[0.1, l2])
    with pytest.raises(UserError, match="one row"):
        fit_lbfgs_probe(x[:3], np.arange(3), num_classes=3)
    # The only row of a class is never held out.
    probe = fit_lbfgs_probe(x[:9], np.array([0, 1, 1, 1, 1, 2, 2, 2, 2]), num_classes=3)
    assert probe.params[0][1].argmin() == 0
