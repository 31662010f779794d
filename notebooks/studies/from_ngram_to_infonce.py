# %% [markdown]
# # From n-grams through noise-contrastive estimation to InfoNCE
# The partition function of a language model is expensive. Noise-contrastive estimation (NCE)
# replaces it by a classification, which word2vec simplifies and sampled softmax corrects; InfoNCE
# is its ranking form. `FULL=1` in the environment uses books and glosses, not synthetic languages.

# %%
import itertools
import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

sys.path.insert(0, "../..")  # contains configs and experiments
from configs.keys import make_config
from configs.words import KEYS
from cpc import losses, negatives
from cpc.data import Corpus, Vocabulary, encode_sentences, read_text_folder, split_sentences
from cpc.data.cache import cache_dir
from cpc.data.sources.texts import prepare_texts
from cpc.evaluate.accuracy import bootstrap_interval
from cpc.models.ngram import kneser_ney, ngram_log_p
from experiments.bench.words import train
from experiments.command.config import with_settings
from experiments.kinds.words import evaluate
from experiments.kinds.words.run import Text, synthetic

FULL = bool(os.environ.get("FULL"))
checks = []


def check(claim, measured, relation, expected, tolerance=0.0):
    off = float(measured - expected)
    agrees = {"=": abs(off), "<=": off, ">=": -off}[relation] <= tolerance
    checks.append((claim, float(measured), relation, expected, tolerance, agrees))


LANGUAGE_MODEL = {  # log-bilinear, with two context words (Mnih and Teh 2012)
    "data.subsample": 0.0, "data.positions": 512, "steps_per_launch": 32,
    "model.name": "vlbl", "model.width": 64, "model.reach": 2, "model.bias": "unigram",
    "objective.alpha": 1.0, "objective.share": 1, "objective.draws": 0,
    "optim.rule": "adagrad", "optim.learning_rate": 0.1, "evaluate.max_places": 20_000,
}  # fmt: skip
NOISES = ["unigram", "uniform"]


def objective(name, **options):
    return {"objective.name": name, **{f"objective.{key}": x for key, x in options.items()}}


def fit(text, settings, epochs):
    """Train a word model; return it with its held-out log p, log Z, and CPU seconds."""
    config = with_settings(make_config(KEYS), {**settings, "epochs": epochs})
    run, seconds = train(config, text, time.process_time)
    log_p, log_z, _ = evaluate.predict_log_probs(run, text.test.tokens, text.test.sentence_starts)
    return run, log_p, log_z, seconds


if FULL:  # part of the packaged books, with a vocabulary of 5,000
    folder, packs = prepare_texts("books") / "text", cache_dir() / "packs"
    corpus = read_text_folder(folder, packs, print, min_count=5, max_vocabulary=5000)
else:
    corpus = synthetic(0, 30_000, 300)
starts = corpus.sentence_starts[: 1 + int(np.searchsorted(corpus.sentence_starts, 330_000))]
word_ids, tokens = np.unique(np.append(0, corpus.tokens[: starts[-1]]), return_inverse=True)
names, counts = tuple(corpus.vocabulary.words[i] for i in word_ids), np.bincount(tokens[1:])
ends = starts, np.array([0, len(starts) - 1])
corpus = Corpus(tokens[1:].astype(np.int32), *ends, Vocabulary(names, counts), [])
splits = split_sentences(corpus, valid=0.0, test=0.1, block_sentences=100 if FULL else 5)
text = Text(splits[0], splits[2])
epochs, passes = (4, 20) if FULL else (2, 10)

# %% [markdown]
# ## 1. Perplexity and training time
# Kneser-Ney counts, likelihood, and NCE with k noise words. As in Mnih and Teh (2012), NCE nears
# likelihood as k grows, unigram noise is better than uniform noise, and log Z is near 0.

# %%
ks, rows, test = (1, 5, 25, 100) if FULL else (1, 25), {}, text.test
for order in (3, 5) if FULL else (3,):
    begin = time.process_time()
    model = kneser_ney(text.train.tokens, text.train.sentence_starts, len(names), order)
    seconds = time.process_time() - begin
    log_p = ngram_log_p(model, test.tokens, test.sentence_starts)
    rows[f"Kneser-Ney, {order} words"] = np.exp(-log_p.mean()), np.nan, np.nan, seconds
jobs = {"likelihood": objective("full_softmax")}
for noise, k in itertools.product(NOISES, ks):
    jobs[f"NCE, {noise}, k {k}"] = objective("nce", noise=noise, k=k)
for name, given in jobs.items():
    _, log_p, log_z, seconds = fit(text, {**LANGUAGE_MODEL, **given}, epochs)
    rows[name] = np.exp(-log_p.mean()), log_z.mean(), log_z.std(), seconds
columns = ["perplexity", "log Z", "std of log Z", "CPU seconds"]
table = pd.DataFrame.from_dict(rows, "index", columns=columns)
print(table.round(2).to_string())
nce = pd.DataFrame([[table.perplexity[f"NCE, {x}, k {k}"] for x in NOISES] for k in ks], ks, NOISES)
likelihood, max_k = table.perplexity["likelihood"], ks[-1]
axes = nce.assign(likelihood=likelihood).plot(logx=True, style="o-")
axes.set(xlabel="k, noise words per datum", ylabel="perplexity")
noise_ratio, ratio = nce.uniform / nce.unigram, nce / likelihood
for noise, growth in nce.div(nce.shift()).max().items():
    check(f"1: largest perplexity ratio of successive k, {noise}", growth, "<=", 1, 0.02)
check(f"1: perplexity ratio of NCE to likelihood, k {max_k}", ratio.unigram[max_k], "=", 1, 0.1)
check(f"1: perplexity ratio of uniform to unigram noise, k {ks[0]}", noise_ratio[ks[0]], ">=", 1)
check("1: its decrease to the largest k", noise_ratio[ks[0]] - noise_ratio[max_k], ">=", 0)
check(f"1: log Z, k {max_k}", table["log Z"][f"NCE, unigram, k {max_k}"], "=", 0, 0.25)

# %% [markdown]
# ## 2. Optima on a Markov chain of a few words
# Skip-gram scores converge to PMI - log k (Levy and Goldberg 2014). InfoNCE has the optimum of
# likelihood if log q is subtracted from all scores and hits are kept (Ma and Collins 2018).

# %%
corpus = synthetic(0, 20_000 if FULL else 8000, 6)
chain, tokens = Text(corpus, corpus), corpus.tokens  # test data equal training data
EXACT = {
    **LANGUAGE_MODEL, "data.positions": 256, "steps_per_launch": 40, "model.width": 8,
    "model.reach": 1, "objective.share": 0, "objective.draws": 64, "optim.learning_rate": 0.3,
}  # fmt: skip
first = np.flatnonzero(np.arange(1, len(tokens)) % 20)  # sentences have 20 words
pairs = np.histogram2d(tokens[first], tokens[first + 1], np.arange(0.5, 6))[0]
joint = (pairs + pairs.T) / (2 * len(first))
q, frequent = negatives.unigram(np.bincount(tokens, minlength=6), 1.0)[1:], joint > 0.005
pmi = np.log(joint[frequent] / (joint.sum(1)[:, None] * q)[frequent])
for k in (1, 5, 15) if FULL else (5,):
    given = {"model.name": "skip_gram", "model.bias": "none", "objective.k": k}
    tables = fit(chain, {**EXACT, **given}, 30 if FULL else 20)[0].state.params["tables"]
    scores = np.asarray(tables["input"] @ tables["output"].T)[1:, 1:][frequent]
    check(f"2: |score - PMI + log k|, k {k}", np.abs(scores - pmi + np.log(k)).max(), "=", 0, 0.2)
jobs = {
    "likelihood": objective("full_softmax"),
    "InfoNCE, 8 drawn words": objective("ranking_nce", share=1, draws=8),
    "InfoNCE, words of the batch": objective("info_nce", noise="batch", share=32),
    "NCE": objective("nce", k=5),
}
log_p = {name: fit(chain, {**EXACT, **given}, passes)[1].mean() for name, given in jobs.items()}
for name, one in log_p.items():
    check(f"2: {name}, perplexity ratio", np.exp(log_p["likelihood"] - one), "=", 1, 0.01)

# %% [markdown]
# ## 3. Two towers: in-batch negatives with and without correction
# A query, the mean of its words, retrieves an item; the other items of the batch are negatives.
# Subtracting log q should rank frequent items higher (Yi et al. 2019).

# %%
if FULL:  # WordNet glosses as queries for words; quoted examples contain the word
    lines = (prepare_texts("words") / "glosses.tsv").read_text("utf-8").lower().splitlines()
    pairs = pd.Series(lines).drop_duplicates().str.split("\t", expand=True)
    pairs = pairs[pairs.groupby(0)[0].transform("size") >= 3]
    glosses = pairs[1].str.replace('"[^"]*"?', "", regex=True)
    counts = glosses.str.split().explode().value_counts(sort=False)
    queries = encode_sentences(list(glosses), ["<unk>", *counts.index[counts >= 3]], 24)
    item, group = (pairs[i].factorize(sort=True)[0].astype(np.int32) for i in (0, 1))
else:  # queries of four words, half of them among five typical words of the item
    rng, p = np.random.default_rng(0), 1 / np.arange(1, 301)
    group, item = np.arange(10_000), rng.choice(300, 10_000, p=p / p.sum()).astype(np.int32)
    liked = rng.integers(0, 30, (300, 5))[item[:, None], rng.integers(0, 5, (10_000, 4))]
    queries = np.where(rng.random(liked.shape) < 0.5, liked, rng.integers(0, 30, liked.shape))
# Queries with the same text share a number in `group` and are held out together.
held = (np.random.default_rng(1).random(group.max() + 1) < 0.1)[group]
test_rows = held & np.isin(item, item[~held])
counts = np.bincount(item[~held], minlength=item.max() + 1)
log_q = jnp.log(jnp.asarray(np.maximum(counts, 0.5) / counts.sum(), jnp.float32))
queries, item = jnp.asarray(queries), jnp.asarray(item)


def score(params, rows, items):
    mask = (queries[rows] >= 0)[..., None]
    mean = params["word"][queries[rows]].sum(1, where=mask) / jnp.maximum(mask.sum(1), 1)
    return mean @ params["item"][items].T


def train_towers(log_q, epochs=5 if FULL else 4, batch=256, width=64):
    keys, rng = jax.random.split(jax.random.key(0)), np.random.default_rng(0)
    params = {
        "word": 0.3 * jax.random.normal(keys[0], (int(queries.max()) + 1, width)),
        "item": 0.1 * jax.random.normal(keys[1], (len(log_q), width)),
    }
    train_rows, mask = np.flatnonzero(~held), ~jnp.eye(batch, dtype=bool)
    num = len(train_rows) // batch * batch
    tx = optax.adam(optax.linear_schedule(1e-2, 0.0, epochs * num // batch))

    def loss_fn(params, rows):
        scores = score(params, rows, item[rows]) - log_q[item[rows]]
        return losses.info_nce(jnp.diagonal(scores), scores, mask).mean()

    def step(carry, rows):
        params, state = carry
        updates, state = tx.update(jax.grad(loss_fn)(params, rows), state)
        return (optax.apply_updates(params, updates), state), None

    batches = np.reshape([rng.permutation(train_rows)[:num] for _ in range(epochs)], (-1, batch))
    return jax.lax.scan(step, (params, tx.init(params)), batches)[0][0]


hits = {"ten most frequent items": np.isin(item[test_rows], np.argsort(-counts)[:10])}
for name, subtracted in (("corrected", log_q), ("not corrected", jnp.zeros_like(log_q))):
    scores = score(train_towers(subtracted), test_rows, slice(None))
    hits[name] = np.asarray(jax.lax.top_k(scores, 10)[1] == item[test_rows][:, None]).any(1)
hits["difference"] = hits["corrected"] * 1.0 - hits["not corrected"]
number = np.unique(group[test_rows], return_inverse=True)[1]
for name, one in hits.items():
    low, high = bootstrap_interval(np.bincount(number, one), np.bincount(number))
    print(f"recall@10, {name}: {one.mean():.3f} ({low:.3f} to {high:.3f})")
check("3: recall@10, corrected minus not, lower end", low, ">=", 0)

# %% [markdown]
# ## 4. Milliseconds per step, by vocabulary size

# %%
sizes = (10_000, 50_000, 200_000, 1_000_000) if FULL else (500, 8000)
jobs = {
    "full softmax": objective("full_softmax"),
    "NCE, 25 words per position": objective("nce", k=25),
    "NCE, 512 shared words": objective("nce", k=25, share=0, draws=512),
}
table = pd.DataFrame(index=pd.Index(sizes, name="words"), columns=[*jobs], dtype=float)
for size, (name, given) in itertools.product(sizes, jobs.items()):
    counts = np.append(0, 10**9 // np.arange(10, size + 9))
    tokens = np.random.default_rng(0).choice(size, 256, p=counts / counts.sum()).astype(np.int32)
    vocabulary = Vocabulary(("",) * size, counts)
    corpus = Corpus(tokens, np.array([0, 256]), np.array([0, 1]), vocabulary, [])
    settings = {
        **LANGUAGE_MODEL, "data.positions": 64, "steps_per_launch": 2, "optim.rule": "sgd",
        "optim.learning_rate": 1e-3, "epochs": 2, **given,
    }  # fmt: skip
    run, seconds = train(with_settings(make_config(KEYS), settings), Text(corpus, corpus))
    table.loc[size, name] = 1000 * seconds / (2 * run.stream.per_epoch * 2)  # milliseconds
print(table.round(2).to_string())
if FULL:  # at small sizes, fixed costs dominate
    (first, *_), (softmax, _, shared) = table.iloc[0], table.iloc[-1]
    check("4: log-log growth, full softmax", np.log(softmax / first) / np.log(100), ">=", 0.5)
    check("4: time ratio of full softmax to NCE with shared words", softmax / shared, ">=", 1)

# %% [markdown]
# ## All checks

# %%
table = pd.DataFrame(checks, columns=["claim", "measured", "", "expected", "tolerance", "agrees"])
print(table.to_string(index=False))
print("claims that disagree:", table[~table.agrees].claim.tolist())
