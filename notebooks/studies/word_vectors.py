# %% [markdown]
# # Word vectors: the matrix behind skip-gram, and four common claims
#
# Skip-gram with negative sampling is compared with the matrix that it factorises, and four common
# claims about skip-gram, CBOW, sampled softmax and NCE are tested over seeds. `FULL=1` in the
# environment uses dictionaries instead of synthetic sentences (results: `docs/results/text.md`).

# %%
import os
import sys
import time

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scipy.sparse
from scipy import stats
from sklearn.utils.extmath import randomized_svd

sys.path.insert(0, "../..")  # contains configs and experiments
from configs.keys import make_config
from configs.words import KEYS
from cpc.data import (
    Corpus,
    Vocabulary,
    keep_probabilities,
    read_text_folder,
    split_sentences,
    subsample,
)
from cpc.data.cache import cache_dir
from cpc.data.sources.similarity import read_judgements
from cpc.data.sources.texts import prepare_texts
from cpc.evaluate.words import normalize, spearman
from cpc.negatives import unigram
from experiments.bench.words import train
from experiments.command.config import with_settings
from experiments.kinds.words import evaluate
from experiments.kinds.words.run import Text

FULL = bool(os.environ.get("FULL"))
SMALL = {"data.positions": 256, "data.subsample": 0.0, "steps_per_launch": 16, "model.width": 20}
SIZE = {"evaluate.max_places": 4096, **({} if FULL else SMALL)}


def fit(text, settings, epochs, seed=0):
    """Train a model; return its run, tables, held-out log p, and words per CPU second."""
    settings = {**settings, **SIZE, "epochs": epochs, "seed": seed}
    run, seconds = train(with_settings(make_config(KEYS), settings), text, time.process_time)
    log_p = evaluate.predict_log_probs(run, text.test.tokens, text.test.sentence_starts)[0]
    rate = epochs * len(text.train.tokens) / seconds
    return run, jax.device_get(run.state.params["tables"]), log_p, rate


def divide(corpus, keep):
    """Hold out a twentieth, subsampled like the training text and without unknown words."""
    train, _, test = split_sentences(corpus, valid=0.0, test=0.05, block_sentences=20)
    mask = subsample(test.tokens, np.append(0.0, keep[1:]), 0)
    starts = np.unique(np.append(0, np.cumsum(mask))[test.sentence_starts])
    documents = np.array([0, len(starts) - 1])
    return Text(train, Corpus(test.tokens[mask], starts, documents, test.vocabulary, []))


def read_dictionaries(file="", num_words=0):
    """Return WordNet's glosses and GCIDE, or one of them, and word similarity judgements."""
    path, packs = prepare_texts("words") / "text" / file, cache_dir() / "packs"
    corpus = read_text_folder(path, packs, print, min_count=5, max_vocabulary=num_words)
    text = divide(corpus, keep_probabilities(corpus.vocabulary.counts, 1e-4))
    return text, read_judgements().pairs


def make_sentences(num_tokens, num_words):
    """Return synthetic sentences of ten Zipfian words, and the similarity of some word pairs.

    Words with angle a are exp(1.2 cos(a - b)) times as frequent in sentences with angle b.
    """
    rng, topic = np.random.default_rng(0), np.arange(32) * 2 * np.pi / 32
    angles = rng.uniform(0, 2 * np.pi, num_words - 1)
    p = np.exp(1.2 * np.cos(angles - topic[:, None])) / np.arange(5, num_words + 4)
    upto = np.cumsum(p, 1) / p.sum(1, keepdims=True)
    topics = rng.integers(0, 32, num_tokens // 10)
    tokens = [*map(np.searchsorted, upto[topics], rng.random((len(topics), 10)))]
    tokens = 1 + np.minimum(np.array(tokens), num_words - 2).ravel().astype(np.int32)
    names = ("<unk>", *(f"w{i}" for i in range(1, num_words)))
    vocabulary = Vocabulary(names, np.bincount(tokens, minlength=num_words))
    starts, documents = np.arange(0, len(tokens) + 1, 10), np.array([0, len(topics)])
    left, right = rng.integers(0, num_words - 1, (2, 600))
    pairs = [(names[a + 1], names[b + 1]) for a, b in zip(left, right, strict=True)]
    text = divide(Corpus(tokens, starts, documents, vocabulary, []), np.ones(num_words))
    return text, {"synthetic": (pairs, np.cos(angles[left] - angles[right]))}


def rank_known_pairs(text, sets):
    """Return the rows of pairs with known words, and the ranks of their judged similarity."""
    rows, at, ranks = {word: i for i, word in enumerate(text.train.vocabulary.words)}, [], []
    for pairs, values in sets.values():
        for pair, rank in zip(pairs, stats.rankdata(values) / len(values), strict=True):
            if all(rows.get(word) for word in pair):
                at.append([rows[word] for word in pair])
                ranks.append(rank)
    return np.array(at), np.array(ranks)


def similarity(vectors, at, ranks):
    unit = normalize(vectors)
    return spearman((unit[at[:, 0]] * unit[at[:, 1]]).sum(1), ranks)


# %% [markdown]
# ## 1. Skip-gram and the matrix that it factorises
# The scores of skip-gram follow PMI - log k (Levy and Goldberg 2014). PMI is counted over the
# windows that skip-gram was trained on: pairs at distance i count (r + 1 - i) / r, the probability
# that the window, at most r wide, contains both. The vectors are compared with an SVD of positive
# PMI.

# %%
text, sets = read_dictionaries("", 8000) if FULL else make_sentences(40_000, 300)
epochs, width = (5, 100) if FULL else (2, 20)
run, tables, *_ = fit(text, {"model.width": width}, epochs)
reach, counts = run.model.reach, text.train.vocabulary.counts.copy()
counts[0] = 0
total = scipy.sparse.csr_array((len(counts), len(counts)))
for i in range(epochs * run.stream.per_epoch):
    batch = run.stream.launch(i)
    tokens, sentence = (np.append(x[0, :reach], x[:, reach:-reach].ravel()) for x in batch.values())
    for distance in range(1, reach + 1):
        near = (sentence[distance:] == sentence[:-distance]) & (sentence[distance:] >= 0)
        chance = np.full(near.sum(), (reach + 1 - distance) / reach)
        at = tokens[:-distance][near], tokens[distance:][near]
        total = total + scipy.sparse.coo_array((chance, at), total.shape)
pairs = (total + total.T).tocoo()
w, c = pairs.coords
pmi = np.log(pairs.data / (pairs.sum(1)[w] * unigram(counts, run.config.objective.alpha)[c]))
positive = scipy.sparse.csr_array((np.maximum(pmi, 0), pairs.coords), pairs.shape)
u, s, v = randomized_svd(positive, width, n_iter=6, random_state=0)
svd_words, svd_contexts = u * np.sqrt(s), v.T * np.sqrt(s)
frequent = pairs.data >= 20
w, c, pmi = w[frequent], c[frequent], pmi[frequent]
scores = (tables["input"][w] * tables["output"][c]).sum(1)
target, rebuilt = pmi - np.log(run.config.objective.k), (svd_words[w] * svd_contexts[c]).sum(1)
correlation = np.corrcoef(scores, target)[0, 1]
print(
    f"{len(w):,} frequent pairs: correlation {correlation:.2f}, {(scores - target).mean():+.2f} "
    f"nats apart; SVD and PPMI: {np.corrcoef(rebuilt, np.maximum(pmi, 0))[0, 1]:.2f}"
)
assert correlation > 0.5
for name, one in sets.items():
    at, ranks = rank_known_pairs(text, {name: one})
    values = [similarity(x, at, ranks) for x in (tables["input"], svd_words)]
    draws = np.random.default_rng(0).integers(0, len(at), (1000, len(at)))
    ours, svd = (
        [similarity(x, at[i], ranks[i]) for i in draws] for x in (tables["input"], svd_words)
    )
    low, high = np.percentile(np.subtract(ours, svd), [2.5, 97.5])
    print("{}: skip-gram {:.3f}, PPMI-SVD {:.3f},".format(name, *values), end=" ")
    print(f"difference {low:+.3f} to {high:+.3f}")
subset = np.random.default_rng(0).permutation(len(w))[:1500]
figure, axes = plt.subplots(figsize=(4, 3.4), layout="constrained")
axes.plot(target[subset], scores[subset], ".", markersize=2)
axes.axline((0, 0), slope=1, color="k", linewidth=1)
axes.set(xlabel="PMI - log k, nats", ylabel="score of skip-gram, nats")

# %% [markdown]
# ## 2. Common claims over seeds
# A claim holds or is refuted if the 95 % interval of Student's t over seeds excludes 0. Learning
# rates are the best of one pass with another seed. "Rare context" is how often a word of the rarest
# third is scored above another such word in its own held-out context; chance is one half.

# %%
RATES = {
    ("skip_gram", "negative_sampling"): 0.3, ("cbow", "negative_sampling"): 0.4,
    ("skip_gram", "nce"): 0.15, ("skip_gram", "sampled_softmax"): 0.15,
    ("cbow", "nce"): 0.4, ("cbow", "sampled_softmax"): 0.4,
}  # fmt: skip
DRAWN = {"objective.k": 64, "objective.draws": 64, "model.bias": "unigram"}
text, sets = read_dictionaries("wordnet.txt") if FULL else make_sentences(20_000, 100)
at, ranks = rank_known_pairs(text, sets)
counts = text.train.vocabulary.counts
is_rare = (counts <= np.quantile(counts[1:], 1 / 3)) & (np.arange(len(counts)) > 0)


def own_context_wins(tables, reach):
    """Return how often a held-out rare word fits its context better than another rare word."""
    tokens, starts = np.asarray(text.test.tokens), text.test.sentence_starts
    sentence = np.searchsorted(starts, np.arange(len(tokens)), side="right")
    at = np.flatnonzero(is_rare[tokens])
    near = at[:, None] + np.delete(np.arange(-reach, reach + 1), reach)
    mask = (near >= 0) & (near < len(tokens))
    near = np.clip(near, 0, len(tokens) - 1)
    mask &= sentence[near] == sentence[at][:, None]
    at, near, mask = (x[mask.any(1)] for x in (at, near, mask))
    weight = mask / mask.sum(1, keepdims=True)
    h = np.einsum("pnd,pn->pd", tables["input"][tokens[near]], weight)
    scores = tables["output"][tokens[at]] @ h.T
    own, other = np.diagonal(scores)[:, None], tokens[at][:, None] != tokens[at]
    return np.where(scores == own, 0.5, scores < own)[other].mean()


results = {}
for (model, name), rate in RATES.items():
    settings = {"model.name": model, "objective.name": name, "optim.rule": "adagrad"}
    settings |= {"optim.learning_rate": rate, **(DRAWN if name != "negative_sampling" else {})}
    passes, seeds = (2, 6) if name == "negative_sampling" else (1, 3)
    rows = []
    for seed in range(seeds if FULL else 2):
        run, tables, log_p, speed = fit(text, settings, passes if FULL else 1, seed)
        rows.append({
            "similarity": similarity(tables["input"], at, ranks),
            "rare context": own_context_wins(tables, 1),
            "log perplexity": -log_p.mean(),
            "log speed": np.log(speed),
        })  # fmt: skip
    results[model, name] = pd.DataFrame(rows)
    print(f"{model}, {name}:", results[model, name].mean().round(3).to_dict())
differences = results["skip_gram", "negative_sampling"] - results["cbow", "negative_sampling"]
cbow, skip_gram = (
    results[model, "sampled_softmax"] - results[model, "nce"] for model in ("cbow", "skip_gram")
)
claims = {
    "skip-gram beats CBOW on rare words, by one word of context": differences["rare context"],
    "CBOW trains faster, by the log of words per CPU second": -differences["log speed"],
    "sampled softmax suits CBOW better, by log perplexity": -cbow["log perplexity"],
    "sampled softmax suits CBOW better, by similarity": cbow["similarity"],
    "NCE suits skip-gram better, by log perplexity": skip_gram["log perplexity"],
    "NCE suits skip-gram better, by similarity": -skip_gram["similarity"],
}
for claim, gain in claims.items():
    low, high = stats.t.interval(0.95, len(gain) - 1, gain.mean(), stats.sem(gain))
    verdict = "held" if low > 0 else "refuted" if high < 0 else "not decided"
    print(f"{claim}: {verdict}, {gain.mean():+.4f} ({low:+.4f} to {high:+.4f})")
