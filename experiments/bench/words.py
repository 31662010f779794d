"""Skip-gram with negative sampling against gensim: words a second, and what the vectors know.

gensim lives in a Python of its own, which $CPC_GENSIM_PYTHON names, or in this one. Both train on
one text by the same settings, on as many threads as there are cores, one after the other.
"""

import importlib.util
import json
import os
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np

from configs.text_words import get_config
from cpc.data.sources.similarity import read_judgements
from cpc.evaluate.words import similarity_scores
from experiments.bench.table import Row, Target
from experiments.bench.versus import run_side
from experiments.kinds.words.text import load_text

PYTHON = "CPC_GENSIM_PYTHON"
#: Words a second, as a fraction of gensim's.
LEAST = 0.6


def count_cores() -> int:
    """Return how many cores this process may use: all where there is no affinity, as on macOS."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def word_rows(epochs: int) -> list[Row]:
    """Return rows of the rate and of word similarity, each beside gensim's where there is one."""
    python = os.environ.get(PYTHON) or (
        sys.executable if importlib.util.find_spec("gensim") else None
    )
    config = get_config()
    config.data.test_fraction = 0.0
    text = load_text(config.data, 0, print)
    vocabulary = text.train.vocabulary
    sides = {"words_jax": sys.executable, **({"words_gensim": python} if python else {})}
    rates, found = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        sentences = pathlib.Path(folder, "sentences.txt")
        write_sentences(sentences, text.train)
        for side, interpreter in sides.items():
            vectors = pathlib.Path(folder, f"{side}.npy")
            given = {
                "width": config.model.width, "reach": config.model.reach,
                "k": config.objective.k, "subsample": config.data.subsample,
                "learning_rate": config.optim.learning_rate, "epochs": epochs,
                "num_words": len(vocabulary.words), "cores": count_cores(),
                "sentences": str(sentences), "vectors": str(vectors),
            }  # fmt: skip
            rates[side] = run_side(interpreter, side, json.dumps(given))["words_per_second"]
            found[side] = np.load(vectors)
    return [rate_row(rates), *similarity_rows(found, vocabulary)]


def write_sentences(path: pathlib.Path, corpus: Any) -> None:
    """Write the known words of a text by number, a sentence a line."""
    with path.open("w") as file:
        for start, stop in zip(
            corpus.sentence_starts[:-1], corpus.sentence_starts[1:], strict=True
        ):
            known = corpus.tokens[start:stop]
            file.write(" ".join(map(str, known[known > 0])) + "\n")


def rate_row(rates: dict[str, float]) -> Row:
    """Return words a second."""
    ours = rates["words_jax"]
    figures: dict[str, Any] = {"words_per_second": ours}
    text = f"{ours:,.0f} words/s"
    if "words_gensim" not in rates:
        return Row("skip-gram", figures, f"{text}; no gensim: name its Python in ${PYTHON}")
    theirs = rates["words_gensim"]
    ratio = ours / theirs
    figures |= {"gensim_words_per_second": theirs, "ratio_to_gensim": ratio}
    text += f", gensim {theirs:,.0f}: {ratio:.2f} of gensim's"
    return Row("skip-gram", figures, text, Target("ratio_to_gensim", LEAST))


def similarity_rows(found: dict[str, np.ndarray], vocabulary: Any) -> list[Row]:
    """Return Spearman's correlation of each set of pairs; ours is to reach gensim's interval."""
    index = {word: i for i, word in enumerate(vocabulary.words)}
    judged = read_judgements()
    scores = {
        side: list(similarity_scores(vectors, index, judged.pairs, features=side))
        for side, vectors in found.items()
    }
    rows = []
    for i, ours in enumerate(scores["words_jax"]):
        figures: dict[str, Any] = {"correlation": ours.value}
        text, target = f"{ours.value:.3f} [{ours.low:.3f}, {ours.high:.3f}]", None
        if "words_gensim" in scores:
            other = scores["words_gensim"][i]
            figures |= {"gensim": other.value, "gensim_low": other.low}
            text += f"; gensim {other.value:.3f} [{other.low:.3f}, {other.high:.3f}]"
            target = Target("correlation", float(other.low or 0.0))
        rows.append(Row(ours.data, figures, f"{text}; {ours.setting}", target))
    return rows
