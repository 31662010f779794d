"""Skip-gram in gensim, for a separate process without JAX and cpc."""

import json
import time

import numpy as np
from gensim.models import Word2Vec  # pyright: ignore[reportMissingImports]

from experiments.bench.timing import read_sizes


def main() -> None:
    """Train on a file of word ids, one sentence per line, write vectors, and print the rate."""
    given = read_sizes()
    model = Word2Vec(
        vector_size=given["width"], window=given["reach"], negative=given["k"],
        sample=given["subsample"], alpha=given["learning_rate"], sg=1, min_count=1,
        workers=given["cores"], seed=given["seed"],
    )  # fmt: skip
    model.build_vocab(corpus_file=given["sentences"])
    begin = time.perf_counter()
    model.train(
        corpus_file=given["sentences"], total_words=model.corpus_total_words, epochs=given["epochs"]
    )
    seconds = time.perf_counter() - begin
    vectors = np.zeros((given["num_words"], given["width"]), np.float32)
    rows = [int(word) for word in model.wv.index_to_key]
    vectors[rows] = model.wv.vectors
    np.save(given["vectors"], vectors)
    rate = model.corpus_total_words * given["epochs"] / seconds
    print(json.dumps({"words_per_second": rate}))


if __name__ == "__main__":
    main()
