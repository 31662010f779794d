"""n-gram language models in NumPy: interpolated Kneser-Ney with three discounts.

P_m(w|c) = max(a(c,w) - D(a(c,w)), 0) / a(c) + g(c) P_(m-1)(w|c')     (Chen & Goodman 1999, eq. 27)

Here c' is the context c without its first word, and P_0 is uniform. At the highest order, a is the
count of an n-gram; at lower orders, it is the number of distinct preceding words. D is one of three
discounts per order. A sentence's begin symbols are not predicted, and its end is not modelled.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from cpc.types import UserError


class Order(NamedTuple):
    """All n-grams of one order m, sorted by prefix index and last word."""

    keys: Int[np.ndarray, " g"]
    """Sorted keys: the prefix's index in the table of order m - 1, times (v + 1), plus the word."""
    counts: Int[np.ndarray, " g"]
    """The counts a(c, w), which are 0 for n-grams that only occur as contexts."""
    discounts: Float[np.ndarray, "4"]
    """Discounts for the counts 0, 1, 2, and 3 or more."""
    totals: Int[np.ndarray, " c"]
    """The totals a(c) for each prefix."""
    backoff: Float[np.ndarray, " c"]
    """The backoff weights g(c) for each prefix."""


class NGram(NamedTuple):
    """An n-gram model, as returned by `kneser_ney`."""

    num_words: int
    orders: tuple[Order, ...]


def kneser_ney(
    tokens: Int[np.ndarray, " n"],
    sentence_starts: Int[np.ndarray, " _"],
    num_words: int,
    order: int,
) -> NGram:
    """Estimate an n-gram model from a text.

    Args:
        tokens: word ids.
        sentence_starts: index of each sentence's first word, followed by the number of words.
        num_words: size v of the vocabulary. Every id has a positive probability.
        order: the n of the n-grams. A word is predicted from the n - 1 words before it.

    >>> model = kneser_ney(np.array([1, 2, 1, 2, 0]), np.array([0, 5]), 3, 2)
    >>> p = [np.exp(ngram_log_p(model, np.array([1, w]), np.array([0, 2]))[1]) for w in range(3)]
    >>> round(float(sum(p)), 9), int(np.argmax(p))
    (1.0, 2)
    """
    if order < 1 or not len(tokens) or num_words < 2:
        raise UserError(
            f"got order {order}, {len(tokens)} tokens and {num_words} words: use 1, 1 and 2 or more"
        )
    stream, is_word = pad(tokens, sentence_starts, num_words, order)
    ids = np.zeros(len(stream), np.int64)  # index of the empty n-gram
    tables, numbers = [], []
    for _ in range(order):
        keys = previous(ids) * (num_words + 1) + stream
        table, ids = np.unique(keys, return_inverse=True)
        tables.append(table)
        numbers.append(ids)
    orders = []
    for m in range(order):
        raw = np.bincount(numbers[m][is_word], minlength=len(tables[m]))
        counts = raw
        if m + 1 < order:
            positions = np.flatnonzero(is_word)
            _, first = np.unique(numbers[m + 1][positions], return_index=True)
            counts = np.bincount(numbers[m][positions[first]], minlength=len(tables[m]))
            begins = np.zeros(len(tables[m]), bool)  # n-grams that start with a begin symbol
            # The word m positions earlier, where begin symbols precede the text.
            earlier = np.concatenate([np.full(m, stream.max()), stream[: len(stream) - m]])
            begins[numbers[m][earlier == num_words]] = True
            counts = np.where(begins, raw, counts)
        contexts = 1 if m == 0 else len(tables[m - 1])
        orders.append(make_order(tables[m], counts, contexts, num_words))
    return NGram(num_words, tuple(orders))


def make_order(keys, counts, num_contexts: int, num_words: int) -> Order:
    """Return one order's n-grams, with discounts that are estimated from its counts.

    D_i = i - (i + 1) Y n_(i+1) / n_i with Y = n_1 / (n_1 + 2 n_2), where n_i is the number of
    n-grams with count i. If the text is too small to estimate D_i, it is i / 2.
    """
    n = np.bincount(np.minimum(counts, 5), minlength=6)[1:5].astype(float)
    discounts = np.array([0.0, 0.5, 1.0, 1.5])
    if n.all():
        y = n[0] / (n[0] + 2 * n[1])
        raw = np.array([i - (i + 1) * y * n[i] / n[i - 1] for i in (1, 2, 3)])
        discounts[1:] = np.where((raw >= 0) & (raw <= (1, 2, 3)), raw, discounts[1:])
    context = keys // (num_words + 1)
    totals = np.bincount(context, counts, num_contexts).astype(np.int64)
    taken = np.bincount(context, discounts[np.minimum(counts, 3)], num_contexts)
    return Order(keys, counts, discounts, totals, taken / np.maximum(totals, 1))


def ngram_log_p(
    model: NGram, tokens: Int[np.ndarray, " n"], sentence_starts: Int[np.ndarray, " _"]
) -> Float[np.ndarray, " n"]:
    """Return log p in nats for each word of a text, given the previous words of its sentence."""
    order, num_words = len(model.orders), model.num_words
    stream, is_word = pad(tokens, sentence_starts, num_words, order)
    p = np.full(len(stream), 1 / num_words)
    ids = np.zeros(len(stream), np.int64)
    for m in model.orders:
        context = previous(ids)
        keys = np.where(context < 0, -1, context * (num_words + 1) + stream)
        index = np.minimum(np.searchsorted(m.keys, keys), len(m.keys) - 1)
        is_known = m.keys[index] == keys
        known = np.maximum(context, 0)
        total = np.where(context < 0, 0, m.totals[known])
        count = np.where(is_known, m.counts[index], 0)
        left = count - m.discounts[np.minimum(count, 3)]
        p = np.where(total > 0, left / np.maximum(total, 1) + m.backoff[known] * p, p)
        ids = np.where(is_known, index, -1)
    return np.log(p[is_word])


def pad(tokens, sentence_starts, num_words: int, order: int):
    """Insert n - 1 begin symbols (id v) before each sentence, and also return a mask of words."""
    lengths = np.diff(sentence_starts)
    sentence = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    positions = np.arange(len(tokens)) + sentence * (order - 1)
    stream = np.full(len(tokens) + len(lengths) * (order - 1), num_words, np.int64)
    stream[positions] = tokens
    is_word = np.zeros(len(stream), bool)
    is_word[positions] = True
    return stream, is_word


def previous(ids):
    """Return, for each position, the index of the n-gram that ends one word earlier."""
    return np.concatenate([ids[:1] * 0, ids[:-1]])
