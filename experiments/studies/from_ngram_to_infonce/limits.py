"""What objectives of words tend to, on vocabularies small enough to be exact."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc.data import Corpus, Vocabulary
from cpc.losses import nce
from cpc.negatives import unigram
from experiments.kinds.words.text import Text
from experiments.studies.from_ngram_to_infonce.fit import LANGUAGE_MODEL, fit
from experiments.studies.nce.findings import Finding, check, finding

V = 6


def chain(num_tokens: int, seed: int) -> Text:
    """Return a Markov chain of five words, tested on what it is trained on."""
    rng = np.random.default_rng(seed)
    follows = rng.dirichlet(np.full(V - 1, 0.7), size=V - 1).cumsum(1)
    draws, tokens = rng.random(num_tokens), np.zeros(num_tokens, np.int64)
    for i in range(1, num_tokens):
        tokens[i] = min(np.searchsorted(follows[tokens[i - 1]], draws[i]), V - 2)
    order = np.argsort(-np.bincount(tokens, minlength=V - 1), kind="stable")
    tokens = (np.argsort(order)[tokens] + 1).astype(np.int32)
    words = Vocabulary(tuple(f"w{i}" for i in range(V)), np.bincount(tokens, minlength=V))
    corpus = Corpus(tokens, np.array([0, num_tokens]), np.array([0, 1]), words, [])
    return Text(corpus, corpus)


EXACT = {
    **LANGUAGE_MODEL,
    "data.positions": 256,
    "steps_per_launch": 40,
    "model.width": 8,
    "model.reach": 1,
    "model.reduce": False,
    "objective.share": 0,
    "objective.draws": 64,
    "optim.learning_rate": 0.3,
}


def pointwise(ks: Sequence[int], num_tokens: int, epochs: int) -> Finding:
    """Compare the scores of skip-gram with PMI - log k (Levy & Goldberg 2014)."""
    text, curves, checks = chain(num_tokens, 0), {}, []
    tokens = text.train.tokens
    pairs = np.zeros((V, V))
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    both = (pairs + pairs.T)[1:, 1:] / (2 * (len(tokens) - 1))
    q = unigram(np.bincount(tokens, minlength=V), 1.0)[1:]
    is_often = both > 0.005
    for k in ks:
        given = {"model.name": "skip_gram", "model.bias": "none", "objective.k": k}
        made = fit(text, {**EXACT, **given}, epochs).trained
        tables = jax.device_get(made.state.params["tables"])
        scores = (tables["input"] @ tables["output"].T)[1:, 1:][is_often]
        pmi = np.log(both[is_often] / (both.sum(1)[:, None] * q)[is_often])
        error = float(np.abs(scores - pmi + np.log(k)).max())
        curves[str(k)] = {"pmi": pmi, "score": scores}
        checks.append(check(f"largest distance from PMI - log k, k {k}", error, 0, 0.2,
                            "draws of the last steps"))  # fmt: skip
    return finding(
        "Skip-gram with negative sampling is PMI less log k",
        "every score is log p(w, c) / (p(w) p(c)) - log k",
        f"at most {max(one['measured'] for one in checks):.2f} nats away",
        checks,
        {"k": list(ks), "points": curves},
    )


def infonce_is_likelihood(draws: Sequence[int], num_tokens: int, epochs: int) -> Finding:
    """Compare where objectives end: all but the uncorrected at the optimum of likelihood."""
    text = chain(num_tokens, 0)
    base = {**EXACT, "objective.name": "full_softmax"}
    rows = {"likelihood": fit(text, base, epochs).perplexity}
    for n in draws:
        given = {"objective.name": "ranking_nce", "objective.share": 1, "objective.draws": n}
        rows[f"InfoNCE, {n} drawn words"] = fit(text, {**EXACT, **given}, epochs).perplexity
    given = {"objective.name": "info_nce", "objective.noise": "batch", "objective.share": 32}
    rows["InfoNCE, words of the batch"] = fit(text, {**EXACT, **given}, epochs).perplexity
    given = {"objective.name": "nce", "objective.k": 5}
    rows["NCE"] = fit(text, {**EXACT, **given}, epochs).perplexity
    best = rows["likelihood"]
    checks = [
        check(f"{name}, over likelihood", value / best, 1.0, 0.01, "draws of the last steps")
        for name, value in rows.items() if name != "likelihood"
    ]  # fmt: skip
    worst = max(one["measured"] for one in checks)
    return finding(
        "InfoNCE of words ends where likelihood ends",
        "with log q off all candidates and hits kept, the optimum is that of likelihood at any "
        "number of candidates (Ma & Collins 2018)",
        f"perplexity {best:.3f} by likelihood, at most {100 * (worst - 1):.2f} % more by others",
        checks,
        {"rows": rows},
    )


def runaway(steps: int, rate: float = 0.1) -> Finding:
    """Let log Z be a parameter: of likelihood, of which it is no part, and of NCE."""
    rng = np.random.default_rng(0)
    p = jnp.asarray(rng.dirichlet(np.ones(8)))
    q = jnp.full(8, 1 / 8)
    log_u = jnp.log(p) + 2.0  # right up to a constant: log Z is 2

    def by_likelihood(z: Any) -> Any:
        return -(p * (log_u - z)).sum()

    def by_nce(z: Any) -> Any:
        """Mean over data of the library's loss, of the expectation over 5 noise words."""
        noise = jnp.repeat(log_u[None], 8, 0)
        data = nce(log_u, noise, log_noise_positive=jnp.log(q), log_noise_negatives=jnp.log(q),
                   log_normalizer=z)  # fmt: skip
        return (p * data).sum()

    paths = {}
    for name, loss in (("likelihood", by_likelihood), ("NCE", by_nce)):
        slope, z, path = jax.jit(jax.grad(loss)), jnp.float32(0.0), []
        for _ in range(steps):
            path.append(float(z))
            z = z - rate * slope(z)
        paths[name] = path
    checks = [
        check("log Z by NCE", paths["NCE"][-1], 2.0, 0.05, "descent of finitely many steps"),
        check(f"log Z by likelihood after {steps} steps", paths["likelihood"][-1],
              -rate * (steps - 1), 0.01, "its slope is 1 everywhere"),
    ]  # fmt: skip
    return finding(
        "The normaliser as a parameter",
        "likelihood grows for ever as log Z falls, as nothing in it says that p sums to one; of "
        "NCE the optimum is the true log Z, 2 (Gutmann & Hyvarinen 2012)",
        f"log Z of likelihood went to {paths['likelihood'][-1]:.0f} and on, that of NCE to "
        f"{paths['NCE'][-1]:.2f}",
        checks,
        {"paths": paths},
    )


def noise_choice(num_tokens: int, epochs: int, seeds: Sequence[int]) -> Finding:
    """Compare noises by the perplexity after the same few epochs, over seeds."""
    noises = {
        "uniform": {"objective.noise": "uniform"},
        "unigram": {},
        "unigram^0.75": {"objective.alpha": 0.75},
        "bigram": {"objective.noise": "bigram"},
        "own network": {"objective.noise": "proposal"},
    }
    given = {**EXACT, "objective.name": "nce", "objective.share": 1, "objective.draws": 0,
             "objective.k": 2}  # fmt: skip
    rows = {
        name: [
            fit(chain(num_tokens, 0), {**given, **more}, epochs, seed).perplexity for seed in seeds
        ]
        for name, more in noises.items()
    }
    means = {name: float(np.mean(one)) for name, one in rows.items()}
    reason = f"mean of {len(seeds)} seeds"
    checks = [
        check(f"{name} over uniform", means[name] / means["uniform"], 1.0, 0.01, reason, "<=")
        for name in ("bigram", "own network")
    ]
    return finding(
        "Noise: fixed, and a network that is trained",
        "noise near the data asks harder questions: what follows the context is no worse than what "
        "does not, at the same number of steps",
        ", ".join(f"{name} {value:.3f}" for name, value in means.items()),
        checks,
        {"rows": rows},
    )
