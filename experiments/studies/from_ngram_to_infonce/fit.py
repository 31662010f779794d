"""What the figures share: texts, and models of words trained on them without a run directory."""

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from configs.keys import make_config
from configs.words import KEYS
from cpc.data import Corpus, Vocabulary, read_text_folder, split_sentences
from cpc.data.cache import cache_dir
from cpc.data.sources.texts import prepare_texts
from experiments.command.config import with_settings
from experiments.kinds.words import evaluate, run
from experiments.kinds.words.text import Text, synthetic

#: A log-bilinear language model of two words, as Mnih & Teh 2012 have it, by rows.
LANGUAGE_MODEL = {
    "data.subsample": 0.0,
    "data.positions": 512,
    "steps_per_launch": 32,
    "model.name": "vlbl",
    "model.width": 64,
    "model.reach": 2,
    "model.bias": "unigram",
    "objective.alpha": 1.0,
    "objective.share": 1,
    "objective.draws": 0,
    "optim.rule": "adagrad",
    "optim.learning_rate": 0.1,
    "evaluate.max_places": 20_000,
}


class Fitted(NamedTuple):
    """A trained model, what it says of held-out text, and how long its steps took."""

    trained: run.Trained
    perplexity: float
    self_normalised: float
    log_z_mean: float
    log_z_std: float
    seconds: float
    cpu_seconds: float
    """Of all threads, which other jobs on the machine move less."""


def fit(text: Text, settings: dict[str, Any], epochs: int, seed: int = 0) -> Fitted:
    """Train and evaluate; compiling is not counted."""
    config = with_settings(make_config(KEYS), {**settings, "epochs": epochs, "seed": seed})
    run.interpret(run, config)
    made = run.make(config, text)
    jax.block_until_ready(
        made.launch(jax.tree.map(lambda x: x.copy(), made.state), made.stream.launch(0))
    )
    begin, busy, state = time.perf_counter(), time.process_time(), made.state
    for i in range(epochs * made.stream.per_epoch):
        state = made.launch(state, made.stream.launch(i))
    jax.block_until_ready(state)
    seconds, busy = time.perf_counter() - begin, time.process_time() - busy
    made = made._replace(state=state)
    log_p, log_z, _ = evaluate.tell(made, text.test.tokens, text.test.sentence_starts)
    perplexity, own = (float(np.exp(-x.mean())) for x in (log_p, log_p + log_z))
    z = float(log_z.mean()), float(log_z.std())
    return Fitted(made, perplexity, own, *z, seconds, busy)


def tables_of(one: Fitted) -> dict[str, np.ndarray]:
    """Return the tables of a trained model."""
    tables = jax.device_get(one.trained.state.params["tables"])
    return {name: np.asarray(table) for name, table in tables.items()}


def books(num_tokens: int, num_words: int) -> Text:
    """Return a part of the packaged books, every other word of the vocabulary unknown."""
    folder = prepare_texts("books") / "text"
    corpus = read_text_folder(
        folder, cache_dir() / "packs", print, min_count=5, max_vocabulary=num_words
    )
    last = int(np.searchsorted(corpus.sentence_starts, num_tokens))
    return divide(first_sentences(corpus, last))


def made_up(num_tokens: int, num_words: int) -> Text:
    """Return a Zipfian bigram language, for a look."""
    return divide(synthetic(0, num_tokens, num_words), blocks=5)


def first_sentences(corpus: Corpus, num: int) -> Corpus:
    """Return the beginning of a text as one document."""
    starts = corpus.sentence_starts[: num + 1]
    tokens = np.asarray(corpus.tokens[: starts[-1]])
    return corpus._replace(
        tokens=tokens, sentence_starts=starts, document_starts=np.array([0, len(starts) - 1])
    )


def divide(corpus: Corpus, blocks: int = 100) -> Text:
    """Return nine tenths to train on and a tenth to test, counts being those of the part."""
    counts = np.bincount(corpus.tokens, minlength=len(corpus.vocabulary.words))
    order = np.append(0, 1 + np.argsort(-counts[1:], kind="stable"))
    kept = order[: 1 + int((counts[1:] > 0).sum())]
    number = np.zeros(len(order), np.int32)
    number[kept] = np.arange(len(kept))
    words = tuple(corpus.vocabulary.words[i] for i in kept)
    corpus = corpus._replace(
        tokens=number[corpus.tokens], vocabulary=Vocabulary(words, counts[kept])
    )
    train, _, test = split_sentences(corpus, valid=0.0, test=0.1, block_sentences=blocks)
    return Text(train, test)
