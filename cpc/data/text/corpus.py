"""Text as numbers: a vocabulary, tokens on the disk, and where sentences and documents begin."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from cpc.data.text.tokenizer import tokenize
from cpc.types import UserError

#: The word of all that is not in the vocabulary, id 0.
UNKNOWN = "<unk>"
#: Words of a sentence that two texts have by copying, hardly by chance.
MIN_COPIED_WORDS = 8


class Vocabulary(NamedTuple):
    """Words by id; ids fall in frequency from 1 on."""

    words: tuple[str, ...]
    """Id -> word; id 0 is `<unk>`."""
    counts: np.ndarray
    """int64, of each word in the text that it was made from; of id 0 what was cut."""


class Corpus(NamedTuple):
    """A text, its tokens on the disk until they are touched."""

    tokens: np.ndarray
    """int32 (n,), ids of words, one sentence after the other."""
    sentence_starts: np.ndarray
    """int64 (sentences + 1,): sentence i is tokens[starts[i]:starts[i + 1]], and none is empty."""
    document_starts: np.ndarray
    """int64 (documents + 1,): document j is the sentences from starts[j] to starts[j + 1]."""
    vocabulary: Vocabulary
    skipped: list[tuple[str, str]]
    """(file, reason) of each that was left out."""


def index_of(vocabulary: Vocabulary) -> dict[str, int]:
    """Return word -> id.

    >>> index_of(Vocabulary(("<unk>", "the"), np.array([0, 7])))
    {'<unk>': 0, 'the': 1}
    """
    return {word: number for number, word in enumerate(vocabulary.words)}


def encode(words: Sequence[str], index: Mapping[str, int]) -> Int[np.ndarray, " n"]:
    """Return the ids of words, 0 for those that the index lacks."""
    return np.fromiter((index.get(word, 0) for word in words), np.int32, len(words))


def pad_sentences(
    sentences: Sequence[Int[np.ndarray, " _"]], max_words: int
) -> Int[np.ndarray, "sentences w"]:
    """Return the first words of each sentence, filled up with -1.

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
    """Return the ids of the words of prose, a sentence a text, filled up with -1.

    >>> encode_sentences(["The cat.", "A cat sat"], ["<unk>", "the", "cat"], 2)
    array([[1, 2],
           [0, 2]], dtype=int32)
    """
    index = {word: number for number, word in enumerate(words)}
    tokens = [tokenize(text, lowercase=lowercase) for text in texts]
    found = [[word for word in one if word[0].isalnum()] for one in tokens]
    return pad_sentences([encode(one, index) for one in found], max_words)


def count_words(corpus: Corpus, chunk: int = 1 << 24) -> Int[np.ndarray, " v"]:
    """Return how often each word of the vocabulary occurs among a corpus's own tokens."""
    counts = np.zeros(len(corpus.vocabulary.words), np.int64)
    for first in range(0, len(corpus.tokens), chunk):
        counts += np.bincount(corpus.tokens[first : first + chunk], minlength=len(counts))
    return counts


def describe_corpus(corpus: Corpus) -> str:
    """Return the sizes of a text, for a console's line about data.

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
    """Return the document of each sentence."""
    return np.repeat(np.arange(len(corpus.document_starts) - 1), np.diff(corpus.document_starts))


def select_sentences(corpus: Corpus, mask: Bool[np.ndarray, " sentences"]) -> Corpus:
    """Return the sentences of a mask; what a gap parts becomes documents of their own.

    Tokens are copied to memory, except where the sentences lie in one piece. The vocabulary stays.
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
        tokens = tokens[
            np.repeat(mask[first : last + 1], np.diff(corpus.sentence_starts)[first : last + 1])
        ]
    return corpus._replace(tokens=tokens, sentence_starts=bounds, document_starts=documents)


def split_sentences(
    corpus: Corpus,
    *,
    valid: float | int = 0.05,
    test: float | int = 0.05,
    seed: int = 0,
    block_sentences: int = 100,
) -> tuple[Corpus, Corpus, Corpus]:
    """Return the parts to train, validate and test on: blocks of neighbouring sentences, by hash.

    Text that is added at the end moves no block, and no document is mixed with another. UserError
    if a part that should have sentences has none.
    """
    document = documents_of(corpus)
    place = np.arange(len(document)) - corpus.document_starts[document]
    draws = hash_uniform(seed, document, place // block_sentences)
    masks = draws >= valid + test, draws < valid, (draws >= valid) & (draws < valid + test)
    names, wanted = ("train", "validate", "test"), (1 - valid - test, valid, test)
    for name, mask, fraction in zip(names, masks, wanted, strict=True):
        if fraction > 0 and not mask.any():
            raise UserError(
                f"a text of {len(document):,} sentences leaves none to {name} on: give more text "
                f"or a larger part (they are cut into blocks of {block_sentences} sentences)"
            )
    train, of_valid, of_test = (select_sentences(corpus, mask) for mask in masks)
    return train, of_valid, of_test


def split_for_training(
    corpus: Corpus, *, test: float | int, seed: int, block_sentences: int = 100
) -> tuple[Corpus, Corpus, int]:
    """Return the text to train on, the text to test on, and how many copies training left out.

    Split by `split_sentences`, without sentences of the test text in the other, whose vocabulary
    both have.
    """
    train, _, tested = split_sentences(
        corpus, valid=0, test=test, seed=seed, block_sentences=block_sentences
    )
    train, num_copies = leave_out_tested(train, tested)
    train, tested = fit_vocabulary(train, tested)
    return train, tested, num_copies


def fit_vocabulary(train: Corpus, *others: Corpus) -> list[Corpus]:
    """Return the texts with the vocabulary of the first, by decreasing count.

    Words that the first text lacks become `<unk>` in the others. Tokens are copied to memory.

    >>> words = Vocabulary(("<unk>", "a", "b"), np.array([0, 2, 1]))
    >>> text = Corpus(np.array([2, 1, 1]), np.array([0, 1, 3]), np.array([0, 2]), words, [])
    >>> _, test = fit_vocabulary(select_sentences(text, np.array([False, True])), text)
    >>> test.vocabulary.words, test.tokens
    (('<unk>', 'a'), array([0, 1, 1], dtype=int32))
    """
    counts = count_words(train)
    falling = 1 + np.argsort(-counts[1:], kind="stable")
    kept = np.concatenate([[0], falling[counts[falling] > 0]])
    rank = np.zeros(len(counts), np.int32)
    rank[kept] = np.arange(len(kept))
    vocabulary = Vocabulary(tuple(train.vocabulary.words[i] for i in kept.tolist()), counts[kept])
    return [
        part._replace(tokens=rank[part.tokens], vocabulary=vocabulary) for part in (train, *others)
    ]


def leave_out_tested(train: Corpus, test: Corpus) -> tuple[Corpus, int]:
    """Return the text to train on without sentences of the test text, and how many it had.

    Sentences of fewer than `MIN_COPIED_WORDS` words stay. UserError if none is left.
    """
    tested = {sentence for sentence in _long_sentences(test) if sentence}
    mask = np.array([sentence not in tested for sentence in _long_sentences(train)], bool)
    if not mask.any():
        raise UserError(
            f"all {len(mask):,} sentences to train on are also in the test text: give other text"
        )
    num_copies = int((~mask).sum())
    return (select_sentences(train, mask) if num_copies else train), num_copies


def _long_sentences(corpus: Corpus) -> Iterator[bytes]:
    """Yield the tokens of each sentence as bytes, none for short ones."""
    for start, stop in itertools.pairwise(corpus.sentence_starts.tolist()):
        is_long = stop - start >= MIN_COPIED_WORDS
        yield corpus.tokens[start:stop].tobytes() if is_long else b""


def hash_uniform(seed: int, *columns: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return numbers in [0, 1) that depend on the seed and columns alone (splitmix64's mixing).

    >>> hash_uniform(0, np.array([1, 2, 1])).round(3)
    array([0.567, 0.591, 0.567])
    """
    state = np.full(len(columns[0]), seed, np.uint64)
    for column in columns:
        state = mix_bits(state ^ column.astype(np.uint64))
    return (state >> np.uint64(11)) * 2.0**-53


def mix_bits(values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Return values in which each bit depends on all bits of the given ones (splitmix64)."""
    state = values + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def keep_probabilities(
    counts: Int[np.ndarray, " v"], threshold: float | int = 1e-4
) -> Float[np.ndarray, " v"]:
    """Return how probably a word survives subsampling: min(1, (sqrt(f / t) + 1) t / f).

    f is the word's share of all words. That is word2vec's own code (and gensim's), which keeps a
    little more than the 1 - sqrt(t / f) of its paper drops (Mikolov et al. 2013, eq. 5).

    >>> keep_probabilities(np.array([0, 990_000, 9_900, 100])).round(4)
    array([1.    , 0.0102, 0.1106, 1.    ])
    """
    fraction = counts / (max(counts.sum(), 1) * threshold)
    with np.errstate(divide="ignore"):
        return np.where(counts > 0, np.minimum(1, (np.sqrt(fraction) + 1) / fraction), 1.0)


def subsample(
    tokens: Int[np.ndarray, " n"], keep: Float[np.ndarray, " v"], *key: int
) -> Bool[np.ndarray, " n"]:
    """Return which tokens survive, given `keep_probabilities`; the key is of whole numbers."""
    return np.random.default_rng(key).random(len(tokens)) < keep[tokens]
