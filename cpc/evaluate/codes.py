"""The bitrate of discrete codes, as ZeroSpeech counts it."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from cpc.results import Score


def code_entropy(frames: Float[np.ndarray, "n d"]) -> tuple[float, int]:
    """Return the entropy of the frequencies of vectors in bits, and the number of different ones.

    H = -sum_i p_i log2 p_i, vectors compared bit by bit. For few frames it is too low by about
    (codes - 1) / (2 n ln 2).

    >>> code_entropy(np.array([[0.0, 1.0], [0.0, 1.0], [2.0, 0.0], [2.0, 0.0]]))
    (1.0, 2)
    """
    rows = np.ascontiguousarray(frames + 0)  # makes -0 and 0 equal
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, counts = np.unique(keys, return_counts=True)
    p = counts / counts.sum()
    return float(max(0.0, -(p * np.log2(p)).sum())), len(counts)


def code_scores(
    frames: Sequence[Float[np.ndarray, "_ d"]], frame_seconds: float, *, data: str, features: str
) -> list[Score]:
    """Return the bitrate and the perplexity of the codes of utterances.

    The bitrate is frames per second times the entropy (Dunbar et al. 2019, ZeroSpeech), which
    ignores order and duration of codes. The perplexity is 2 to the entropy.
    """
    rows = np.concatenate(frames)
    entropy, number = code_entropy(rows)
    setting = f"{number:,} codes in {len(rows):,} frames"
    seconds = round(len(rows) * frame_seconds)
    return [
        Score("codes", data, "second", features, "unigram", "bits per second",
              entropy / frame_seconds, higher_is_better=False, num_test=seconds, setting=setting),
        Score("codes", data, "frame", features, "unigram", "perplexity", 2.0**entropy,
              num_test=len(rows), setting=setting),
    ]  # fmt: skip
