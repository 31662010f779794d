import numpy as np
import pytest

from cpc.evaluate import FRACTIONS, few_label_score, label_subset, seeds_interval
from cpc.results import difference
from cpc.types import UserError

LABELS = np.random.default_rng(0).choice([-1, 0, 1, 2], 2000, p=[0.2, 0.5, 0.29, 0.01])


def test_subsets_are_nested_stratified_and_sorted():
    counts = np.bincount(LABELS[LABELS >= 0])
    previous = set()
    for fraction in FRACTIONS:
        kept = label_subset(LABELS, fraction, seed=3)
        assert (np.diff(kept) > 0).all()
        assert previous <= set(kept)
        expected = [max(1, round(fraction * count)) for count in counts]
        np.testing.assert_array_equal(np.bincount(LABELS[kept]), expected)
        previous = set(kept)
    assert previous == set(np.flatnonzero(LABELS >= 0))


def test_subsets_follow_the_seed():
    one, two, other = (label_subset(LABELS, 0.1, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, two)
    shared = len(set(one) & set(other)) / len(one)
    assert 0.03 < shared < 0.2  # independent draws of a tenth share a tenth
    assert not (np.diff(one) == 1).all()


def test_impossible_fractions():
    for fraction in (0, 1.5):
        with pytest.raises(UserError, match="above 0 and at most 1"):
            label_subset(LABELS, fraction, 0)
    with pytest.raises(UserError, match="no row has a label"):
        label_subset(np.full(4, -1), 0.5, 0)


@pytest.mark.parametrize("seeds_differ", [0.0, 0.08])
def test_interval_covers_the_truth(seeds_differ):
    """Whether the chance lies in the pictures alone or in the subsets as well."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        difficulty = rng.uniform(0.4, 0.8, 150)  # mean 0.6
        shift = seeds_differ * rng.standard_normal((5, 1))
        correct = rng.uniform(size=(5, 150)) < difficulty + shift
        low, high = seeds_interval(correct)
        covered.append(low <= 0.6 <= high)
    assert 0.92 <= np.mean(covered) <= 0.99


def test_interval_at_the_edges():
    for seeds in (1, 3):
        right, wrong = np.ones((seeds, 10), bool), np.zeros((seeds, 10), bool)
        exact = 0.025**0.1  # Clopper and Pearson's, of ten answers
        assert seeds_interval(right) == (pytest.approx(exact), 1.0)
        assert seeds_interval(wrong) == (0.0, pytest.approx(1 - exact))
        assert np.isnan(seeds_interval(right[:, :1])).all()  # one image says nothing of others
    halves = np.array([[True, False] * 5, [False, True] * 5])  # neither seeds nor images differ
    assert np.isnan(seeds_interval(halves)).all()
    low, high = seeds_interval(np.array([[True] * 95 + [False] * 5]))
    assert high == pytest.approx(0.95 + 1.984 * np.sqrt(0.95 * 0.05 / 99), abs=1e-3)
    assert seeds_interval(np.array([[True] * 9 + [False]]))[1] == 1.0
    assert low < 0.95 < high


def test_score_of_several_subsets():
    correct, labels = np.array([[1, 1, 0, 0], [1, 1, 1, 0]], bool), np.arange(4)
    options = {"data": "toy", "features": "z", "mode": "frozen", "fraction": 1, "num_labels": 60}
    score = few_label_score(correct, labels, **options)
    assert (score.value, score.method, score.num_train, score.num_test) == (0.625, "frozen", 60, 4)
    assert score.low < 0.625 < score.high
    assert few_label_score(correct[1:], labels, **options).high > 0.75  # all labels: one subset
    other = few_label_score(correct[::-1], labels, **{**options, "features": "pixels"})
    assert difference(score, other)[:3] == (0, 0, 0)
    assert difference(score, other).paired == "items"


def test_a_difference_of_few_labels_does_not_leave_out_which_were_drawn():
    """Two methods are equally good, and each subset of the labels moves both of them by chance."""
    rng, sure = np.random.default_rng(0), 0
    labels = rng.integers(0, 10, 2000)
    options = {"data": "toy", "mode": "frozen", "fraction": 0.01, "num_labels": 60}
    for _ in range(100):
        ours, theirs = (
            few_label_score(
                rng.uniform(size=(3, 2000)) < 0.8 + 0.03 * rng.standard_normal((3, 1)),
                labels,
                features=name,
                **options,
            )
            for name in ("z", "random z")
        )
        found = difference(ours, theirs)
        sure += found.low > 0 or found.high < 0
    assert found.paired == ""
    assert ours.low < ours.value < ours.high
    assert sure <= 8
    one = few_label_score(rng.uniform(size=(1, 2000)) < 0.8, labels, features="z", **options)
    assert (one.low, one.high) == (None, None)
    assert np.isnan(difference(one, ours).low)
