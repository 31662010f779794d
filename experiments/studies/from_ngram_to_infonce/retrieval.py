"""Two towers on pairs of texts: negatives of the batch with and without the correction."""

import functools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cpc.data import encode_sentences
from cpc.data.sources.texts import prepare_texts
from cpc.evaluate.accuracy import bootstrap_interval
from cpc.losses import info_nce
from experiments.studies.nce.findings import Finding, check, finding

#: The queries that are scored at a time.
CHUNK = 512


class Pairs(NamedTuple):
    """Queries and the candidate that goes with each."""

    words: np.ndarray
    """int32 (n, w), ids of the words of the query; -1 where there is none."""
    item: np.ndarray
    """int32 (n,), the candidate."""
    group: np.ndarray
    """int64 (n,): queries that are one text, such as the gloss of synonyms, have one number."""


def glosses(least: int = 3, max_words: int = 24) -> Pairs:
    """Return WordNet's glosses and their words, of words with at least so many glosses.

    Examples in quotes go: they hold the word.
    """
    lines = (prepare_texts("words") / "glosses.tsv").read_text("utf-8").splitlines()
    pairs = dict.fromkeys(tuple(line.lower().split("\t")) for line in lines)
    often = Counter(word for word, _ in pairs)
    known = [(word, gloss) for word, gloss in pairs if often[word] >= least]
    texts = [re.sub('"[^"]*"?', "", gloss) for _, gloss in known]
    counts = Counter(" ".join(texts).split())
    vocabulary = ["<unk>", *(word for word, count in counts.items() if count >= 3)]
    _, item = np.unique([word for word, _ in known], return_inverse=True)
    _, group = np.unique([gloss for _, gloss in known], return_inverse=True)
    return Pairs(encode_sentences(texts, vocabulary, max_words), item.astype(np.int32), group)


def made_up(num_pairs: int, num_items: int, num_words: int = 30, seed: int = 0) -> Pairs:
    """Return queries of four words, half of them among five that their Zipfian item likes."""
    rng = np.random.default_rng(seed)
    p = 1 / np.arange(1, num_items + 1)
    item = rng.choice(num_items, num_pairs, p=p / p.sum()).astype(np.int32)
    liked = rng.integers(0, num_words, (num_items, 5))[item, rng.integers(0, 5, (4, num_pairs))]
    words = np.where(
        rng.random((4, num_pairs)) < 0.5, liked, rng.integers(0, num_words, liked.shape)
    )
    return Pairs(words.T.astype(np.int32), item, np.arange(num_pairs))


def divide(pairs: Pairs, fraction: float = 0.1) -> tuple[Pairs, Pairs]:
    """Return pairs to train on, and of other groups those to test whose item is trained on."""
    rng = np.random.default_rng(1)  # not the draws that made the pairs
    is_held = (rng.random(pairs.group.max() + 1) < fraction)[pairs.group]
    is_test = is_held & np.isin(pairs.item, pairs.item[~is_held])
    return Pairs(*(x[~is_held] for x in pairs)), Pairs(*(x[is_test] for x in pairs))


def query(params: Any, words: Any) -> Any:
    """Return the mean of the embeddings of the words of each query (b, d)."""
    there = (words >= 0)[..., None]
    rows = jnp.where(there, params["word"][jnp.maximum(words, 0)], 0.0)
    return rows.sum(1) / jnp.maximum(there.sum(1), 1)


def train(
    pairs: Pairs, log_q: Any, subtracts: bool, epochs: int, batch: int, width: int, seed: int = 0
) -> Any:
    """Return the towers' tables; candidates are the items of the batch, hits kept."""
    keys = jax.random.split(jax.random.key(seed))
    params = {
        "word": 0.3 * jax.random.normal(keys[0], (int(pairs.words.max()) + 1, width)),
        "item": 0.1 * jax.random.normal(keys[1], (len(log_q), width)),
    }
    per_epoch = len(pairs.item) // batch
    optimizer = optax.adam(optax.linear_schedule(1e-2, 0.0, epochs * per_epoch))
    others = ~jnp.eye(batch, dtype=bool)

    def loss_fn(params, words, item):
        scores = query(params, words) @ params["item"][item].T
        scores -= log_q[item] if subtracts else 0.0
        return info_nce(jnp.diagonal(scores), scores, others).mean()

    def step(carry, one):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss_fn)(params, *one), state)
        return (optax.apply_updates(params, updates), state), None

    @functools.partial(jax.jit, donate_argnums=0)
    def epoch(carry, words, item):
        return jax.lax.scan(step, carry, (words, item))[0]

    carry, rng = (params, optimizer.init(params)), np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(pairs.item))[: per_epoch * batch].reshape(per_epoch, batch)
        carry = epoch(carry, pairs.words[order], pairs.item[order])
    return carry[0]


def hits(params: Any, pairs: Pairs, bias: Any, num: int = 10) -> np.ndarray:
    """Return whether the item of each pair is among the highest scores of all items."""

    @jax.jit
    def best(words):
        return jax.lax.top_k(query(params, words) @ params["item"].T + bias, num)[1]

    parts = [
        best(pairs.words[i : i + CHUNK]) == pairs.item[i : i + CHUNK, None]
        for i in range(0, len(pairs.item), CHUNK)
    ]
    return np.asarray(np.concatenate(parts).any(1))


def two_towers(pairs: Pairs, epochs: int, what: str, batch: int = 256, width: int = 64) -> Finding:
    """Compare in-batch negatives with and without log q taken off, by recall@10 of all items."""
    train_pairs, test = divide(pairs)
    counts = np.bincount(train_pairs.item, minlength=int(pairs.item.max()) + 1)
    log_q = jnp.log(jnp.asarray(np.maximum(counts, 0.5) / counts.sum(), jnp.float32))
    with_q = train(train_pairs, log_q, True, epochs, batch, width)
    without = train(train_pairs, log_q, False, epochs, batch, width)
    found = {
        "corrected": hits(with_q, test, 0.0),
        "not corrected": hits(without, test, 0.0),
        "not corrected, log q added to rank": hits(without, test, log_q),
        "the most frequent": np.isin(test.item, np.argsort(-counts)[:10]),
    }
    groups = np.unique(test.group, return_inverse=True)[1]
    sizes = np.bincount(groups)

    def interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
        return bootstrap_interval(np.bincount(groups, values), sizes)

    rows = {name: float(one.mean()) for name, one in found.items()}
    intervals = {name: interval(one) for name, one in found.items()}
    low, high = interval(found["corrected"] * 1.0 - found["not corrected"])
    checks = [
        check("recall@10, corrected less not, lower end of its interval", low, 0.0, 0.0,
              "95 %, bootstrap over queries", ">="),
    ]  # fmt: skip
    return finding(
        f"Two towers on {what}, with and without the correction for popularity",
        "without log q taken off the scores learn p / q, and frequent candidates are ranked too "
        "low (Yi et al. 2019)",
        ", ".join(
            f"{name} {rows[name]:.3f} [{a:.3f}, {b:.3f}]" for name, (a, b) in intervals.items()
        )
        + f" (recall@10 of {len(log_q):,} candidates, {len(test.item):,} pairs); corrected less "
        f"not {rows['corrected'] - rows['not corrected']:.3f} [{low:.3f}, {high:.3f}]",
        checks,
        {"rows": rows, "intervals": intervals, "unit": "recall@10"},
    )
