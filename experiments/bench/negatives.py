"""What negatives cost: the demo's step under each rule, sampler and memory, timed in turn."""

import statistics
from collections.abc import Callable
from typing import Any

import jax

from cpc.train import put_batch
from experiments.bench.step import measure_rounds
from experiments.bench.table import Row
from experiments.command.config import Config, with_settings
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import AudioData
from experiments.training import step as training
from experiments.training.contrastive import interpret

#: Of docs/negatives.md; the first is what the others are divided by.
CELLS = {
    "all of the batch": {},
    "window of 14": {"negatives.window": 14},
    "own sequence": {"negatives.rule": "own_sequence"},
    "shards of two windows": {"negatives.shards": 4},
    "16 sampled": {"negatives.num_sampled": 16},
    "256 sampled": {"negatives.num_sampled": 256},
    "queue of 4,096": {"negatives.queue": 4096},
    "temperature learned": {"negatives.temperature_rule": "learned"},
    "temperature by entropy": {"negatives.temperature_rule": "entropy"},
    "64 hardest": {"negatives.choose": "hardest", "negatives.num_sampled": 64},
    "ring": {"negatives.choose": "ring"},
    "64 proposed": {"negatives.choose": "proposed", "negatives.num_sampled": 64},
    "debiased": {"loss.name": "debiased"},
    "hard weighted": {"loss.name": "hard_weighted"},
}


def negative_rows(
    config: Config, data: AudioData, mesh: jax.sharding.Mesh, num_rounds: int
) -> list[Row]:
    """Return time and working memory of a step with each choice of negatives."""
    base = with_settings(config, {"negatives.shards": 1})
    advances, memory = {}, {}
    for name, settings in CELLS.items():
        chosen = with_settings(base, settings)
        advances[name], memory[name] = make_advance(chosen, data, mesh)
    timings = measure_rounds(advances, num_rounds, 3)
    first = timings["all of the batch"].seconds
    rows = []
    for name, timing in timings.items():
        ratio = statistics.median(
            own / base for own, base in zip(timing.seconds, first, strict=True)
        )
        figures = {
            "milliseconds": 1e3 * statistics.median(timing.seconds),
            "over_all_of_the_batch": ratio,
            "working_megabytes": memory[name] / 1e6,
        }
        text = "{:.0f} ms, {:.2f} of all of the batch, {:.0f} MB".format(*figures.values())
        rows.append(Row(f"step with negatives: {name}", figures, text))
    return rows


def make_advance(
    config: Config, data: AudioData, mesh: jax.sharding.Mesh
) -> tuple[Callable[[], Any], int]:
    """Return a function that does a step, and the bytes that the step works in."""
    problem = audio.make_problem(interpret(audio, config), data)
    batch = put_batch(problem.draw(0), mesh)
    state, step, _ = training.make_step(problem, mesh)
    compiling: Any = step  # jitted
    analysis = compiling.lower(state, batch).compile().memory_analysis()

    def advance():
        nonlocal state
        state = step(state, batch)
        return state.step

    return advance, analysis.temp_size_in_bytes
