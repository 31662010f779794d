"""Draws of negatives from many classes: an alias table against jax.random.categorical."""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc.negatives import alias_table, draw, log_uniform
from experiments.bench.step import time_call
from experiments.bench.table import Row, Target

NUM_CLASSES = 10**6
NUM_DRAWS = 10**6
#: Categorical looks at every class for every draw, so that as many draws would take hours: a few
#: are timed, and time is counted by the draw.
NUM_CATEGORICAL = 4


def draw_row(num_rounds: int) -> Row:
    """Time of a draw in both ways, and to build the table."""
    q = log_uniform(NUM_CLASSES)
    begin = time.perf_counter()
    table = alias_table(q)
    build_seconds = time.perf_counter() - begin
    table, logits = jax.device_put(table), jnp.asarray(np.log(q), jnp.float32)
    by_alias = jax.jit(functools.partial(draw, shape=(NUM_DRAWS,)))
    by_category = jax.jit(functools.partial(jax.random.categorical, shape=(NUM_CATEGORICAL,)))
    rng = jax.random.key(0)
    alias = time_draw(lambda: by_alias(rng, table), NUM_DRAWS, num_rounds)
    category = time_draw(lambda: by_category(rng, logits), NUM_CATEGORICAL, num_rounds)
    figures = {
        "alias_nanoseconds": alias,
        "categorical_nanoseconds": category,
        "times_faster": category / alias,
        "build_seconds": build_seconds,
    }
    text = (
        f"{alias:.0f} ns a draw by alias table ({NUM_DRAWS:,} at once), {category:,.0f} ns by "
        f"categorical (scaled from {NUM_CATEGORICAL}); {build_seconds:.2f} s to build"
    )
    name = f"draws from {NUM_CLASSES:,} classes"
    return Row(name, figures, text, Target("times_faster", 20))


def time_draw(call: Callable[[], Any], num_draws: int, num_rounds: int) -> float:
    """Nanoseconds a draw, compilation not counted."""
    time_call(call)
    return 1e9 * statistics.median(time_call(call) for _ in range(num_rounds)) / num_draws
