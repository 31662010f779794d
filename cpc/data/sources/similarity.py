"""Human judgements on words from gensim's wheel (WordSim-353, SimLex-999 and analogies).

The wheel is read as a zip file. It is not installed or executed.
"""

import zipfile
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from cpc.data.cache import Log, cache_dir, log_to_stderr
from cpc.data.sources.archives import Registered, fetch

GENSIM = Registered(
    "wheel",
    "gensim",
    "4.4.0",
    "gensim-4.4.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
    27.8,
)
FOLDER = "gensim/test/test_data/"
FILES = {
    "wordsim353": "wordsim353.tsv",
    "simlex999": "simlex999.txt",
    "analogies": "questions-words.txt",
}


class Pairs(NamedTuple):
    """Pairs of words with their mean human similarity ratings."""

    words: tuple[tuple[str, str], ...]
    similarity: Float[np.ndarray, " n"]


class Judgements(NamedTuple):
    """Similarity datasets and analogies for evaluating word vectors."""

    pairs: dict[str, Pairs]
    analogies: list[tuple[str, str, str, str]]
    """Quadruples of words (a, b, c, d), where a is to b as c is to d."""


def read_judgements(log: Log = log_to_stderr) -> Judgements:
    """Return all ratings and analogies, fetching gensim's wheel (28 MB) if it is not cached."""
    with zipfile.ZipFile(fetch(GENSIM, cache_dir() / "archives", log)) as members:
        texts = {name: members.read(FOLDER + file).decode("utf-8") for name, file in FILES.items()}
    rows = map(str.split, texts.pop("analogies").lower().splitlines())
    # Other lines name a section.
    analogies = [(a, b, c, d) for a, b, c, d in (row for row in rows if len(row) == 4)]
    return Judgements({name: parse_pairs(text) for name, text in texts.items()}, analogies)


def parse_pairs(text: str) -> Pairs:
    """Parse lines of two words and a rating, lowercasing words and ignoring # comments."""
    rows = [line.split("\t") for line in text.splitlines() if line and line[0] != "#"]
    words = tuple((one.lower(), other.lower()) for one, other, _ in rows)
    return Pairs(words, np.array([float(row[2]) for row in rows]))
