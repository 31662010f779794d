"""ABX: warped distances of many pairs of tokens, as the task "abx" asks for them."""

import time

import numpy as np

from cpc.evaluate import dtw_distances
from experiments.bench.table import Row, Target

NUM_PAIRS = 100_000
NUM_TOKENS, WIDTH = 2_000, 512
#: Tokens have 10 frames on average.
MOST_FRAMES = 19
#: Seconds that so many pairs may take.
MOST_SECONDS = 60


def abx_row(num_rounds: int) -> Row:
    """Time of 100,000 pairs of tokens of 10 frames or so, after a round that compiles."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, MOST_FRAMES + 1, NUM_TOKENS)
    tokens = [rng.standard_normal((length, WIDTH), np.float32) for length in lengths]
    pairs = rng.integers(NUM_TOKENS, size=(NUM_PAIRS, 2))
    seconds, cpu_seconds = [], []
    for _ in range(num_rounds + 1):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        dtw_distances(tokens, pairs)
        seconds.append(time.perf_counter() - begin)
        cpu_seconds.append(time.process_time() - cpu_begin)
    figures = {
        "seconds": float(np.median(seconds[1:])),
        "cpu_seconds": float(np.median(cpu_seconds[1:])),
        "pairs_per_second": NUM_PAIRS / float(np.median(seconds[1:])),
        "compile_seconds": seconds[0] - float(np.median(seconds[1:])),
    }
    text = "{:.1f} s, {:.1f} s of CPU, {:,.0f} pairs/s, and {:.1f} s to compile".format(
        *figures.values()
    )
    name = f"ABX, {NUM_PAIRS:,} pairs of tokens of 1 to {MOST_FRAMES} frames of {WIDTH}"
    return Row(name, figures, text, Target("seconds", MOST_SECONDS, at_least=False))
