import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from packages import quiet

from cpc import data
from cpc.files import write_sealed
from cpc.types import UserError


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
def prepared(tmp_path, monkeypatch):
    """Two shards of three utterances, as tfds lays them out."""
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "cache"))
    folder = tmp_path / "data" / "librispeech" / "default" / "2.1.1"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text("{}")
    speech = tfds.features.Tensor(shape=(None,), dtype=np.int16)
    numbers = {"speaker_id": np.int64, "chapter_id": np.int64, "id": np.str_}
    features = {"speech": speech, "text": tfds.features.Text(), **numbers}
    features = tfds.features.FeaturesDict(features)
    for shard in range(2):
        name = f"librispeech-test_clean.array_record-0000{shard}-of-00002"
        writer = ArrayRecordWriter(str(folder / name), "group_size:1")
        for i in range(3):
            writer.write(features.serialize_example(utterance(3 * shard + i)))
        writer.close()
    return tmp_path / "data"


def test_reads_what_was_written(prepared, tmp_path):
    recordings = data.read_librispeech_tfds(prepared, "test_clean", quiet)
    assert recordings.names == tuple(utterance(i)["id"] for i in range(6))
    assert recordings.speakers == ("100", "101") * 3
    assert recordings.lengths.tolist() == [1000 + 100 * i for i in range(6)]
    for i in range(6):
        part = recordings.read(i, 50, 950)
        assert part.dtype == np.int16
        np.testing.assert_array_equal(part, utterance(i)["speech"][50:950])
    packed = data.pack(recordings, tmp_path / "pack", log=quiet)
    np.testing.assert_array_equal(packed.read(5, 0, 1500), utterance(5)["speech"])


def test_unknown_split_missing_shard_and_other_format(prepared):
    with pytest.raises(UserError, match=r"'train_clean100' .*test_clean"):
        data.read_librispeech_tfds(prepared, "train_clean100", quiet)
    folder = prepared / "librispeech" / "default" / "2.1.1"
    (folder / "librispeech-dev_clean.tfrecord-00000-of-00001").touch()
    with pytest.raises(UserError, match=r"dev_clean .*array_record"):
        data.read_librispeech_tfds(prepared, "dev_clean", quiet)
    (folder / "librispeech-test_clean.array_record-00001-of-00002").unlink()
    with pytest.raises(UserError, match="1 of the 2 record files"):
        data.read_librispeech_tfds(prepared, "test_clean", quiet)


def test_the_index_is_made_once_and_again_if_it_is_of_another_form(prepared, tmp_path):
    said = []
    first = data.read_librispeech_tfds(prepared, "test_clean", said.append)
    second = data.read_librispeech_tfds(prepared, "test_clean", said.append)
    assert said == ["indexing 6 utterances, once"]
    assert first.names == second.names
    np.testing.assert_array_equal(first.lengths, second.lengths)
    (path,) = (tmp_path / "cache/librispeech_tfds").iterdir()
    whole = path.read_bytes()
    write_sealed(path, {"names": 3})
    again = data.read_librispeech_tfds(prepared, "test_clean", said.append)
    assert again.lengths.tolist() == first.lengths.tolist()
    assert "indexed again" in said[1]
    assert path.read_bytes() == whole
