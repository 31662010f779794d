"""Perplexity and time: n-grams by counting, likelihood, and noise-contrastive estimation by k."""

import itertools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc.models.ngram import kneser_ney, ngram_log_p
from cpc.models.words import look
from cpc.negatives import unigram
from experiments.kinds.words.text import Text
from experiments.studies.from_ngram_to_infonce.fit import LANGUAGE_MODEL, fit
from experiments.studies.nce.findings import Finding, check, finding


def perplexity(text: Text, ks: Sequence[int], epochs: int, orders: Sequence[int]) -> Finding:
    """Compare n-grams, ML and NCE; the orders are those that Mnih & Teh 2012 found (Table 1)."""
    rows, train = {}, text.train
    for order in orders:
        begin = time.perf_counter()
        num_words = len(train.vocabulary.words)
        model = kneser_ney(np.asarray(train.tokens), train.sentence_starts, num_words, order)
        seconds = time.perf_counter() - begin
        log_p = ngram_log_p(model, np.asarray(text.test.tokens), text.test.sentence_starts)
        name = f"Kneser-Ney, {order} words"
        rows[name] = {"perplexity": float(np.exp(-log_p.mean())), "seconds": seconds}
    jobs: dict[str, dict[str, Any]] = {"likelihood": {"objective.name": "full_softmax"}}
    for noise in ("unigram", "uniform"):
        for k in ks:
            jobs[f"NCE, {noise}, k {k}"] = {
                "objective.name": "nce", "objective.noise": noise, "objective.k": k,
            }  # fmt: skip
    for name, given in jobs.items():
        one = fit(text, {**LANGUAGE_MODEL, **given}, epochs)
        rows[name] = one._asdict() | {"trained": None}
        print(f"    {name}: perplexity {one.perplexity:.1f}, {one.seconds:.0f} s")
    nce = {
        noise: np.array([rows[f"NCE, {noise}, k {k}"]["perplexity"] for k in ks])
        for noise in ("unigram", "uniform")
    }
    likelihood, last = rows["likelihood"]["perplexity"], ks[-1]
    gap = nce["uniform"] / nce["unigram"]
    log_z = rows[f"NCE, unigram, k {last}"]
    reason = "one seed and some hundred thousand words"
    checks = [
        *(check(f"k {a} to {b}, {noise}: ratio of perplexities", one[i + 1] / one[i], 1.0, 0.02,
                reason, "<=")
          for noise, one in nce.items() for i, (a, b) in enumerate(itertools.pairwise(ks))),
        check(f"NCE with k {last}, unigram, over likelihood", nce["unigram"][-1] / likelihood, 1.0,
              0.1, f"Mnih & Teh: as good from k = 25; {reason}"),
        check(f"uniform over unigram noise, k {ks[0]}", gap[0], 1.0, 0.0, reason, ">="),
        check("the same less that of the largest k", gap[0] - gap[-1], 0.0, 0.0, reason, ">="),
        check(f"mean log Z, NCE with k {last}, unigram", log_z["log_z_mean"], 0.0, 0.25,
              "it is not asked for, but follows"),
    ]  # fmt: skip
    return finding(
        "Perplexity of held-out text, and the time to get there",
        "more noise words come nearer to likelihood, unigram noise beats uniform, most at small k, "
        "and log Z stays near 0 (Mnih & Teh 2012)",
        f"likelihood {likelihood:.0f}; unigram noise "
        f"{', '.join(f'{p:.0f}' for p in nce['unigram'])} and uniform noise "
        f"{', '.join(f'{p:.0f}' for p in nce['uniform'])} at k = {', '.join(map(str, ks))}; log Z "
        f"{log_z['log_z_mean']:.2f} ± {log_z['log_z_std']:.2f} at k = {last}",
        checks,
        {"rows": rows, "k": ks, "nce": nce, "likelihood": likelihood},
    )


def gradient(text: Text, ks: Sequence[int], epochs: int) -> Finding:
    """Compare the gradient of NCE with that of likelihood on the scores of a trained model.

    Both in expectation over the noise, of normalised scores; contexts are those of held-out text.
    The model is trained by NCE, a quarter of the work of likelihood.
    """
    given = {**LANGUAGE_MODEL, "objective.name": "nce", "objective.k": 25}
    trained = fit(text, given, epochs).trained
    params, reach = jax.device_get(trained.state.params), trained.model.reach
    words = np.asarray(text.test.tokens[: 256 + 2 * reach])
    sees = look(jnp.asarray(words), jnp.zeros(len(words), int), reach)
    h = trained.model.encode(params["tables"]["input"][words], sees, params["dense"]["model"])
    scores = h @ params["tables"]["output"].T + params["tables"]["bias"]
    log_p = jax.nn.log_softmax(scores)
    own = jax.nn.one_hot(words[reach : reach + 256], scores.shape[1])
    counts = text.train.vocabulary.counts
    log_q = jnp.log(jnp.asarray(np.maximum(unigram(np.maximum(counts, 1), 1.0), 1e-12)))

    @jax.jit
    def slope(k):
        def loss(s):
            d = s - jnp.log(k) - log_q
            noise = k * jnp.exp(log_q) * jax.nn.softplus(d)
            return (own * jax.nn.softplus(-d) + noise).sum()

        return jax.grad(loss)(log_p)

    likelihood = jnp.exp(log_p) - own
    norm = jnp.linalg.norm(likelihood)
    error = [float(jnp.linalg.norm(slope(float(k)) - likelihood) / norm) for k in ks]
    measured = np.log(error[-1] / error[-2]) / np.log(ks[-1] / ks[-2])
    return finding(
        "NCE's gradient comes to that of likelihood",
        "the distance falls as 1 / k (Mnih & Teh 2012, eq. 12)",
        f"{error[0]:.2f} at k = {ks[0]}, {error[-1]:.2g} at k = {ks[-1]:,}, a slope of "
        f"{measured:.2f} at the end",
        [check("slope of the last two, log-log", measured, -1.0, 0.1, "the next order, p / (k q)")],
        {"k": list(ks), "error": error},
    )
