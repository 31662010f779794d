"""Words on their way to a step: slices of a text, frequent words thinned out, of one shape."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int

from cpc.types import UserError

#: Tokens from one possible bound of a slice to the next, at most: more are read at once.
MOST_BETWEEN = 1024


class WordStream(NamedTuple):
    """Launches of steps over a text, in an order that changes from epoch to epoch."""

    launch: Callable[[int], dict[str, np.ndarray]]
    """Index of a launch -> {"tokens", "sentence"}, int32 (steps, margin + positions + margin); the
    margins repeat the neighbours' words. Where nothing is, both are -1."""
    per_epoch: int  # launches of an epoch
    words_per_launch: float  # of the text, those that are thinned out included


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
    """Return launches of `steps` steps of `positions` words, made of a text that may lie on a disk.

    A slice of the text ends where so many words are expected to stay as a launch holds, less a
    twentieth; what does not fit is left out. Each launch is a function of its index alone.

    Args:
        tokens: (n,) ids; read in parts, never whole.
        sentence_starts: where sentences begin, and the end of the last. Words of one sentence have
            one number.
        keep: chance of each word to stay.
        steps, positions, margin: the shape of a launch; a margin of 5 shows 5 words on either side.
    """
    n, capacity = len(tokens), steps * positions
    grain = min(MOST_BETWEEN, max(1, capacity // 32))  # less than the twentieth that is spare
    at_once = MOST_BETWEEN * grain
    parts = [keep[tokens[i : i + at_once]] for i in range(0, n, at_once)]
    grains = [np.add.reduceat(part, np.arange(0, len(part), grain)) for part in parts]
    upto = np.cumsum(np.concatenate([np.zeros(0), *grains]))  # tokens that are expected to stay
    if not n or upto[-1] < 2:
        raise UserError(
            "the text has no two words that would be trained on: lower data.min_count, raise "
            "data.subsample, or give more text"
        )
    num = max(1, int(np.ceil(upto[-1] / (0.95 * capacity))))
    cuts = np.searchsorted(upto, upto[-1] * np.arange(1, num) / num) + 1
    bounds = np.unique([0, *np.minimum(cuts * grain, n), n])
    num = len(bounds) - 1
    room = margin + np.arange(positions + 2 * margin)[None] - margin
    places = np.arange(steps)[:, None] * positions + room

    def launch(index: int) -> dict[str, np.ndarray]:
        epoch, turn = divmod(index, num)
        which = np.random.default_rng((seed, epoch)).permutation(num)[turn]
        start, stop = bounds[which], bounds[which + 1]
        part = np.asarray(tokens[start:stop])
        stays = np.random.default_rng((seed, epoch, which)).random(len(part)) < keep[part]
        stays = np.flatnonzero(stays)[:capacity]
        of = np.searchsorted(sentence_starts, start + stays, side="right")
        of = of - of[0] if len(of) else of
        shape = capacity + 2 * margin
        words, sentences = np.full((2, shape), -1, np.int32)
        words[margin : margin + len(stays)] = part[stays]
        sentences[margin : margin + len(stays)] = of
        return {"tokens": words[places], "sentence": sentences[places]}

    return WordStream(launch, num, n / num)
