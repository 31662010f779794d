"""What the switches do to a language model: popularity, alpha, accidental hits, the ratio k."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc.models.words import look
from experiments.kinds.words.evaluate import tell
from experiments.kinds.words.text import Text
from experiments.studies.from_ngram_to_infonce.fit import LANGUAGE_MODEL, Fitted, fit
from experiments.studies.nce.findings import Finding, check, finding


def recall(one: Fitted, text: Text, num: int = 10, places: int = 2048) -> float:
    """Return how often a held-out word is among the highest scores, as they are, uncorrected."""
    params, reach = one.trained.state.params, one.trained.model.reach
    words = np.asarray(text.test.tokens[: places + 2 * reach])
    starts = text.test.sentence_starts
    of = np.searchsorted(starts, np.arange(len(words)), side="right").astype(np.int32)
    sees = look(jnp.asarray(words), jnp.asarray(of), reach)
    rows = params["tables"]["input"][words]
    scores = one.trained.model.encode(rows, sees, params["dense"]["model"])
    scores = scores @ params["tables"]["output"].T + params["tables"].get("bias", 0.0)
    own = words[reach : len(words) - reach]
    _, best = jax.lax.top_k(scores, num)
    return float((np.asarray(best) == own[:, None]).any(1).mean())


def popularity(text: Text, epochs: int, share: int = 128) -> Finding:
    """Compare in-batch negatives with and without log q taken off, by recall@10."""
    base = {
        **LANGUAGE_MODEL, "objective.name": "info_nce", "objective.noise": "batch",
        "objective.share": share, "model.bias": "zero",
    }  # fmt: skip
    rows = {
        name: recall(fit(text, {**base, "objective.subtract_log_q": subtracts}, epochs), text)
        for name, subtracts in (("corrected", True), ("not corrected", False))
    }
    gain = rows["corrected"] - rows["not corrected"]
    return finding(
        "Words of the batch as negatives, with and without the correction for popularity",
        "a frequent word is often a negative; without log q taken off, scores learn p / q, and the "
        "words that come are ranked too low (Yi et al. 2019)",
        f"recall@10 {rows['corrected']:.3f} corrected, {rows['not corrected']:.3f} not",
        [check("recall@10, corrected less not", gain, 0.0, 0.0, "2,048 held-out words", ">=")],
        {"rows": rows, "unit": "recall@10"},
    )


def rare_words(text: Text, alphas: Sequence[float], k: int, epochs: int) -> Finding:
    """Compare powers of the noise by the perplexity of all words, and of the rarest tenth."""
    rows: dict[str, Any] = {}
    counts = text.train.vocabulary.counts
    tokens = np.asarray(text.test.tokens)
    for alpha in alphas:
        given = {"objective.name": "nce", "objective.k": k, "objective.alpha": alpha}
        one = fit(text, {**LANGUAGE_MODEL, **given}, epochs)
        rows[f"alpha {alpha:g}"] = one.perplexity
        config = one.trained.config
        places = min(config.evaluate.max_places, len(tokens))
        log_p, _, _ = tell(one.trained, tokens, text.test.sentence_starts)
        often = counts[tokens[:places]]
        rare = often <= np.quantile(often, 0.1)
        rows[f"alpha {alpha:g}, rarest tenth"] = float(np.exp(-log_p[rare].mean()))
    best = min(alphas, key=lambda a: rows[f"alpha {a:g}, rarest tenth"])
    checks = [
        check("rarest tenth over all words, ratio of perplexities, alpha 1",
              rows["alpha 1, rarest tenth"] / rows["alpha 1"], 1.0, 0.0, "rare words are hard",
              ">="),
    ]  # fmt: skip
    return finding(
        f"The power of the noise, and rare words (k = {k})",
        "nothing sure: a flatter noise asks more of rare words and less of frequent ones",
        f"of the rarest tenth alpha {best:g} tells most, perplexity "
        f"{rows[f'alpha {best:g}, rarest tenth']:.0f}",
        checks,
        {"rows": rows},
    )


def hits_and_ratio(text: Text, epochs: int, weights: Sequence[float] = (0.2, 5.0)) -> Finding:
    """Compare NCE with accidental hits kept and removed, and negatives weighed down and up."""
    base = {**LANGUAGE_MODEL, "objective.name": "nce", "objective.k": 10}
    jobs = {"NCE, hits kept": {}, "NCE, hits removed": {"objective.remove_hits": True}}
    jobs |= {f"NCE, negatives x {w:g}": {"objective.negative_weight": w} for w in weights}
    fitted = {name: fit(text, {**base, **given}, epochs) for name, given in jobs.items()}
    rows = {name: one.perplexity for name, one in fitted.items()}
    log_z = {name: one.log_z_mean for name, one in fitted.items()}
    checks = [
        check(f"mean log Z, negatives x {w:g}", log_z[f"NCE, negatives x {w:g}"], -np.log(w), 0.4,
              "the optimum is log p - log w: the weight is a wrong k")
        for w in weights
    ]  # fmt: skip
    return finding(
        "Accidental hits, and the ratio of positives to negatives",
        "a weight w on the negatives moves log Z to -log w and not what is normalised; hits belong "
        "to NCE's noise, and without them it makes log odds",
        ", ".join(f"{name} {value:.0f}" for name, value in rows.items()) + " (perplexity)",
        checks,
        {"rows": rows},
    )
