"""How many bits a second codes take, as ZeroSpeech counts them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from cpc.results import Score


def code_entropy(frames: Float[np.ndarray, "n d"]) -> tuple[float, int]:
    """Return the entropy of vectors' frequencies in bits, and how many different ones there are.

    H = -sum_i p_i log2 p_i of the vectors as they are, bit by bit. From few frames it comes out
    low, by about (codes - 1) / (2 n ln 2).

    >>> code_entropy(np.array([[0.0, 1.0], [0.0, 1.0], [2.0, 0.0], [2.0, 0.0]]))
    (1.0, 2)
    """
    rows = np.ascontiguousarray(frames + 0)  # of -0 and 0 one
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, counts = np.unique(keys, return_counts=True)
    p = counts / counts.sum()
    return float(max(0.0, -(p * np.log2(p)).sum())), len(counts)


def code_scores(
    frames: Sequence[Float[np.ndarray, "_ d"]], frame_seconds: float, *, data: str, features: str
) -> list[Score]:
    """Return the bitrate of utterances' codes, and their perplexity.

    Bits a second are frames a second times the entropy of one (Dunbar et al. 2019, ZeroSpeech):
    neither what follows what nor that codes stay for a while is made use of. The perplexity is 2
    to the entropy. Features that never repeat have the bitrate of their frames' numbers.

    Args:
        frames: of each utterance, code vectors one after the other.
        frame_seconds: from frame to frame.
        data, features: for the scores.
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
