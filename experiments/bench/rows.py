"""Rows of the audio experiment: step and parts, compilations, input, start, memory."""

import copy
import itertools
import statistics
import time
from typing import NamedTuple

import jax

from cpc.data import prefetch
from cpc.train import put_batch
from experiments.bench import criterion
from experiments.bench.flop import count_flop
from experiments.bench.startup import measure_start
from experiments.bench.step import (
    PRODUCT_FLOP,
    PRODUCT_SIZE,
    Step,
    Timing,
    count_compilations,
    fractions_of_peak,
    make_step,
    measure_rounds,
    time_call,
)
from experiments.bench.table import Row, Target
from experiments.command.config import Config
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import AudioData
from experiments.kinds.audio.kind import draw_windows
from experiments.training.contrastive import interpret
from experiments.training.problem import Problem

#: Windows of a batch: of one of the paper's 8 devices, and of all of them.
PAPER_BATCHES = (8, 64)


class Effort(NamedTuple):
    """How long to measure."""

    num_processes: int
    """Pairs of processes, where each side has its own."""
    num_rounds: int
    num_calls: int
    """Of a case, and of the product, in a round."""
    num_batches: int
    """Drawn to time the input."""
    num_steps: int
    """On fresh batches, watched for compilations."""
    num_candidates: tuple[int, ...]
    """Of InfoNCE."""
    num_images: int
    """Of a batch in patches; a training step has 8 times as many, the folder of files 32 times."""


FULL = Effort(
    num_processes=3,
    num_rounds=10,
    num_calls=3,
    num_batches=500,
    num_steps=10,
    num_candidates=criterion.SIZES,
    num_images=16,
)
QUICK = Effort(
    num_processes=1,
    num_rounds=2,
    num_calls=1,
    num_batches=20,
    num_steps=3,
    num_candidates=criterion.SIZES[:1],
    num_images=2,
)


def step_rows(
    config: Config, data: AudioData, mesh: jax.sharding.Mesh, effort: Effort
) -> list[Row]:
    """The machine's ceiling, the step, its parts, and what is compiled after the first step."""
    problem = audio.make_problem(interpret(audio, config), data)
    draw = problem.draw
    batch = put_batch(draw(0), mesh)
    step = make_step(problem, mesh, batch)
    jax.block_until_ready(step.advance(batch))
    with count_compilations() as compilations:
        for index in range(1, effort.num_steps + 1):
            jax.block_until_ready(step.advance(put_batch(draw(index), mesh)))
        num_compilations = compilations()

    cases = {"step": lambda: step.advance(batch), **step.parts}
    timings = measure_rounds(cases, effort.num_rounds, effort.num_calls)
    return [
        product_row(timings),
        *timing_rows(config, problem, step, timings),
        compilation_row(num_compilations, effort.num_steps),
    ]


def product_row(timings: dict[str, Timing]) -> Row:
    """The machine's ceiling, as it was over the whole measurement."""
    rates = [PRODUCT_FLOP / s / 1e9 for t in timings.values() for s in t.product_seconds]
    figures = {
        "gflop_per_second": statistics.median(rates),
        "gflop_per_second_min": min(rates),
        "gflop_per_second_max": max(rates),
    }
    text = "{:.0f} GFLOP/s ({:.0f} to {:.0f})".format(*figures.values())
    return Row(f"matrix product {PRODUCT_SIZE}^3, float32", figures, text)


def timing_rows(
    config: Config, problem: Problem, step: Step, timings: dict[str, Timing]
) -> list[Row]:
    """The whole step, and what its parts take alone."""
    flop = count_flop(
        step.params["model"],
        problem.model.module.encoder,
        config.data.batch_size,
        config.data.window_samples,
        problem.plan.geometry.branches[0].offsets,
        config.negatives.shards,
    )
    work = {
        "step": sum(flop),
        "encoder": flop.encoder,
        "encoder and context": flop.encoder + flop.context,
        "criterion": flop.predictor + flop.criterion,
    }
    target = Target("fraction_of_peak", 0.5)
    return [
        timing_row(name, work[name], timing, target if name == "step" else None)
        for name, timing in timings.items()
    ]


def timing_row(name: str, flop: int, timing: Timing, target: Target | None = None) -> Row:
    """Time, work, rate, and the rate's fraction of the product's, round by round."""
    seconds = statistics.median(timing.seconds)
    fractions = fractions_of_peak(flop, timing)
    figures = {
        "milliseconds": 1e3 * seconds,
        "gflop": flop / 1e9,
        "gflop_per_second": flop / seconds / 1e9,
        "fraction_of_peak": statistics.median(fractions),
        "fraction_of_peak_min": min(fractions),
        "fraction_of_peak_max": max(fractions),
    }
    text = "{:.1f} ms, {:.2f} GFLOP, {:.0f} GFLOP/s, {:.2f} of peak ({:.2f} to {:.2f})"
    title = "whole training step" if name == "step" else f"{name}, value and gradient"
    return Row(title, figures, text.format(*figures.values()), target)


def compilation_row(num_compilations: int, num_steps: int) -> Row:
    """Programs compiled after the first step."""
    return Row(
        "compilations after the first step",
        {"compilations": num_compilations, "steps": num_steps},
        f"{num_compilations} in {num_steps} steps on fresh batches",
        Target("compilations", 0, at_least=False),
    )


def input_rows(
    config: Config, data: AudioData, mesh: jax.sharding.Mesh, effort: Effort
) -> list[Row]:
    """Windows drawn, as in training, and what drawing them costs the step."""
    problem = audio.make_problem(interpret(audio, config), data)
    rows = [windows_row(config, data, size, effort.num_batches) for size in PAPER_BATCHES]
    return [*rows, waiting_row(config, problem, mesh, effort)]


def windows_row(config: Config, data: AudioData, batch_size: int, num_batches: int) -> Row:
    """Windows a second, in batches of the paper's size or of one of its devices'."""
    config = copy.deepcopy(config)
    config.data.batch_size = batch_size
    draw = draw_windows(config, data.train, config.seed)
    batches = prefetch(draw, 0, num_batches + 1, num_threads=config.data.num_threads)
    next(batches)  # the threads have started
    begin = time.perf_counter()
    for _ in batches:
        pass
    rate = num_batches * batch_size / (time.perf_counter() - begin)
    source = config.data.source
    return Row(
        f"input pipeline, batches of {batch_size}",
        {"source": source, "windows_per_second": rate},
        f"{rate:,.0f} windows/s of {source}, {config.data.window_samples} samples each",
        Target("windows_per_second", 100_000) if batch_size == max(PAPER_BATCHES) else None,
    )


def waiting_row(config: Config, problem: Problem, mesh: jax.sharding.Mesh, effort: Effort) -> Row:
    """Steps fed by the input against steps on a batch that is there, in turn."""

    def put(index):
        return put_batch(problem.draw(index), mesh)

    batch = put(0)
    step = make_step(problem, mesh, batch)
    count = effort.num_calls * effort.num_rounds
    fed = prefetch(put, 0, (effort.num_rounds + 2) * count, num_threads=config.data.num_threads)

    def advance(batches):
        return [step.advance(batch).step for batch in batches][-1]

    cases = {
        "here": lambda: advance([batch] * count),
        "fed": lambda: advance(itertools.islice(fed, count)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for round_number in range(effort.num_rounds + 1):
        for name, call in cases.items():
            taken = time_call(call) / count
            if round_number:  # the first compiles
                seconds[name].append(taken)
    pairs = zip(seconds["fed"], seconds["here"], strict=True)
    ratio = statistics.median(one / other for one, other in pairs)
    alone = 1e3 * statistics.median(seconds["here"])
    figures = {"milliseconds_without_input": alone, "times_without_input": ratio}
    text = f"{ratio:.3f} times the {alone:.1f} ms of a step on a batch that is there"
    return Row(
        "step fed by the input", figures, text, Target("times_without_input", 1.05, at_least=False)
    )


def start_rows(config: Config, device: str) -> list[Row]:
    """A second start, and the memory of its process."""
    start = measure_start(config, device)
    peak = start.pop("peak_megabytes")
    text = (
        f"{start['seconds']:.1f} s, of which imports {start['import_seconds']:.1f} s and data "
        f"{start['data_seconds']:.1f} s"
    )
    memory = {"megabytes": peak}
    return [
        Row("second start to first step", start, text, Target("seconds", 5, at_least=False)),
        Row(
            "peak memory of that process",
            memory,
            f"{peak:,.0f} MB resident",
            Target("megabytes", 1500, at_least=False),
        ),
    ]
