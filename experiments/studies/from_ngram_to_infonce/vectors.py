"""What the figures on vectors of words share: texts with judgements of likeness, and intervals."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from cpc.data import (
    Corpus,
    Vocabulary,
    keep_probabilities,
    read_text_folder,
    split_sentences,
    subsample,
)
from cpc.data.cache import cache_dir
from cpc.data.sources.similarity import read_judgements
from cpc.data.sources.texts import prepare_texts
from experiments.kinds.words.text import Text

#: word2vec's settings (Mikolov et al. 2013), as configs/text_words.py has them.
SKIP_GRAM = {"evaluate.max_places": 4096}
#: For texts of some ten thousand words.
SMALL = {"data.positions": 256, "data.subsample": 0.0, "steps_per_launch": 16, "model.width": 20}


class Judged(NamedTuple):
    """A text, and what is said of the likeness of its words."""

    text: Text
    sets: Mapping[str, Any]
    """Name -> (pairs of words, their likeness)."""


def dictionaries(file: str = "", num_words: int = 0, threshold: float = 1e-4) -> Judged:
    """Return WordNet's glosses and GCIDE, or one of them, and WordSim-353 and SimLex-999.

    Args:
        file: of the packaged texts, such as wordnet.txt; "": all.
        num_words: the most frequent ones, others are unknown; 0: all that occur five times.
        threshold: the held-out text, a twentieth, is thinned out as what is trained on.
    """
    path = prepare_texts("words") / "text" / file
    corpus = read_text_folder(
        path, cache_dir() / "packs", print, min_count=5, max_vocabulary=num_words
    )
    keep = keep_probabilities(corpus.vocabulary.counts, threshold)
    return Judged(divide(corpus, keep), read_judgements().pairs)


def made_up(num_tokens: int, num_words: int, sharpness: float = 1.2, seed: int = 0) -> Judged:
    """Return sentences of ten Zipfian words that lie in a direction, and cosines of these.

    A word of direction a is exp(sharpness cos(a - b)) times as frequent in sentences of b.
    """
    rng = np.random.default_rng(seed)
    of_word = rng.uniform(0, 2 * np.pi, num_words - 1)
    of_topic = np.arange(32) * 2 * np.pi / 32
    p = np.exp(sharpness * np.cos(of_word - of_topic[:, None])) / np.arange(5, num_words + 4)
    upto = np.cumsum(p, 1) / p.sum(1, keepdims=True)
    topics = rng.integers(0, len(of_topic), num_tokens // 10)
    draws = rng.random((len(topics), 10))
    tokens = np.array([np.searchsorted(upto[b], x) for b, x in zip(topics, draws, strict=True)])
    tokens = 1 + np.minimum(tokens, num_words - 2).ravel().astype(np.int32)
    words = ("<unk>", *(f"w{i}" for i in range(1, num_words)))
    counts = np.bincount(tokens, minlength=num_words)
    starts = np.arange(0, len(tokens) + 1, 10)
    corpus = Corpus(tokens, starts, np.array([0, len(topics)]), Vocabulary(words, counts), [])
    left, right = rng.integers(0, num_words - 1, (2, 600))
    pairs = [(words[a + 1], words[b + 1]) for a, b in zip(left, right, strict=True)]
    keep = np.append(0.0, np.ones(num_words - 1))
    return Judged(divide(corpus, keep), {"made": (pairs, np.cos(of_word[left] - of_word[right]))})


def divide(corpus: Corpus, keep: np.ndarray) -> Text:
    """Return nineteen twentieths to train on, and the rest thinned out; id 0 is left out there."""
    train, _, test = split_sentences(corpus, valid=0.0, test=0.05, block_sentences=20)
    stays = subsample(test.tokens, np.append(0.0, keep[1:]), 0)
    starts = np.unique(np.append(0, np.cumsum(stays))[test.sentence_starts])
    return Text(train, test._replace(
        tokens=test.tokens[stays], sentence_starts=starts,
        document_starts=np.array([0, len(starts) - 1]),
    ))  # fmt: skip


def index(vocabulary: Vocabulary) -> dict[str, int]:
    """Return word -> row, of known words."""
    return {word: i for i, word in enumerate(vocabulary.words) if i}


def known_pairs(judged: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (n, 2) of pairs whose words are known, and what is said of them.

    Said are ranks in their set, from 0 to 1, so that sets go together.
    """
    rows, at, said = index(judged.text.train.vocabulary), [], []
    for pairs, values in judged.sets.values():
        ranks = stats.rankdata(values) / len(values)
        for pair, rank in zip(pairs, ranks, strict=True):
            if all(word in rows for word in pair):
                at.append([rows[word] for word in pair])
                said.append(rank)
    return np.array(at), np.array(said)


def interval(values: Any) -> tuple[float, float, float]:
    """Return mean and 95 % interval by Student's t over seeds."""
    values = np.asarray(values, float)
    reach = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(values.mean() - reach), float(values.mean() + reach)
