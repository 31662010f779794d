"""Config keys of kind words: a word model, an objective and a noise distribution."""

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
    "epochs": Key(5, "passes through the text", low=1, high=10_000),
    "steps_per_launch": Key(
        64, "steps of a compiled program, after which records and checkpoints may follow", low=1),
    "log_launches": Key(4, "launches between records", low=1),
    "save_launches": Key(50, "launches between checkpoints; 0: only the last", low=0),
    "logger": LOGGER,
    "data": {
        "source": Key(
            "words", "source of the text: dictionaries, novels, both, a folder's files, or "
            "synthetic", words=("words", "books", "words+books", "folder", "synthetic")),
        "path": Key("", "folder: where the text files are", is_path=True, sources=("folder",)),
        "form": Key(
            "prose", "folder: prose, or one sentence per line, as in Mikolov's files",
            words=("prose", "lines")),
        "min_count": Key(5, "words that occur less often become unknown", low=1),
        "max_vocabulary": Key(0, "maximum number of words; 0: all", low=0),
        "subsample": Key(1e-4, "frequency above which words are subsampled; 0: none", low=0),
        "positions": Key(1024, "words of text per step", low=1, high=2**20),
        "test_fraction": Key(0.02, "fraction of the sentences that is held out", low=0, below=1),
        "num_threads": Key(2, "threads that draw batches", low=0, high=64),
    },
    "model": {
        "name": Key("skip_gram", "model", words=MODELS),
        "width": Key(100, "width of the embeddings", low=1, high=MAX_WIDTH),
        "hidden": Key(0, "nplm: width of the hidden layer; 0: width", low=0, high=MAX_WIDTH),
        "reach": Key(5, "context words on either side, or before", low=1, high=64),
        "reduce": Key(True, "skip_gram and cbow: draw the reach from 1 to reach at each position"),
        "bias": Key(
            "none", "trained bias of each word: none, or initially zero or the log unigram",
            words=("none", "zero", "unigram")),
    },
    "objective": {
        "name": Key("negative_sampling", "objective that is minimized", words=OBJECTIVES),
        "k": Key(5, "noise words per datum, as the logistic objectives count them", low=1),
        "draws": Key(64, "noise words drawn at once; 0: k. Softmax objectives use all", low=0),
        "share": Key(16, "positions that share a draw; 1: none; 0: all in a step", low=0),
        "noise": Key(
            "unigram", "distribution of the noise, or batch: the other words of the step",
            words=(*NOISES, "batch")),
        "alpha": Key(0.75, "power of the frequencies in the noise", low=-2, high=2),
        "minority": Key(0.5, "noise minority: fraction of the words, the rarest", above=0, below=1),
        "minority_mass": Key(
            0.2, "noise minority: fraction of the draws from these words", above=0, below=1),
        "backoff": Key(0.2, "noise bigram: weight of unigram^alpha", above=0, high=1),
        "rank": Key(16, "noise proposal: width of its network", low=1, high=MAX_WIDTH),
        "unique": Key(False, "whether a draw contains each word at most once"),
        "remove_hits": Key(False, "whether drawn words that equal the datum are left out"),
        "subtract_log_q": Key(
            True, "sampled softmax, sampled logistic, InfoNCE: whether scores are corrected by "
            "log q"),
        "log_z": Key(
            "zero", "log normalizer of NCE: zero, or learned for each nearest word",
            words=("zero", "learned")),
        "negative_weight": Key(1.0, "weight of the negatives in logistic objectives", above=0),
    },
    "optim": {
        "rule": Key("sgd", "update rule of the rows that a step uses", words=("sgd", "adagrad")),
        "learning_rate": Key(
            0.025, "learning rate for the sum over a step; it falls to 1e-4 of this", above=0),
    },
    "evaluate": {
        "similarity": Key(True, "whether WordSim-353, SimLex-999 and analogies are evaluated"),
        "perplexity": Key(True, "whether held-out text is scored, with all words as classes"),
        "max_places": Key(20_000, "maximum number of positions in held-out text", low=1),
    },
}  # fmt: skip
