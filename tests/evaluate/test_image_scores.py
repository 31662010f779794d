import numpy as np
import pytest

from cpc.evaluate import bootstrap_interval, embed_images, image_scores, in_best
from cpc.results import difference, paired_difference
from cpc.types import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (11, 4, 4, 1), np.uint8)


class Lazy:
    """Pictures that are decoded when asked for."""

    def __len__(self):
        return len(PIXELS)

    def __getitem__(self, index):
        assert isinstance(index, int)
        return PIXELS[index]


@pytest.mark.parametrize(("images", "batch_size"), [(PIXELS, 4), (Lazy(), 4), (PIXELS, 100)])
def test_features_of_all_images_in_batches_of_one_shape(images, batch_size):
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
    """Answers of two that are mostly right on the same images."""
    common = rng.uniform(size=count)
    own = rng.uniform(size=(2, count))
    draw = np.where(rng.uniform(size=count) < shared, common, own)
    return draw[0] < ours, draw[1] < theirs


def test_paired_interval_covers_and_is_narrower_than_two_intervals():
    rng = np.random.default_rng(0)
    covered, rejected = [], []
    for trial in range(400):
        ours, theirs = outcomes(rng, 300)
        found = paired_difference(ours, theirs, num_resamples=500, seed=trial)
        covered.append(found.low <= 0.07 <= found.high)
        rejected.append(
            paired_difference(*outcomes(rng, 300, 0.6, 0.6), num_resamples=1).p_value < 0.05
        )
    assert 0.92 <= np.mean(covered) <= 0.98
    assert np.mean(rejected) <= 0.06  # an exact test rejects at most so often
    low, high = bootstrap_interval(ours, np.ones(300, int))
    assert found.high - found.low < 0.75 * (high - low) * np.sqrt(2)


def test_paired_difference_is_a_bootstrap_over_items():
    ours, theirs = outcomes(np.random.default_rng(1), 80)
    drawn = np.random.default_rng(2).integers(80, size=(20_000, 80))
    naive = (ours.astype(float) - theirs)[drawn].mean(axis=1)
    found = paired_difference(ours, theirs)
    assert found.value == pytest.approx(ours.mean() - theirs.mean())
    np.testing.assert_allclose(
        [found.low, found.high], np.quantile(naive, [0.025, 0.975]), atol=1 / 80 + 1e-9
    )
    back = paired_difference(theirs, ours)
    assert back.value == -found.value
    assert back.p_value == found.p_value


@pytest.mark.parametrize("count", [3, 5, 6, 10])
def test_few_items_are_as_sure_as_the_exact_test(count):
    """All right against all wrong: of five items one in sixteen such pairs is by chance."""
    ours, theirs = np.ones(count, bool), np.zeros(count, bool)
    found, back = paired_difference(ours, theirs), paired_difference(theirs, ours)
    assert found.p_value == 2 / 2**count
    assert (found.low > 0) == (count > 5)
    assert (found.low, found.high) == (-back.high, -back.low)
    assert found.high == 1.0
    # Of more items some might have differed, and none of these would in one draw of forty.
    most = 1 - 0.025 ** (1 / count)
    assert paired_difference(ours, ours)[:4] == pytest.approx((0.0, -most, most, 1.0))


def test_equal_ones_are_rarely_called_different():
    """Of few items the percentiles alone would: in 9 of 100 of ten items."""
    rng, wrong = np.random.default_rng(0), []
    for _ in range(300):
        found = paired_difference(*(rng.uniform(size=(2, 10)) < 0.5), num_resamples=300)
        wrong.append(found.low > 0 or found.high < 0)
    assert np.mean(wrong) < 0.05


def test_scores_say_what_they_measure():
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


def test_among_the_best_is_a_place_in_the_sorted_scores():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(50, 9)), rng.integers(0, 9, 50)
    naive = [label in np.argsort(-row)[:5] for row, label in zip(scores, labels, strict=True)]
    np.testing.assert_array_equal(in_best(scores, labels, 5), naive)
    np.testing.assert_array_equal(in_best(scores, labels, 1), scores.argmax(1) == labels)
    assert in_best(scores, labels, 9).all()
    assert not in_best(np.zeros((3, 9)), labels[:3], 5).any()  # ties
    assert not in_best(np.full((3, 9), np.nan), labels[:3], 5).any()


def test_user_mistakes():
    labels = np.array([0, 1]), np.array([0, 1, 0, 1])
    few, all_ = ({("z", "linear"): np.ones(n, bool)} for n in (3, 4))
    for correct, five in ((few, None), (all_, few)):
        with pytest.raises(UserError, match="3 of 4"):
            image_scores(correct, {}, *labels, task="classes", data="toy", correct_5=five)
    with pytest.raises(UserError, match="3 and 2"):
        paired_difference(np.ones(3, bool), np.ones(2, bool))
