"""Every key of configs of kind text."""

from typing import Any

from configs.defaults import (
    EVERY,
    INPUT,
    LOSS,
    MOST_LAYERS,
    MOST_OFFSETS,
    NEGATIVES,
    OPTIM,
    PRECISION,
    RUN,
    WIDEST,
)
from configs.keys import Key, make_config, with_defaults

KEYS = {
    "kind": Key("text", "of data", words=("text",)),
    **RUN,
    "data": {
        "source": Key(
            "books",
            "packaged texts, all of them, a file or folder at data.path, or a made-up grammar",
            words=("books", "words", "words+books", "files", "grammar"),
        ),
        "path": Key("", "files: a file, or a folder of .txt files at any depth", is_path=True),
        "form": Key(
            "prose",
            "of the files: prose, or lines that are sentences, their words parted by white space",
            words=("prose", "lines"),
        ),
        "lowercase": Key(True, "whether upper case becomes lower case"),
        "min_count": Key(2, "a word that occurs less often is <unk>", low=1, high=2**31),
        "max_vocabulary": Key(20_000, "words with an embedding, <unk> aside", low=2, high=2**24),
        "run_sentences": Key(16, "sentences of a training sequence", low=2, high=2**16),
        "max_words": Key(32, "of a sentence: what follows is cut", low=1, high=2**16),
        "test_fraction": Key(0.1, "of the text, in blocks of sentences", above=0, below=1),
        "block_sentences": Key(100, "of such a block, neighbours", low=2, high=2**31),
        "num_documents": Key(400, "grammar: of 50 sentences each", low=2, high=10**6),
        "order": Key(0.9, "grammar: chance that the next topic is the expected one", low=0, high=1),
        **with_defaults(INPUT, batch_size=32),
    },
    "model": {
        "name": Key(
            "cpc",
            "cpc: encoder, context and predictors; quick_thoughts: two encoders, both directions",
            words=("cpc", "quick_thoughts"),
        ),
        "embedding_width": Key(128, "of a word", low=1, high=WIDEST),
        "kernel": Key(3, "words that the convolution sees", low=1, high=WIDEST),
        "width": Key(256, "of z", low=1, high=WIDEST),
        "context": Key("gru", "cpc: of c", words=("gru", "lstm", "conv", "transformer")),
        "context_width": Key(256, "of c", low=1, high=WIDEST),
        "context_layers": Key(1, "of the context network", low=1, high=MOST_LAYERS),
        "num_offsets": Key(3, "cpc: sentences ahead that are predicted", low=1, high=MOST_OFFSETS),
        "dtype": PRECISION["dtype"],
    },
    "loss": LOSS,
    "negatives": NEGATIVES,
    "optim": OPTIM,
    "evaluate": {
        "num_runs": Key(256, "held-out runs for the bound; 0: no evaluation", low=0, high=2**30),
    },
    "probe": {
        "tasks": Key(
            ("products", "genre", "next", "movies"),
            "sign of product and of movie sentences, movie or newspaper, and which of two follows",
            words=("products", "genre", "next", "movies"),
        ),
        "features": Key(
            ("c", "z", "random c", "random z", "mean", "bag"),
            "of the run, of an untrained network, the mean of its embeddings, a bag of words, "
            "and the mean of word_vectors",
            words=("c", "z", "random c", "random z", "mean", "bag", "vectors"),
        ),
        "word_vectors": Key(
            "", "file of word v1 v2 ... lines: widens the vocabulary by a linear map", is_path=True
        ),
        "num_folds": Key(10, "of the cross-validation", low=3, high=1000),
        "max_sentences": Key(0, "of a task, at random; 0: all", low=0, high=2**31),
        "every": EVERY,
    },
}  # fmt: skip


def get_config() -> Any:
    """Return the defaults."""
    return make_config(KEYS)
