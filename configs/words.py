"""Config keys of kind words, for a word model, an objective and a noise distribution."""

from configs.defaults import LOGGER, MAX_WIDTH
from configs.keys import Key

MODELS = ("skip_gram", "cbow", "vlbl", "lbl", "nplm")
OBJECTIVES = (
    "full_softmax", "nce", "negative_sampling", "sampled_softmax", "sampled_logistic",
    "ranking_nce", "info_nce",
)  # fmt: skip
NOISES = ("unigram", "uniform", "log_uniform", "minority", "learned_unigram", "bigram", "proposal")

KEYS = {
    "kind": Key("words", "kind of data", words=("words",)),
    "seed": Key(0, "seed of all randomness", low=0, below=2**32),
    "epochs": Key(5, "number of passes through the text", low=1, high=10_000),
    "steps_per_launch": Key(
        64, "number of steps in one launch, after which steps can be recorded and saved", low=1),
    "log_launches": Key(4, "number of launches between records", low=1),
    "save_launches": Key(
        50, "number of launches between checkpoints, or 0 for only the last", low=0),
    "logger": LOGGER,
    "data": {
        "source": Key(
            "words", "source of the text: dictionaries, novels, both, a folder, or synthetic",
            words=("words", "books", "words+books", "folder", "synthetic")),
        "path": Key("", "folder: path of the text files", is_path=True, sources=("folder",)),
        "form": Key(
            "prose", "folder: format of the files, prose or one sentence per line, as Mikolov's",
            words=("prose", "lines")),
        "min_count": Key(5, "minimum count of a word; less frequent words become unknown", low=1),
        "max_vocabulary": Key(0, "maximum number of words, or 0 for all", low=0),
        "subsample": Key(
            1e-4, "frequency above which words are subsampled, or 0 for no subsampling", low=0),
        "positions": Key(1024, "number of words of text per step", low=1, high=2**20),
        "test_fraction": Key(0.02, "fraction of sentences that are held out", low=0, below=1),
        "num_threads": Key(2, "number of threads that draw batches", low=0, high=64),
    },
    "model": {
        "name": Key("skip_gram", "model", words=MODELS),
        "width": Key(100, "width of the embeddings", low=1, high=MAX_WIDTH),
        "hidden": Key(
            0, "nplm: width of the hidden layer, or 0 for model.width", low=0, high=MAX_WIDTH),
        "reach": Key(
            5, "number of context words on either side (vlbl, lbl, nplm: before)", low=1, high=64),
        "reduce": Key(
            True, "skip_gram and cbow: whether to draw the reach from 1 to reach at each position"),
        "bias": Key(
            "none", "trained bias of each word: none, or initialised to zero or the log unigram",
            words=("none", "zero", "unigram")),
    },
    "objective": {
        "name": Key("negative_sampling", "objective that is minimized", words=OBJECTIVES),
        "k": Key(5, "number of noise words per datum in the logistic objectives", low=1),
        "draws": Key(
            64, "number of noise words in a draw, or 0 for k; softmax objectives use all", low=0),
        "share": Key(
            16, "number of positions that share a draw, or 0 for all positions in a step", low=0),
        "noise": Key(
            "unigram", "noise distribution, or batch to use the other words of the step",
            words=(*NOISES, "batch")),
        "alpha": Key(0.75, "power of the word frequencies in the noise", low=-2, high=2),
        "minority": Key(
            0.5, "noise minority: fraction of words that count as rare", above=0, below=1),
        "minority_mass": Key(
            0.2, "noise minority: fraction of draws from the rare words", above=0, below=1),
        "backoff": Key(0.2, "noise bigram: weight of unigram^alpha", above=0, high=1),
        "rank": Key(16, "noise proposal: width of the proposal network", low=1, high=MAX_WIDTH),
        "unique": Key(False, "whether a draw contains each word at most once"),
        "remove_hits": Key(False, "whether to ignore drawn words that equal the datum"),
        "subtract_log_q": Key(
            True, "sampled_softmax, sampled_logistic, info_nce: whether log q is subtracted"),
        "log_z": Key(
            "zero", "nce: log normalizer (learned: per context word)", words=("zero", "learned")),
        "negative_weight": Key(1.0, "weight of the negatives in logistic objectives", above=0),
    },
    "optim": {
        "rule": Key("sgd", "update rule for the rows used in a step", words=("sgd", "adagrad")),
        "learning_rate": Key(
            0.025, "learning rate for the sum over a step, which falls to 1e-4 of it", above=0),
    },
    "evaluate": {
        "similarity": Key(True, "whether to evaluate WordSim-353, SimLex-999 and analogies"),
        "perplexity": Key(True, "whether to score held-out text with all words as classes"),
        "max_places": Key(20_000, "maximum number of positions in held-out text", low=1),
    },
}  # fmt: skip
