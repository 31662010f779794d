"""Vectors of words: skip-gram against the matrix that it factorises, and against CBOW."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse
from scipy import stats

from cpc.data.cache import cache_dir
from cpc.data.sources.similarity import read_judgements
from cpc.data.sources.texts import prepare_texts
from cpc.data.text import Corpus, Vocabulary, read_text_folder
from cpc.data.words import WordStream
from cpc.evaluate.words import normalize, similarity_scores, spearman
from cpc.negatives import unigram
from experiments.nce.findings import Finding, check, finding
from experiments.studies.from_ngram_to_infonce.fit import fit
from experiments.words.text import Text

#: word2vec's settings (Mikolov et al. 2013): those of configs/text_words.py, no perplexity.
SKIP_GRAM = {"data.test_fraction": 0.0, "evaluate.max_places": 128}
#: The rate that word2vec gives CBOW, twice that of skip-gram.
CBOW = {**SKIP_GRAM, "model.name": "cbow", "optim.learning_rate": 0.05}

#: For texts of some ten thousand words.
SMALL = {"data.positions": 256, "data.subsample": 0.0, "steps_per_launch": 16}


class Judged(NamedTuple):
    """A text, and what is said of the likeness of its words."""

    text: Text
    sets: Mapping[str, Any]
    """Name -> (pairs of words, their likeness)."""


def glosses() -> Judged:
    """Return WordNet's glosses, 1.47 million words, and WordSim-353 and SimLex-999."""
    path = prepare_texts("words") / "text" / "wordnet.txt"
    corpus = read_text_folder(path, cache_dir() / "packs", print, min_count=5)
    return Judged(Text(corpus, corpus), read_judgements().pairs)


def made_up(num_tokens: int, num_words: int, num_topics: int = 10, seed: int = 0) -> Judged:
    """Return sentences of a topic, to which two words of three keep, and who is of one topic."""
    rng = np.random.default_rng(seed)
    p = 1 / np.arange(5, num_words // num_topics + 5)
    places = rng.choice(len(p), num_tokens, p=p / p.sum())
    topics = np.repeat(rng.integers(0, num_topics, num_tokens // 10 + 1), 10)[:num_tokens]
    topics = np.where(
        rng.random(num_tokens) < 2 / 3, topics, rng.integers(0, num_topics, num_tokens)
    )
    tokens = (1 + places * num_topics + topics).astype(np.int32)
    size = 1 + len(p) * num_topics
    words = tuple(f"w{i}" for i in range(size))
    starts = np.append(np.arange(0, num_tokens, 10), num_tokens)
    vocabulary = Vocabulary(words, np.bincount(tokens, minlength=size))
    corpus = Corpus(tokens, starts, np.array([0, len(starts) - 1]), vocabulary, [])
    left, right = rng.integers(1, size, (2, 2000))
    pairs = [(words[a], words[b]) for a, b in zip(left, right, strict=True)]
    said = ((left - 1) % num_topics == (right - 1) % num_topics).astype(float)
    return Judged(Text(corpus, corpus), {"topics": (pairs, said)})


def count_pairs(stream: WordStream, epochs: int, reach: int, size: int) -> Any:
    """Return how often c is drawn beside w, of the very slices that skip-gram is trained on.

    A distance of i counts (r + 1 - i) / r, the chance that the window drawn is so wide.
    """
    total = scipy.sparse.csr_array((size, size))
    for launch in range(epochs * stream.per_epoch):
        batch = stream.launch(launch)
        inside = slice(reach, -reach)
        words, of = (np.append(x[0, :reach], x[:, inside].ravel()) for x in batch.values())
        found = []
        for i in range(1, reach + 1):
            near = (of[i:] == of[:-i]) & (of[i:] >= 0)
            chance = np.full(int(near.sum()), (reach + 1 - i) / reach)
            found.append((chance, words[:-i][near], words[i:][near]))
        counts, left, right = map(np.concatenate, zip(*found, strict=True))
        total = total + scipy.sparse.coo_array((counts, (left, right)), (size, size))
    return (total + total.T).tocoo()


def pmi_of(pairs: Any, q: np.ndarray) -> np.ndarray:
    """Return log p(c | w) / q(c) of each pair that was counted."""
    of_word = np.asarray(pairs.sum(1)).ravel()
    w, c = pairs.coords
    return np.log(pairs.data / (of_word[w] * q[c]))


def ppmi_svd(pairs: Any, pmi: np.ndarray, width: int) -> np.ndarray:
    """Return U sqrt(S) of the positive part of PMI (Levy & Goldberg 2014, section 5.1)."""
    positive = scipy.sparse.csr_array((np.maximum(pmi, 0), pairs.coords), pairs.shape)
    # By blocks, as Halko et al. 2011, algorithm 4.4: Lanczos takes minutes on 19,000 words.
    basis = np.random.default_rng(0).standard_normal((pairs.shape[1], width + 20))
    for _ in range(6):
        basis = np.linalg.qr(positive @ basis)[0]
        basis = np.linalg.qr(positive.T @ basis)[0]
    u, s, _ = np.linalg.svd(positive @ basis, full_matrices=False)
    u, s = u[:, :width], s[:width]
    return u * np.sqrt(s)


def factorised(
    judged: Judged,
    epochs: int,
    width: int,
    settings: Mapping[str, Any] | None = None,
    least: float = 20.0,
) -> Finding:
    """Compare skip-gram with negative sampling with PPMI-SVD (Levy & Goldberg 2014).

    Args:
        judged: a text and judgements.
        epochs, width: of skip-gram; the width is that of both.
        settings: more of skip-gram.
        least: times that a pair is counted, to be frequent.
    """
    made = fit(judged.text, {**SKIP_GRAM, "model.width": width, **(settings or {})}, epochs).trained
    config, vocabulary = made.config, made.text.train.vocabulary
    tables = jax.device_get(made.state.params["tables"])
    known = np.where(np.arange(len(vocabulary.words)) == 0, 0, vocabulary.counts)
    q = unigram(known, config.objective.alpha)
    pairs = count_pairs(made.stream, epochs, made.model.reach, len(q))
    pmi = pmi_of(pairs, q)
    often = pairs.data >= least
    w, c = (x[often] for x in pairs.coords)
    scores = (tables["input"][w] * tables["output"][c]).sum(1)
    target = pmi[often] - np.log(config.objective.k)
    pearson = float(np.corrcoef(scores, target)[0, 1])
    vectors = {"skip-gram": tables["input"], "PPMI-SVD": ppmi_svd(pairs, pmi, width)}
    rows = compare(judged.sets, index(vocabulary), vectors)
    checks = [
        check("correlation of s with PMI - log k over frequent pairs", pearson, 0.5, 0.0,
              f"{width} numbers a word, {epochs} epochs: not at the optimum", ">="),
        *(check(f"{name}: skip-gram less PPMI-SVD", row["difference"], 0.0,
                (row["high"] - row["low"]) / 2, "half of its 95 % interval")
          for name, row in rows.items()),
    ]  # fmt: skip
    shown = np.random.default_rng(0).permutation(len(w))[:1500]
    return finding(
        "Skip-gram against PMI and its decomposition, on a text",
        "scores follow PMI - log k, and vectors of skip-gram and PPMI-SVD of the same text know "
        "as much of likeness (Levy & Goldberg 2014)",
        f"correlation {pearson:.2f} over {len(w):,} pairs counted {least:g} times or more, scores "
        f"{scores.mean() - target.mean():+.2f} nats away on average; "
        + "; ".join(f"{name}: {row['text']}" for name, row in rows.items()),
        checks,
        {"points": {"pmi": target[shown], "score": scores[shown]}, "rows": rows},
    )


def index(vocabulary: Vocabulary) -> dict[str, int]:
    """Return word -> row, of known words."""
    return {word: i for i, word in enumerate(vocabulary.words) if i}


def compare(
    sets: Mapping[str, Any], rows: Mapping[str, int], vectors: Mapping[str, np.ndarray]
) -> dict[str, dict[str, Any]]:
    """Return Spearman's correlations of two kinds of vectors, and of their difference, paired."""
    (first, a), (second, b) = vectors.items()
    scores = {
        name: {one.data: one for one in similarity_scores(table, rows, sets, features=name)}
        for name, table in vectors.items()
    }
    found = {}
    for name, (pairs, said) in sets.items():
        known = [i for i, pair in enumerate(pairs) if all(word in rows for word in pair)]
        at = np.array([[rows[word] for word in pairs[i]] for i in known])
        said = np.asarray(said)[known]
        left, right = ((normalize(x)[at[:, 0]] * normalize(x)[at[:, 1]]).sum(1) for x in (a, b))
        draws = np.random.default_rng(0).integers(0, len(known), (1000, len(known)))
        differences = [spearman(left[i], said[i]) - spearman(right[i], said[i]) for i in draws]
        low, high = np.percentile(differences, [2.5, 97.5])
        values = [scores[kind][name] for kind in (first, second)]
        found[name] = {
            "values": {one.features: [one.value, one.low, one.high] for one in values},
            "difference": values[0].value - values[1].value, "low": low, "high": high,
            "text": ", ".join(f"{one.features} {one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"
                              for one in values) + f" ({values[0].setting})",
        }  # fmt: skip
    return found


def rare_pairs(judged: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of known pairs whose rarer word is among the rarer half, and what is said.

    Said are ranks in their set, from 0 to 1, so that sets go together.
    """
    vocabulary = judged.text.train.vocabulary
    rows, at, said = index(vocabulary), [], []
    for pairs, values in judged.sets.values():
        ranks = stats.rankdata(values) / len(values)
        for pair, rank in zip(pairs, ranks, strict=True):
            if all(word in rows for word in pair):
                at.append([rows[word] for word in pair])
                said.append(rank)
    at, said = np.array(at), np.array(said)
    rarer = vocabulary.counts[at].min(1)
    is_rare = rarer <= np.median(rarer)
    return at[is_rare], said[is_rare]


def folk_claims(judged: Judged, epochs: int, seeds: Sequence[int], settings: Any = None) -> Finding:
    """Ask over seeds whether skip-gram is better on rare words than CBOW, and CBOW faster."""
    at, said = rare_pairs(judged)
    words = int(judged.text.train.vocabulary.counts[1:].sum()) * epochs
    likeness: dict[str, list[float]] = {"skip-gram": [], "CBOW": []}
    rates: dict[str, list[float]] = {"skip-gram": [], "CBOW": []}
    for seed in seeds:
        for name, given in (("skip-gram", SKIP_GRAM), ("CBOW", CBOW)):
            one = fit(judged.text, {**given, **(settings or {})}, epochs, seed)
            unit = normalize(jax.device_get(one.trained.state.params["tables"]["input"]))
            likeness[name].append(spearman((unit[at[:, 0]] * unit[at[:, 1]]).sum(1), said))
            rates[name].append(words / one.seconds)
    gain = interval(np.subtract(likeness["skip-gram"], likeness["CBOW"]))
    faster = interval(np.log(np.divide(rates["CBOW"], rates["skip-gram"])))
    claims = [
        say("Skip-gram beats CBOW on rare words", gain,
            "a difference of {:.3f} [{:.3f}, {:.3f}] in rank correlation"),
        say("CBOW trains faster", faster, "{:.2f} [{:.2f}, {:.2f}] times the words a second",
            np.exp),
    ]  # fmt: skip
    reason = f"95 %, t over {len(seeds)} seeds"
    return finding(
        "What is said of skip-gram and CBOW",
        "skip-gram beats CBOW on rare words, and CBOW trains faster (word2vec's own notes)",
        " ".join(claims),
        [
            check("rare words, skip-gram less CBOW: lower end", gain[1], 0, 0, reason, ">="),
            check("words a second, CBOW over skip-gram: lower end", np.exp(faster[1]), 1, 0, reason,
                  ">="),
        ],
        {
            "rows": {f"{name}, rare words": values for name, values in likeness.items()},
            "rates": rates,
            "unit": f"Spearman's correlation, {len(said)} pairs",
        },
        " ".join(claims),
    )  # fmt: skip


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return mean and 95 % interval by Student's t over seeds."""
    reach = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(values.mean() - reach), float(values.mean() + reach)


def say(claim: str, numbers: Sequence[float], form: str, scale: Any = float) -> str:
    """Return what became of a claim that a number is above 0.

    >>> say("It grows", (1.0, 0.5, 1.5), "{:g} [{:g}, {:g}]")
    '"It grows" held: 1 [0.5, 1.5].'
    """
    _, low, high = numbers
    verdict = "held" if low > 0 else "was refuted" if high < 0 else "was left open"
    return f'"{claim}" {verdict}: {form.format(*map(scale, numbers))}.'
