"""Skip-gram by this project, in a process of its own."""

import json
import time

import jax
import numpy as np

from configs.text_words import get_config
from cpc.data import prefetch
from experiments.bench.process import read_sizes
from experiments.command import cluster
from experiments.kinds.words import run
from experiments.kinds.words.text import load_text


def main() -> None:
    """Train as the config does, write vectors, print the rate; compiling is not counted."""
    given = read_sizes()
    cluster.start("cpu")
    config = get_config()
    config.epochs, config.data.test_fraction = given["epochs"], 0.0
    text = load_text(config.data, 0, lambda line: None)
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
    print(json.dumps({"seconds": seconds, "words_per_second": known * config.epochs / seconds}))


if __name__ == "__main__":
    main()
