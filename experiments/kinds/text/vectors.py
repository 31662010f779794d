"""Files of word vectors, as word2vec, GloVe and fastText write them in text."""

import codecs
import itertools
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cpc.data import Vocabulary, index_of
from cpc.files import check_regular
from cpc.types import UserError

#: Lines that decide the width if there is no header.
NUM_FIRST_LINES = 100
MAX_LINE_BYTES = 1 << 20


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
    """Read the word vectors of a file: lines of a word and its numbers, with spaces or tabs.

    A first line of two whole numbers is word2vec's header, how many words and how wide; without one
    the width is that of most of the first lines. Words may contain spaces, as some of GloVe's do.
    """
    index, rows, new = index_of(vocabulary), {}, {}
    try:
        check_regular(path)
        lines = read_lines(path)
        first = [*itertools.islice(lines, NUM_FIRST_LINES)]
        header = first[0].split() if first else []
        has_header = len(header) == 2 and b"".join(header).isdigit()
        width = int(header[1]) if has_header else find_width(first)
        for number, line in enumerate(itertools.chain(first, lines), start=1):
            if not line or (number == 1 and has_header):
                continue
            try:
                word, vector = parse_line(line, width, has_header)
            except ValueError as error:
                what = f"line {number} of the word vectors {path}"
                if any(byte < 32 and byte not in b"\t\v\f" for byte in line):
                    raise UserError(
                        f"{what} contains binary numbers: save the vectors as text, a word and "
                        "its numbers per line, not compressed"
                    ) from error
                raise UserError(f"{what} {error}: correct the line or remove it") from error
            (rows if word in index else new)[index.get(word, word)] = vector
    except OSError as error:
        raise UserError(f"cannot read the word vectors {path}: {error}") from error
    if len(rows) < 2:
        raise UserError(f"the word vectors {path} are of {len(rows)} words of the text: too few")
    own = np.zeros((len(vocabulary.words), width), np.float32)
    own[list(rows)] = list(rows.values())
    others = np.array(list(new.values()), np.float32).reshape(len(new), width)
    return Vectors(own, np.array(sorted(rows)), tuple(map(str, new)), others)


def read_lines(path: pathlib.Path) -> Iterator[bytes]:
    """Yield the lines of a file without ends and byte order mark, longer ones in parts."""
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        while line := file.readline(MAX_LINE_BYTES):
            yield line.rstrip()


def find_width(lines: Sequence[bytes]) -> int:
    """Return how many numbers most of the lines end with, of equally many lines the first's.

    >>> find_width([b". . . 3 4", b"1990 5 6", b"x 1"])
    2
    """
    counts = Counter()
    for line in lines:
        numbers = itertools.takewhile(is_number, reversed(line.split()[1:]))
        counts[sum(1 for _ in numbers)] += 1
    return max(counts, key=lambda width: counts[width], default=0)


def is_number(text: bytes) -> bool:
    """Return whether text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def parse_line(line: bytes, width: int, has_header: bool) -> tuple[str, np.ndarray]:
    """Return word and vector of a line; ValueError says what it does instead.

    A word that ends with a number has too many numbers, unless that is whole and a header exists.
    """
    fields = line.split()
    if not 0 < width < len(fields):
        raise ValueError(f"is not a word and {width} numbers (got {len(fields)} fields)")
    rest = fields[1:-width]
    if rest and is_number(rest[-1]) and not (has_header and rest[-1].isdigit()):
        raise ValueError(f"has more than {width} numbers")
    try:
        vector = np.array(fields[-width:]).astype(np.float32)
    except ValueError:
        vector = np.array([np.nan])
    if not np.isfinite(vector).all():
        raise ValueError(f"does not end with {width} finite numbers")
    try:
        return line.rsplit(None, width)[0].decode(), vector
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start + 1})") from None
