"""The text of a run of words: fetched, found or made, and divided."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpc.data import Corpus, Vocabulary, describe_corpus, read_text_folder, split_for_training
from cpc.data.cache import cache_dir
from cpc.data.skipped import Skipped, count_names
from cpc.data.sources.texts import prepare_texts
from cpc.types import UserError
from experiments.command.run_dir import Fingerprint


class Text(NamedTuple):
    """A text as a run takes it: what is trained on and what is held out."""

    train: Corpus
    test: Corpus

    @property
    def skipped(self) -> Sequence[Skipped]:
        """What was left out, and why."""
        return self.train.skipped

    def fingerprint(self) -> dict[str, Fingerprint]:
        """Return what tells the parts of these data from those of others."""
        return {"train": fingerprint(self.train), "test": fingerprint(self.test)}


def synthetic(seed: int, num_tokens: int = 100_000, num_words: int = 1000) -> Corpus:
    """Return sentences of a Zipfian bigram language: a word is followed by a few others often."""
    rng = np.random.default_rng(seed)
    zipf = 1 / np.arange(1, num_words)
    zipf /= zipf.sum()
    favourites = rng.choice(num_words - 1, (num_words - 1, 8), p=zipf)
    follows, often = rng.random(num_tokens) < 0.7, rng.integers(0, 8, num_tokens)
    other = rng.choice(num_words - 1, num_tokens, p=zipf)
    tokens = np.empty(num_tokens, np.int32)
    last = 0
    for i in range(num_tokens):
        last = favourites[last, often[i]] if follows[i] else other[i]
        tokens[i] = last
    order = np.argsort(-np.bincount(tokens, minlength=num_words - 1), kind="stable")
    tokens = (np.argsort(order)[tokens] + 1).astype(np.int32)
    words = ("<unk>", *(f"w{i}" for i in range(1, num_words)))
    starts = np.append(np.arange(0, num_tokens, 20), num_tokens).astype(np.int64)
    counts = np.bincount(tokens, minlength=num_words).astype(np.int64)
    documents = np.array([0, len(starts) - 1], np.int64)
    return Corpus(tokens, starts, documents, Vocabulary(words, counts), [])


def load_text(data: Any, seed: int, log: Callable[[str], object]) -> Text:
    """Return the text that the data section of a config names."""
    if data.source == "synthetic":
        corpus = synthetic(seed)
    elif data.source == "folder":
        if not data.path:
            raise UserError("data.source is folder: name it by data.path")
        corpus = pack(Path(data.path), data, log, data.form)
    else:
        corpus = pack(prepare_texts(data.source, log=log) / "text", data, log)
    skipped = count_names(corpus.skipped, "files skipped")
    if data.test_fraction == 0:
        log(f"data: {describe_corpus(corpus)}; {skipped}")
        return Text(corpus, corpus._replace(tokens=corpus.tokens[:0]))
    train, test, num_copies = split_for_training(corpus, test=data.test_fraction, seed=seed)
    copies = f"{num_copies:,} training sentences are also in the test text and left out; "
    used = describe_corpus(corpus._replace(vocabulary=train.vocabulary))
    log(f"data: {used}; {copies if num_copies else ''}{skipped}")
    return Text(train, test)


def pack(folder: Path, data: Any, log: Callable[[str], object], form: str = "prose") -> Corpus:
    """Return a folder's text as tokens."""
    return read_text_folder(
        folder,
        cache_dir() / "packs",
        log,
        form=form,
        min_count=data.min_count,
        max_vocabulary=data.max_vocabulary,
    )


def fingerprint(corpus: Corpus) -> Fingerprint:
    """Return where sentences begin, and the words."""
    words = repr(corpus.vocabulary.words).encode()
    starts = corpus.sentence_starts
    return Fingerprint(len(starts) - 1, starts.tobytes() + words)
