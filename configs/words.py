"""Every key of configs of kind words: one word model, one objective, one noise."""

from configs.defaults import LOGGER, WIDEST
from configs.keys import Key

MODELS = ("skip_gram", "cbow", "vlbl", "lbl", "nplm")
OBJECTIVES = (
    "full_softmax", "nce", "negative_sampling", "sampled_softmax", "sampled_logistic",
    "ranking_nce", "info_nce",
)  # fmt: skip
NOISES = ("unigram", "uniform", "log_uniform", "minority", "learned_unigram", "bigram", "proposal")

KEYS = {
    "kind": Key("words", "of data", words=("words",)),
    "seed": Key(0, "of all randomness", low=0, below=2**32),
    "epochs": Key(5, "times through the text", low=1, high=10_000),
    "steps_per_launch": Key(64, "steps of a program, and of what else is counted", low=1),
    "log_launches": Key(4, "launches from one record to the next", low=1),
    "save_launches": Key(50, "launches from one checkpoint to the next; 0: at the end", low=0),
    "logger": LOGGER,
    "data": {
        "source": Key("words", "of the text: dictionaries, novels, both, a folder's, made up",
                      words=("words", "books", "words+books", "folder", "synthetic")),
        "path": Key("", "folder of text files, of source folder", is_path=True),
        "form": Key("prose", "of a folder: prose, or lines that are sentences, such as Mikolov's",
                    words=("prose", "lines")),
        "min_count": Key(5, "words that are rarer are unknown", low=1),
        "max_vocabulary": Key(0, "most words; 0: all", low=0),
        "subsample": Key(1e-4, "frequency above which words are thinned out; 0: none", low=0),
        "positions": Key(1024, "words of a step", low=1, high=2**20),
        "test_fraction": Key(0.02, "of the sentences, held out", low=0, below=1),
        "num_threads": Key(2, "that draw batches", low=0, high=64),
    },
    "model": {
        "name": Key("skip_gram", "the model", words=MODELS),
        "width": Key(100, "of the rows of the tables", low=1, high=WIDEST),
        "hidden": Key(0, "of nplm's layer; 0: width", low=0, high=WIDEST),
        "reach": Key(5, "words on either side, or before", low=1, high=64),
        "reduce": Key(True, "skip_gram and cbow: look 1 to reach words far, drawn for each place"),
        "bias": Key("none", "of each word, trained: none, from zero, from log unigram",
                    words=("none", "zero", "unigram")),
    },
    "objective": {
        "name": Key("negative_sampling", "what is minimised", words=OBJECTIVES),
        "k": Key(5, "noise words of each datum, as the logistic objectives count them", low=1),
        "draws": Key(64, "noise words drawn at once; 0: k. Softmax objectives use all", low=0),
        "share": Key(16, "places that share a draw; 1: each its own; 0: all of a step", low=0),
        "noise": Key("unigram", "where they are drawn, or batch: the words of the places",
                     words=(*NOISES, "batch")),
        "alpha": Key(0.75, "power of the frequencies in the noise", low=-2, high=2),
        "minority": Key(0.5, "of noise minority: fraction of the words, the rarest", above=0,
                        below=1),
        "minority_mass": Key(0.2, "of noise minority: fraction of the draws that they get",
                             above=0, below=1),
        "backoff": Key(0.2, "of noise bigram: fraction that is unigram^alpha", above=0, high=1),
        "rank": Key(16, "of noise proposal: width of its network", low=1, high=WIDEST),
        "unique": Key(False, "each word once in a draw"),
        "remove_hits": Key(False, "leave out drawn words that are the datum"),
        "subtract_log_q": Key(True, "sampled softmax, sampled logistic, InfoNCE: correct for q"),
        "log_z": Key("zero", "NCE's normaliser: zero, or learned for each nearest word",
                     words=("zero", "learned")),
        "negative_weight": Key(1.0, "of the negatives of logistic objectives", above=0),
    },
    "optim": {
        "rule": Key("sgd", "by rows", words=("sgd", "adagrad")),
        "learning_rate": Key(0.025, "of the sum over a step, falling to 1e-4 of it", above=0),
    },
    "evaluate": {
        "similarity": Key(True, "WordSim-353, SimLex-999 and analogies"),
        "perplexity": Key(True, "of held-out text, with all words as classes"),
        "max_places": Key(20_000, "of held-out text", low=1),
    },
}  # fmt: skip
