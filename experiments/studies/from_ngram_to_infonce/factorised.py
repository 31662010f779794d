"""Skip-gram with negative sampling against the matrix that it factorises (Levy & Goldberg 2014)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse

from cpc.data.words import WordStream
from cpc.evaluate.words import normalize, similarity_scores, spearman
from cpc.negatives import unigram
from experiments.studies.from_ngram_to_infonce.fit import fit, tables_of
from experiments.studies.from_ngram_to_infonce.vectors import SKIP_GRAM, Judged, index
from experiments.studies.nce.findings import Finding, check, finding


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


def ppmi_svd(pairs: Any, pmi: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return U sqrt(S) and V sqrt(S) of max(PMI, 0) (Levy & Goldberg 2014, section 5.1)."""
    positive = scipy.sparse.csr_array((np.maximum(pmi, 0), pairs.coords), pairs.shape)
    # By blocks, as Halko et al. 2011, algorithm 4.4: Lanczos takes minutes on 19,000 words.
    basis = np.random.default_rng(0).standard_normal((pairs.shape[1], width + 20))
    for _ in range(6):
        basis = np.linalg.qr(positive @ basis)[0]
        basis = np.linalg.qr(positive.T @ basis)[0]
    u, s, v = np.linalg.svd(positive @ basis, full_matrices=False)
    scale = np.sqrt(s[:width])
    return u[:, :width] * scale, (basis @ v.T)[:, :width] * scale


def factorised(
    judged: Judged,
    epochs: int,
    width: int = 100,
    settings: Mapping[str, Any] | None = None,
    least: float = 20.0,
) -> Finding:
    """Compare skip-gram with PPMI-SVD of the same words, windows and tokens.

    Args:
        judged: a text and judgements.
        epochs: of skip-gram.
        width: of both.
        settings: more of skip-gram.
        least: times that a pair is counted, to be frequent.
    """
    one = fit(judged.text, {**SKIP_GRAM, "model.width": width, **(settings or {})}, epochs)
    made, tables = one.trained, tables_of(one)
    config, vocabulary = made.config, made.text.train.vocabulary
    known = np.where(np.arange(len(vocabulary.words)) == 0, 0, vocabulary.counts)
    pairs = count_pairs(made.stream, epochs, made.model.reach, len(known))
    pmi = pmi_of(pairs, unigram(known, config.objective.alpha))
    of_word, of_context = ppmi_svd(pairs, pmi, width)
    often = pairs.data >= least
    w, c = (x[often] for x in pairs.coords)
    scores = (tables["input"][w] * tables["output"][c]).sum(1)
    target = pmi[often] - np.log(config.objective.k)
    pearson = float(np.corrcoef(scores, target)[0, 1])
    rebuilt = (of_word[w] * of_context[c]).sum(1)
    svd_pearson = float(np.corrcoef(rebuilt, np.maximum(pmi[often], 0))[0, 1])
    rows = compare(judged.sets, index(vocabulary),
                   {"skip-gram": tables["input"], "PPMI-SVD": of_word})  # fmt: skip
    checks = [
        check("correlation of s with PMI - log k over frequent pairs", pearson, 0.5, 0.0,
              f"{width} numbers a word, {epochs} epochs: not at the optimum", ">="),
        *(check(f"{name}: skip-gram less PPMI-SVD", row["difference"], 0.0,
                (row["high"] - row["low"]) / 2, "half of its 95 % interval over pairs")
          for name, row in rows.items()),
    ]  # fmt: skip
    shown = np.random.default_rng(0).permutation(len(w))[:1500]
    return finding(
        "Skip-gram against PMI and its decomposition, on a text",
        "scores follow PMI - log k, and vectors of skip-gram and PPMI-SVD of the same text know "
        "as much of likeness (Levy & Goldberg 2014)",
        f"correlation {pearson:.2f} over {len(w):,} pairs counted {least:g} times or more, scores "
        f"{scores.mean() - target.mean():+.2f} nats away on average (PPMI rebuilt from {width} "
        f"numbers a word: {svd_pearson:.2f}); "
        + "; ".join(f"{name}: {row['text']}" for name, row in rows.items()),
        checks,
        {"points": {"pmi": target[shown], "score": scores[shown]}, "rows": rows},
    )


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
        gain = values[0].value - values[1].value
        found[name] = {
            "values": {one.features: [one.value, one.low, one.high] for one in values},
            "difference": gain, "low": low, "high": high,
            "text": ", ".join(f"{one.features} {one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"
                              for one in values)
                    + f", difference {gain:+.3f} [{low:+.3f}, {high:+.3f}] ({values[0].setting})",
        }  # fmt: skip
    return found
