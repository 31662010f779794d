import dataclasses
import io

import numpy as np
import PIL.Image
import pytest

from cpc import data
from cpc.data.images import find_digests
from cpc.types import UserError


def images(n=10, lazy=False):
    pixels = np.random.default_rng(n).integers(0, 256, (n, 4, 5, 3), np.uint8)
    labels = np.arange(n, dtype=np.int32) % 3
    shown = data.LazyPixels(pixels.shape, lambda i: pixels[i]) if lazy else pixels
    return data.Images(shown, labels, ("a", "b", "c"))


@pytest.mark.parametrize("index", [3, -1, [2, 2, 0], slice(1, 9, 3), np.array([], np.int64)])
def test_lazy_pixels_index_as_the_array_does(index):
    now, later = images().pixels, images(lazy=True).pixels
    np.testing.assert_array_equal(later[index], now[index])
    assert later.shape == now.shape
    assert later[index].dtype == np.uint8
    with pytest.raises(IndexError):
        later[10]


@pytest.mark.parametrize("lazy", [False, True])
def test_images_that_others_have_are_left_out_and_listed(lazy):
    ours, others = images(lazy=lazy), data.select_images(images(lazy=lazy), [7, 1, 7])
    kept = data.leave_out_shared(ours, others, "the test set")
    rest = [0, 2, 3, 4, 5, 6, 8, 9]
    np.testing.assert_array_equal(kept.pixels[:], images().pixels[rest])
    np.testing.assert_array_equal(kept.labels, images().labels[rest])
    assert [name for name, _ in kept.skipped] == ["image 1", "image 7"]
    assert "image 7" in kept.skipped[1][1]
    again = data.leave_out_shared(kept, others, "the test set")
    np.testing.assert_array_equal(again.labels, kept.labels)
    assert not len(data.leave_out_shared(ours, images(), "the test set"))
    assert data.leave_out_shared(ours, images(9), "the test set") is ours


@pytest.mark.parametrize("lazy", [False, True])
def test_an_epoch_is_a_shuffle(lazy):
    draw = data.make_image_batches(images(lazy=lazy), batch_size=3, seed=1)
    orders = []
    for epoch in range(4):
        batches = [draw(3 * epoch + place) for place in range(3)]
        orders.append(np.concatenate([batch["image"] for batch in batches]))
        assert len(set(orders[-1])) == 9  # of 10: one is left over
        for batch in batches:
            np.testing.assert_array_equal(batch["x"], images().pixels[batch["image"]])
            np.testing.assert_array_equal(batch["label"], batch["image"] % 3)
            assert batch["sequence"].tolist() == [0, 1, 2]
            assert (batch["x"].dtype, batch["label"].dtype) == (np.uint8, np.int32)
    assert len({tuple(order) for order in orders}) == 4
    left_over = [set(range(10)) - set(order) for order in orders]
    assert len(set.union(*left_over)) > 1


def test_batches_are_pure_in_seed_and_step_and_shared_by_processes():
    draw = data.make_image_batches(images(50), batch_size=8, seed=3)
    other, again, *shares = (
        data.make_image_batches(images(50), batch_size=8, seed=seed, process=p, num_processes=n)
        for seed, p, n in ((4, 0, 1), (3, 0, 1), (3, 0, 2), (3, 1, 2))
    )
    assert not np.array_equal(other(100)["image"], draw(100)["image"])
    for step, batch in zip(range(20), data.prefetch(draw, 0, 20, num_threads=4), strict=True):
        np.testing.assert_array_equal(batch["image"], again(step)["image"])
        for key in ("x", "label", "sequence", "image"):
            parts = [share(step)[key] for share in shares]
            np.testing.assert_array_equal(np.concatenate(parts), batch[key])


def test_impossible_batches():
    for size, processes, message in ((0, 1, "0"), (11, 1, "10 images"), (9, 2, "multiple of 2")):
        with pytest.raises(UserError, match=message):
            data.make_image_batches(images(), seed=0, batch_size=size, num_processes=processes)


def test_an_image_that_was_saved_again_is_a_copy():
    rng = np.random.default_rng(0)
    blobs = [PIL.Image.fromarray(one) for one in rng.integers(0, 256, (12, 4, 4, 3), np.uint8)]
    photos = [blob.resize((48, 48), PIL.Image.Resampling.BICUBIC) for blob in blobs]
    file = io.BytesIO()
    photos[1].save(file, "JPEG", quality=80)
    saved = [PIL.Image.open(file), photos[2].quantize(256), photos[3].resize((96, 96))]
    ours = [one.convert("RGB").resize((32, 32)) for one in (*saved, *photos[6:])]
    flat = PIL.Image.new("RGB", (32, 32), "grey")
    theirs = [*(one.resize((32, 32)) for one in photos[:6]), flat]
    ours.append(PIL.Image.new("RGB", (32, 32), "white"))
    sets = []
    for some in (ours, theirs):
        pixels, labels = np.stack([np.asarray(one) for one in some]), np.zeros(len(some), np.int32)
        made = data.Images(pixels, labels, ())
        sets.append(dataclasses.replace(made, digests=find_digests(made)))
    kept = data.leave_out_shared(*sets, "the test set")
    assert [name for name, _ in kept.skipped] == ["image 0", "image 1", "image 2"]
    assert [why.split(",")[0][-7:] for _, why in kept.skipped] == ["image 1", "image 2", "image 3"]
    assert len(kept) == 7
