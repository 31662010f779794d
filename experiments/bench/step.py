"""The training step and its parts, timed against matrix products made at the same moment."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cpc.train import TrainState
from cpc.types import Batch
from experiments.training import step as training
from experiments.training.objective import objective_loss
from experiments.training.problem import Problem, model_variables

PRODUCT_SIZE = 2048
PRODUCT_FLOP = 2 * PRODUCT_SIZE**3


class Step(NamedTuple):
    """A training step as the audio experiment makes it."""

    advance: Callable[[Batch], TrainState]
    """Does one step; the state, which is donated, stays inside."""
    params: Any
    parts: dict[str, Callable[[], Any]]
    """Name -> value and gradient of a part on the first batch."""


class Timing(NamedTuple):
    """Rounds of one case; each round has the product's time beside it."""

    seconds: list[float]
    product_seconds: list[float]


def make_step(problem: Problem, mesh: jax.sharding.Mesh, batch: Batch) -> Step:
    """State, step and parts, for batches that lie on the devices as `batch` does."""
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
    """Value and gradient of encoder, of encoder and context, and of predictor and criterion."""
    rng = jax.random.key(0)

    def compute(params):
        variables = model_variables(params, None, extra)
        return problem.model.apply(variables, problem.prepare(batch, rng, True), True, rng)[0]

    def energy(params, name):  # what is not asked for is not computed
        directions = problem.split_branches(compute(params), batch)
        return sum(jnp.square(getattr(outputs, name)).sum() for outputs, *_ in directions)

    def score(z, c, maps):  # with the predictions, which the loss may make in its own way
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


def measure_rounds(
    cases: Mapping[str, Callable[[], Any]], num_rounds: int, num_calls: int
) -> dict[str, Timing]:
    """Time each case, in each round right after the products that it is compared with.

    The machine's speed drifts by more than what is measured: only what was timed at the same
    moment is compared. A round is the best of the products and the median call of the case.
    """
    factor = jax.random.normal(jax.random.key(0), (PRODUCT_SIZE, PRODUCT_SIZE))
    multiply = jax.jit(jnp.matmul)
    for call in (lambda: multiply(factor, factor), *cases.values()):
        time_call(call)
    timings = {name: Timing([], []) for name in cases}
    for _ in range(num_rounds):
        for name, call in cases.items():
            products = [time_call(lambda: multiply(factor, factor)) for _ in range(num_calls)]
            calls = [time_call(call) for _ in range(num_calls)]
            timings[name].product_seconds.append(min(products))
            timings[name].seconds.append(statistics.median(calls))
    return timings


def fractions_of_peak(flop: float, timing: Timing) -> list[float]:
    """The rate of so many operations over that of the product, round by round."""
    return [
        (flop / case) / (PRODUCT_FLOP / product)
        for case, product in zip(timing.seconds, timing.product_seconds, strict=True)
    ]


def time_call(call: Callable[[], Any]) -> float:
    """Seconds until the result is there."""
    begin = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - begin


@contextlib.contextmanager
def count_compilations() -> Iterator[Callable[[], int]]:
    """Yields a function that says how many programs were compiled, or read compiled, since."""
    events = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield lambda: len(events)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
