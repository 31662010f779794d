"""Readers for images and LibriSpeech prepared by TensorFlow Datasets, without TensorFlow."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpc.data.cache import Log, cache_dir, remember
from cpc.data.image_file import decode_image
from cpc.data.images import ImageFiles, Images, check_pixels, fingerprint_files, load_images
from cpc.data.phones import UNLABELLED
from cpc.data.recordings import Recordings
from cpc.data.walk import digest_files
from cpc.types import UserError

#: Manual steps that a dataset requires before it can be prepared, by name of the dataset.
PREPARE_FIRST = {
    "imagenet2012": "put ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from image-net.org "
    "into {data_dir}/downloads/manual, then "
}


def read_images_tfds(
    data_dir: str | Path,
    name: str,
    split: str,
    *,
    size: int | None = None,
    channels: int = 3,
    log: Log = print,
    max_skipped_fraction: float = 0.1,
) -> Images:
    """Read a split of an image dataset that tfds has prepared, such as imagenet2012 or cifar10.

    Args:
        data_dir: folder in which the dataset was prepared.
        name: name of the dataset, followed by its config if it has several, such as
            "imagenet_resized/64x64".
        split: split in the syntax of tfds, such as "train", "unlabelled" or "train[:10%]+test".
        size, channels, log, max_skipped_fraction: as in `read_image_folder`.
    """
    check_pixels(size, channels)
    builder, folder = _open_prepared(name, Path(data_dir).expanduser())
    import tensorflow_datasets as tfds

    record_files = _record_files(builder, split, folder)
    image_key, label_key = _keys(builder.info.features, name)
    records: Any = builder.as_data_source(split, decoders={image_key: tfds.decode.SkipDecoding()})
    where = f"{name}, split {split}"

    def describe(index: int) -> str:
        return f"record {index} of {where}"

    def read(index: int) -> tuple[np.ndarray, int]:
        record = records[index]
        label = UNLABELLED if label_key is None else int(record[label_key])
        content = record[image_key]
        return decode_image(content, describe(index), size=size, channels=channels), label

    files = ImageFiles(
        num_images=len(records),
        read=read,
        describe=describe,
        class_names=() if label_key is None else tuple(builder.info.features[label_key].names),
        where=where,
        fingerprint=fingerprint_files(record_files, split, size, channels),
    )
    return load_images(files, log, max_skipped_fraction)


def locate_images_tfds(data_dir: str | Path, name: str, split: str) -> list[tuple[str, range]]:
    """Return (record file, range of its records) for each file that a split reads."""
    parts = _file_parts(*_open_prepared(name, Path(data_dir).expanduser()), split)
    return [(str(part.filename), range(part.skip, part.skip + part.take)) for part in parts]


def _open_prepared(name: str, data_dir: Path) -> tuple[Any, Path]:
    folder = _prepared_folder(name, data_dir)
    import tensorflow_datasets as tfds

    # tfds.data_source(name) would retry network requests for minutes and need the builder's code.
    builder: Any = tfds.builder_from_directory(str(folder))
    if builder.info.file_format != tfds.core.FileFormat.ARRAY_RECORD:
        raise UserError(_format_error(folder, name, _command(name, data_dir)))
    return builder, folder


def _format_error(folder: Path, name: str, command: str) -> str:
    return f"{name} in {folder} is not in array_record format: remove it and run `{command}`"


def _command(name: str, data_dir: Path) -> str:
    """Return the shell command that prepares a dataset, the only step that needs TensorFlow."""
    options = f"--file_format=array_record --data_dir={data_dir}"
    return f"pip install 'cpc-jax[tf]' && tfds build {name} {options}"


def _prepared_folder(name: str, data_dir: Path, config: str = "") -> Path:
    """Return the newest version's folder without asking tfds, which would use the network."""
    folder = data_dir / name / config
    versions = [path.parent for path in folder.glob("*/dataset_info.json")]
    if versions:
        return max(versions, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    configs = sorted({path.parts[-3] for path in folder.glob("*/*/dataset_info.json")})
    if configs:
        raise UserError(
            f"{name} in {data_dir} has configs (got {', '.join(configs)}): "
            f"pass the name of one, such as {name}/{configs[0]}"
        )
    first = PREPARE_FIRST.get(name, "").format(data_dir=data_dir)
    raise UserError(
        f"{name} is not prepared in {data_dir}: {first}run `{_command(name, data_dir)}`"
    )


def _file_parts(builder: Any, folder: Path, split: str) -> Sequence[Any]:
    """Return the instructions (filename, skip, take) for each record file of a split."""
    try:
        return builder.info.splits[split].file_instructions
    except (ValueError, KeyError) as error:
        splits = ", ".join(builder.info.splits)
        raise UserError(f"split {split!r} is not in {folder}: choose one of {splits}") from error


def _record_files(builder: Any, split: str, folder: Path) -> list[str]:
    paths = sorted({str(part.filename) for part in _file_parts(builder, folder, split)})
    absent = [path for path in paths if not Path(path).exists()]
    if absent:
        raise UserError(
            f"{len(absent)} of the {len(paths)} record files of {split} are missing (first: "
            f"{absent[0]}): prepare the dataset again"
        )
    if not paths:
        raise UserError(f"split {split!r} of {folder} is empty: choose another split")
    return paths


def _keys(features: Any, name: str) -> tuple[str, str | None]:
    """Return the image key and the label key: `label`, else the only class feature, else None."""
    from tensorflow_datasets import features as kinds

    images = [key for key, feature in features.items() if isinstance(feature, kinds.Image)]
    image_keys = [key for key in images if features[key].np_dtype == np.uint8]
    classes = [key for key, feature in features.items() if isinstance(feature, kinds.ClassLabel)]
    if len(image_keys) != 1:
        raise UserError(
            f"{name} has {len(image_keys)} 8-bit images per example (features: "
            f"{', '.join(sorted(features))}): choose an image classification dataset"
        )
    label = "label" if "label" in classes else classes[0] if len(classes) == 1 else None
    return image_keys[0], label


def read_librispeech_tfds(data_dir: str | Path, split: str, log: Log = print) -> Recordings:
    """Read a split of LibriSpeech that tfds has prepared, such as `train_clean100` or `test_clean`.

    The dataset is in `DATA_DIR/librispeech/default/VERSION`. The record files contain whole
    utterances without their lengths, so the first call decodes all utterances (3 ms each) and saves
    an index in `cache_dir()`. TensorFlow, ffmpeg and 60 GB of downloads are needed to prepare the
    dataset, but not to read it.
    """
    shards = _shards(Path(data_dir).expanduser(), split)
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    records = ArrayRecordDataSource([str(shard) for shard in shards])
    decode = _make_decoder()
    fingerprint = digest_files(shard.resolve() for shard in shards)
    names, speakers, lengths = remember(
        cache_dir() / "librispeech_tfds" / f"{fingerprint}.json",
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
    folder = _prepared_folder("librispeech", data_dir, config="default")
    shards = sorted(folder.glob(f"librispeech-{split}.array_record-*-of-*"))
    if not shards:
        files = folder.glob("librispeech-*.*-of-*")
        found = sorted({path.name.removeprefix("librispeech-").partition(".")[0] for path in files})
        if split in found:
            raise UserError(_format_error(folder, split, _command("librispeech", data_dir)))
        splits = ", ".join(found) or "none"
        raise UserError(
            f"split {split!r} of LibriSpeech is not in {folder} (got {splits}): prepare it"
        )
    expected = int(shards[0].name.rsplit("-", 1)[1])
    if len(shards) != expected:
        raise UserError(
            f"{folder} contains {len(shards)} of the {expected} record files of {split}: "
            "prepare the dataset again"
        )
    return shards


def _make_decoder() -> Callable[[bytes], Any]:
    """Return a record decoder that reads audio as `Tensor`, which does not need TensorFlow."""
    from tensorflow_datasets import features as kinds

    speech, text = kinds.Tensor(shape=(None,), dtype=np.int16), kinds.Text()
    numbers = {"speaker_id": np.int64, "chapter_id": np.int64, "id": np.str_}
    return kinds.FeaturesDict({"speech": speech, "text": text, **numbers}).deserialize_example_np


def _index(records: Any, decode: Callable[[bytes], Any], log: Log) -> dict[str, list]:
    log(f"indexing {len(records)} utterances, once")
    rows = []
    for position in range(len(records)):
        example = decode(records[position])
        name = example["id"].decode() if isinstance(example["id"], bytes) else str(example["id"])
        rows.append((name, str(int(example["speaker_id"])), len(example["speech"])))
    keys = "names", "speakers", "lengths"
    return {key: [row[i] for row in rows] for i, key in enumerate(keys)}
