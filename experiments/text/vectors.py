"""Files of word vectors, as word2vec, GloVe and fastText write them in text."""

import pathlib
from typing import NamedTuple

import numpy as np

from cpc.data import Vocabulary, index_of
from cpc.types import UserError


class Vectors(NamedTuple):
    """Vectors of the words of a vocabulary, and of further words."""

    own: np.ndarray
    """(words, width), zero where there is none."""
    known: np.ndarray
    """Ids of the words that have one."""
    new_words: tuple[str, ...]
    others: np.ndarray
    """(new words, width)."""


def read_vectors(path: pathlib.Path, vocabulary: Vocabulary) -> Vectors:
    """Return the vectors of a file: lines of a word and its numbers; a first line of two is passed.

    Raises:
        UserError: no such file, a line of another form (it names the line), or too few shared words
            for a linear map.
    """
    index, rows, new = index_of(vocabulary), {}, {}
    width = None
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                parts = line.rstrip().split(" ")
                if number == 1 and len(parts) == 2:  # how many words, and how wide
                    continue
                width = width or len(parts) - 1
                cut = max(1, len(parts) - width)  # GloVe's words may hold spaces
                word, numbers = " ".join(parts[:cut]), parts[cut:]
                try:
                    if cut > 1 and parts[cut - 1].replace(".", "", 1).lstrip("-").isdecimal():
                        raise ValueError("one number too many")
                    vector = np.array(numbers, np.float32)
                except ValueError:
                    vector = np.zeros(0, np.float32)
                if len(vector) != width or not width or not np.isfinite(vector).all():
                    raise UserError(
                        f"line {number} of the word vectors {path} is no word with {width} numbers"
                    )
                (rows if word in index else new)[index.get(word, word)] = vector
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the word vectors {path}: {error}") from error
    if len(rows) < 2:
        raise UserError(f"the word vectors {path} are of {len(rows)} words of the text: too few")
    own = np.zeros((len(vocabulary.words), width or 0), np.float32)
    own[list(rows)] = list(rows.values())
    others = np.array(list(new.values()), np.float32).reshape(len(new), width or 0)
    return Vectors(own, np.array(sorted(rows)), tuple(map(str, new)), others)
