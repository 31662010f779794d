import json

import numpy as np
import pytest

from cpc.evaluate import (
    bootstrap_interval,
    embed_pictures,
    in_best,
    paired_difference,
    picture_rows,
)
from cpc.types import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (11, 4, 4, 1), np.uint8)


class Lazy:
    """Pictures that are decoded when asked for."""

    def __len__(self):
        return len(PIXELS)

    def __getitem__(self, index):
        assert isinstance(index, int)
        return PIXELS[index]


@pytest.mark.parametrize("pictures", [PIXELS, Lazy()], ids=["array", "source"])
@pytest.mark.parametrize("batch_size", [4, 11, 100])
def test_features_of_all_pictures_in_batches_of_one_shape(pictures, batch_size):
    shapes = set()

    def embed(x):
        shapes.add(x.shape)
        return {"z": x.reshape(len(x), -1), "mean": x.mean((1, 2, 3))}

    features = embed_pictures(embed, pictures, batch_size)
    np.testing.assert_array_equal(features["z"], PIXELS.reshape(11, 16))
    np.testing.assert_allclose(features["mean"], PIXELS.mean((1, 2, 3)), rtol=1e-6)
    assert features["z"].dtype == np.float32
    assert shapes == {(min(batch_size, 11), 4, 4, 1)}


def test_no_pictures():
    with pytest.raises(UserError, match="no pictures"):
        embed_pictures(lambda x: x, PIXELS[:0])


def outcomes(rng, count, ours=0.62, theirs=0.55, shared=0.8):
    """Answers of two that are mostly right on the same pictures."""
    common = rng.uniform(size=count)
    own = rng.uniform(size=(2, count))
    draw = np.where(rng.uniform(size=count) < shared, common, own)
    return draw[0] < ours, draw[1] < theirs


def test_paired_interval_covers_and_is_narrower_than_two_intervals():
    rng = np.random.default_rng(0)
    covered, rejected = [], []
    for trial in range(400):
        ours, theirs = outcomes(rng, 300)
        difference = paired_difference(ours, theirs, num_resamples=500, seed=trial)
        covered.append(difference.low <= 0.07 <= difference.high)
        rejected.append(paired_difference(*outcomes(rng, 300, 0.6, 0.6), seed=0).p_value < 0.05)
    assert 0.92 <= np.mean(covered) <= 0.98
    assert np.mean(rejected) <= 0.06  # an exact test rejects at most so often
    low, high = bootstrap_interval(ours, np.ones(300, int))
    assert difference.high - difference.low < 0.75 * (high - low) * np.sqrt(2)


def test_paired_difference_is_a_bootstrap_over_pictures():
    ours, theirs = outcomes(np.random.default_rng(1), 80)
    drawn = np.random.default_rng(2).integers(80, size=(20_000, 80))
    naive = (ours.astype(float) - theirs)[drawn].mean(axis=1)
    difference = paired_difference(ours, theirs)
    assert difference.value == pytest.approx(ours.mean() - theirs.mean())
    np.testing.assert_allclose(
        [difference.low, difference.high], np.quantile(naive, [0.025, 0.975]), atol=1 / 80 + 1e-9
    )
    back = paired_difference(theirs, ours)
    assert back.value == -difference.value
    assert back.p_value == difference.p_value


def test_no_difference_at_all():
    ours = np.arange(10) < 6
    assert paired_difference(ours, ours) == (0.0, 0.0, 0.0, 1.0)


def test_rows_say_what_they_measure():
    rng = np.random.default_rng(0)
    train_labels, test_labels = np.array([0, 0, 1, 2]), rng.integers(0, 3, 200)
    ours, theirs = outcomes(rng, 200, 0.9, 0.5)
    correct = {("z", "linear"): ours, ("random z", "linear"): theirs, ("z", "knn"): theirs}
    rows = picture_rows(
        correct,
        {("z", "linear"): "l2 0.001"},
        train_labels,
        test_labels,
        task="classes",
        data="toy",
        num_classes=3,
        correct_5={("z", "linear"): ours | theirs},
    )
    assert json.loads(json.dumps(rows)) == rows
    linear, random, knn = rows
    assert linear["accuracy"] == pytest.approx(ours.mean())
    assert linear["low"] < linear["accuracy"] < linear["high"]
    assert linear["majority"] == np.mean(test_labels == 0)
    assert (linear["num_train"], linear["num_test"], linear["unit"]) == (4, 200, "picture")
    assert (linear["setting"], random["setting"]) == ("l2 0.001", "")
    assert list(linear["versus"]) == ["random z"]  # of the same probe
    assert linear["versus"]["random z"] == list(paired_difference(ours, theirs))
    assert random["versus"]["z"][0] == pytest.approx(theirs.mean() - ours.mean())
    assert knn["versus"] == {}
    five = linear["top_5"]
    assert five["accuracy"] == pytest.approx((ours | theirs).mean())
    assert five["low"] < five["accuracy"] < five["high"]
    assert "top_5" not in random


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
    with pytest.raises(UserError, match="answers for 3 of 4"):
        picture_rows(
            {("z", "linear"): np.ones(3, bool)},
            {},
            np.array([0, 1]),
            np.array([0, 1, 0, 1]),
            task="classes",
            data="toy",
            num_classes=2,
        )
    with pytest.raises(UserError, match="answers for 3 of 4"):
        picture_rows(
            {("z", "linear"): np.ones(4, bool)},
            {},
            np.array([0, 1]),
            np.array([0, 1, 0, 1]),
            task="classes",
            data="toy",
            num_classes=6,
            correct_5={("z", "linear"): np.ones(3, bool)},
        )
    with pytest.raises(UserError, match="3 and 2 pictures"):
        paired_difference(np.ones(3, bool), np.ones(2, bool))
