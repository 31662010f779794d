"""Kneser-Ney against a naive twin, and sums to one."""

import itertools
from collections import Counter, defaultdict

import numpy as np
import pytest

from cpc.models.ngram import kneser_ney, ngram_log_p
from cpc.types import UserError

V = 5


def text(n=300, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.choice(V, n, p=[0.4, 0.3, 0.2, 0.06, 0.04])
    tokens[1::3] = (tokens[: len(tokens[1::3]) * 3 : 3] + 1) % V
    starts = np.unique([0, *rng.integers(1, n, n // 8), n])
    return tokens, starts


class Naive:
    """The recursion of Chen and Goodman, one n-gram at a time."""

    def __init__(self, tokens, starts, order):
        self.order = order
        grams = [Counter() for _ in range(order + 1)]
        for a, b in itertools.pairwise(starts):
            sentence = ["<s>"] * (order - 1) + list(tokens[a:b])
            for i in range(order - 1, len(sentence)):
                for m in range(1, order + 1):
                    grams[m][tuple(sentence[i - m + 1 : i + 1])] += 1
        self.counts = {order: grams[order]}
        for m in range(order - 1, 0, -1):
            before = defaultdict(set)
            for gram in grams[m + 1]:
                before[gram[1:]].add(gram[0])
            self.counts[m] = {
                gram: count if gram[0] == "<s>" else len(before[gram])
                for gram, count in grams[m].items()
            }
        self.discounts = {}
        for m, counts in self.counts.items():
            n = [sum(c == i for c in counts.values()) for i in (1, 2, 3, 4)]
            d = [0.5, 1.0, 1.5]
            if all(n):
                y = n[0] / (n[0] + 2 * n[1])
                raw = [i - (i + 1) * y * n[i] / n[i - 1] for i in (1, 2, 3)]
                d = [r if 0 <= r <= i else i / 2 for i, r in enumerate(raw, 1)]
            self.discounts[m] = [0.0, *d]

    def p(self, context, word):
        return self._p(len(context) + 1, tuple(context), word)

    def _p(self, m, context, word):
        if m == 0:
            return 1 / V
        lower = self._p(m - 1, context[1:], word)
        here = {g: c for g, c in self.counts[m].items() if g[:-1] == context and c}
        total = sum(here.values())
        if not total:
            return lower
        d = self.discounts[m]
        count = here.get((*context, word), 0)
        left = sum(d[min(c, 3)] for c in here.values()) / total
        return max(count - d[min(count, 3)], 0) / total + left * lower


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_equals_the_naive_twin(order):
    tokens, starts = text()
    model, naive = kneser_ney(tokens, starts, V, order), Naive(tokens, starts, order)
    test, test_starts = text(40, seed=1)
    got = ngram_log_p(model, test, test_starts)
    want = []
    for a, b in itertools.pairwise(test_starts):
        sentence = ["<s>"] * (order - 1) + list(test[a:b])
        for i in range(order - 1, len(sentence)):
            want.append(np.log(naive.p(sentence[i - order + 1 : i], sentence[i])))
    np.testing.assert_allclose(got, want, rtol=1e-9)


def test_mistakes_are_said():
    for tokens, num, order in (([], 3, 2), ([0, 0], 1, 2), ([0, 1], 2, 0)):
        with pytest.raises(UserError, match=f"order {order}, {len(tokens)} tokens and {num}"):
            kneser_ney(np.array(tokens, int), np.array([0, len(tokens)]), num, order)
