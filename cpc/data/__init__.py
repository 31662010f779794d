"""Datasets of recordings, images and text, and the batches drawn from them.

`cpc.data.sources` has one module per data source; `cpc.data.augment` runs on the device.
`python -m cpc.data NAME` prepares a packaged dataset.
"""

from cpc.data.cache import cache_dir as cache_dir
from cpc.data.images import Images as Images
from cpc.data.images import LazyPixels as LazyPixels
from cpc.data.images import leave_out_shared as leave_out_shared
from cpc.data.images import make_image_batches as make_image_batches
from cpc.data.images import select_images as select_images
from cpc.data.pack import pack as pack
from cpc.data.pack import pack_folder as pack_folder
from cpc.data.phones import SILENCES as SILENCES
from cpc.data.phones import UNLABELLED as UNLABELLED
from cpc.data.phones import align as align
from cpc.data.phones import make_items as make_items
from cpc.data.phones import read_alignments as read_alignments
from cpc.data.phones import read_items as read_items
from cpc.data.phones import write_items as write_items
from cpc.data.pipeline import prefetch as prefetch
from cpc.data.recordings import SAMPLE_RATE_HZ as SAMPLE_RATE_HZ
from cpc.data.recordings import TARGET_RMS as TARGET_RMS
from cpc.data.recordings import Recordings as Recordings
from cpc.data.recordings import at_loudness as at_loudness
from cpc.data.recordings import read_all as read_all
from cpc.data.recordings import read_list as read_list
from cpc.data.recordings import select as select
from cpc.data.recordings import split_by_lists as split_by_lists
from cpc.data.recordings import split_by_utterance as split_by_utterance
from cpc.data.sources.folder import read_folder as read_folder
from cpc.data.sources.image_folder import read_image_folder as read_image_folder
from cpc.data.sources.synthetic import Synthetic as Synthetic
from cpc.data.sources.synthetic import make_synthetic as make_synthetic
from cpc.data.sources.synthetic import phone_chain as phone_chain
from cpc.data.sources.synthetic import synthetic_information as synthetic_information
from cpc.data.sources.tfds import locate_images_tfds as locate_images_tfds
from cpc.data.sources.tfds import read_images_tfds as read_images_tfds
from cpc.data.sources.tfds import read_librispeech_tfds as read_librispeech_tfds
from cpc.data.text.corpus import Corpus as Corpus
from cpc.data.text.corpus import Vocabulary as Vocabulary
from cpc.data.text.corpus import count_words as count_words
from cpc.data.text.corpus import describe_corpus as describe_corpus
from cpc.data.text.corpus import documents_of as documents_of
from cpc.data.text.corpus import encode as encode
from cpc.data.text.corpus import encode_sentences as encode_sentences
from cpc.data.text.corpus import index_of as index_of
from cpc.data.text.corpus import keep_probabilities as keep_probabilities
from cpc.data.text.corpus import leave_out_tested as leave_out_tested
from cpc.data.text.corpus import pad_sentences as pad_sentences
from cpc.data.text.corpus import select_sentences as select_sentences
from cpc.data.text.corpus import split_for_training as split_for_training
from cpc.data.text.corpus import split_sentences as split_sentences
from cpc.data.text.corpus import subsample as subsample
from cpc.data.text.pack import read_text_folder as read_text_folder
from cpc.data.text.pack import read_vocabulary as read_vocabulary
from cpc.data.text.pack import write_vocabulary as write_vocabulary
from cpc.data.text.tokenizer import tokenize as tokenize
from cpc.data.windows import make_batches as make_batches
from cpc.data.windows import make_packed_batches as make_packed_batches
from cpc.data.windows import uniform_windows as uniform_windows
from cpc.data.windows import unpack as unpack
