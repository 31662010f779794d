"""Config keys of kind text."""

from configs import defaults
from configs.defaults import MAX_LAYERS, MAX_OFFSETS, MAX_WIDTH
from configs.keys import Key, make_config, with_defaults

KEYS = {
    "kind": Key("text", "kind of data", words=("text",)),
    **defaults.RUN,
    **defaults.START,
    "data": {
        "source": Key(
            "books", "source of the text: packaged, the files at data.path, or a synthetic grammar",
            words=("books", "words", "words+books", "files", "grammar")),
        "path": Key(
            "", "files: a file, or a folder with .txt files at any depth",
            is_path=True, sources=("files",)),
        "form": Key(
            "prose", "format of the files: prose, or one sentence of separated words per line",
            words=("prose", "lines")),
        "lowercase": Key(True, "whether to convert text to lower case"),
        "min_count": Key(
            2, "minimum count of a word; less frequent words become <unk>", low=1, high=2**31),
        "max_vocabulary": Key(
            20_000, "maximum number of words with an embedding, besides <unk>", low=2, high=2**24),
        "run_sentences": Key(16, "number of sentences in a training sequence", low=2, high=2**16),
        "document_fraction": Key(
            0.0, "fraction of a batch's sequences from one document, for harder negatives",
            low=0, high=1),
        "max_words": Key(
            32, "number of words at which sentences are truncated", low=1, high=2**16),
        "test_fraction": Key(
            0.1, "fraction of the text to test on, in blocks of sentences", above=0, below=1),
        "block_sentences": Key(
            100, "number of consecutive sentences in a block of test text", low=2, high=2**31),
        "num_documents": Key(
            400, "grammar: number of documents, of 50 sentences each", low=2, high=10**6),
        "order": Key(
            0.9, "grammar: probability that the next topic is the expected one", low=0, high=1),
        **with_defaults(defaults.INPUT, batch_size=32),
    },
    "model": {
        "name": Key(
            "cpc", "model: encoder, context network and predictors (cpc), or two encoders",
            words=("cpc", "quick_thoughts")),
        "embedding_width": Key(128, "width of the word embeddings", low=1, high=MAX_WIDTH),
        "kernel": Key(3, "kernel size of the convolution, in words", low=1, high=MAX_WIDTH),
        "width": Key(256, "width of z", low=1, high=MAX_WIDTH),
        "context": Key(
            "gru", "cpc: context network", words=("gru", "lstm", "conv", "transformer", "ssm")),
        "context_width": Key(256, "width of c", low=1, high=MAX_WIDTH),
        "context_layers": Key(
            1, "number of layers in the context network", low=1, high=MAX_LAYERS),
        "num_offsets": Key(
            3, "cpc: number of sentences ahead to predict", low=1, high=MAX_OFFSETS),
        "dtype": defaults.PRECISION["dtype"],
    },
    "loss": defaults.LOSS,
    "negatives": defaults.NEGATIVES,
    "optim": defaults.OPTIM,
    "evaluate": {
        "num_runs": Key(
            256, "number of held-out sequences for the bound, or 0 for none", low=0, high=2**30),
    },
    "probe": {
        "tasks": Key(
            ("products", "genre", "next", "movies"), "classification tasks: sentiment of product "
            "or movie reviews (products, movies), movie review or newspaper (genre), and the next "
            "of two sentences (next)", words=("products", "genre", "next", "movies")),
        "features": Key(
            ("c", "z", "random c", "random z", "mean", "bag"), "features of the run (c, z), of an "
            "untrained network (random c, random z), mean word embeddings of the run (mean), a bag "
            "of words (bag), and the mean of word_vectors (vectors)",
            words=("c", "z", "random c", "random z", "mean", "bag", "vectors")),
        "word_vectors": Key(
            "", 'file with lines "word v1 v2 ..." that extend the vocabulary through a linear map',
            is_path=True),
        "num_folds": Key(10, "number of folds in cross-validation", low=3, high=1000),
        "max_sentences": Key(
            0, "number of random sentences per task, or 0 for all", low=0, high=2**31),
        "every": defaults.EVERY,
    },
}  # fmt: skip


def get_config():
    """Return the defaults."""
    return make_config(KEYS)
