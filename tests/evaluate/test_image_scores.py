import numpy as np
import pytest
from scipy import stats

from cpc.evaluate import FRACTIONS, embed_images, few_label_score, image_scores, label_subset
from cpc.evaluate.accuracy import in_best
from cpc.evaluate.images import seeds_interval
from cpc.results import difference, paired_difference
from cpc.types import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (11, 4, 4, 1), np.uint8)


class Lazy:
    """Images that are decoded on access."""

    def __len__(self):
        return len(PIXELS)

    def __getitem__(self, index):
        assert isinstance(index, int)
        return PIXELS[index]


@pytest.mark.parametrize(("images", "batch_size"), [(PIXELS, 4), (Lazy(), 4), (PIXELS, 100)])
def test_embed_images_uses_one_batch_shape(images, batch_size):
    shapes = set()

    def embed(x):
        shapes.add(x.shape)
        return {"z": x.reshape(len(x), -1), "mean": x.mean((1, 2, 3))}

    features = embed_images(embed, images, batch_size)
    np.testing.assert_array_equal(features["z"], PIXELS.reshape(11, 16))
    np.testing.assert_allclose(features["mean"], PIXELS.mean((1, 2, 3)), rtol=1e-6)
    assert features["z"].dtype == np.float32
    assert shapes == {(min(batch_size, 11), 4, 4, 1)}
    with pytest.raises(UserError, match="no images"):
        embed_images(lambda x: x, PIXELS[:0])


def outcomes(rng, count, ours=0.62, theirs=0.55, shared=0.8):
    common = rng.uniform(size=count)
    own = rng.uniform(size=(2, count))
    draw = np.where(rng.uniform(size=count) < shared, common, own)
    return draw[0] < ours, draw[1] < theirs


def test_paired_difference_equals_a_bootstrap():
    ours, theirs = outcomes(np.random.default_rng(1), 80)
    drawn = np.random.default_rng(2).integers(80, size=(20_000, 80))
    naive = (ours.astype(float) - theirs)[drawn].mean(axis=1)
    found = paired_difference(ours, theirs)
    assert found.value == pytest.approx(ours.mean() - theirs.mean())
    np.testing.assert_allclose(
        [found.low, found.high], np.quantile(naive, [0.025, 0.975]), atol=1 / 80 + 1e-9
    )
    back, differ = paired_difference(theirs, ours), ours != theirs
    assert back.value == -found.value
    exact = stats.binomtest(int(ours[differ].sum()), int(differ.sum())).pvalue
    assert back.p_value == found.p_value == pytest.approx(exact)


@pytest.mark.parametrize("count", [5, 6])
def test_interval_of_few_items_agrees_with_the_exact_test(count):
    """With five items, one in sixteen such pairs occurs by chance."""
    ours, theirs = np.ones(count, bool), np.zeros(count, bool)
    found, back = paired_difference(ours, theirs), paired_difference(theirs, ours)
    assert found.p_value == 2 / 2**count
    assert (found.low > 0) == (count > 5)
    assert (found.low, found.high) == (-back.high, -back.low)
    assert found.high == 1.0
    # The largest rate of differing items that shows none in 2.5 % of samples.
    most = 1 - 0.025 ** (1 / count)
    assert paired_difference(ours, ours)[:4] == pytest.approx((0.0, -most, most, 1.0))


def test_image_scores_fields():
    rng = np.random.default_rng(0)
    train_labels, test_labels = np.array([0, 0, 1, 2]), rng.integers(0, 3, 200)
    ours, theirs = outcomes(rng, 200, 0.9, 0.5)
    correct = {("z", "linear"): ours, ("random z", "linear"): theirs, ("z", "knn"): theirs}
    settings, five = {("z", "linear"): "l2 0.001"}, {("z", "linear"): ours | theirs}
    names = {"task": "classes", "data": "toy", "correct_5": five}
    linear, random, knn, five = image_scores(correct, settings, train_labels, test_labels, **names)
    assert linear.value == pytest.approx(ours.mean())
    assert linear.low < linear.value < linear.high
    assert linear.chance == np.mean(test_labels == 0)
    assert (linear.num_train, linear.num_test, linear.unit) == (4, 200, "image")
    assert (linear.setting, random.setting, knn.method) == ("l2 0.001", "", "knn")
    assert difference(linear, random) == paired_difference(ours, theirs)
    assert (five.metric, five.features, five.chance) == ("top-5 accuracy", "z", None)
    assert five.value == pytest.approx((ours | theirs).mean())


def test_in_best_equals_sorting():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(50, 9)), rng.integers(0, 9, 50)
    naive = [label in np.argsort(-row)[:5] for row, label in zip(scores, labels, strict=True)]
    np.testing.assert_array_equal(in_best(scores, labels, 5), naive)
    np.testing.assert_array_equal(in_best(scores, labels, 1), scores.argmax(1) == labels)
    assert in_best(scores, labels, 9).all()
    assert not in_best(np.zeros((3, 9)), labels[:3], 5).any()  # ties
    assert not in_best(np.full((3, 9), np.nan), labels[:3], 5).any()


def test_invalid_input_is_rejected():
    labels = np.array([0, 1]), np.array([0, 1, 0, 1])
    few, all_ = ({("z", "linear"): np.ones(n, bool)} for n in (3, 4))
    for correct, five in ((few, None), (all_, few)):
        with pytest.raises(UserError, match="3 of 4"):
            image_scores(correct, {}, *labels, task="classes", data="toy", correct_5=five)
    with pytest.raises(UserError, match="3 and 2"):
        paired_difference(np.ones(3, bool), np.ones(2, bool))


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


def test_subsets_depend_on_the_seed():
    one, two, other = (label_subset(LABELS, 0.1, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, two)
    shared = len(set(one) & set(other)) / len(one)
    assert 0.03 < shared < 0.2  # independent tenths share a tenth
    assert not (np.diff(one) == 1).all()
    for fraction in (0, 1.5):
        with pytest.raises(UserError, match=str(fraction)):
            label_subset(LABELS, fraction, 0)
    with pytest.raises(UserError, match="no row has a label"):
        label_subset(np.full(4, -1), 0.5, 0)


@pytest.mark.parametrize("seeds_differ", [0.0, 0.08])
def test_interval_covers_the_truth(seeds_differ):
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
        exact = 0.025**0.1  # Clopper-Pearson for ten answers
        assert seeds_interval(right) == (pytest.approx(exact), 1.0)
        assert seeds_interval(wrong) == (0.0, pytest.approx(1 - exact))
        assert np.isnan(seeds_interval(right[:, :1])).all()  # one image gives no interval
    halves = np.array([[True, False] * 5, [False, True] * 5])  # no variation
    assert np.isnan(seeds_interval(halves)).all()
    low, high = seeds_interval(np.array([[True] * 95 + [False] * 5]))
    assert high == pytest.approx(0.95 + 1.984 * np.sqrt(0.95 * 0.05 / 99), abs=1e-3)
    assert seeds_interval(np.array([[True] * 9 + [False]]))[1] == 1.0
    assert low < 0.95 < high


def test_score_over_several_subsets():
    correct, labels = np.array([[1, 1, 0, 0], [1, 1, 1, 0]], bool), np.arange(4)
    options = {"data": "toy", "features": "z", "mode": "frozen", "fraction": 1, "num_labels": 60}
    score = few_label_score(correct, labels, **options)
    assert (score.value, score.method, score.num_train, score.num_test) == (0.625, "frozen", 60, 4)
    assert score.low < 0.625 < score.high
    assert few_label_score(correct[1:], labels, **options).high > 0.75  # all labels: one subset
    other = few_label_score(correct[::-1], labels, **{**options, "features": "pixels"})
    assert difference(score, other)[:3] == (0, 0, 0)
    assert difference(score, other).paired == "items"


def test_difference_of_few_labels_includes_the_choice_of_labels():
    """Both methods are equally good, and each subset of labels moves both."""
    rng, sure = np.random.default_rng(0), 0
    labels = rng.integers(0, 10, 2000)
    options = {"data": "toy", "mode": "frozen", "fraction": 0.01, "num_labels": 60}

    def right():
        return rng.uniform(size=(3, 2000)) < 0.8 + 0.03 * rng.standard_normal((3, 1))

    for _ in range(100):
        both = [few_label_score(right(), labels, features=x, **options) for x in ("z", "random z")]
        ours, theirs = both
        found = difference(ours, theirs)
        sure += found.low > 0 or found.high < 0
    assert found.paired == ""
    assert ours.low < ours.value < ours.high
    assert sure <= 8
    one = few_label_score(rng.uniform(size=(1, 2000)) < 0.8, labels, features="z", **options)
    assert (one.low, one.high) == (None, None)
    assert np.isnan(difference(one, ours).low)
