"""Batches of words from subsampled slices of a text, for training word embeddings."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int

from cpc.types import UserError

#: Maximum number of tokens between two candidate bounds of a slice.
MAX_GRAIN = 1024


class WordStream(NamedTuple):
    """Inputs for training in launches, each a call of several steps, reordered in each epoch."""

    launch: Callable[[int], dict[str, np.ndarray]]
    """Index of a launch -> {"tokens", "sentence"}, int32 (steps, margin + positions + margin). The
    margins repeat words of the neighbouring steps. Both arrays are padded with -1."""
    per_epoch: int  # launches in an epoch
    words_per_launch: float  # words of the text per launch, counted before subsampling


def word_stream(
    tokens: Any,
    sentence_starts: Int[np.ndarray, " _"],
    keep: Float64[np.ndarray, " v"],
    *,
    seed: int,
    steps: int,
    positions: int,
    margin: int,
) -> WordStream:
    """Return the inputs of launches, which are calls of `steps` steps of `positions` words each.

    The text is split into one slice per launch. After subsampling, a slice is expected to fill 95 %
    of its launch, and words that do not fit are dropped. The inputs depend only on the launch's
    index.

    Args:
        tokens: word ids (n,), which may be memory-mapped and are never read as a whole.
        sentence_starts: start of each sentence in `tokens`, and the end of the last sentence. In a
            launch, all words of a sentence carry the sentence's number.
        keep: probability of keeping each vocabulary word.
        steps, positions, margin: shape of a launch. A margin of 5 adds 5 words on either side.
    """
    n, capacity = len(tokens), steps * positions
    grain = min(MAX_GRAIN, max(1, capacity // 32))  # less than the spare 5 %
    at_once = MAX_GRAIN * grain
    parts = [keep[tokens[i : i + at_once]] for i in range(0, n, at_once)]
    grains = [np.add.reduceat(part, np.arange(0, len(part), grain)) for part in parts]
    cumulative = np.cumsum(np.concatenate([np.zeros(0), *grains]))  # expected number of kept tokens
    if not n or cumulative[-1] < 2:
        raise UserError(
            "the text has fewer than two words to train on: lower data.min_count, or add text"
        )
    num = max(1, int(np.ceil(cumulative[-1] / (0.95 * capacity))))
    cuts = np.searchsorted(cumulative, cumulative[-1] * np.arange(1, num) / num) + 1
    bounds = np.unique([0, *np.minimum(cuts * grain, n), n])
    num = len(bounds) - 1
    offsets = margin + np.arange(positions + 2 * margin)[None] - margin
    indices = np.arange(steps)[:, None] * positions + offsets

    def launch(index: int) -> dict[str, np.ndarray]:
        epoch, position = divmod(index, num)
        number = np.random.default_rng((seed, epoch)).permutation(num)[position]
        start, stop = bounds[number], bounds[number + 1]
        part = np.asarray(tokens[start:stop])
        is_kept = np.random.default_rng((seed, epoch, number)).random(len(part)) < keep[part]
        kept = np.flatnonzero(is_kept)[:capacity]
        sentence_of = np.searchsorted(sentence_starts, start + kept, side="right")
        sentence_of = sentence_of - sentence_of[0] if len(kept) else sentence_of
        shape = capacity + 2 * margin
        words, sentences = np.full((2, shape), -1, np.int32)
        words[margin : margin + len(kept)] = part[kept]
        sentences[margin : margin + len(kept)] = sentence_of
        return {"tokens": words[indices], "sentence": sentences[indices]}

    return WordStream(launch, num, n / num)
