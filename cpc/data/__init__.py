"""Recordings, images or text in, batches out.

`cpc.data.sources` holds where they come from, a module each; `cpc.data.augment` works on the
device. `python -m cpc.data NAME` prepares a packaged set.
"""

from cpc.data.cache import cache_dir
from cpc.data.images import Images, LazyPixels, leave_out_shared, make_image_batches, select_images
from cpc.data.pack import pack, pack_folder
from cpc.data.phones import (
    SILENCES,
    UNLABELLED,
    align,
    make_items,
    read_alignments,
    read_items,
    write_items,
)
from cpc.data.pipeline import prefetch
from cpc.data.recordings import (
    SAMPLE_RATE_HZ,
    TARGET_RMS,
    Recordings,
    at_loudness,
    read_all,
    read_list,
    select,
    split_by_lists,
    split_by_utterance,
)
from cpc.data.sources.folder import read_folder
from cpc.data.sources.image_folder import read_image_folder
from cpc.data.sources.synthetic import Synthetic, make_synthetic, phone_chain, synthetic_information
from cpc.data.sources.tfds import locate_images_tfds, read_images_tfds, read_librispeech_tfds
from cpc.data.text.corpus import (
    Corpus,
    Vocabulary,
    count_words,
    describe_corpus,
    documents_of,
    encode,
    encode_sentences,
    index_of,
    keep_probabilities,
    leave_out_tested,
    pad_sentences,
    select_sentences,
    split_for_training,
    split_sentences,
    subsample,
)
from cpc.data.text.pack import read_text_folder, read_vocabulary, write_vocabulary
from cpc.data.text.tokenizer import tokenize
from cpc.data.windows import make_batches, make_packed_batches, uniform_windows, unpack

__all__ = [
    "SAMPLE_RATE_HZ", "SILENCES", "TARGET_RMS", "UNLABELLED", "Corpus", "Images", "LazyPixels",
    "Recordings", "Synthetic", "Vocabulary", "align", "at_loudness", "cache_dir", "count_words",
    "describe_corpus", "documents_of", "encode", "encode_sentences", "index_of",
    "keep_probabilities", "leave_out_shared", "leave_out_tested", "locate_images_tfds",
    "make_batches", "make_image_batches", "make_items", "make_packed_batches", "make_synthetic",
    "pack", "pack_folder", "pad_sentences", "phone_chain", "prefetch", "read_alignments",
    "read_all", "read_folder", "read_image_folder", "read_images_tfds", "read_items",
    "read_librispeech_tfds", "read_list", "read_text_folder", "read_vocabulary", "select",
    "select_images", "select_sentences", "split_by_lists", "split_by_utterance",
    "split_for_training", "split_sentences", "subsample", "synthetic_information", "tokenize",
    "uniform_windows", "unpack", "write_items", "write_vocabulary",
]  # fmt: skip
