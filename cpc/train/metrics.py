"""Metric writers for JSON Lines files, TensorBoard, a progress line and tracking services.

A record is {"step": int, "split": "train" | "test" | ..., name: number or list of numbers, ...}.
Lists have one entry per prediction offset: entry i belongs to offsets[i].
"""

import contextlib
import inspect
import io
import json
import math
import os
import pathlib
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2

from cpc.files import RUN_SPLIT, advise, plain, read_lines, replacing, seal
from cpc.types import UserError

Record = Mapping[str, Any]
proto: Any = event_pb2  # type checkers do not know its classes, which are created on import


@runtime_checkable
class Writer(Protocol):
    """The interface of the metric writers that `fit` calls."""

    def write(self, record: Record) -> None:
        """Write one record."""
        ...

    def close(self) -> None:
        """Flush and close open files."""
        ...


class JsonlWriter:
    """A writer that appends each record as a line of JSON with a checksum, and flushes it.

    When a run resumes at `start_step`, records of later steps are dropped, so that the file equals
    that of an uninterrupted run. `num_kept` counts the remaining records. NaN and infinity become
    null. If `identity` is given, it is the first line, a record with step 0 and split "run".
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        start_step: int = 0,
        identity: Mapping[str, Any] | None = None,
    ):
        self._path = pathlib.Path(path).absolute()
        header = [_to_line({"step": 0, "split": RUN_SPLIT, **identity})] if identity else []
        with _disk_errors(self._path):
            kept = _read_until(self._path, start_step)
            self.num_kept = len(kept)
            with replacing(self._path) as part:
                part.write_text("".join(f"{line}\n" for line in (*header, *kept)), "utf-8")
            self._file = self._path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        """Append one line."""
        with _disk_errors(self._path, self._file):
            self._file.write(f"{_to_line(record)}\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with _disk_errors(self._path, self._file):
            self._file.close()


def _to_line(record: Record) -> str:
    return json.dumps(seal(record), allow_nan=False)


def _read_until(path: pathlib.Path, step: int) -> list[str]:
    # Damaged lines before the last kept record are also kept, so that readers can report them.
    lines = read_lines(path) if path.exists() else []
    kept = [
        (line, record)
        for line, record in lines
        if record is None or (record["step"] <= step and record.get("split") != RUN_SPLIT)
    ]
    while kept and kept[-1][1] is None:
        kept.pop()
    return [line for line, _ in kept]


def read_identity(path: pathlib.Path) -> dict[str, Any]:
    """Return the run identity in a metrics file's first line, or {} if it has none."""
    try:
        first = read_lines(path)[0][1] or {}
    except (OSError, IndexError):
        return {}
    return first if first.get("split") == RUN_SPLIT else {}


class TensorBoardWriter:
    """A writer of TensorBoard scalars with tags "split/name".

    A list becomes the scalars "split/name/k", with k counted from 1. Records with the same step and
    split are distinguished by a "series", and their tags start with "split/series".
    """

    def __init__(self, directory: str | os.PathLike[str], start_step: int = 0):
        self._directory = pathlib.Path(directory).absolute()
        with _disk_errors(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            # File names contain whole seconds; the suffix keeps a restart from overwriting a file.
            # The thread of `SummaryWriter` would report a full disk again and again.
            self._writer = EventsWriter(str(self._directory / "events"), f".{start_step:09}")
            self._file: Any = self._writer._py_recordio_writer._writer
        with _disk_errors(self._directory, self._file):
            begin = proto.SessionLog(status=proto.SessionLog.START)
            self._add(step=start_step + 1, session_log=begin)  # drops records of an earlier start
            self._writer.flush()

    def _add(self, **fields: Any) -> None:
        self._writer.write_event(proto.Event(wall_time=time.time(), **fields))

    def write(self, record: Record) -> None:
        """Write the numbers of one record. Other values are ignored."""
        step, scalars = scalars_of(record)
        with _disk_errors(self._directory, self._file):
            for tag, value in scalars.items():
                self._add(step=step, summary=summary.scalar(tag, value))
            self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        with _disk_errors(self._directory, self._file):
            self._writer.close()


def scalars_of(record: Record) -> tuple[int, dict[str, float]]:
    """Return a record's step, and its numbers by `TensorBoardWriter` tag.

    >>> scalars_of({"step": 5, "split": "test", "series": "strict", "bound": [1.0, 0.5]})
    (5, {'test/strict/bound/1': 1.0, 'test/strict/bound/2': 0.5})
    """
    values, scalars = plain(dict(record)), {}
    step = values.pop("step")
    names = [values.pop(name, "") for name in ("split", "series")]
    split = "/".join(name for name in names if name) or "train"
    for name, value in values.items():
        entries = enumerate(value, 1) if isinstance(value, list) else [("", value)]
        for k, entry in entries:
            if isinstance(entry, int | float):
                scalars[f"{split}/{name}/{k}".rstrip("/")] = float(entry)
    return step, scalars


class ServiceWriter:
    """A writer that sends records to a tracking service, such as wandb or trackio.

    `service` is a module with functions `init`, `log` and `finish`. The writer sends the same
    scalars as `TensorBoardWriter`. If the service fails, the writer warns once and stops sending,
    and training continues.
    """

    def __init__(
        self,
        service: Any,
        name: str,
        config: Mapping[str, Any],
        project: str = "cpc",
        say: Callable[[str], None] = print,
        run_id: str = "",
    ):
        """Start a run in the service, or resume it if `run_id` (default: `name`) already exists."""
        self._service, self._say, self._works = service, say, True
        options = {"project": project, "name": name, "config": plain(config), "resume": "allow"}
        identity = {"id": run_id or re.sub(r"\W+", "-", name)}
        with contextlib.suppress(TypeError, ValueError):  # if `init` does not accept an id
            inspect.signature(service.init).bind_partial(**identity)
            options |= identity
        self._try("init", **options)

    def write(self, record: Record) -> None:
        """Send the numbers of one record."""
        step, scalars = scalars_of(record)
        if scalars:
            self._try("log", scalars, step=step)

    def close(self) -> None:
        """Finish the run in the service."""
        self._try("finish")

    def _try(self, function: str, /, *values: Any, **options: Any) -> None:
        if not self._works:
            return
        try:
            getattr(self._service, function)(*values, **options)
        except Exception as error:  # each service raises its own types
            self._works = False
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            name = self._service.__name__
            self._say(f"{name} gets no more records: {function} failed ({reason}); the run goes on")


class ProgressWriter:
    """A writer that shows the training progress as a line with step, metrics, rate and time left.

    On a terminal, the line is rewritten in place. Otherwise a new line is written at most every
    `seconds_between` seconds. Evaluations have their own lines. `describe` formats a record's
    metrics. `rate` is (amount per step, unit), such as (hours of audio in a batch, "h audio").
    """

    def __init__(
        self,
        num_steps: int,
        describe: Callable[[Record], str] | None = None,
        rate: tuple[int | float, str] | None = None,
        stream: io.TextIOBase | None = None,
        seconds_between: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._num_steps, self._rate = num_steps, rate
        self._describe = describe or describe_values("loss")
        self._stream: Any = stream or sys.stdout
        self._seconds_between, self._clock = seconds_between, clock
        self._written_at = -math.inf
        self._width = 0  # width of the current progress line on the terminal

    def write(self, record: Record) -> None:
        """Show one record."""
        if record.get("split", "train") != "train":
            self.say(f"{record['split']} at step {record['step']:,}  {self._describe(record)}")
            return
        line = progress_line(record, self._num_steps, self._describe(record), self._rate)
        if self._stream.isatty():
            line = line[: shutil.get_terminal_size().columns - 1]  # no wrapping
            self._stream.write("\r" + line.ljust(self._width))
            self._stream.flush()
            self._width = len(line)
            return
        now, is_last = self._clock(), record["step"] >= self._num_steps
        if is_last or now - self._written_at >= self._seconds_between:
            self._written_at = now
            self.say(line)

    def say(self, sentence: str) -> None:
        """Write a permanent line. An unfinished progress line is ended first."""
        self.close()
        self._stream.write(f"{sentence}\n")
        self._stream.flush()

    def close(self) -> None:
        """End the progress line on the terminal."""
        self._stream.write("\n" * bool(self._width))
        self._stream.flush()
        self._width = 0


def progress_line(
    record: Record, num_steps: int, words: str, rate: tuple[int | float, str] | None = None
) -> str:
    """Format a training record as a console line, in which `words` describe its metrics.

    >>> record = {"step": 1500, "steps_per_second": 8.0}
    >>> progress_line(record, 2000, "loss 4.250", (0.01, "h audio"))
    'step 1,500/2,000  loss 4.250  8.0 steps/s  288 s audio/s  1:02 left'
    """
    parts = [f"step {record['step']:,}/{num_steps:,}", *([words] if words else [])]
    steps_per_second = record.get("steps_per_second")
    if steps_per_second:
        form = ".3g" if steps_per_second < 1 else ",.1f"
        parts.append(f"{steps_per_second:{form}} steps/s")
        if rate:
            parts.append(f"{amount(steps_per_second * rate[0], rate[1])}/s")
        parts.append(f"{duration((num_steps - record['step']) / steps_per_second)} left")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds.

    >>> duration(62.0), duration(3723.0)
    ('1:02', '1:02:03')
    """
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


#: For each large unit, the number of small units in it and the name of the small unit.
COUNTED = {"h": (3600, "s "), "M": (1e6, ""), "k": (1e3, "")}


def amount(value: float, unit: str) -> str:
    """Format an amount, converting "h", "M" and "k" units to seconds and ones.

    >>> amount(0.03, "M steps"), amount(0.005, "h audio"), amount(2.5, "images")
    ('30,000 steps', '18 s audio', '2.5 images')
    """
    size, _, rest = unit.partition(" ")
    count, small = COUNTED.get(size, (1, ""))
    number = f"{value * count:,.0f}" if value * count >= 10 else f"{value * count:.2g}"
    return f"{number} {small}{rest if size in COUNTED else unit}".rstrip()


def describe_values(*names: str) -> Callable[[Record], str]:
    """Return a function that formats a record as text.

    A training record's text contains only the named values. Other records' texts contain all.

    >>> describe_values("loss")({"step": 5, "split": "train", "loss": 4.25, "seconds": 2.0})
    'loss 4.250'
    """

    def describe(record):
        is_train = record.get("split", "train") == "train"
        shown = names if is_train else [name for name in record if name not in ("step", "split")]
        values = {name: plain(record[name]) for name in shown if name in record}
        return "  ".join(
            f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
            for name, value in values.items()
            if np.ndim(value) == 0
        )

    return describe


@contextlib.contextmanager
def _disk_errors(path: pathlib.Path, *files: Any) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        for file in files:
            # Discard the buffer. Otherwise Python would flush it at exit and report another error.
            getattr(file, "buffer", file).raw.close()
        raise UserError(
            f"writing to {path} failed ({error.strerror or error}): {advise(error)} and rerun the "
            "command, which resumes from the last checkpoint"
        ) from error
