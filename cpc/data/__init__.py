"""Recordings or pictures in, batches out.

`cpc.data.voices` prepares the packaged voices and `cpc.data.fashion_mnist` Fashion-MNIST, both also
as commands; `cpc.data.augment` works on the device.
"""

from cpc.data.cache import cache_dir
from cpc.data.folder import read_folder
from cpc.data.image_folder import read_image_folder
from cpc.data.images import (
    Images,
    LazyPixels,
    make_image_batches,
    select_images,
)
from cpc.data.images_tfds import read_images_tfds
from cpc.data.librispeech_tfds import read_librispeech_tfds
from cpc.data.pack import open_pack, pack, pack_folder
from cpc.data.phones import UNLABELLED, align, read_alignments
from cpc.data.pipeline import prefetch
from cpc.data.recordings import (
    SAMPLE_RATE_HZ,
    TARGET_RMS,
    Recordings,
    measure_rms,
    only_speakers,
    read_all,
    read_list,
    select,
    split_by_lists,
    split_by_utterance,
)
from cpc.data.synthetic import Synthetic, make_synthetic, phone_chain, synthetic_information
from cpc.data.windows import (
    WindowCounts,
    count_windows,
    make_batches,
    make_packed_batches,
    unpack,
)

__all__ = [
    "SAMPLE_RATE_HZ",
    "TARGET_RMS",
    "UNLABELLED",
    "Images",
    "LazyPixels",
    "Recordings",
    "Synthetic",
    "WindowCounts",
    "align",
    "cache_dir",
    "count_windows",
    "make_batches",
    "make_image_batches",
    "make_packed_batches",
    "make_synthetic",
    "measure_rms",
    "only_speakers",
    "open_pack",
    "pack",
    "pack_folder",
    "phone_chain",
    "prefetch",
    "read_alignments",
    "read_all",
    "read_folder",
    "read_image_folder",
    "read_images_tfds",
    "read_librispeech_tfds",
    "read_list",
    "select",
    "select_images",
    "split_by_lists",
    "split_by_utterance",
    "synthetic_information",
    "unpack",
]
