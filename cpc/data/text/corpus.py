"""Corpora of word ids with sentence and document boundaries, and their splits."""

import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from cpc.data.text.tokenizer import tokenize
from cpc.types import UserError

#: Placeholder for words outside the vocabulary, with id 0.
UNKNOWN = "<unk>"
#: Number of tokens counted at a time, as 64-bit copies of them take memory.
CHUNK_TOKENS = 1 << 22
#: Minimum length of a copied sentence in words. Shorter sentences may recur by chance.
MIN_COPIED_WORDS = 8


class Vocabulary(NamedTuple):
    """Words and their counts, sorted by decreasing count from id 1."""

    words: tuple[str, ...]
    """The word for each id. Id 0 is `<unk>`."""
    counts: np.ndarray
    """int64 count of each word in the source text. Entry 0 counts all unknown words."""


class Corpus(NamedTuple):
    """A text as word ids, with sentence and document boundaries."""

    tokens: np.ndarray
    """int32 (n,): word ids of consecutive sentences. The array may be memory-mapped."""
    sentence_starts: np.ndarray
    """int64 (sentences + 1,): sentence i is the non-empty tokens[starts[i]:starts[i + 1]]."""
    document_starts: np.ndarray
    """int64 (documents + 1,): document j contains the sentences from starts[j] to starts[j + 1]."""
    vocabulary: Vocabulary
    skipped: list[tuple[str, str]]
    """(file, reason) for each file that is left out."""

    def identity(self) -> bytes:
        """Return bytes that identify the sentences, their words and the vocabulary."""
        words = repr(self.vocabulary.words).encode()
        checksum = zlib.crc32(np.ascontiguousarray(self.tokens).data)
        return self.sentence_starts.tobytes() + checksum.to_bytes(4) + words


def index_of(vocabulary: Vocabulary) -> dict[str, int]:
    """Return a mapping from each word of a vocabulary to its id.

    >>> index_of(Vocabulary(("<unk>", "the"), np.array([0, 7])))
    {'<unk>': 0, 'the': 1}
    """
    return {word: number for number, word in enumerate(vocabulary.words)}


def encode(words: Sequence[str], index: Mapping[str, int]) -> Int[np.ndarray, " n"]:
    """Return the id of each word, or 0 for a word that is not in `index`."""
    return np.fromiter((index.get(word, 0) for word in words), np.int32, len(words))


def pad_sentences(
    sentences: Sequence[Int[np.ndarray, " _"]], max_words: int
) -> Int[np.ndarray, "sentences w"]:
    """Truncate sentences to `max_words` words, and pad shorter sentences with -1.

    >>> pad_sentences([np.array([4, 5]), np.array([6, 7, 8, 9])], 3)
    array([[ 4,  5, -1],
           [ 6,  7,  8]], dtype=int32)
    """
    padded = np.full((len(sentences), max_words), -1, np.int32)
    for row, words in zip(padded, sentences, strict=True):
        row[: len(words)] = words[:max_words]
    return padded


def encode_sentences(
    texts: Sequence[str], words: Sequence[str], max_words: int, *, lowercase: bool = True
) -> Int[np.ndarray, "sentences w"]:
    """Convert each one-sentence text to a row of word ids, truncated or padded with -1.

    >>> encode_sentences(["The cat.", "A cat sat"], ["<unk>", "the", "cat"], 2)
    array([[1, 2],
           [0, 2]], dtype=int32)
    """
    index = {word: number for number, word in enumerate(words)}
    tokens = (tokenize(text, lowercase=lowercase) for text in texts)
    sentences = [encode([word for word in one if word[0].isalnum()], index) for one in tokens]
    return pad_sentences(sentences, max_words)


def count_words(corpus: Corpus) -> Int[np.ndarray, " v"]:
    """Count how often each vocabulary word occurs in a corpus."""
    return count_tokens([corpus.tokens], len(corpus.vocabulary.words))


def count_tokens(parts: Iterable[np.ndarray], num_words: int) -> Int[np.ndarray, " v"]:
    """Count each id below `num_words` in arrays, chunk by chunk to save memory."""
    counts = np.zeros(num_words, np.int64)
    for part in parts:
        for i in range(0, len(part), CHUNK_TOKENS):
            counts += np.bincount(part[i : i + CHUNK_TOKENS], minlength=num_words)
    return counts


def describe_corpus(corpus: Corpus) -> str:
    """Return a one-line summary of a corpus's size, for the console.

    >>> words = Vocabulary(("<unk>", "a"), np.array([1, 5]))
    >>> describe_corpus(Corpus(np.ones(6, int), np.array([0, 4, 6]), np.array([0, 2]), words, []))
    '6 words (16.7 % <unk>) in 2 sentences of 1 documents, 1 in the vocabulary'
    """
    words, counts = corpus.vocabulary
    return (
        f"{len(corpus.tokens):,} words ({100 * counts[0] / counts.sum():.1f} % <unk>) in "
        f"{len(corpus.sentence_starts) - 1:,} sentences of {len(corpus.document_starts) - 1:,} "
        f"documents, {len(words) - 1:,} in the vocabulary"
    )


def documents_of(corpus: Corpus) -> Int[np.ndarray, " sentences"]:
    """Return the document index of each sentence."""
    return np.repeat(np.arange(len(corpus.document_starts) - 1), np.diff(corpus.document_starts))


def select_sentences(corpus: Corpus, mask: Bool[np.ndarray, " sentences"]) -> Corpus:
    """Return the sentences that a mask selects, splitting documents at removed sentences.

    Tokens are copied to memory unless the selected sentences are contiguous. The vocabulary is
    unchanged.
    """
    kept = np.flatnonzero(mask)
    document = documents_of(corpus)[kept]
    is_first = np.ones(len(kept), bool)
    is_first[1:] = (np.diff(kept) > 1) | (np.diff(document) > 0)
    lengths = np.diff(corpus.sentence_starts)
    bounds = np.concatenate([[0], np.cumsum(lengths[kept])]).astype(np.int64)
    documents = np.append(np.flatnonzero(is_first), len(kept)).astype(np.int64)
    first, last = (kept[0], kept[-1]) if len(kept) else (0, -1)
    tokens = corpus.tokens[corpus.sentence_starts[first] : corpus.sentence_starts[last + 1]]
    if len(kept) < last + 1 - first:
        tokens = tokens[np.repeat(mask[first : last + 1], lengths[first : last + 1])]
    return corpus._replace(tokens=tokens, sentence_starts=bounds, document_starts=documents)


def split_sentences(
    corpus: Corpus,
    *,
    valid: float | int = 0.05,
    test: float | int = 0.05,
    seed: int = 0,
    block_sentences: int = 100,
) -> tuple[Corpus, Corpus, Corpus]:
    """Split a corpus into training, validation and test parts by hashing blocks of sentences.

    A block consists of consecutive sentences from one document. Appending text to the corpus does
    not move existing blocks to another part.

    Raises:
        UserError: a part with a positive fraction is empty.
    """
    document = documents_of(corpus)
    position = np.arange(len(document)) - corpus.document_starts[document]
    draws = hash_uniform(seed, document, position // block_sentences)
    masks = draws >= valid + test, draws < valid, (draws >= valid) & (draws < valid + test)
    names, fractions = ("training", "validation", "test"), (1 - valid - test, valid, test)
    for name, mask, fraction in zip(names, masks, fractions, strict=True):
        if fraction > 0 and not mask.any():
            raise UserError(
                f"the {name} part of {len(document):,} sentences is empty: add more text"
            )
    train, validation, tested = (select_sentences(corpus, mask) for mask in masks)
    return train, validation, tested


def split_for_training(
    corpus: Corpus, *, test: float | int, seed: int, block_sentences: int = 100
) -> tuple[Corpus, Corpus, int]:
    """Split a corpus into a training and a test text without shared long sentences.

    After `split_sentences`, copies of test sentences are removed from the training text by
    `leave_out_tested`, and both texts are encoded with the vocabulary of the training text. The
    third result is the number of removed sentences.
    """
    train, _, tested = split_sentences(
        corpus, valid=0, test=test, seed=seed, block_sentences=block_sentences
    )
    train, num_copies = leave_out_tested(train, tested)
    train, tested = fit_vocabulary(train, tested)
    return train, tested, num_copies


def fit_vocabulary(train: Corpus, *others: Corpus) -> list[Corpus]:
    """Encode texts with the vocabulary of the first text, sorted by decreasing count.

    Words that do not occur in the first text become `<unk>`. Tokens are copied to memory.
    """
    vocabulary, rank = rank_words(train.vocabulary.words, count_words(train))
    return [
        part._replace(tokens=rank[part.tokens], vocabulary=vocabulary) for part in (train, *others)
    ]


def rank_words(
    words: Sequence[str], counts: Int[np.ndarray, " v"], min_count: int = 1, max_words: int = 0
) -> tuple[Vocabulary, Int[np.ndarray, " v"]]:
    """Sort words by decreasing count, and return the vocabulary and the new id for each old id.

    Ties keep their old order. Words with a count below `min_count` become `<unk>`. If `max_words`
    is not 0, words after the first `max_words` also do. The word `<unk>` itself may occur in texts
    whose rare words were replaced before, and also becomes `<unk>`.
    """
    known = np.array([word != UNKNOWN for word in words]) * counts
    order = np.argsort(-known, kind="stable")
    order = order[known[order] >= min_count][: max_words or None]
    rank = np.zeros(len(counts), np.int32)
    rank[order] = np.arange(1, len(order) + 1)
    kept = counts[order]
    names = UNKNOWN, *(words[number] for number in map(int, order))
    return Vocabulary(names, np.append(counts.sum() - kept.sum(), kept)), rank


def leave_out_tested(train: Corpus, test: Corpus) -> tuple[Corpus, int]:
    """Remove test sentences from the training text, and also return how many were removed.

    Sentences with fewer than `MIN_COPIED_WORDS` words are kept.

    Raises:
        UserError: all training sentences also occur in the test text.
    """
    tested = {sentence for sentence in _long_sentences(test) if sentence}
    mask = np.array([sentence not in tested for sentence in _long_sentences(train)], bool)
    if not mask.any():
        raise UserError(f"all {len(mask):,} training sentences are in the test text: add new text")
    num_copies = int((~mask).sum())
    return (select_sentences(train, mask) if num_copies else train), num_copies


def _long_sentences(corpus: Corpus) -> Iterator[bytes]:
    """Yield each sentence's tokens as bytes, and b"" below `MIN_COPIED_WORDS` words."""
    for start, stop in itertools.pairwise(corpus.sentence_starts.tolist()):
        is_long = stop - start >= MIN_COPIED_WORDS
        yield corpus.tokens[start:stop].tobytes() if is_long else b""


def hash_uniform(seed: int, *columns: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Hash `seed` and each row of `columns` to a float in [0, 1) with the mixer of splitmix64.

    >>> hash_uniform(0, np.array([1, 2, 1])).round(3)
    array([0.567, 0.591, 0.567])
    """
    state = np.full(len(columns[0]), seed, np.uint64)
    for column in columns:
        state = mix_bits(state ^ column.astype(np.uint64))
    return (state >> np.uint64(11)) * 2.0**-53


def mix_bits(values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Mix values so that each bit of the result depends on all bits (splitmix64)."""
    state = values + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def keep_probabilities(
    counts: Int[np.ndarray, " v"], threshold: float | int = 1e-4
) -> Float[np.ndarray, " v"]:
    """Return the probability of keeping each word, min(1, (sqrt(f / t) + 1) t / f).

    f is the word's relative frequency and t the `threshold`. This follows the code of word2vec and
    gensim, which keeps slightly more words than the paper. In the paper, a word is dropped with
    probability 1 - sqrt(t / f) (Mikolov et al. 2013, eq. 5).

    >>> keep_probabilities(np.array([0, 990_000, 9_900, 100])).round(4)
    array([1.    , 0.0102, 0.1106, 1.    ])
    """
    fraction = counts / (max(counts.sum(), 1) * threshold)
    with np.errstate(divide="ignore"):
        return np.where(counts > 0, np.minimum(1, (np.sqrt(fraction) + 1) / fraction), 1.0)


def subsample(
    tokens: Int[np.ndarray, " n"], keep: Float[np.ndarray, " v"], *key: int
) -> Bool[np.ndarray, " n"]:
    """Draw a mask of tokens to keep, from each word's probability `keep` and the seed `key`."""
    return np.random.default_rng(key).random(len(tokens)) < keep[tokens]
