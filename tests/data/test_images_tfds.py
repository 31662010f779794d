import io
import json
import time

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

from cpc import data
from cpc.types import UserError

SPLITS = {"train": (3, 3), "unlabelled": (2,)}
IMAGE = tfds.features.Image(shape=(8, 8, 3))


def image(i):
    return np.random.default_rng(i).integers(0, 256, (8, 8, 3), np.uint8)


def png(pixels):
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, "png")
    target.seek(0)
    return target


def write(folder, features, example, splits=SPLITS, form="array_record"):
    """A prepared set, laid out as tfds does; `example(split, i)` gives the i-th of a split."""
    folder.mkdir(parents=True)
    features.save_config(str(folder))
    name = folder.parent.name
    for split, shards in splits.items():
        number = 0
        for shard, count in enumerate(shards):
            path = folder / f"{name}-{split}.{form}-{shard:05}-of-{len(shards):05}"
            writer = ArrayRecordWriter(str(path), "group_size:1")
            for _ in range(count):
                encoded = features.encode_example(example(split, number))
                writer.write(features.serialize_example(encoded))
                number += 1
            writer.close()
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    listed = [
        {"name": split, "shardLengths": [*map(str, shards)], "numBytes": "1"}
        | {"filepathTemplate": template}
        for split, shards in splits.items()
    ]
    described = {"name": name, "version": folder.name, "fileFormat": form, "splits": listed}
    (folder / "dataset_info.json").write_text(json.dumps(described))
    return folder.parent.parent


@pytest.fixture
def prepared(tmp_path):
    """As stl10 is: no label in one of its splits."""
    label = tfds.features.ClassLabel(names=["airplane", "bird"])
    features = tfds.features.FeaturesDict({"image": IMAGE, "label": label})

    def example(split, i):
        return {"image": png(image(i)), "label": i % 2 if split == "train" else -1}

    return write(tmp_path / "sets/stl10/1.0.0", features, example)


def read(data_dir, name, split, **options):
    return data.read_images_tfds(data_dir, name, split, **{"log": lambda _: None, **options})


def test_where_the_images_of_a_split_lie(prepared):
    for split, shards in {
        "train[:50%]": {"train-00000": range(3)},
        "train[2:-1]": {"train-00000": range(2, 3), "train-00001": range(2)},
        "unlabelled+train[5:]": {"unlabelled-00000": range(2), "train-00001": range(2, 3)},
    }.items():
        found = data.locate_images_tfds(prepared, "stl10", split)
        names = [path.rpartition("/")[2].replace(".array_record", "")[6:-9] for path, _ in found]
        assert dict(zip(names, [rows for _, rows in found], strict=True)) == shards
    with pytest.raises(UserError, match=r"split .test. .*train, unlabelled"):
        data.locate_images_tfds(prepared, "stl10", "test")


@pytest.mark.parametrize("memory_bytes", [10**9, 0])
def test_reads_what_was_written(prepared, tmp_path, memory_bytes, monkeypatch):
    monkeypatch.setattr("cpc.data.images.MEMORY_BYTES", memory_bytes)
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "cache"))
    images = read(prepared, "stl10", "train")
    assert isinstance(images.pixels, data.LazyPixels if memory_bytes == 0 else np.ndarray)
    np.testing.assert_array_equal(images.pixels[:], [image(i) for i in range(6)])
    assert images.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert images.class_names == ("airplane", "bird")
    part = read(prepared, "stl10", "train[:50%]")
    np.testing.assert_array_equal(part.pixels[:], [image(i) for i in range(3)])
    nameless = read(prepared, "stl10", "unlabelled")
    assert nameless.labels.tolist() == [data.UNLABELLED] * 2
    grey = read(prepared, "stl10", "train", size=4, channels=1)
    assert grey.pixels.shape == (6, 4, 4, 1)


def test_damaged_record(tmp_path):
    features = tfds.features.FeaturesDict({"image": IMAGE})

    def example(_, i):
        return {"image": io.BytesIO(png(image(i)).getvalue()[: -99 if i == 4 else None])}

    data_dir = write(tmp_path / "sets/mine/1.0.0", features, example)
    images = read(data_dir, "mine", "train", max_skipped_fraction=0.2)
    np.testing.assert_array_equal(images.pixels, [image(i) for i in (0, 1, 2, 3, 5)])
    assert images.labels.tolist() == [data.UNLABELLED] * 5
    ((record, reason),) = images.skipped
    assert record == "record 4 of mine, split train"
    assert "does not decode" in reason
    assert "BytesIO" not in reason  # whose address would differ each time
    with pytest.raises(UserError, match="1 of 6 images in mine, split train cannot be used"):
        read(data_dir, "mine", "train")


def test_not_prepared_says_the_command_at_once(tmp_path):
    began = time.monotonic()
    for name in ("cifar10", "imagenet2012"):
        with pytest.raises(UserError) as raised:
            read(tmp_path, name, "train")
        command = f"tfds build {name} --file_format=array_record --data_dir={tmp_path}`"
        assert command in str(raised.value)
    assert f"ILSVRC2012_img_val.tar from image-net.org into {tmp_path}" in str(raised.value)
    assert time.monotonic() - began < 1


def test_the_newest_version_and_configs(prepared):
    features = tfds.features.FeaturesDict({"image": IMAGE})

    def example(_, i):
        return {"image": png(image(100 + i))}

    write(prepared / "stl10/10.0.0", features, example, {"train": (1,)})
    write(prepared / "stl10/9.0.0", features, example, {"train": (2,)})
    np.testing.assert_array_equal(read(prepared, "stl10", "train").pixels, [image(100)])
    write(prepared / "resized/8x8/1.0.0", features, example, {"train": (1,)})
    with pytest.raises(UserError, match=r"configs .*8x8"):
        read(prepared, "resized", "train")


def test_unknown_split_missing_shard_other_format(prepared):
    for split in ("test", "train[x]", ""):
        with pytest.raises(UserError, match=r"split .*train, unlabelled"):
            read(prepared, "stl10", split)
    folder = prepared / "stl10/1.0.0"
    (folder / "stl10-train.array_record-00001-of-00002").unlink()
    assert len(read(prepared, "stl10", "train[:3]")) == 3
    with pytest.raises(UserError, match="1 of the 2 record files of train"):
        read(prepared, "stl10", "train")
    text = (folder / "dataset_info.json").read_text().replace("array_record", "tfrecord")
    (folder / "dataset_info.json").write_text(text)
    with pytest.raises(UserError, match=r"array_record.*tfds build"):
        read(prepared, "stl10", "unlabelled")


def test_several_classes_and_images(tmp_path):
    classes = tfds.features.ClassLabel(num_classes=3)
    features = tfds.features.FeaturesDict(
        {"image": IMAGE, "coarse_label": classes, "label": classes}
    )

    def example(_, i):
        return {"image": png(image(i)), "coarse_label": 0, "label": 2}

    data_dir = write(tmp_path / "sets/cifar100/1.0.0", features, example)
    assert set(read(data_dir, "cifar100", "train").labels) == {2}
    features = tfds.features.FeaturesDict({"left": IMAGE, "right": IMAGE})

    def pair(_, i):
        return {"left": png(image(i)), "right": png(image(i))}

    write(tmp_path / "sets/pairs/1.0.0", features, pair)
    with pytest.raises(UserError, match=r"pairs has 2 8-bit images .*left, right"):
        read(data_dir, "pairs", "train")
