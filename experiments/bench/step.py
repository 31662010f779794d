"""Times of the training step, its parts and its input, relative to matrix products."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cpc.data import prefetch
from cpc.models import ConvEncoder, LogMelEncoder
from cpc.models.geometry import output_lengths
from cpc.train import TrainState, put_batch
from cpc.types import Batch, PyTree
from experiments.bench.timing import Row, summarize, time_rounds, work_row
from experiments.command.config import Config, with_settings
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import AudioData
from experiments.kinds.audio.kind import draw_windows
from experiments.training import step as training
from experiments.training.contrastive import interpret
from experiments.training.objective import objective_loss
from experiments.training.problem import Problem, model_variables

PRODUCT_SIZE = 2048
PRODUCT_FLOP = 2 * PRODUCT_SIZE**3
#: Number of windows in the paper's batch, on one of its 8 devices and on all devices.
PAPER_BATCHES = (8, 64)


class Step(NamedTuple):
    """A training step of the audio experiment, and its parts by name."""

    advance: Callable[[Batch], TrainState]
    """Takes one step, and stores the new state, since the old state is donated."""
    params: Any
    parts: dict[str, Callable[[], Any]]
    """Functions that compute value and gradient of a part on the first batch, by name."""


def step_rows(
    config: Config, data: AudioData, mesh: jax.sharding.Mesh, num_rounds: int
) -> list[Row]:
    """Return rows for the matrix product, the step, its parts, and recompilations."""
    problem = audio.make_problem(interpret(audio, config), data)
    batch = put_batch(problem.draw(0), mesh)
    step = make_step(problem, mesh, batch)
    jax.block_until_ready(step.advance(batch))
    with count_compilations() as compilations:
        for index in range(1, num_rounds + 1):
            jax.block_until_ready(step.advance(put_batch(problem.draw(index), mesh)))
        num_compilations = compilations()
    cases = {"product": make_product("float32"), "step": lambda: step.advance(batch), **step.parts}
    seconds = time_rounds({n: blocking(c) for n, c in cases.items()}, num_rounds, num_calls=3)
    rates = summarize("gflop_per_second", [PRODUCT_FLOP / s / 1e9 for s in seconds["product"]])
    work = count_work(config, problem, step.params["model"])
    rate = "{:.0f} GFLOP/s ({:.0f} to {:.0f})".format(*rates.values())
    counted = {"compilations": num_compilations, "steps": num_rounds}
    text = f"{num_compilations} in {num_rounds} steps on fresh batches"
    rows = [Row(f"matrix product {PRODUCT_SIZE}^3, float32", rates, rate)]
    for name in ("step", *step.parts):
        title = "whole training step" if name == "step" else f"{name}, value and gradient"
        target = "fraction_of_peak >= 0.5" if name == "step" else ""
        flop = work[name], PRODUCT_FLOP
        rows.append(work_row(title, seconds[name], seconds["product"], flop, target))
    return [*rows, Row("compilations after the first step", counted, text, "compilations <= 0")]


def input_rows(config: Config, data: AudioData, num_rounds: int) -> list[Row]:
    """Return rows for the rate of drawing training windows."""
    rows, source, num_batches = [], config.data.source, 50 * num_rounds
    for batch_size in PAPER_BATCHES:
        own = with_settings(config, {"data.batch_size": batch_size})
        draw = draw_windows(own, data.train, config.seed)
        batches = prefetch(draw, 0, num_batches + 1, num_threads=config.data.num_threads)
        next(batches)  # the threads have started
        begin = time.perf_counter()
        for _ in batches:
            pass
        rate = num_batches * batch_size / (time.perf_counter() - begin)
        figures = {"source": source, "windows_per_second": rate}
        text = f"{rate:,.0f} windows/s of {source}, {config.data.window_samples} samples each"
        target = "windows_per_second >= 100000" if batch_size == max(PAPER_BATCHES) else ""
        rows.append(Row(f"input pipeline, batches of {batch_size}", figures, text, target))
    return rows


def make_step(problem: Problem, mesh: jax.sharding.Mesh, batch: Batch) -> Step:
    """Return the step and its parts, for batches with the sharding of `batch`."""
    state, step, _ = training.make_step(problem, mesh)
    params, extra = jax.tree.map(jnp.copy, (state.params, state.extra))

    def advance(batch):
        nonlocal state
        state = step(state, batch)
        return state

    return Step(advance, params, make_parts(problem, params, extra, batch))


def make_parts(
    problem: Problem, params: Any, extra: Any, batch: Batch
) -> dict[str, Callable[[], Any]]:
    """Return functions for value and gradient of the encoder, encoder with context, and the rest.

    The rest, called criterion, consists of the predictor and the loss.
    """
    rng = jax.random.key(0)

    def compute(params):
        variables = model_variables(params, None, extra)
        return problem.model.apply(variables, problem.preprocess(batch, rng, True), True, rng)[0]

    def energy(params, name):  # XLA drops unused outputs
        directions = problem.split_branches(compute(params), batch)
        return sum(jnp.square(getattr(outputs, name)).sum() for outputs, *_ in directions)

    def score(z, c, maps):  # compute predictions here, since the loss may compute them differently
        own = params["objective"], extra["objective"]
        given = outputs._replace(z=z, c=c, predictions=jnp.einsum("bth,khd->btkd", c, maps))
        branches = problem.split_branches(given, batch)
        return objective_loss(problem.plan, own[0], own[1], branches, rng, maps=maps)[:2]

    outputs: Any = jax.jit(compute)(params)
    maps: Any = problem.model.linear_maps(params["model"])
    gradient = jax.jit(jax.value_and_grad(energy), static_argnums=1)
    criterion = jax.jit(jax.value_and_grad(score, (0, 1, 2), has_aux=True))
    return {
        "encoder": lambda: gradient(params, "z"),
        "encoder and context": lambda: gradient(params, "c"),
        "criterion": lambda: criterion(outputs.z, outputs.c, maps),
    }


def make_product(dtype: str) -> Callable[[], Any]:
    """Return a function that computes the matrix product by which the peak rate is defined."""
    factor = jax.random.normal(jax.random.key(0), (PRODUCT_SIZE, PRODUCT_SIZE)).astype(dtype)
    multiply = jax.jit(jnp.matmul)
    return lambda: multiply(factor, factor)


def blocking(call: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap a function so that it waits for its result."""
    return lambda: jax.block_until_ready(call())


@contextlib.contextmanager
def count_compilations() -> Iterator[Callable[[], int]]:
    """Yield a function that counts programs compiled, or read from the cache, since the start."""
    events = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield lambda: len(events)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def count_work(config: Config, problem: Problem, params: PyTree) -> dict[str, int]:
    """Return the FLOP of a problem's training step and of each part of the step."""
    sizes = config.data.batch_size, config.data.window_samples
    offsets = problem.plan.geometry.branches[0].offsets
    encoder = problem.model.module.encoder
    flop = count_flop(params, encoder, *sizes, offsets, config.negatives.shards)
    return {
        **flop,
        "step": sum(flop.values()),
        "encoder and context": flop["encoder"] + flop["context"],
        "criterion": flop["predictor"] + flop["criterion"],
    }


def count_flop(
    params: PyTree,
    encoder: ConvEncoder | LogMelEncoder,
    batch_size: int,
    window_samples: int,
    offsets: Sequence[int],
    num_shards: int = 1,
) -> dict[str, int]:
    """Count the operations of matrix products in a step by formula, two per multiply-add.

    The compiler counts the body of a loop once, however often it runs, and thus misses nearly all
    of a recurrence and of a criterion over blocks. With b windows of t latents in S shards, latents
    of width d, contexts of width h, and A = b sum_k (t - k) pairs of anchor and offset:

        convolution of layer i  2 b t_i |kernel_i|
        context                 2 b t |W| of each matrix, and 4 b t^2 h of each attention
        predictor               2 A h d
        criterion               2 A (b t / S) d

    Each counts three times, except that the first convolution counts twice, because the waveform
    needs no gradient. Elementwise work, norms, log-mel energies and the optimizer are not counted,
    nor is unnecessary work, such as scores of anchors without a positive, so the resulting rate is
    a lower bound. An encoder that shares products computes fewer products, so its fraction of the
    peak can exceed 1.
    """
    frames = output_lengths(encoder.layers, encoder.pads, window_samples)
    weights = params["encoder"].get("convolutions", params["encoder"])
    layers = [
        2 * batch_size * count * math.prod(weights[f"kernel{i}"].shape)
        for i, count in enumerate(frames[-encoder.num_layers :])
    ]
    latents = batch_size * frames[-1]
    matrices = [leaf for leaf in jax.tree.leaves(params["context"]) if len(leaf.shape) > 1]
    context = 2 * latents * sum(math.prod(matrix.shape) for matrix in matrices)
    for name, layer in params["context"].items():
        if name.startswith("attention"):
            context += 4 * latents * frames[-1] * layer["kernel"].shape[0]
    h, _, d = params["predictor"]["W"]["kernel"].shape
    pairs = batch_size * sum(frames[-1] - k for k in offsets)
    # The forward pass and the gradients of input and weights cost one product each.
    return {
        "encoder": 3 * sum(layers) - layers[0],
        "context": 3 * context,
        "predictor": 3 * 2 * pairs * h * d,
        "criterion": 3 * 2 * pairs * (latents // num_shards) * d,
    }
