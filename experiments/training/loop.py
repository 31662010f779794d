"""Training loop of every kind, with resuming, records and checkpoints."""

import contextlib
import importlib
import importlib.util
import math
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from cpc import train
from cpc.files import plain, read_object
from cpc.results.score import read_records
from cpc.train.loop import Cadence, Evaluate, FitResult, Sinks, Summarize, fit
from cpc.train.metrics import Record
from cpc.types import UserError
from experiments.command.cluster import describe_version
from experiments.command.config import Config
from experiments.command.run_dir import identify_run, record_state

#: Minimum time between updates of the file with a run's state.
STATE_SECONDS = 15.0


class Training(NamedTuple):
    """Arguments of `cpc.train.fit` for a run, and the amount of data per step."""

    state: train.TrainState
    """State before the first step."""
    step_fn: Callable[[train.TrainState, Any], train.TrainState]
    batches: Callable[[int], Iterable[Any]]
    summarize: Summarize
    num_steps: int
    cadence: Cadence
    per_step: tuple[float, str] | None = None
    """Amount of data per step and its unit, such as (0.003, "h audio")."""
    evaluate: Evaluate = lambda state: ()
    steps_in_flight: int = 8


def run_training(
    folder: pathlib.Path, config: Config, training: Training, console: train.ProgressWriter
) -> FitResult:
    """Train from the newest checkpoint of a run directory to the last step or a signal."""
    given, common = training._asdict(), {"num_steps": training.num_steps}
    if per_step := given.pop("per_step"):
        common["per_step"], common["per_step_unit"] = per_step
    with open_training(folder, training.state, console, config) as (state, sinks, stop):
        begin = time.time()
        if train.is_first():  # include the time of earlier starts
            records = read_records(folder, [])
            begin -= max((record.get("seconds") or 0.0 for record in records), default=0.0)

        def summarize(sums, step):
            return {**training.summarize(sums, step), **common, "seconds": time.time() - begin}

        own = {"state": state, "summarize": summarize, "sinks": sinks, "stop": stop}
        return fit(**given | own)


@contextlib.contextmanager
def open_training(
    folder: pathlib.Path, state: train.TrainState, console: train.ProgressWriter, config: Config
) -> Iterator[tuple[train.TrainState, Sinks, Callable[[], str]]]:
    """Yield a run directory's newest training state, its record writers (sinks), and `stop`.

    `stop` returns the name of the signal that was received, or "" if there was none.
    """
    checkpoints = train.open_checkpoints(folder / "checkpoints", print)
    with checkpoints as checkpoint, train.stop_on_signals() as stop:
        restored = checkpoint.restore(state)
        state = restored[0] if restored else state
        start = int(state.step)
        if start:
            saved, own = (restored or [{}])[-1].get("version"), describe_version()
            note = f", saved by another version ({saved}; this is {own})" if saved != own else ""
            console.say(f"resuming from step {start:,}{note if saved else ''}")
        writers: list[train.Writer] = []
        identity = identify_run(folder, config)
        written = (restored or [{}])[-1].get("records", 0)
        metadata = {**identity, "records": written}
        if train.is_first():
            tensorboard = train.TensorBoardWriter(folder / "tensorboard", start)
            records = train.JsonlWriter(folder / "metrics.jsonl", start, identity)
            metadata["records"] = max(written, records.num_kept)
            if lost := metadata["records"] - records.num_kept:
                console.say(f"{lost:,} of {written:,} records of metrics.jsonl are lost")
            writers = [records, StateWriter(folder, metadata), tensorboard, console]
            if config.get("logger"):
                service = importlib.import_module(config.logger)
                run_id = (read_object(folder / "environment.json", []) or {}).get("id", "")
                writer = train.ServiceWriter(
                    service, folder.name, plain(config), say=console.say, run_id=run_id
                )
                writers.append(writer)
        with contextlib.ExitStack() as stack:
            for writer in writers:
                stack.callback(writer.close)
            yield state, Sinks(checkpoint, writers, metadata), stop


class StateWriter:
    """A writer that counts records and updates the file with the run's state."""

    def __init__(self, folder: pathlib.Path, metadata: dict[str, Any]):
        self._folder, self._next, self._state = folder, 0.0, {}
        self._metadata = metadata

    def write(self, record: Record) -> None:
        """Count a record, and update the file at most once every `STATE_SECONDS`."""
        self._metadata["records"] += 1
        if record.get("split") == "test" and math.isfinite(record.get("nats", math.nan)):
            # The last record of an evaluation has the strict bound.
            kind = "" if record["is_bound"] else ", estimate"
            self._state["nats"] = f"{record['nats']:.2f} (k = {record['nats_offsets']}{kind})"
        if "num_steps" in record:
            names = ("step", "num_steps", "steps_per_second")
            self._state |= {name: record[name] for name in names if name in record}
            if time.monotonic() >= self._next:
                self.close()
                self._next = time.monotonic() + STATE_SECONDS

    def close(self) -> None:
        """Write the last step and evaluation seen."""
        if self._state:
            record_state(self._folder, "running", **self._state)


def check_logger(config: Config) -> None:
    """Raise UserError if the package of the logging service is not installed."""
    if importlib.util.find_spec(config.get("logger") or "cpc") is None:
        name = config.logger
        raise UserError(f"logger is {name}, which is not installed: run pip install {name}")
