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
#: Number of tokens in memory while a text is counted and ranked.
CHUNK_TOKENS = 1 << 22
#: Shorter sentences may occur in two texts by chance, and do not count as copies.
MIN_COPIED_WORDS = 8


class Vocabulary(NamedTuple):
    """Words by id, in order of decreasing frequency from id 1."""

    words: tuple[str, ...]
    """Word of each id; id 0 is `<unk>`."""
    counts: np.ndarray
    """int64 count of each word in the source text; that of id 0 counts the unknown words."""


class Corpus(NamedTuple):
    """A text as word ids, whose tokens may be memory-mapped."""

    tokens: np.ndarray
    """int32 (n,): word ids of consecutive sentences."""
    sentence_starts: np.ndarray
    """int64 (sentences + 1,): sentence i is tokens[starts[i]:starts[i + 1]], which is not empty."""
    document_starts: np.ndarray
    """int64 (documents + 1,): document j contains the sentences from starts[j] to starts[j + 1]."""
    vocabulary: Vocabulary
    skipped: list[tuple[str, str]]
    """(file, reason) of all files that are left out."""

    def identity(self) -> bytes:
        """Return bytes that differ if sentences, their words or the vocabulary differ."""
        words = repr(self.vocabulary.words).encode()
        checksum = zlib.crc32(np.ascontiguousarray(self.tokens))
        return self.sentence_starts.tobytes() + checksum.to_bytes(4) + words


def index_of(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the ids of a vocabulary by word.

    >>> index_of(Vocabulary(("<unk>", "the"), np.array([0, 7])))
    {'<unk>': 0, 'the': 1}
    """
    return {word: number for number, word in enumerate(vocabulary.words)}


def encode(words: Sequence[str], index: Mapping[str, int]) -> Int[np.ndarray, " n"]:
    """Return the ids of words, which are 0 for words outside the index."""
    return np.fromiter((index.get(word, 0) for word in words), np.int32, len(words))


def pad_sentences(
    sentences: Sequence[Int[np.ndarray, " _"]], max_words: int
) -> Int[np.ndarray, "sentences w"]:
    """Cut sentences to their first `max_words` words, or pad them with -1.

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
    """Return the word ids of texts with one sentence each, cut or padded with -1.

    >>> encode_sentences(["The cat.", "A cat sat"], ["<unk>", "the", "cat"], 2)
    array([[1, 2],
           [0, 2]], dtype=int32)
    """
    index = {word: number for number, word in enumerate(words)}
    tokens = (tokenize(text, lowercase=lowercase) for text in texts)
    sentences = [encode([word for word in one if word[0].isalnum()], index) for one in tokens]
    return pad_sentences(sentences, max_words)


def count_words(corpus: Corpus) -> Int[np.ndarray, " v"]:
    """Count the occurrences of each vocabulary word in the tokens of a corpus."""
    return count_tokens([corpus.tokens], len(corpus.vocabulary.words))


def count_tokens(parts: Iterable[np.ndarray], num_words: int) -> Int[np.ndarray, " v"]:
    """Count ids below `num_words` in arrays that may be memory-mapped."""
    counts = np.zeros(num_words, np.int64)
    for chunk in cut_chunks(parts):
        counts += np.bincount(chunk, minlength=num_words)
    return counts


def cut_chunks(parts: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield arrays in chunks that fit into memory."""
    for part in parts:
        yield from (part[i : i + CHUNK_TOKENS] for i in range(0, len(part), CHUNK_TOKENS))


def describe_corpus(corpus: Corpus) -> str:
    """Return a line about the sizes of a corpus, for the console.

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
    """Select sentences by a mask, and split documents at gaps.

    Tokens are copied to memory unless the sentences are contiguous. The vocabulary is unchanged.
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

    Blocks consist of consecutive sentences of one document. Appending text does not move blocks.

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
                f"{name} part of {len(document):,} sentences is empty: add text or enlarge the part"
            )
    train, validation, tested = (select_sentences(corpus, mask) for mask in masks)
    return train, validation, tested


def split_for_training(
    corpus: Corpus, *, test: float | int, seed: int, block_sentences: int = 100
) -> tuple[Corpus, Corpus, int]:
    """Return the training text, the test text, and the number of copies that were removed.

    The text is split by `split_sentences`, and sentences of the test text are removed from the
    training text, whose vocabulary both have.
    """
    train, _, tested = split_sentences(
        corpus, valid=0, test=test, seed=seed, block_sentences=block_sentences
    )
    train, num_copies = leave_out_tested(train, tested)
    train, tested = fit_vocabulary(train, tested)
    return train, tested, num_copies


def fit_vocabulary(train: Corpus, *others: Corpus) -> list[Corpus]:
    """Return texts encoded with the vocabulary of the first, in order of decreasing count.

    Words that the first text lacks become `<unk>` in the others. Tokens are copied to memory.
    """
    vocabulary, rank = rank_words(train.vocabulary.words, count_words(train))
    return [
        part._replace(tokens=rank[part.tokens], vocabulary=vocabulary) for part in (train, *others)
    ]


def rank_words(
    words: Sequence[str], counts: Int[np.ndarray, " v"], min_count: int = 1, max_words: int = 0
) -> tuple[Vocabulary, Int[np.ndarray, " v"]]:
    """Return the vocabulary by falling count, with ties in the old order, and new ids by old id.

    Words with lower counts than `min_count`, words beyond `max_words` (0: all) and `<unk>` itself,
    as in texts whose rare words were replaced before, become `<unk>`.
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
    """Remove sentences of the test text from the training text; also return their number.

    Sentences of fewer than `MIN_COPIED_WORDS` words are kept.

    Raises:
        UserError: all training sentences are in the test text.
    """
    tested = {sentence for sentence in _long_sentences(test) if sentence}
    mask = np.array([sentence not in tested for sentence in _long_sentences(train)], bool)
    if not mask.any():
        raise UserError(f"all {len(mask):,} training sentences are in the test text: add text")
    num_copies = int((~mask).sum())
    return (select_sentences(train, mask) if num_copies else train), num_copies


def _long_sentences(corpus: Corpus) -> Iterator[bytes]:
    """Yield the tokens of each sentence as bytes, which are empty for short sentences."""
    for start, stop in itertools.pairwise(corpus.sentence_starts.tolist()):
        is_long = stop - start >= MIN_COPIED_WORDS
        yield corpus.tokens[start:stop].tobytes() if is_long else b""


def hash_uniform(seed: int, *columns: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Hash the seed and columns to numbers in [0, 1) with the mixing function of splitmix64.

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
    """Return the probability to keep each word in subsampling, min(1, (sqrt(f / t) + 1) t / f).

    f is the frequency of the word and t the `threshold`. This follows the code of word2vec and
    gensim, which keeps slightly more words than the paper, where 1 - sqrt(t / f) are dropped
    (Mikolov et al. 2013, eq. 5).

    >>> keep_probabilities(np.array([0, 990_000, 9_900, 100])).round(4)
    array([1.    , 0.0102, 0.1106, 1.    ])
    """
    fraction = counts / (max(counts.sum(), 1) * threshold)
    with np.errstate(divide="ignore"):
        return np.where(counts > 0, np.minimum(1, (np.sqrt(fraction) + 1) / fraction), 1.0)


def subsample(
    tokens: Int[np.ndarray, " n"], keep: Float[np.ndarray, " v"], *key: int
) -> Bool[np.ndarray, " n"]:
    """Sample a mask of tokens with their `keep_probabilities`, seeded by the integers `key`."""
    return np.random.default_rng(key).random(len(tokens)) < keep[tokens]
