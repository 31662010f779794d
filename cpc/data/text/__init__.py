"""Text: files of words to packed tokens, sentences and documents."""

from cpc.data.text.corpus import (
    UNKNOWN,
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

__all__ = [
    "UNKNOWN",
    "Corpus",
    "Vocabulary",
    "count_words",
    "describe_corpus",
    "documents_of",
    "encode",
    "encode_sentences",
    "index_of",
    "keep_probabilities",
    "leave_out_tested",
    "pad_sentences",
    "read_text_folder",
    "read_vocabulary",
    "select_sentences",
    "split_for_training",
    "split_sentences",
    "subsample",
    "tokenize",
    "write_vocabulary",
]
