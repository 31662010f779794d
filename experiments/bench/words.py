"""Skip-gram with negative sampling against gensim: words per second, and word similarity.

Each side runs in a process of its own, one after the other, on one text by the same settings and
on as many threads as there are cores. gensim is that of the Python in $CPC_GENSIM_PYTHON, or of
this one. `python -m experiments.bench.words SIZES` is our side; it prints JSON.
"""

import importlib.util
import itertools
import json
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np

from configs.text_words import get_config
from cpc.data import prefetch
from cpc.data.sources.similarity import read_judgements
from cpc.evaluate.words import similarity_scores
from experiments.bench.timing import Row, Target, read_sizes
from experiments.bench.versus import run_side
from experiments.command import cluster
from experiments.kinds.words import run
from experiments.kinds.words.run import load_data

PYTHON = "CPC_GENSIM_PYTHON"
#: Words per second, as a fraction of gensim's.
MIN_RATIO = 0.6


def word_rows(epochs: int) -> list[Row]:
    """Return rows of the rate and of word similarity, each beside gensim's if there is a gensim."""
    python = os.environ.get(PYTHON) or (
        sys.executable if importlib.util.find_spec("gensim") else None
    )
    config = get_config()
    config.data.test_fraction = 0.0
    text = load_data(config, print)
    vocabulary = text.train.vocabulary
    sides = {"words": sys.executable, **({"by_gensim": python} if python else {})}
    rates, found = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        sentences = pathlib.Path(folder, "sentences.txt")
        with sentences.open("w") as file:  # the known words by number
            for start, stop in itertools.pairwise(text.train.sentence_starts):
                known = text.train.tokens[start:stop]
                file.write(" ".join(map(str, known[known > 0])) + "\n")
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


def count_cores() -> int:
    """Return how many cores this process may use: all without affinity, as on macOS."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def rate_row(rates: dict[str, float]) -> Row:
    """Return the row of words per second."""
    ours = rates["words"]
    figures: dict[str, Any] = {"words_per_second": ours}
    text = f"{ours:,.0f} words/s"
    if "by_gensim" not in rates:
        return Row("skip-gram", figures, f"{text}; no gensim: set ${PYTHON} to its Python")
    theirs = rates["by_gensim"]
    figures |= {"gensim_words_per_second": theirs, "ratio_to_gensim": ours / theirs}
    text += f", gensim {theirs:,.0f}: {ours / theirs:.2f} of gensim's"
    return Row("skip-gram", figures, text, Target("ratio_to_gensim", MIN_RATIO))


def similarity_rows(found: dict[str, np.ndarray], vocabulary: Any) -> list[Row]:
    """Return Spearman's correlation of each set of pairs; ours should reach gensim's interval."""
    index = {word: i for i, word in enumerate(vocabulary.words)}
    judged = read_judgements()
    scores = {
        side: list(similarity_scores(vectors, index, judged.pairs, features=side))
        for side, vectors in found.items()
    }
    rows = []
    for i, ours in enumerate(scores["words"]):
        figures: dict[str, Any] = {"correlation": ours.value}
        text, target = f"{ours.value:.3f} [{ours.low:.3f}, {ours.high:.3f}]", None
        if "by_gensim" in scores:
            other = scores["by_gensim"][i]
            figures |= {"gensim": other.value, "gensim_low": other.low}
            text += f"; gensim {other.value:.3f} [{other.low:.3f}, {other.high:.3f}]"
            target = Target("correlation", float(other.low or 0.0))
        rows.append(Row(ours.data, figures, f"{text}; {ours.setting}", target))
    return rows


def main() -> None:
    """Train as the config does, write vectors, print the rate; compilation is not counted."""
    given = read_sizes()
    cluster.start("cpu")
    config = get_config()
    config.epochs, config.data.test_fraction = given["epochs"], 0.0
    text = load_data(config, lambda line: None)
    made = run.make(config, text)
    state = made.launch(jax.tree.map(jax.numpy.copy, made.state), made.stream.launch(0))
    jax.block_until_ready(state)
    state, total = made.state, made.stream.per_epoch * config.epochs
    begin = time.perf_counter()
    for batch in prefetch(made.stream.launch, 0, total, num_threads=config.data.num_threads):
        state = made.launch(state, batch)
    jax.block_until_ready(state)
    seconds = time.perf_counter() - begin
    np.save(given["vectors"], np.asarray(state.params["tables"]["input"]))
    known = int(text.train.vocabulary.counts[1:].sum())
    print(json.dumps({"words_per_second": known * config.epochs / seconds}))


if __name__ == "__main__":
    main()
