"""Config keys of kind text."""

from configs import defaults
from configs.defaults import MAX_LAYERS, MAX_OFFSETS, MAX_WIDTH
from configs.keys import Key, make_config, with_defaults

KEYS = {
    "kind": Key("text", "kind of data", words=("text",)),
    **defaults.RUN,
    "data": {
        "source": Key(
            "books", "packaged texts, or all of them, a file or folder at data.path, or a "
            "synthetic grammar", words=("books", "words", "words+books", "files", "grammar")),
        "path": Key(
            "", "files: a file, or a folder with .txt files at any depth",
            is_path=True, sources=("files",)),
        "form": Key(
            "prose", "form of the files: prose, or one sentence per line with words separated by "
            "white space", words=("prose", "lines")),
        "lowercase": Key(True, "whether upper case becomes lower case"),
        "min_count": Key(2, "words that occur less often become <unk>", low=1, high=2**31),
        "max_vocabulary": Key(
            20_000, "number of words with an embedding, besides <unk>", low=2, high=2**24),
        "run_sentences": Key(16, "sentences in a training sequence", low=2, high=2**16),
        "document_fraction": Key(
            0.0, "fraction of a batch's runs taken from one document, whose sentences are harder "
            "negatives than other sentences", low=0, high=1),
        "max_words": Key(32, "words of a sentence; the rest is cut off", low=1, high=2**16),
        "test_fraction": Key(
            0.1, "fraction of the text to test on, in blocks of sentences", above=0, below=1),
        "block_sentences": Key(100, "consecutive sentences in such a block", low=2, high=2**31),
        "num_documents": Key(400, "grammar: documents of 50 sentences each", low=2, high=10**6),
        "order": Key(
            0.9, "grammar: probability that the next topic is the expected one", low=0, high=1),
        **with_defaults(defaults.INPUT, batch_size=32),
    },
    "model": {
        "name": Key(
            "cpc", "cpc: encoder, context and predictors; quick_thoughts: two encoders, both "
            "directions", words=("cpc", "quick_thoughts")),
        "embedding_width": Key(128, "width of a word's embedding", low=1, high=MAX_WIDTH),
        "kernel": Key(3, "words that the convolution sees", low=1, high=MAX_WIDTH),
        "width": Key(256, "width of z", low=1, high=MAX_WIDTH),
        "context": Key("gru", "cpc: context network", words=("gru", "lstm", "conv", "transformer")),
        "context_width": Key(256, "width of c", low=1, high=MAX_WIDTH),
        "context_layers": Key(1, "layers of the context network", low=1, high=MAX_LAYERS),
        "num_offsets": Key(
            3, "cpc: number of sentences ahead that are predicted", low=1, high=MAX_OFFSETS),
        "dtype": defaults.PRECISION["dtype"],
    },
    "loss": defaults.LOSS,
    "negatives": defaults.NEGATIVES,
    "optim": defaults.OPTIM,
    "evaluate": {
        "num_runs": Key(256, "held-out runs for the bound; 0: no evaluation", low=0, high=2**30),
    },
    "probe": {
        "tasks": Key(
            ("products", "genre", "next", "movies"), "classification tasks: sentiment of product "
            "or movie sentences, movie or newspaper, and which of two sentences follows",
            words=("products", "genre", "next", "movies")),
        "features": Key(
            ("c", "z", "random c", "random z", "mean", "bag"), "features of the run, of an "
            "untrained network (random), the mean of the run's embeddings, a bag of words, and "
            "the mean of word_vectors",
            words=("c", "z", "random c", "random z", "mean", "bag", "vectors")),
        "word_vectors": Key(
            "", 'file of lines "word v1 v2 ..." that extend the vocabulary through a linear map',
            is_path=True),
        "num_folds": Key(10, "folds of the cross-validation", low=3, high=1000),
        "max_sentences": Key(0, "sentences of a task, drawn at random; 0: all", low=0, high=2**31),
        "every": defaults.EVERY,
    },
}  # fmt: skip


def get_config():
    """Return the defaults."""
    return make_config(KEYS)
