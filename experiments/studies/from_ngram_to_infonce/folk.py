"""What is said of skip-gram and CBOW, asked over seeds: held, refuted, or not decided."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cpc.data import Corpus
from cpc.evaluate.words import normalize, spearman
from experiments.studies.from_ngram_to_infonce.fit import Fitted, fit, tables_of
from experiments.studies.from_ngram_to_infonce.vectors import (
    Judged,
    interval,
    known_pairs,
)
from experiments.studies.nce.findings import Check, Finding, check, finding

#: Adagrad, with which a pass or two is enough. By plain descent who wins is a matter of the rate:
#: at word2vec's, 0.05, CBOW has hardly begun.
ROWS = {"optim.rule": "adagrad", "evaluate.max_places": 4096}
MODELS = {"skip-gram": ROWS, "CBOW": {**ROWS, "model.name": "cbow"}}
#: As many draws for both as TensorFlow's functions take them, and a bias, so that NCE can be right.
DRAWN = {"objective.k": 64, "objective.draws": 64, "model.bias": "unigram"}
#: Learning rates of Adagrad by model and objective: the best for one pass and another seed, by
#: likeness of negative sampling, by perplexity of the others. Tried were 0.08, 0.15, 0.3 and 0.6
#: (skip-gram), 0.2, 0.4 and 0.8 (CBOW), and 0.05, 0.15 and 0.4 (both by NCE and sampled softmax).
RATES = {
    ("skip-gram", "negative_sampling"): 0.3,
    ("CBOW", "negative_sampling"): 0.4,
    ("skip-gram", "nce"): 0.15,
    ("skip-gram", "sampled_softmax"): 0.15,
    ("CBOW", "nce"): 0.4,
    ("CBOW", "sampled_softmax"): 0.4,
}


def cell(model: str, objective: str) -> dict[str, Any]:
    """Return the settings of a model and an objective."""
    given = {"objective.name": objective, "optim.learning_rate": RATES[model, objective]}
    return {**MODELS[model], **given}


def rare_words(judged: Judged) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which words are of the rarest third, and pairs with one, and what is said of these."""
    counts = judged.text.train.vocabulary.counts
    at, said = known_pairs(judged)
    is_rare = counts <= np.quantile(counts[1:], 1 / 3)
    is_rare[0] = False
    # Judged words are frequent ones: the third of the pairs whose rarer word is rarest.
    rarer = counts[at].min(1)
    chosen = rarer <= np.quantile(rarer, 1 / 3)
    return is_rare, at[chosen], said[chosen]


def likeness(vectors: np.ndarray, at: np.ndarray, said: np.ndarray) -> float:
    """Return Spearman's correlation of cosines with what is said of pairs."""
    unit = normalize(vectors)
    return spearman((unit[at[:, 0]] * unit[at[:, 1]]).sum(1), said)


def pairwise(
    tables: Mapping[str, np.ndarray], text: Corpus, is_rare: np.ndarray, reach: int
) -> float:
    """Return how often a held-out rare word goes with its own context rather than another's.

    A context is the mean of the rows of the words up to `reach` away, in the sentence; the others
    are those of other rare words of the text. Chance is a half: how common a word is in itself,
    which moves its scores with all contexts, is of no account.
    """
    words = np.asarray(text.tokens)
    of = np.searchsorted(text.sentence_starts, np.arange(len(words)), side="right")
    at = np.flatnonzero(is_rare[words])
    beside = at[:, None] + np.delete(np.arange(-reach, reach + 1), reach)
    there = (beside >= 0) & (beside < len(words))
    beside = np.clip(beside, 0, len(words) - 1)
    there &= of[beside] == of[at][:, None]
    at, beside, there = (x[there.any(1)] for x in (at, beside, there))
    h = np.einsum("pnd,pn->pd", tables["input"][words[beside]], there / there.sum(1, keepdims=True))
    scores = tables["output"][words[at]] @ h.T
    other = words[at][:, None] != words[at]
    own = np.diagonal(scores)[:, None]
    return float(np.where(scores == own, 0.5, scores < own)[other].mean())


def over_seeds(
    jobs: Mapping[str, tuple[Mapping[str, Any], Callable[[Fitted], dict[str, float]]]],
    judged: Judged, epochs: int, seeds: Sequence[int], settings: Mapping[str, Any] | None,
) -> dict[str, dict[str, np.ndarray]]:  # fmt: skip
    """Return job -> measure -> its value by seed."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in jobs}
    for seed in seeds:
        for name, (given, measure) in jobs.items():
            found[name].append(
                measure(fit(judged.text, {**given, **(settings or {})}, epochs, seed))
            )
    return {
        name: {key: np.array([one[key] for one in rows]) for key in rows[0]}
        for name, rows in found.items()
    }


def models(
    judged: Judged, epochs: int, seeds: Sequence[int], settings: Mapping[str, Any] | None = None
) -> Finding:
    """Ask whether skip-gram is better on rare words than CBOW, and CBOW faster."""
    is_rare, at, said = rare_words(judged)
    words = len(judged.text.train.tokens) * epochs

    def measure(one: Fitted) -> dict[str, float]:
        tables, held_out, reach = tables_of(one), judged.text.test, one.trained.model.reach
        return {
            "likeness": likeness(tables["input"], at, said),
            "beside": pairwise(tables, held_out, is_rare, 1),
            "window": pairwise(tables, held_out, is_rare, reach),
            "rate": words / one.cpu_seconds,
        }

    jobs = {name: (cell(name, "negative_sampling"), measure) for name in MODELS}
    sg, cbow = over_seeds(jobs, judged, epochs, seeds, settings).values()
    more = "{:+.4f} [{:+.4f}, {:+.4f}] of the contexts"
    claims, checks = claim([
        ("Skip-gram beats CBOW on rare words, by what people say of pairs",
         sg["likeness"] - cbow["likeness"],
         "a difference of {:+.3f} [{:+.3f}, {:+.3f}] in rank correlation", float),
        ("Skip-gram beats CBOW on rare words, found by one word beside them",
         sg["beside"] - cbow["beside"], more, float),
        ("Skip-gram beats CBOW on rare words, found by the whole window",
         sg["window"] - cbow["window"], more, float),
        ("CBOW trains faster", np.log(cbow["rate"] / sg["rate"]),
         "{:.2f} [{:.2f}, {:.2f}] times the words a second", np.exp),
    ], len(seeds))  # fmt: skip
    return finding(
        "What is said of skip-gram and CBOW",
        "skip-gram beats CBOW on rare words, and CBOW trains faster (word2vec's own notes)",
        f"likeness {sg['likeness'].mean():.3f} against {cbow['likeness'].mean():.3f} over "
        f"{len(said)} pairs, the third whose rarer word is rarest. Of {is_rare.sum():,} rare words "
        f"their own context goes before another's by the words beside in {sg['beside'].mean():.3f} "
        f"against {cbow['beside'].mean():.3f}, by the window {sg['window'].mean():.3f} against "
        f"{cbow['window'].mean():.3f} (chance 0.5). Words a second of processor time "
        f"{sg['rate'].mean():,.0f} against {cbow['rate'].mean():,.0f}",
        checks,
        {
            "panels": {
                "Spearman's correlation, pairs with a rare word":
                    {"skip-gram": sg["likeness"], "CBOW": cbow["likeness"]},
                "rare words whose own context wins": {
                    f"{name}, {what}": one[key]
                    for what, key in (("beside", "beside"), ("window", "window"))
                    for name, one in (("skip-gram", sg), ("CBOW", cbow))
                },
                "words a second": {"skip-gram": sg["rate"], "CBOW": cbow["rate"]},
            }
        },
        claims,
    )  # fmt: skip


def objectives(
    judged: Judged, epochs: int, seeds: Sequence[int], settings: Mapping[str, Any] | None = None
) -> Finding:
    """Ask whether sampled softmax suits CBOW, and NCE skip-gram (TensorFlow's advice)."""
    at, said = known_pairs(judged)

    def measure(one: Fitted) -> dict[str, float]:
        return {
            "log_perplexity": float(np.log(one.perplexity)),
            "likeness": likeness(tables_of(one)["input"], at, said),
        }

    cells = {
        f"{model}, {name.replace('_', ' ')}": ({**cell(model, name), **DRAWN}, measure)
        for model in MODELS
        for name in ("nce", "sampled_softmax")
    }
    found = over_seeds(cells, judged, epochs, seeds, settings)

    def gains(model: str, measure: str) -> np.ndarray:
        """What sampled softmax has more than NCE."""
        return found[f"{model}, sampled softmax"][measure] - found[f"{model}, nce"][measure]

    ratio = "the other has {:.3f} [{:.3f}, {:.3f}] times the perplexity"
    more = "a difference of {:+.3f} [{:+.3f}, {:+.3f}] in rank correlation"
    claims, checks = claim([
        ("Sampled softmax suits CBOW better than NCE, by held-out perplexity",
         -gains("CBOW", "log_perplexity"), ratio, np.exp),
        ("Sampled softmax suits CBOW better than NCE, by likeness",
         gains("CBOW", "likeness"), more, float),
        ("NCE suits skip-gram better than sampled softmax, by held-out perplexity",
         gains("skip-gram", "log_perplexity"), ratio, np.exp),
        ("NCE suits skip-gram better than sampled softmax, by likeness",
         -gains("skip-gram", "likeness"), more, float),
    ], len(seeds))  # fmt: skip
    perplexity = {name: np.exp(one["log_perplexity"]) for name, one in found.items()}
    return finding(
        "Sampled softmax or NCE, for CBOW and skip-gram",
        "sampled softmax suits CBOW, whose one word excludes others, and NCE skip-gram, which has "
        "many (TensorFlow's notes on candidate sampling)",
        "perplexity, likeness: "
        + "; ".join(
            f"{name} {perplexity[name].mean():.0f}, {one['likeness'].mean():.3f}"
            for name, one in found.items()
        ),
        checks,
        {
            "panels": {
                "perplexity": perplexity,
                f"Spearman's correlation, {len(said)} pairs":
                    {name: one["likeness"] for name, one in found.items()},
            }
        },
        claims,
    )  # fmt: skip


def claim(asked: Sequence[tuple[str, np.ndarray, str, Any]], num: int) -> tuple[str, list[Check]]:
    """Return what became of claims, each that a number is above 0, and the checks of it."""
    told, checks = [], []
    for what, values, form, scale in asked:
        numbers = interval(values)
        told.append(say(what, numbers, form, scale))
        checks.append(check(f"{what}: lower end", numbers[1], 0.0, 0.0, f"95 %, t over {num} seeds",
                            ">="))  # fmt: skip
    return " ".join(told), checks


def say(what: str, numbers: Sequence[float], form: str, scale: Any = float) -> str:
    """Return what became of a claim that a number is above 0.

    >>> say("It grows", (1.0, 0.5, 1.5), "{:g} [{:g}, {:g}]")
    '"It grows" held: 1 [0.5, 1.5].'
    """
    _, low, high = numbers
    verdict = "held" if low > 0 else "was refuted" if high < 0 else "was not decided"
    return f'"{what}" {verdict}: {form.format(*map(scale, numbers))}.'
