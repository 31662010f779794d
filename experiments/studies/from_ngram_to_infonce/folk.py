"""What is said of skip-gram and CBOW, asked over seeds: held, refuted, or not decided."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cpc.data.text import Corpus
from cpc.evaluate.words import normalize, spearman
from experiments.nce.findings import Check, Finding, check, finding
from experiments.studies.from_ngram_to_infonce.fit import Fitted, fit, tables_of
from experiments.studies.from_ngram_to_infonce.vectors import (
    CBOW,
    SKIP_GRAM,
    Judged,
    interval,
    known_pairs,
)

MODELS = {"skip-gram": SKIP_GRAM, "CBOW": CBOW}
#: Learning rates of `objectives`: of 0.05, 0.15, 0.4 and 1 the best by perplexity, of another seed.
RATES = {
    "skip-gram, nce": 0.15,
    "skip-gram, sampled softmax": 0.15,
    "CBOW, nce": 0.4,
    "CBOW, sampled softmax": 0.4,
}
#: As many draws for both as TensorFlow's functions take them, and a bias, so that NCE can be right.
DRAWN = {"objective.k": 64, "objective.draws": 64, "model.bias": "unigram", "optim.rule": "adagrad"}


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


def log_ranks(
    tables: Mapping[str, np.ndarray], text: Corpus, is_rare: np.ndarray, reach: int
) -> float:
    """Return the mean log rank of a held-out rare word among all rare words.

    Scores are those of the mean of the rows of the words up to `reach` away, in its sentence.
    """
    words, rare = np.asarray(text.tokens), np.flatnonzero(is_rare)
    number = np.cumsum(is_rare) - 1
    of = np.searchsorted(text.sentence_starts, np.arange(len(words)), side="right")
    at = np.flatnonzero(is_rare[words])
    beside = at[:, None] + np.delete(np.arange(-reach, reach + 1), reach)
    there = (beside >= 0) & (beside < len(words))
    beside = np.clip(beside, 0, len(words) - 1)
    there &= of[beside] == of[at][:, None]
    at, beside, there = (x[there.any(1)] for x in (at, beside, there))
    h = np.einsum("pnd,pn->pd", tables["input"][words[beside]], there / there.sum(1, keepdims=True))
    scores = h @ tables["output"][rare].T
    own = scores[np.arange(len(at)), number[words[at]]][:, None]
    return float(np.log(0.5 + (scores > own).sum(1) + 0.5 * (scores == own).sum(1)).mean())


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
            "beside": log_ranks(tables, held_out, is_rare, 1),
            "window": log_ranks(tables, held_out, is_rare, reach),
            "rate": words / one.cpu_seconds,
        }

    jobs = {name: (given, measure) for name, given in MODELS.items()}
    sg, cbow = over_seeds(jobs, judged, epochs, seeds, settings).values()
    claims, checks = claim([
        ("Skip-gram beats CBOW on rare words, by what people say of pairs",
         sg["likeness"] - cbow["likeness"],
         "a difference of {:+.3f} [{:+.3f}, {:+.3f}] in rank correlation", float),
        ("Skip-gram beats CBOW on rare words, told by the word beside them",
         cbow["beside"] - sg["beside"], "{:.3f} [{:.3f}, {:.3f}] times its rank", np.exp),
        ("Skip-gram beats CBOW on rare words, told by the whole window",
         cbow["window"] - sg["window"], "{:.3f} [{:.3f}, {:.3f}] times its rank", np.exp),
        ("CBOW trains faster", np.log(cbow["rate"] / sg["rate"]),
         "{:.2f} [{:.2f}, {:.2f}] times the words a second", np.exp),
    ], len(seeds))  # fmt: skip
    return finding(
        "What is said of skip-gram and CBOW",
        "skip-gram beats CBOW on rare words, and CBOW trains faster (word2vec's own notes)",
        f"{claims} Likeness {sg['likeness'].mean():.3f} against {cbow['likeness'].mean():.3f} over "
        f"{len(said)} pairs, the third whose rarer word is rarest; rank of one of "
        f"{is_rare.sum():,} rare words by the word beside it {np.exp(sg['beside'].mean()):.0f} against "
        f"{np.exp(cbow['beside'].mean()):.0f}, by the window "
        f"{np.exp(sg['window'].mean()):.0f} against {np.exp(cbow['window'].mean()):.0f}; words a "
        f"second of processor time {sg['rate'].mean():,.0f} against {cbow['rate'].mean():,.0f}",
        checks,
        {
            "panels": {
                "Spearman's correlation, pairs with a rare word":
                    {"skip-gram": sg["likeness"], "CBOW": cbow["likeness"]},
                "rank of a rare word, geometric mean": {
                    f"{name}, {what}": np.exp(one[key])
                    for what, key in (("one word", "beside"), ("window", "window"))
                    for name, one in (("skip-gram", sg), ("CBOW", cbow))
                },
                "words a second": {"skip-gram": sg["rate"], "CBOW": cbow["rate"]},
            }
        },
        claims,
    )  # fmt: skip


def objectives(
    judged: Judged,
    epochs: int,
    seeds: Sequence[int],
    rates: Mapping[str, float],
    settings: Mapping[str, Any] | None = None,
) -> Finding:
    """Ask whether sampled softmax suits CBOW, and NCE skip-gram (TensorFlow's advice).

    Args:
        judged: a text, held-out text thinned out as what is trained on, and judgements.
        epochs, seeds: of each cell.
        rates: "model, objective" -> its learning rate.
        settings: more of all.
    """
    at, said = known_pairs(judged)

    def measure(one: Fitted) -> dict[str, float]:
        return {
            "log_perplexity": float(np.log(one.perplexity)),
            "likeness": likeness(tables_of(one)["input"], at, said),
        }

    cells = {
        f"{model}, {name.replace('_', ' ')}": (
            {**given, **DRAWN, "objective.name": name,
             "optim.learning_rate": rates[f"{model}, {name.replace('_', ' ')}"]},
            measure,
        )
        for model, given in MODELS.items()
        for name in ("nce", "sampled_softmax")
    }  # fmt: skip
    found = over_seeds(cells, judged, epochs, seeds, settings)

    def gains(model: str, measure: str) -> np.ndarray:
        """What sampled softmax has more than NCE."""
        return found[f"{model}, sampled softmax"][measure] - found[f"{model}, nce"][measure]

    ratio = "{:.3f} [{:.3f}, {:.3f}] times its perplexity"
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
        f"{claims} Perplexity, likeness: "
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
