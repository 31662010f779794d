"""n-grams by counting: interpolated Kneser-Ney with three discounts, in NumPy.

P_m(w|c) = max(a(c,w) - D(a(c,w)), 0) / a(c) + g(c) P_(m-1)(w|c')     (Chen & Goodman 1999, eq. 27)

c' is c without its first word, a are counts at the highest order and the number of different words
before at lower ones, and D one of three discounts by order; P_0 is uniform. Sentences begin with
symbols that are never predicted, and no end is.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from cpc.types import UserError


class Order(NamedTuple):
    """n-grams of one order m, told by the number of their first m - 1 words and their last."""

    keys: Int[np.ndarray, " g"]
    """Sorted: number of the prefix among those of order m - 1, times (v + 1), plus the word."""
    counts: Int[np.ndarray, " g"]
    """a(c, w); 0 of those that only are contexts."""
    discounts: Float[np.ndarray, "4"]
    """By count: 0, 1, 2, 3 and more."""
    totals: Int[np.ndarray, " c"]
    """a(c), by number of the prefix."""
    backoff: Float[np.ndarray, " c"]
    """g(c)."""


class NGram(NamedTuple):
    """A model of n-grams; made by `kneser_ney`."""

    num_words: int
    orders: tuple[Order, ...]


def kneser_ney(
    tokens: Int[np.ndarray, " n"],
    sentence_starts: Int[np.ndarray, " _"],
    num_words: int,
    order: int,
) -> NGram:
    """Return the n-grams of a text.

    Args:
        sentence_starts: where sentences begin, and the end of the last.
        num_words: v, of the vocabulary; every id gets some probability.
        order: n; a word is told by the n - 1 before it.

    >>> model = kneser_ney(np.array([1, 2, 1, 2, 0]), np.array([0, 5]), 3, 2)
    >>> p = [np.exp(ngram_log_p(model, np.array([1, w]), np.array([0, 2]))[1]) for w in range(3)]
    >>> round(float(sum(p)), 9), int(np.argmax(p))
    (1.0, 2)
    """
    if order < 1 or not len(tokens) or num_words < 2:
        raise UserError(
            f"n-grams of order {order}, of {len(tokens)} words and a vocabulary of {num_words}: "
            "give an order of 1 or more, some text, and two words at least"
        )
    stream, event = pad(tokens, sentence_starts, num_words, order)
    ids = np.zeros(len(stream), np.int64)  # of the empty n-gram
    tables, numbers = [], []
    for _ in range(order):
        keys = previous(ids) * (num_words + 1) + stream
        table, ids = np.unique(keys, return_inverse=True)
        tables.append(table)
        numbers.append(ids)
    orders = []
    for m in range(order):
        raw = np.bincount(numbers[m][event], minlength=len(tables[m]))
        counts = raw
        if m + 1 < order:
            places = np.flatnonzero(event)
            _, first = np.unique(numbers[m + 1][places], return_index=True)
            counts = np.bincount(numbers[m][places[first]], minlength=len(tables[m]))
            begins = np.zeros(len(tables[m]), bool)  # whose first word is a sentence's begin
            # The word m places before each; before the beginning, as if a sentence began.
            earlier = np.concatenate([np.full(m, stream.max()), stream[: len(stream) - m]])
            begins[numbers[m][earlier == num_words]] = True
            counts = np.where(begins, raw, counts)
        contexts = 1 if m == 0 else len(tables[m - 1])
        orders.append(make_order(tables[m], counts, contexts, num_words))
    return NGram(num_words, tuple(orders))


def make_order(keys, counts, num_contexts: int, num_words: int) -> Order:
    """Return an order with its discounts, Y = n1 / (n1 + 2 n2), D_i = i - (i + 1) Y n_(i+1) / n_i.

    Where a text is too small for an estimate, D_i is i / 2.
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
    """Return log p of each word of a text, given those before it in its sentence, in nats."""
    order, num_words = len(model.orders), model.num_words
    stream, event = pad(tokens, sentence_starts, num_words, order)
    p = np.full(len(stream), 1 / num_words)
    ids = np.zeros(len(stream), np.int64)
    for m in model.orders:
        context = previous(ids)
        keys = np.where(context < 0, -1, context * (num_words + 1) + stream)
        place = np.minimum(np.searchsorted(m.keys, keys), len(m.keys) - 1)
        is_known = m.keys[place] == keys
        known = np.maximum(context, 0)
        total = np.where(context < 0, 0, m.totals[known])
        count = np.where(is_known, m.counts[place], 0)
        left = count - m.discounts[np.minimum(count, 3)]
        p = np.where(total > 0, left / np.maximum(total, 1) + m.backoff[known] * p, p)
        ids = np.where(is_known, place, -1)
    return np.log(p[event])


def pad(tokens, sentence_starts, num_words: int, order: int):
    """Return the text with n - 1 begins (id v) before each sentence, and which are its words."""
    lengths = np.diff(sentence_starts)
    sentence = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    place = np.arange(len(tokens)) + sentence * (order - 1)
    stream = np.full(len(tokens) + len(lengths) * (order - 1), num_words, np.int64)
    stream[place] = tokens
    event = np.zeros(len(stream), bool)
    event[place] = True
    return stream, event


def previous(ids):
    """Return the number of the n-gram that ended a word before."""
    return np.concatenate([ids[:1] * 0, ids[:-1]])
