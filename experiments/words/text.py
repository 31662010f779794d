"""The text of a run of words: fetched, found or made, and divided."""

from collections.abc import Callable

import numpy as np

from experiments.command.config import Config
from experiments.words.run import Text


def synthetic(seed: int, num_tokens: int = 200_000, num_words: int = 1000) -> Text:
    """Return sentences of a Zipfian bigram language: word w is followed by few others often."""
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
    starts = np.append(np.arange(0, num_tokens, 20), num_tokens).astype(np.int64)
    words = ("<unk>", *(f"w{i}" for i in range(1, num_words)))
    counts = np.bincount(tokens, minlength=num_words).astype(np.int64)
    return divide(words, counts, tokens, starts, 0.02)


def divide(words, counts, tokens, starts, fraction) -> Text:
    """Return a text whose last sentences, a fraction of the words, are held out."""
    cut = int(np.searchsorted(starts, (1 - fraction) * len(tokens)))
    cut = min(max(cut, 1), len(starts) - 1)
    place = starts[cut]
    return Text(
        tuple(words),
        np.asarray(counts),
        tokens[:place],
        np.asarray(starts[: cut + 1]),
        np.asarray(tokens[place:]),
        np.asarray(starts[cut:]) - place,
    )


def load_text(data: Config, seed: int, log: Callable[[str], object]) -> Text:
    """Return the text that a config names."""
    return synthetic(seed)
