"""Image sets as TensorFlow Datasets prepares them, by name, read without TensorFlow."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpc.data.cache import Log
from cpc.data.image_file import decode_image
from cpc.data.image_loading import ImageFiles, check_pixels, fingerprint_files, load_images
from cpc.data.images import Images
from cpc.data.phones import UNLABELLED
from cpc.types import UserError

#: What has to be there before the command can work.
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
    """Return a split of a prepared set of images: imagenet2012, cifar10, stl10, fashion_mnist, ...

    Args:
        data_dir: the folder in which it was prepared.
        name: of the set, with its config if it has several: "imagenet_resized/64x64".
        split: as tfds writes them: "train", "unlabelled", "train[:10%]", "train+test".
        size, channels, log, max_skipped_fraction: as those of `read_image_folder`.

    Raises:
        UserError: not prepared (at once, with the command that prepares it), prepared in another
            format, no such split, no images in it, sizes that differ, or too many damaged.
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
    """Return the record files of a split as `read_images_tfds` reads it, and their rows."""
    parts = _file_parts(*_open_prepared(name, Path(data_dir).expanduser()), split)
    return [(str(part.filename), range(part.skip, part.skip + part.take)) for part in parts]


def _open_prepared(name: str, data_dir: Path) -> tuple[Any, Path]:
    """The builder of a prepared set, and its folder."""
    folder = _prepared_folder(name, data_dir)
    import tensorflow_datasets as tfds

    # Not tfds.data_source(name), which asks a network for minutes and needs the builder's code.
    builder: Any = tfds.builder_from_directory(str(folder))
    if builder.info.file_format != tfds.core.FileFormat.ARRAY_RECORD:
        raise UserError(
            f"{folder} holds {name} in another format than array_record: remove it and run "
            f"`{_command(name, data_dir)}`"
        )
    return builder, folder


def _command(name: str, data_dir: Path) -> str:
    """What prepares a set, once. Only preparing needs TensorFlow."""
    options = f"--file_format=array_record --data_dir={data_dir}"
    return f"pip install 'cpc-jax[tf]' && tfds build {name} {options}"


def _prepared_folder(name: str, data_dir: Path) -> Path:
    """The newest version. tfds itself would retry a network for minutes."""
    folder = data_dir / name
    versions = [path.parent for path in folder.glob("*/dataset_info.json")]
    if versions:
        return max(versions, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    configs = sorted({path.parts[-3] for path in folder.glob("*/*/dataset_info.json")})
    if configs:
        raise UserError(
            f"{name} has configs in {data_dir}: name one, such as {name}/{configs[0]}"
            + (f" (there are {', '.join(configs)})" if len(configs) > 1 else "")
        )
    first = PREPARE_FIRST.get(name, "").format(data_dir=data_dir)
    raise UserError(
        f"{name} is not prepared in {data_dir}: {first}run once `{_command(name, data_dir)}`"
    )


def _file_parts(builder: Any, folder: Path, split: str) -> Sequence[Any]:
    """Of each file that a split is in: filename, skip, take."""
    try:
        return builder.info.splits[split].file_instructions
    except (ValueError, KeyError) as error:
        there = ", ".join(builder.info.splits)
        raise UserError(f"there is no split {split!r} in {folder}: it has {there}") from error


def _record_files(builder: Any, split: str, folder: Path) -> list[str]:
    paths = sorted({str(part.filename) for part in _file_parts(builder, folder, split)})
    absent = [path for path in paths if not Path(path).exists()]
    if absent:
        raise UserError(
            f"{len(absent)} of the {len(paths)} record files of {split} are not there, the first "
            f"{absent[0]}: prepare again"
        )
    if not paths:
        raise UserError(f"split {split!r} of {folder} has no images")
    return paths


def _keys(features: Any, name: str) -> tuple[str, str | None]:
    """Which feature is the image, and which its class (of several, the one called `label`)."""
    import tensorflow_datasets as tfds

    image_keys = [
        key
        for key, feature in features.items()
        if isinstance(feature, tfds.features.Image) and feature.np_dtype == np.uint8
    ]
    classes = [
        k for k, feature in features.items() if isinstance(feature, tfds.features.ClassLabel)
    ]
    if len(image_keys) != 1:
        there = ", ".join(sorted(features))
        raise UserError(
            f"{name} has {len(image_keys)} 8-bit images an example (of {there}), not one: "
            "it is no image classification set"
        )
    label = "label" if "label" in classes else classes[0] if len(classes) == 1 else None
    return image_keys[0], label
