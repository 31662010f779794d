"""LibriSpeech as TensorFlow Datasets prepares it, read without TensorFlow."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cpc.data.cache import Log, cache_dir, remember
from cpc.data.recordings import Recordings
from cpc.data.walk import digest_files
from cpc.types import UserError

if TYPE_CHECKING:
    from array_record.python.array_record_data_source import ArrayRecordDataSource

#: Preparing needs TensorFlow, ffmpeg, and 60 GB of downloads; reading needs none of them.
PREPARE_COMMAND = (
    "pip install 'cpc-jax[tf]' && tfds build librispeech --file_format=array_record --data_dir={}"
)


def read_librispeech_tfds(
    data_dir: str | Path, split: str, log: Log = print, *, cache: Path | None = None
) -> Recordings:
    """One split (`train_clean100`, `test_clean`, ...) of `DATA_DIR/librispeech/default/VERSION`.

    The record files hold whole utterances without their lengths, so the first use decodes all of
    them once (3 ms each) and keeps an index in `cache` (`cache_dir()` if None).

    Raises:
        UserError: not prepared (it gives the command that prepares it), no such split, or prepared
            in another format.
    """
    shards = _shards(Path(data_dir).expanduser(), split)
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    records = ArrayRecordDataSource([str(shard) for shard in shards])
    decode = _make_decoder()
    fingerprint = digest_files(shard.resolve() for shard in shards)
    folder = (cache_dir() if cache is None else cache) / "librispeech_tfds"
    names, speakers, lengths = remember(
        folder / f"{fingerprint}.json",
        lambda: _index(records, decode, log),
        lambda index: [index[key] for key in ("names", "speakers", "lengths")],
        log,
        "the utterances are indexed",
    )

    def read(position: int, start: int, stop: int) -> np.ndarray:
        return decode(records[position])["speech"][start:stop].astype(np.int16)

    return Recordings(
        names=tuple(names),
        speakers=tuple(speakers),
        lengths=np.asarray(lengths, np.int64),
        read=read,
        fingerprint=fingerprint,
    )


def _shards(data_dir: Path, split: str) -> list[Path]:
    """The record files of a split. tfds itself would retry a network for minutes."""
    versions = sorted((data_dir / "librispeech/default").glob("*/dataset_info.json"))
    if not versions:
        raise UserError(
            f"LibriSpeech is not prepared in {data_dir}: run once "
            f"`{PREPARE_COMMAND.format(data_dir)}`"
        )
    folder = versions[-1].parent
    shards = sorted(folder.glob(f"librispeech-{split}.array_record-*-of-*"))
    if not shards:
        raise UserError(_what_there_is(folder, split, data_dir))
    expected = int(shards[0].name.rsplit("-", 1)[1])
    if len(shards) != expected:
        raise UserError(
            f"{folder} holds {len(shards)} of the {expected} record files of {split}: prepare again"
        )
    return shards


def _what_there_is(folder: Path, split: str, data_dir: Path) -> str:
    parts = [re.fullmatch(r"librispeech-(\w+)\.(\w+)-\d+-of-\d+", p.name) for p in folder.iterdir()]
    found = sorted({(part[1], part[2]) for part in parts if part})
    if any(name == split for name, _ in found):
        return (
            f"{folder} holds {split} in another format than array_record: remove it and run "
            f"`{PREPARE_COMMAND.format(data_dir)}`"
        )
    there = ", ".join(name for name, _ in found) or "none"
    return f"there is no split {split!r} of LibriSpeech in {folder}: it has {there}"


def _make_decoder() -> Callable[[bytes], Any]:
    """Record -> example. `tfds.features.Audio` needs TensorFlow; `Tensor` reads the same bytes."""
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict(
        {
            "speech": tfds.features.Tensor(shape=(None,), dtype=np.int16),
            "text": tfds.features.Text(),
            "speaker_id": np.int64,
            "chapter_id": np.int64,
            "id": np.str_,
        }
    )
    return features.deserialize_example_np


def _index(
    records: "ArrayRecordDataSource", decode: Callable[[bytes], Any], log: Log
) -> dict[str, list]:
    log(f"indexing {len(records)} utterances, once")
    index: dict[str, list] = {"names": [], "speakers": [], "lengths": []}
    for position in range(len(records)):
        example = decode(records[position])
        index["names"].append(_text(example["id"]))
        index["speakers"].append(str(int(example["speaker_id"])))
        index["lengths"].append(len(example["speech"]))
    return index


def _text(value: bytes | str) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
