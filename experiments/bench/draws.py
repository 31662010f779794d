"""Draws of negatives from many classes: an alias table against the roulette.

The roulette, the usual way, searches the cumulative sum: here jitted, and in NumPy.
"""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from cpc.negatives import alias_table, draw, log_uniform
from experiments.bench.process import time_cases
from experiments.bench.table import Row, Target

NUM_CLASSES = 10**6
NUM_DRAWS = 10**6
#: Times that drawing from an alias table should be faster than the jitted roulette.
TIMES_FASTER = 4


def draw_row(num_rounds: int) -> Row:
    """Time of a draw in three ways, in turn, and to build the table."""
    q = log_uniform(NUM_CLASSES)
    begin = time.perf_counter()
    table = alias_table(q)
    build_seconds = time.perf_counter() - begin
    weights, cumulative = jnp.asarray(q, jnp.float32), np.cumsum(q)
    table, rng = jax.device_put(table), jax.random.key(0)
    on_host = np.random.default_rng(0)
    by_alias = jax.jit(functools.partial(draw, shape=(NUM_DRAWS,)))

    @jax.jit
    def by_roulette(rng, weights):
        upto = jnp.cumsum(weights)
        return jnp.searchsorted(upto, upto[-1] * jax.random.uniform(rng, (NUM_DRAWS,)))

    cases = {
        "alias": lambda: by_alias(rng, table).block_until_ready(),
        "roulette": lambda: by_roulette(rng, weights).block_until_ready(),
        "numpy": lambda: np.searchsorted(cumulative, on_host.random(NUM_DRAWS)),
    }
    seconds = time_cases(cases, num_rounds)
    figures = {f"{name}_nanoseconds": 1e9 * s / NUM_DRAWS for name, s in seconds.items()}
    figures["times_faster"] = seconds["roulette"] / seconds["alias"]
    text = (
        "{:.0f} ns a draw by alias table, {:.0f} ns by the jitted roulette, {:.0f} ns by NumPy's, "
        "{:.1f} times faster".format(*figures.values())
    )
    figures["build_seconds"] = build_seconds
    name = f"{NUM_DRAWS:,} draws from {NUM_CLASSES:,} classes"
    target = Target("times_faster", TIMES_FASTER)
    return Row(name, figures, f"{text}; {build_seconds:.2f} s to build", target)
