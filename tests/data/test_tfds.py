import io
import itertools
import json
from functools import partial

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from packages import quiet
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


def write_shards(stem, features, example, shards):
    """Write the i-th `example(i)` of a split to record files of `shards` examples each."""
    numbers = itertools.count()
    for shard, count in enumerate(shards):
        path = f"{stem}.array_record-{shard:05}-of-{len(shards):05}"
        writer = ArrayRecordWriter(path, "group_size:1")
        for number in itertools.islice(numbers, count):
            writer.write(features.serialize_example(features.encode_example(example(number))))
        writer.close()


def write(folder, features, example, splits=SPLITS):
    """Write a prepared set, laid out as tfds does; `example(split, i)` is the i-th of a split."""
    folder.mkdir(parents=True)
    features = tfds.features.FeaturesDict(features)
    features.save_config(str(folder))
    name = folder.parent.name
    for split, shards in splits.items():
        write_shards(folder / f"{name}-{split}", features, partial(example, split), shards)
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    listed = [
        {"name": split, "shardLengths": [*map(str, shards)], "numBytes": "1"}
        | {"filepathTemplate": template}
        for split, shards in splits.items()
    ]
    described = {"name": name, "version": folder.name, "splits": listed}
    described["fileFormat"] = "array_record"
    (folder / "dataset_info.json").write_text(json.dumps(described))
    return folder.parent.parent


@pytest.fixture
def prepared(tmp_path):
    """As stl10 is: no label in one of its splits."""
    features = {"image": IMAGE, "label": tfds.features.ClassLabel(names=["airplane", "bird"])}

    def example(split, i):
        return {"image": png(image(i)), "label": i % 2 if split == "train" else -1}

    return write(tmp_path / "sets/stl10/1.0.0", features, example)


def read(data_dir, name, split, **options):
    return data.read_images_tfds(data_dir, name, split, **{"log": quiet, **options})


def test_where_the_images_of_a_split_lie(prepared):
    for split, shards in {
        "train[:50%]": {"train-00000": range(3)},
        "train[2:-1]": {"train-00000": range(2, 3), "train-00001": range(2)},
        "unlabelled+train[5:]": {"unlabelled-00000": range(2), "train-00001": range(2, 3)},
    }.items():
        found = data.locate_images_tfds(prepared, "stl10", split)
        names = [path.rpartition("/")[2].replace(".array_record", "")[6:-9] for path, _ in found]
        assert dict(zip(names, [rows for _, rows in found], strict=True)) == shards


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
    def example(_, i):
        return {"image": io.BytesIO(png(image(i)).getvalue()[: -99 if i == 4 else None])}

    data_dir = write(tmp_path / "sets/mine/1.0.0", {"image": IMAGE}, example)
    images = read(data_dir, "mine", "train", max_skipped_fraction=0.2)
    np.testing.assert_array_equal(images.pixels, [image(i) for i in (0, 1, 2, 3, 5)])
    assert images.labels.tolist() == [data.UNLABELLED] * 5
    ((record, reason),) = images.skipped
    assert record == "record 4 of mine, split train"
    assert "does not decode" in reason
    assert "BytesIO" not in reason  # whose address would differ each time
    with pytest.raises(UserError, match="1 of 6 images in mine, split train cannot be used"):
        read(data_dir, "mine", "train")


def test_the_newest_version_configs_and_columns(prepared):
    classes = tfds.features.ClassLabel(num_classes=3)

    def write_set(name, image_keys, count=1, **labels):
        features = dict.fromkeys(image_keys, IMAGE) | dict.fromkeys(labels, classes)
        make = lambda *_: {key: png(image(100)) for key in image_keys} | labels  # noqa: E731
        write(prepared / name, features, make, {"train": (count,)})

    write_set("stl10/10.0.0", ["image"])
    write_set("stl10/9.0.0", ["image"], count=2)
    np.testing.assert_array_equal(read(prepared, "stl10", "train").pixels, [image(100)])
    write_set("resized/8x8/1.0.0", ["image"])
    with pytest.raises(UserError, match=r"configs .*8x8"):
        read(prepared, "resized", "train")
    write_set("cifar100/1.0.0", ["image"], coarse_label=0, label=2)
    assert read(prepared, "cifar100", "train").labels.tolist() == [2]
    write_set("pairs/1.0.0", ["left", "right"])
    with pytest.raises(UserError, match=r"pairs has 2 8-bit images .*left, right"):
        read(prepared, "pairs", "train")


def test_sets_that_are_not_prepared_or_lack_files(prepared):
    with pytest.raises(UserError) as raised:
        read(prepared, "imagenet2012", "train")
    command = f"tfds build imagenet2012 --file_format=array_record --data_dir={prepared}`"
    assert command in str(raised.value)
    assert f"ILSVRC2012_img_val.tar from image-net.org into {prepared}" in str(raised.value)
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


def utterance(i):
    rng = np.random.default_rng(i)
    return {
        "speech": rng.integers(-32768, 32768, 1000 + 100 * i).astype(np.int16),
        "text": f"TEXT {i}",
        "speaker_id": 100 + i % 2,
        "chapter_id": 7,
        "id": f"{100 + i % 2}-7-{i:04d}",
    }


@pytest.fixture
def librispeech(tmp_path, monkeypatch):
    """Two shards of three utterances, as tfds lays them out."""
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "cache"))
    folder = tmp_path / "data" / "librispeech" / "default" / "2.1.1"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text("{}")
    speech = tfds.features.Tensor(shape=(None,), dtype=np.int16)
    numbers = {"speaker_id": np.int64, "chapter_id": np.int64, "id": np.str_}
    features = {"speech": speech, "text": tfds.features.Text(), **numbers}
    features = tfds.features.FeaturesDict(features)
    write_shards(folder / "librispeech-test_clean", features, utterance, (3, 3))
    return tmp_path / "data"


def test_unknown_split_missing_shard_and_other_format_of_recordings(librispeech):
    with pytest.raises(UserError, match=r"'train_clean100' .*test_clean"):
        data.read_librispeech_tfds(librispeech, "train_clean100", quiet)
    folder = librispeech / "librispeech" / "default" / "2.1.1"
    (folder / "librispeech-dev_clean.tfrecord-00000-of-00001").touch()
    with pytest.raises(UserError, match=r"dev_clean .*array_record"):
        data.read_librispeech_tfds(librispeech, "dev_clean", quiet)
    (folder / "librispeech-test_clean.array_record-00001-of-00002").unlink()
    with pytest.raises(UserError, match="1 of the 2 record files"):
        data.read_librispeech_tfds(librispeech, "test_clean", quiet)


def test_recordings_are_read_as_written_and_indexed_once(librispeech):
    said = []
    for _ in range(2):
        recordings = data.read_librispeech_tfds(librispeech, "test_clean", said.append)
        assert recordings.names == tuple(utterance(i)["id"] for i in range(6))
        assert recordings.speakers == ("100", "101") * 3
        assert recordings.lengths.tolist() == [1000 + 100 * i for i in range(6)]
    for i in range(6):
        part = recordings.read(i, 50, 950)
        assert part.dtype == np.int16
        np.testing.assert_array_equal(part, utterance(i)["speech"][50:950])
    assert said == ["indexing 6 utterances, once"]
