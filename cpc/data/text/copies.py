"""Documents that another document of the same text contains, whole or for the most part."""

import hashlib
import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt64

from cpc.data.skipped import find_copies
from cpc.data.text.corpus import mix_bits

#: Consecutive words that are compared at a time: long enough that two authors share few.
WINDOW_WORDS = 8
#: A document with more of its windows in larger documents is a copy.
MAX_SHARED = 0.5
#: Documents with fewer different windows are compared as wholes only.
MIN_WINDOWS = 16
#: Windows of the whole text that are kept at most, about: of a larger text, every second, every
#: fourth and so on, chosen by their content.
MAX_WINDOWS = 1 << 22


def find_copied_documents(
    tokens: Int[np.ndarray, " n"], bounds: Sequence[int]
) -> dict[int, tuple[int, float]]:
    """Return the documents that are copies, mapped to the one that contains most, and the share.

    Windows of words are compared wherever they stand, so that neither another wrapping of lines nor
    a licence above the text hides a copy. Of equal documents the first is no copy.

    Args:
        tokens: ids of words; equal words have equal ids in all documents.
        bounds: document j is tokens[bounds[j]:bounds[j + 1]].

    >>> text = np.arange(100)
    >>> find_copied_documents(np.concatenate([text[:60], text, text]), [0, 60, 160, 260])
    {2: (1, 1.0), 0: (1, 1.0)}
    """
    parts = [tokens[a:b] for a, b in itertools.pairwise(bounds)]
    equal = find_copies(hashlib.blake2b(part.tobytes()).digest() for part in parts)
    copies = {copy: (first, 1.0) for copy, first in equal.items()}
    sample = 1 << max(0, (len(tokens) // MAX_WINDOWS).bit_length())
    windows = {j: hash_windows(part, sample) for j, part in enumerate(parts) if j not in equal}
    order = sorted(
        (j for j, own in windows.items() if len(own) >= MIN_WINDOWS),
        key=lambda j: (-len(windows[j]), j),
    )
    if len(order) < 2:
        return copies
    everything = np.concatenate([windows[j] for j in order])
    rank = np.repeat(np.arange(len(order)), [len(windows[j]) for j in order])
    _, first, window = np.unique(everything, return_index=True, return_inverse=True)
    owner = rank[first][window]  # the largest document with this window
    ends = np.cumsum([len(windows[j]) for j in order])
    for number, own in enumerate(np.split(owner, ends[:-1])):
        shared = own[own != number]
        if len(shared) > MAX_SHARED * len(own):
            largest = int(np.bincount(shared).argmax())
            copies[order[number]] = order[largest], len(shared) / len(own)
    return copies


def hash_windows(
    tokens: Int[np.ndarray, " n"], sample: int = 1, chunk: int = 1 << 20
) -> UInt64[np.ndarray, " _"]:
    """Return the different hashes of windows of words, of which `sample`, a power of two, divides.

    >>> windows = hash_windows(np.arange(100), chunk=32)
    >>> len(windows), np.array_equal(windows, hash_windows(np.arange(100)))
    (93, True)
    """
    found = [np.zeros(0, np.uint64)]
    for begin in range(0, len(tokens) - WINDOW_WORDS + 1, chunk):
        mixed = mix_bits(tokens[begin : begin + chunk + WINDOW_WORDS - 1].astype(np.uint64))
        total = np.zeros(len(mixed) - WINDOW_WORDS + 1, np.uint64)
        for place in range(WINDOW_WORDS):
            total = mix_bits(total ^ mixed[place : place + len(total)])
        found.append(np.unique(total[total % np.uint64(sample) == 0]))
    return np.unique(np.concatenate(found))
