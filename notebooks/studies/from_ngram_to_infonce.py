# %% [markdown]
# # From n-grams over noise-contrastive estimation to InfoNCE
#
# A language model's partition function is too expensive; noise-contrastive estimation turns it into
# a classification, word2vec simplifies that, sampled softmax corrects it; InfoNCE is its ranking
# form. Each step is measured here on words; `nce_theory` has the gradients, and `word_vectors` the
# vectors. The last cell lists what was expected and measured. With `FULL=1` in the environment the
# texts are books and glosses (fetched once) instead of made-up languages.

# %%
import itertools
import os
import re
import sys
import time
from collections import Counter

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pandas as pd

sys.path.insert(0, "../..")  # where configs and experiments are
from configs.keys import make_config
from configs.words import KEYS
from cpc import losses, negatives
from cpc.data import Corpus, Vocabulary, encode_sentences, read_text_folder, split_sentences
from cpc.data.cache import cache_dir
from cpc.data.sources.texts import prepare_texts
from cpc.evaluate.accuracy import bootstrap_interval
from cpc.models.ngram import kneser_ney, ngram_log_p
from experiments.command.config import with_settings
from experiments.kinds.words import evaluate
from experiments.kinds.words import run as words
from experiments.kinds.words.run import Text, synthetic

FULL = bool(os.environ.get("FULL"))
checks = []


def check(what, measured, relation, expected, tolerance=0.0):
    """Record whether a measured number agrees with theory."""
    off = float(measured) - float(expected)
    agrees = {"=": abs(off), "<=": off, ">=": -off}[relation] <= tolerance
    checks.append((what, float(measured), relation, float(expected), tolerance, agrees))


#: A log-bilinear language model of two words (Mnih & Teh 2012).
LANGUAGE_MODEL = {
    "data.subsample": 0.0, "data.positions": 512, "steps_per_launch": 32,
    "model.name": "vlbl", "model.width": 64, "model.reach": 2, "model.bias": "unigram",
    "objective.alpha": 1.0, "objective.share": 1, "objective.draws": 0,
    "optim.rule": "adagrad", "optim.learning_rate": 0.1, "evaluate.max_places": 20_000,
}  # fmt: skip


def fit(text, settings, epochs):
    """Train a model of words; return it with its held-out log p, log Z, and CPU seconds."""
    config = with_settings(make_config(KEYS), {**settings, "epochs": epochs})
    words.interpret(words, config)
    made = words.make(config, text)
    copy = jax.tree.map(lambda x: x.copy(), made.state)
    jax.block_until_ready(made.launch(copy, made.stream.launch(0)))  # compiles
    state, begin = made.state, time.process_time()
    for i in range(epochs * made.stream.per_epoch):
        state = made.launch(state, made.stream.launch(i))
    made = made._replace(state=jax.block_until_ready(state))
    seconds = time.process_time() - begin
    log_p, log_z, _ = evaluate.tell(made, text.test.tokens, text.test.sentence_starts)
    return made, log_p, log_z, seconds


def divide(corpus, blocks):
    """Renumber the words of a part of a text by frequency; hold out a tenth of the sentences."""
    counts = np.bincount(corpus.tokens, minlength=len(corpus.vocabulary.words))
    order = np.append(0, 1 + np.argsort(-counts[1:], kind="stable"))
    kept = order[: 1 + int((counts[1:] > 0).sum())]
    number = np.zeros(len(order), np.int32)
    number[kept] = np.arange(len(kept))
    vocabulary = Vocabulary(tuple(corpus.vocabulary.words[i] for i in kept), counts[kept])
    corpus = corpus._replace(tokens=number[corpus.tokens], vocabulary=vocabulary)
    train, _, test = split_sentences(corpus, valid=0.0, test=0.1, block_sentences=blocks)
    return Text(train, test)


if FULL:  # a part of the packaged books, with 5,000 words
    folder = prepare_texts("books") / "text"
    corpus = read_text_folder(
        folder, cache_dir() / "packs", print, min_count=5, max_vocabulary=5000
    )
    starts = corpus.sentence_starts
    starts = starts[: 1 + int(np.searchsorted(starts, 330_000))]
    documents, tokens = np.array([0, len(starts) - 1]), np.asarray(corpus.tokens[: starts[-1]])
    corpus = corpus._replace(tokens=tokens, sentence_starts=starts, document_starts=documents)
    text = divide(corpus, 100)
else:
    text = divide(synthetic(0, 30_000, 300), 5)
epochs = 4 if FULL else 2

# %% [markdown]
# ## 1. Perplexity, and the time to get there
# Counting (Kneser-Ney), likelihood, and NCE with k noise words. More noise words come nearer to
# likelihood, unigram noise beats uniform noise, most at small k, and log Z stays near 0 without
# being asked for (Mnih & Teh 2012).

# %%
ks, rows = (1, 5, 25, 100) if FULL else (1, 25), {}
train, test = text.train, text.test
for order in (3, 5) if FULL else (3,):
    begin = time.process_time()
    size = len(train.vocabulary.words)
    model = kneser_ney(np.asarray(train.tokens), train.sentence_starts, size, order)
    seconds = time.process_time() - begin
    log_p = ngram_log_p(model, np.asarray(test.tokens), test.sentence_starts)
    rows[f"Kneser-Ney, {order} words"] = np.exp(-log_p.mean()), np.nan, np.nan, seconds
jobs = {"likelihood": {"objective.name": "full_softmax"}}
for noise, k in itertools.product(("unigram", "uniform"), ks):
    given = {"objective.name": "nce", "objective.noise": noise, "objective.k": k}
    jobs[f"NCE, {noise}, k {k}"] = given
for name, given in jobs.items():
    _, log_p, log_z, seconds = fit(text, {**LANGUAGE_MODEL, **given}, epochs)
    rows[name] = np.exp(-log_p.mean()), log_z.mean(), log_z.std(), seconds
columns = ["perplexity", "log Z", "its spread", "CPU seconds"]
table = pd.DataFrame.from_dict(rows, "index", columns=columns)
print(table.round(2).to_string())
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
by_noise = {}
for noise in ("unigram", "uniform"):
    values = by_noise[noise] = np.array([table.perplexity[f"NCE, {noise}, k {k}"] for k in ks])
    axes.semilogx(ks, values, "o-", label=f"NCE, {noise} noise")
    check(f"1: greatest rise with k, {noise}", (values[1:] / values[:-1]).max(), "<=", 1, 0.02)
axes.axhline(table.perplexity["likelihood"], color="k", label="likelihood")
axes.set(xlabel="k, noise words per datum", ylabel="perplexity")
axes.legend()
gap = by_noise["uniform"] / by_noise["unigram"]
ratio = by_noise["unigram"][-1] / table.perplexity["likelihood"]
check(f"1: NCE with k {ks[-1]} over likelihood", ratio, "=", 1, 0.1)
check(f"1: uniform over unigram, k {ks[0]}", gap[0], ">=", 1)
check("1: the same less that of the largest k", gap[0] - gap[-1], ">=", 0)
check(f"1: log Z, k {ks[-1]}", table["log Z"][f"NCE, unigram, k {ks[-1]}"], "=", 0, 0.25)

# %% [markdown]
# ## 2. Optima, on a Markov chain of five words
# Skip-gram's scores are PMI - log k (Levy & Goldberg 2014). InfoNCE ends where likelihood ends at
# any number of candidates, if log q is off all of them and hits are kept (Ma & Collins 2018).

# %%
rng, num_tokens = np.random.default_rng(0), 20_000 if FULL else 8000
follows = rng.dirichlet(np.full(5, 0.7), size=5).cumsum(1)
draws, tokens = rng.random(num_tokens), np.zeros(num_tokens, np.int64)
for i in range(1, num_tokens):
    tokens[i] = min(np.searchsorted(follows[tokens[i - 1]], draws[i]), 4)
order = np.argsort(-np.bincount(tokens, minlength=5), kind="stable")
tokens = (np.argsort(order)[tokens] + 1).astype(np.int32)
vocabulary = Vocabulary(tuple("?abcde"), np.bincount(tokens, minlength=6))
corpus = Corpus(tokens, np.array([0, num_tokens]), np.array([0, 1]), vocabulary, [])
chain = Text(corpus, corpus)  # tested on what it is trained on
EXACT = {
    **LANGUAGE_MODEL, "data.positions": 256, "steps_per_launch": 40, "model.width": 8,
    "model.reach": 1, "model.reduce": False, "objective.share": 0, "objective.draws": 64,
    "optim.learning_rate": 0.3,
}  # fmt: skip
pairs = np.zeros((6, 6))
np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
both = (pairs + pairs.T)[1:, 1:] / (2 * (len(tokens) - 1))
q, often = negatives.unigram(np.bincount(tokens, minlength=6), 1.0)[1:], both > 0.005
pmi = np.log(both[often] / (both.sum(1)[:, None] * q)[often])
for k in (1, 5, 15) if FULL else (5,):
    given = {"model.name": "skip_gram", "model.bias": "none", "objective.k": k}
    tables = fit(chain, {**EXACT, **given}, 30 if FULL else 12)[0].state.params["tables"]
    scores = np.asarray(tables["input"] @ tables["output"].T)[1:, 1:][often]
    distance = np.abs(scores - pmi + np.log(k)).max()
    check(f"2: distance from PMI - log k, k {k}", distance, "=", 0, 0.2)

# %%
passes = 20 if FULL else 10
jobs = {
    "likelihood": {"objective.name": "full_softmax"},
    "InfoNCE, 8 drawn words": {
        "objective.name": "ranking_nce", "objective.share": 1, "objective.draws": 8,
    },
    "InfoNCE, words of the batch": {
        "objective.name": "info_nce", "objective.noise": "batch", "objective.share": 32,
    },
    "NCE": {"objective.name": "nce", "objective.k": 5},
}  # fmt: skip
log_p = {name: fit(chain, {**EXACT, **given}, passes)[1] for name, given in jobs.items()}
for name in [*jobs][1:]:
    ratio = np.exp(log_p["likelihood"].mean() - log_p[name].mean())
    check(f"2: {name}, perplexity over likelihood's", ratio, "=", 1, 0.01)

# %% [markdown]
# ## 3. Two towers: negatives of the batch with and without the correction
# From a query (the mean of its words) to its item, with the items of the batch as negatives. The
# correction for popularity should rank frequent items higher (Yi et al. 2019).

# %%
if FULL:  # WordNet's glosses and their words; examples in quotes go, as they hold the word
    lines = (prepare_texts("words") / "glosses.tsv").read_text("utf-8").splitlines()
    found = dict.fromkeys(tuple(line.lower().split("\t")) for line in lines)
    often = Counter(word for word, _ in found)
    found = [(word, gloss) for word, gloss in found if often[word] >= 3]
    glosses = [re.sub('"[^"]*"?', "", gloss) for _, gloss in found]
    counts = Counter(" ".join(glosses).split())
    known = ["<unk>", *(word for word, count in counts.items() if count >= 3)]
    queries = encode_sentences(glosses, known, 24)
    item = np.unique([word for word, _ in found], return_inverse=True)[1].astype(np.int32)
    group = np.unique([gloss for _, gloss in found], return_inverse=True)[1]
else:  # queries of four words, half of them among five that their Zipfian item likes
    rng, p = np.random.default_rng(0), 1 / np.arange(1, 301)
    item = rng.choice(300, 10_000, p=p / p.sum()).astype(np.int32)
    liked = rng.integers(0, 30, (300, 5))[item[:, None], rng.integers(0, 5, (10_000, 4))]
    queries = np.where(rng.random(liked.shape) < 0.5, liked, rng.integers(0, 30, liked.shape))
    group = np.arange(10_000)  # queries of one text have one number
held = (np.random.default_rng(1).random(group.max() + 1) < 0.1)[group]
tested = held & np.isin(item, item[~held])
counts = np.bincount(item[~held], minlength=item.max() + 1)
log_q = jnp.log(jnp.asarray(np.maximum(counts, 0.5) / counts.sum(), jnp.float32))
queries, item = jnp.asarray(queries), jnp.asarray(item)


def embed(params, queries):
    there = (queries >= 0)[..., None]
    rows = jnp.where(there, params["word"][jnp.maximum(queries, 0)], 0.0)
    return rows.sum(1) / jnp.maximum(there.sum(1), 1)


def train_towers(log_q, epochs=5 if FULL else 4, batch=256, width=64):
    keys, rng = jax.random.split(jax.random.key(0)), np.random.default_rng(0)
    params = {
        "word": 0.3 * jax.random.normal(keys[0], (int(queries.max()) + 1, width)),
        "item": 0.1 * jax.random.normal(keys[1], (len(log_q), width)),
    }
    places = np.flatnonzero(~held)
    per_epoch, others = len(places) // batch, ~jnp.eye(batch, dtype=bool)
    tx = optax.adam(optax.linear_schedule(1e-2, 0.0, epochs * per_epoch))
    state = tx.init(params)

    def loss_fn(params, queries, item):
        scores = embed(params, queries) @ params["item"][item].T - log_q[item]
        return losses.info_nce(jnp.diagonal(scores), scores, others).mean()

    @jax.jit
    def step(params, state, rows):
        updates, state = tx.update(jax.grad(loss_fn)(params, queries[rows], item[rows]), state)
        return optax.apply_updates(params, updates), state

    for _ in range(epochs):
        for rows in rng.permutation(places)[: per_epoch * batch].reshape(per_epoch, batch):
            params, state = step(params, state, rows)
    return params


def hits(params, bias=0.0):
    scores = embed(params, queries[tested]) @ params["item"].T + bias
    return np.asarray(jax.lax.top_k(scores, 10)[1] == item[tested][:, None]).any(1)


def interval(values):
    number = np.unique(group[tested], return_inverse=True)[1]
    return bootstrap_interval(np.bincount(number, values), np.bincount(number))


with_q, without = train_towers(log_q), train_towers(jnp.zeros_like(log_q))
found = {
    "corrected": hits(with_q),
    "not corrected": hits(without),
    "not corrected, log q added to rank": hits(without, log_q),
    "the most frequent": np.isin(item[tested], np.argsort(-counts)[:10]),
}
for name, one in found.items():
    print("recall@10, {}: {:.3f} ({:.3f} to {:.3f})".format(name, one.mean(), *interval(one)))
gain = found["corrected"] * 1.0 - found["not corrected"]
check("3: recall@10, corrected less not, lower end", interval(gain)[0], ">=", 0)

# %% [markdown]
# ## 4. What a step costs, by the size of the vocabulary


# %%
def step_milliseconds(num_words, given):
    p, rng = 1 / np.arange(1, num_words), np.random.default_rng(0)
    tokens = (1 + rng.choice(num_words - 1, 256, p=p / p.sum())).astype(np.int32)
    counts = np.append(0, np.maximum(1, 1e9 * p / p.sum())).astype(np.int64)
    vocabulary = Vocabulary(("",) * num_words, counts)
    corpus = Corpus(tokens, np.array([0, 256]), np.array([0, 1]), vocabulary, [])
    settings = {
        **LANGUAGE_MODEL, "data.positions": 64, "steps_per_launch": 2, "optim.rule": "sgd",
        "optim.learning_rate": 1e-3, **given,
    }  # fmt: skip
    made = words.make(with_settings(make_config(KEYS), settings), Text(corpus, corpus))
    state, batch, seconds = made.state, made.stream.launch(0), []
    for _ in range(4):
        begin = time.perf_counter()
        state = jax.block_until_ready(made.launch(state, batch))
        seconds.append(time.perf_counter() - begin)
    return 1000 * min(seconds[1:]) / 2  # the first compiles


sizes = (10_000, 50_000, 200_000, 1_000_000) if FULL else (500, 8000)
nce = {"objective.name": "nce", "objective.k": 25}
jobs = {
    "full softmax": {"objective.name": "full_softmax"},
    "NCE, 25 words of its own": nce,
    "NCE, 512 words shared": {**nce, "objective.share": 0, "objective.draws": 512},
}
table = pd.DataFrame(
    {name: [step_milliseconds(size, given) for size in sizes] for name, given in jobs.items()},
    index=pd.Index(sizes, name="words"),
)
print(table.round(2).to_string())
if FULL:  # at small sizes fixed costs weigh
    softmax, shared = table["full softmax"].to_numpy(), table["NCE, 512 words shared"].to_numpy()
    growth = np.log(softmax[-1] / softmax[0]) / np.log(100)
    check("4: growth of the full softmax, log-log", growth, ">=", 0.5)
    check("4: full softmax over NCE with shared words", softmax[-1] / shared[-1], ">=", 1)

# %% [markdown]
# ## All numbers

# %%
table = pd.DataFrame(checks, columns=["what", "measured", "", "expected", "tolerance", "agrees"])
print(table.to_string(index=False))
print("not as expected:", table[~table.agrees].what.tolist())
