"""Comparison of skip-gram with gensim, by words per second, similarity and analogies.

For each seed, cpc and gensim train in turn in separate processes, on the same text with the same
settings and one thread per core. gensim is imported by the Python in $CPC_GENSIM_PYTHON or by this
Python. `python -m experiments.bench.words SIZES` runs the side of cpc and prints JSON.
"""

import importlib.util
import itertools
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from configs.text_words import get_config
from cpc.data import prefetch
from cpc.data.sources.similarity import read_judgements
from cpc.evaluate.words import mean_difference, pair_cosines, solve_analogies, spearman
from experiments.bench.timing import Row, ratios, read_sizes
from experiments.bench.versus import run_side
from experiments.command import cluster
from experiments.command.config import Config
from experiments.kinds.words import run
from experiments.kinds.words.run import load_data

PYTHON = "CPC_GENSIM_PYTHON"
#: Target for words per second, as a fraction of gensim's.
MIN_RATIO = 0.6
#: Number of most frequent words among which analogies are answered.
NUM_WORDS = 30_000


def word_rows(epochs: int, num_seeds: int) -> list[Row]:
    """Return rows for the rate, similarity and analogies, compared with gensim if installed."""
    python = os.environ.get(PYTHON) or (importlib.util.find_spec("gensim") and sys.executable)
    config = get_config()
    config.data.test_fraction = 0.0
    text = load_data(config, print)
    vocabulary = text.train.vocabulary
    sides = {"words": sys.executable, **({"by_gensim": python} if python else {})}
    rates, found = {side: [] for side in sides}, {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        sentences = pathlib.Path(folder, "sentences.txt")
        with sentences.open("w") as file:  # ids of the known words
            for start, stop in itertools.pairwise(text.train.sentence_starts):
                known = text.train.tokens[start:stop]
                file.write(" ".join(map(str, known[known > 0])) + "\n")
        for seed, side in itertools.product(range(num_seeds), sides):
            vectors = pathlib.Path(folder, f"{side}.npy")
            given = {
                "width": config.model.width, "reach": config.model.reach,
                "k": config.objective.k, "subsample": config.data.subsample,
                "learning_rate": config.optim.learning_rate, "epochs": epochs, "seed": seed,
                "num_words": len(vocabulary.words), "cores": count_cores(),
                "sentences": str(sentences), "vectors": str(vectors),
            }  # fmt: skip
            rate = run_side(sides[side], side, json.dumps(given))["words_per_second"]
            print(f"seed {seed}, {side}: {rate:,.0f} words/s", flush=True)
            rates[side].append(rate)
            found[side].append(np.load(vectors))
    return [rate_row(rates), *question_rows(found, vocabulary)]


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def rate_row(rates: dict[str, list[float]]) -> Row:
    """Return the row for words per second, as medians over seeds."""
    ours = statistics.median(rates["words"])
    figures: dict[str, Any] = {"words_per_second": ours}
    text = f"{ours:,.0f} words/s"
    if "by_gensim" not in rates:
        return Row("skip-gram", figures, f"{text}; no gensim: set ${PYTHON} to its Python")
    theirs = statistics.median(rates["by_gensim"])
    ratio = statistics.median(ratios(rates["words"], rates["by_gensim"]))
    figures |= {"gensim_words_per_second": theirs, "ratio_to_gensim": ratio}
    text += f", gensim {theirs:,.0f}: {ratio:.2f} of gensim's"
    return Row("skip-gram", figures, text, f"ratio_to_gensim >= {MIN_RATIO}")


def question_rows(found: dict[str, list[np.ndarray]], vocabulary: Any) -> list[Row]:
    """Return rows for Spearman's correlation on each set of word pairs, and for analogies."""
    index = {word: i for i, word in enumerate(vocabulary.words)}
    judged, rows = read_judgements(), []
    for name, (pairs, ratings) in judged.pairs.items():
        known = pair_cosines(found["words"][0], index, pairs)[1]
        cosines = {
            side: np.stack([pair_cosines(one, index, pairs)[0] for one in vectors])
            for side, vectors in found.items()
        }
        rows.append(question_row(name, cosines, ratings[known]))
    answers = {
        side: np.stack([solve_analogies(v[:NUM_WORDS], index, judged.analogies) for v in vectors])
        for side, vectors in found.items()
    }
    return [*rows, question_row("analogies", answers)]


def question_row(
    name: str, values: dict[str, np.ndarray], ratings: np.ndarray | None = None
) -> Row:
    """Return the row for a mean score over seeds and its difference from gensim's score.

    The score is the accuracy, or the correlation with ratings if these are given. The target is
    missed only if the interval of the difference is below 0.
    """

    def score(row, i):
        return row[i].mean() if ratings is None else spearman(row[i], ratings[i])

    count, metric = values["words"].shape[1], "accuracy" if ratings is None else "correlation"
    means = {
        side: float(np.mean([score(row, np.arange(count)) for row in rows]))
        for side, rows in values.items()
    }
    figures: dict[str, Any] = {metric: means["words"], "num_questions": count}
    text = f"{means['words']:.3f}"
    if "by_gensim" not in values:
        return Row(name, figures, text)
    over = mean_difference(score, values["words"], values["by_gensim"])
    figures |= {
        f"gensim_{metric}": means["by_gensim"], "difference": over.value,
        "difference_low": over.low, "difference_high": over.high,
    }  # fmt: skip
    text += ", gensim {:.3f}: {:+.3f} [{:+.3f}, {:+.3f}]".format(*[*figures.values()][2:])
    return Row(name, figures, text, "difference_high >= 0")


def main() -> None:
    """Train a config, write its vectors, and print the rate without compilation."""
    given = read_sizes()
    cluster.start("cpu")
    config = get_config()
    config.epochs, config.seed, config.data.test_fraction = given["epochs"], given["seed"], 0.0
    text = load_data(config, lambda line: None)
    made, seconds = train(config, text)
    np.save(given["vectors"], np.asarray(made.state.params["tables"]["input"]))
    known = int(text.train.vocabulary.counts[1:].sum())
    print(json.dumps({"words_per_second": known * config.epochs / seconds}))


def train(
    config: Config, text: run.Text, clock: Callable[[], float] = time.perf_counter
) -> tuple[Any, float]:
    """Train a word model, and return the model and the training time without compilation."""
    made = run.make(config, text)
    copy = jax.tree.map(jax.numpy.copy, made.state)
    jax.block_until_ready(made.launch(copy, made.stream.launch(0)))
    state, total = made.state, made.stream.per_epoch * config.epochs
    begin = clock()
    for batch in prefetch(made.stream.launch, 0, total, num_threads=config.data.num_threads):
        state = made.launch(state, batch)
    state = jax.block_until_ready(state)
    return made._replace(state=state), clock() - begin


if __name__ == "__main__":
    main()
