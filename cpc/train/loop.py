"""The training loop, which works in the same order at every step.

If an evaluation is due, it evaluates the current state; if a save is due, it saves the state. Then
it takes a batch, calls the step function and, while the device computes, writes the metrics of the
previous window (the steps between two logs).

So every number belongs to the state that produced it, a checkpoint neither loses nor repeats a
batch, and the device never waits while the host writes. A checkpoint also includes the result of an
evaluation due at its step. If a signal interrupts the evaluation, it is marked as pending.
"""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cpc.train.checkpoint import Checkpoints
from cpc.train.distributed import report_busy, report_step
from cpc.train.metrics import Writer
from cpc.train.step import TrainState, describe_failure, named_leaves
from cpc.types import Array, PyTree, UserError

#: summarize(sums, step) -> numbers of a training record, from host sums since the last log.
Summarize = Callable[[dict[str, Any], int], Mapping[str, Any]]
#: evaluate(state) -> the records of an evaluation.
Evaluate = Callable[[TrainState], Iterable[Mapping[str, Any]]]


class Cadence(NamedTuple):
    """Steps between logs, evaluations and saves. 0 means only after the last step."""

    log_every: int = 100
    eval_every: int = 0
    save_every: int = 0
    steps_per_launch: int = 1
    """Steps per call of the step function. Each call takes one element of the batches."""

    def check_multiples(self, numbers: Mapping[str, int]) -> None:
        """Raise UserError if an interval or number is not a multiple of `steps_per_launch`."""
        size = self.steps_per_launch
        for name, number in {**numbers, **self._asdict()}.items():
            if number % size:
                raise UserError(
                    f"{name} is {number}, but must be a multiple of steps_per_launch {size}"
                )


class Sinks(NamedTuple):
    """The outputs of `fit`: checkpoints and metric writers."""

    checkpoint: Checkpoints | None = None
    """The checkpoints to save states to. If None, no state is saved."""
    writers: Sequence[Writer] = ()
    """Writers, each of which receives every record."""
    metadata: Mapping[str, Any] | None = None
    """JSON values that are saved with each state and returned by `Checkpoints.restore`."""


class FitResult(NamedTuple):
    """The last state of a training, and why it ended."""

    state: TrainState
    reason: str
    """Name of the signal that stopped training, or "preemption", or "" if all steps are done."""


def fit(
    state: TrainState,
    step_fn: Callable[[TrainState, Any], TrainState],
    batches: Callable[[int], Iterable[Any]],
    *,
    num_steps: int,
    summarize: Summarize | None = None,
    evaluate: Evaluate = lambda state: (),
    cadence: Cadence = Cadence(),
    sinks: Sinks = Sinks(),
    stop: Callable[[], str] = lambda: "",
    steps_in_flight: int = 8,
) -> FitResult:
    """Train from `state.step` to `num_steps`.

    Args:
        state: a new or restored state, which is donated. Its leaves keep their shardings.
        step_fn: a step function from `make_train_step`, jitted by `jit_step`.
        batches: maps a step to an iterable of the batches from this step on.
        num_steps: the step to end at, counted from the beginning of the run.
        summarize: makes the numbers of a training record. Default: `means_per_step`.
        evaluate: makes the records of an evaluation. The "loss" in the last record that has one is
            the metric of the checkpoint saved at that step. The checkpoint with the lowest metric
            is the best. If `evaluate` raises `Stopped`, the state is saved. The resumed run
            evaluates it again.
        cadence: the intervals between records, evaluations and saves.
        sinks: the checkpoints and the writers.
        stop: called before each step. If the result is not empty, the state is saved and training
            ends.
        steps_in_flight: the minimum number of queued calls of `step_fn`. At most twice as many are
            queued.

    Raises:
        UserError: a step count is not a multiple of `steps_per_launch`, the batches end early, a
            disk is full, or a number is not finite. Loss and gradients are checked at each step,
            and parameters before each save, so a non-finite state is never saved.
    """
    step = start = int(state.step)
    cadence.check_multiples({"num_steps": num_steps, "the step to start from": start})
    checkpoint, per_launch = sinks.checkpoint, cadence.steps_per_launch
    windows = _Windows(state, summarize or means_per_step, sinks.writers)
    throttle, num_waits = _make_throttle(steps_in_flight), 0
    iterator = iter(batches(start))
    owes = checkpoint is not None and checkpoint.pending_evaluation == start
    try:
        while True:
            reason = stop() or _preemption(checkpoint, step, per_launch)
            ends = bool(reason) or step >= num_steps
            # A checkpoint includes the evaluation due at its step, so resuming does not repeat it.
            evaluates = (step > start or step == 0 or owes) and (
                step == num_steps or _is_due(step, cadence.eval_every)
            )
            saves = ends or _is_due(step, cadence.save_every)
            if evaluates or saves:
                windows.write()
                failure = describe_failure(state.failure, state.params)
                _check_finite(failure or _describe_overflow(state.params, step), checkpoint)
                report_busy(step)  # not earlier, so that a device that hangs is noticed above
                records = evaluate if evaluates else None
                cut_short = _evaluate_and_save(state, step, records, saves, windows, sinks, stop)
                if cut_short is not None:
                    reason, ends = cut_short, True
                windows.restart_clock(step)
            if ends:
                break
            report_step(step, num_waits)
            batch = _next_batch(iterator, step, num_steps)
            step += per_launch
            report_step(step, num_waits)
            state = step_fn(state, batch)
            if step == start + per_launch:
                windows.restart_clock(step)  # the first call compiles
            if (failure := windows.write()) is not None:
                _check_finite(describe_failure(failure, state.params), checkpoint)
            if _is_due(step, cadence.log_every) or step == num_steps:
                state = windows.cut(state, step)
            num_waits = throttle(state.step)
    finally:
        getattr(iterator, "close", lambda: None)()
    if checkpoint:
        checkpoint.wait()
    return FitResult(state, reason)


def _evaluate_and_save(
    state: TrainState,
    step: int,
    evaluate: Evaluate | None,
    saves: bool,
    windows: "_Windows",
    sinks: Sinks,
    stop: Callable[[], str],
) -> str | None:
    """Evaluate and save a state. If a signal interrupts the evaluation, return its name."""
    checkpoint, metric, cut_short = sinks.checkpoint, None, None
    try:
        for record in evaluate(state) if evaluate else ():
            windows.write_record({"step": step, "split": "test", **record})
            metric = record.get("loss", metric)
    except Stopped as stopped:
        cut_short = stop() or str(stopped)
        if checkpoint:
            checkpoint.pending_evaluation = step
    if checkpoint and (saves or cut_short is not None):
        checkpoint.save(step, state, dict(sinks.metadata or {}), metric)
    if checkpoint and evaluate and cut_short is None:
        checkpoint.pending_evaluation = None  # after `save`, so that no evaluation is lost
    return cut_short


def means_per_step(sums: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return each metric's sum divided by the number of finite steps, or NaN if there are none.

    >>> means_per_step({"steps": 4.0, "loss": 6.0, "nonfinite": 0.0}, 4)
    {'loss': 1.5, 'nonfinite': 0.0}
    """
    steps = float(sums["steps"]) or math.nan
    rest = {name: value for name, value in sums.items() if name != "steps"}
    return jax.tree.map(lambda value: value / steps, rest)


class _Window(NamedTuple):
    step: int
    sums: PyTree
    failure: Array
    cut_seconds: float


class _Windows:
    """A writer of the metrics that the device sums in a window, the steps between two logs."""

    def __init__(self, state: TrainState, summarize: Summarize, writers: Sequence[Writer]):
        self._summarize, self._writers = summarize, writers
        self._cut: _Window | None = None
        self.restart_clock(int(state.step))

    def restart_clock(self, step: int, seconds: float | None = None) -> None:
        """Measure the training speed from this step on."""
        self._clock_step = step
        self._clock_seconds = time.perf_counter() if seconds is None else seconds

    def cut(self, state: TrainState, step: int) -> TrainState:
        """End a window by keeping its sums for `write`, and return the state with zero sums."""
        failure = jnp.copy(state.failure)
        self._cut = _Window(step, state.metrics, failure, time.perf_counter())
        # Not jitted, which keeps the shardings. With others, the step would be compiled again.
        return state._replace(metrics=jax.tree.map(jnp.zeros_like, state.metrics))

    def write(self) -> Array | None:
        """Write the pending window, if any, and return the state's `failure` at its end."""
        if self._cut is None:
            return None
        (step, sums, failure, finished), self._cut = self._cut, None
        is_device_behind = not failure.is_ready()  # pyright: ignore[reportAttributeAccessIssue]
        sums = jax.device_get(sums)  # waits until the device has done this window
        if is_device_behind:
            finished = time.perf_counter()
        record = {"step": step, "split": "train", **self._summarize(sums, step)}
        if step > self._clock_step:
            rate = (step - self._clock_step) / (finished - self._clock_seconds)
            record["steps_per_second"] = rate
        self.restart_clock(step, finished)
        self.write_record(record)
        return failure

    def write_record(self, record: Mapping[str, Any]) -> None:
        for writer in self._writers:
            writer.write(record)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step > 0 and step % every == 0


def _preemption(checkpoint: Checkpoints | None, step: int, steps_per_launch: int) -> str:
    # The processes agree to stop one step after the last step that any of them has queried. So
    # every step is queried, and all stop after the launch that contains the agreed step.
    steps = range(max(step - steps_per_launch + 1, 0), step + 1)
    is_preempted = checkpoint and any(map(checkpoint.is_preempted, steps))
    return "preemption" if is_preempted else ""


def _next_batch(iterator: Iterator[Any], step: int, num_steps: int) -> Any:
    for batch in iterator:
        return batch
    raise UserError(
        f"the data ended after {step} of {num_steps} steps: lower num_steps, or repeat the data"
    )


def _describe_overflow(params: PyTree, step: int) -> str | None:
    # An update can overflow although the loss and the gradient were finite.
    leaves = named_leaves(params)
    finite = np.asarray(_all_finite([leaf for _, leaf in leaves]))
    return None if finite.all() else f"{leaves[int(finite.argmin())][0]} after step {step}"


@jax.jit
def _all_finite(leaves):
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves])


def _check_finite(what: str | None, checkpoint: Checkpoints | None) -> None:
    if what is None:
        return
    kept = "nothing was saved before"
    if checkpoint:
        checkpoint.wait()
        if checkpoint.latest_step is not None:
            kept = f"the last good checkpoint is that of step {checkpoint.latest_step}"
    raise UserError(
        f"training met a number that is not finite in {what}; {kept}: lower the learning rate or "
        "clip the gradients, and start again"
    )


def _make_throttle(steps_in_flight: int) -> Callable[[Array], int]:
    """Make `throttle(step)`, which waits if the device queue is full and returns the wait count."""
    mark: Array | None = None
    calls = 0

    def throttle(step: Array) -> int:
        nonlocal mark, calls
        calls += 1
        if calls % steps_in_flight == 0:
            if mark is not None:
                mark.block_until_ready()
            mark = jnp.copy(step)  # a copy, because the next step donates the original
        return max(calls // steps_in_flight - 1, 0)

    return throttle


#: Signals that stop the loop after the current step.
SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: The `stop` function of the outermost `stop_on_signals` context, if any is open.
_stops: list[Callable[[], str]] = []


class Stopped(UserError):
    """The error raised when a signal ends work before it is complete."""


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], str]]:
    """Yield `stop() -> str`, which returns the received signal's name or, before any signal, "".

    The first signal restores the former handlers, so a second Ctrl-C ends the process at once.
    Signals are caught only in the main thread of a single-process run. With several processes, a
    process must not stop alone, and JAX handles SIGTERM itself (see `Checkpoints.is_preempted`).
    Nested contexts share the `stop` function of the outermost context.
    """
    if _stops:
        yield _stops[0]
        return
    received: list[str] = []
    catches = jax.process_count() == 1 and threading.current_thread() is threading.main_thread()
    former = {number: signal.getsignal(number) for number in SIGNALS} if catches else {}

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    def receive(number: int, frame: Any) -> None:
        received.append(signal.Signals(number).name)
        restore()

    for number in former:
        signal.signal(number, receive)
    _stops.append(lambda: received[0] if received else "")
    try:
        yield _stops[0]
    finally:
        _stops.clear()
        restore()


def raise_if_stopped() -> None:
    """Raise `Stopped` if the open `stop_on_signals` context has received a signal.

    Call this between the parts of long work that can be repeated, such as probes.
    """
    if _stops and (name := _stops[0]()):
        raise Stopped(f"stopped by {name}")
