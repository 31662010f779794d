"""Show the state of all runs in a folder as a table, once or every few seconds.

    cpc status runs
    cpc status runs --watch 5

The table contains the state.json of each run. The column nats contains the mean of log N - L at the
last evaluation, over the offsets k that are neither saturated nor share input with the context, or
at the furthest offset if there are none. It is a strict bound, or else marked as an estimate. The
scores of runs are compared by `cpc compare`. A run records its state: running, finished (training,
probes and report), stopped (saved, so that it can be resumed), failed (ended by an error) or
audited (by --audit, without training). A running run whose process is gone is dead, cells of a
sweep are waiting until they start, and a run without read permission is unreadable.
"""

import os
import pathlib
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from absl import flags

from cpc.files import read_object
from cpc.results import text_table
from cpc.train.metrics import duration
from cpc.types import UserError
from experiments.command import cli, lock
from experiments.command.run_dir import STATE, read_state

#: A run on another machine, whose lock cannot be tested, is dead after this time without updates.
PATIENCE_SECONDS = 1800
#: File with the options and step of the probes fitted by the training command, the data of their
#: scores, and the (task, feature) pairs that `experiments.probe` has replaced since.
PROBE_STAMP = "probes/done.json"
STATES = ("finished", "running", "stopped", "waiting", "audited", "dead", "failed", "unreadable")
HEAD = ("name", "state", "step", "left", "nats", "steps/s")


class Status(NamedTuple):
    """The texts of a run in the columns of `HEAD`. Unknown values are empty."""

    name: str
    state: str
    step: str = ""
    left: str = ""
    nats: str = ""
    rate: str = ""
    problem: str = ""
    """The error and the command to retry."""


def find_runs(
    root: pathlib.Path, unreadable: list[tuple[pathlib.Path, str]]
) -> Iterator[pathlib.Path]:
    """Yield the folders below `root` that contain a run, and all cells of sweeps.

    Folders are identified by device and inode, so cyclic links end. Folders that cannot be read are
    added to `unreadable` with the reason.
    """
    seen: set[tuple[int, int]] = set()

    def skip(error: OSError, path: str) -> None:
        unreadable.append((pathlib.Path(path), f"it cannot be read ({error.strerror or error})"))

    for path, names, _ in os.walk(root, followlinks=True, onerror=lambda e: skip(e, e.filename)):
        folder, children = pathlib.Path(path), names[:]
        names.clear()  # do not descend into a run
        try:
            found = folder.stat()
            cells = read(folder / "sweep.json").get("cells")
            holds_run = isinstance(read(folder / "config.json").get("seed"), int) or any(
                (folder / name).is_file() for name in ("metrics.jsonl", STATE)
            )
        except OSError as error:
            skip(error, path)
            continue
        if (found.st_dev, found.st_ino) not in seen:
            seen.add((found.st_dev, found.st_ino))
            cells = cells if isinstance(cells, dict) else {}
            yield from (folder / name for name in cells)
            if holds_run:
                yield folder
            else:
                others = [n for n in children if n not in cells and not n.startswith(".")]
                names += sorted(others, key=lambda name: ((folder / name).is_symlink(), name))


def read(path: pathlib.Path) -> dict:
    """Return the JSON object in a file, or {} if the file has no readable object."""
    return read_object(path, []) or {}


def read_status(folder: pathlib.Path, name: str) -> Status:
    """Return a run's state from its state.json, even if that is damaged or unrelated."""
    try:
        found = read_state(folder)
    except OSError as error:
        return Status(name, "unreadable", problem=f"it cannot be read ({error.strerror})")
    state, problem, left = found.get("state"), "", ""
    numbers = {key: value for key, value in found.items() if isinstance(value, int | float)}
    if state == "running":
        is_held = lock.is_held(folder)
        if is_held is None:  # on another machine: only recent updates show that it runs
            is_held = time.time() - numbers.get("updated", 0) < PATIENCE_SECONDS
        state = "running" if is_held else "dead"
    elif state == "failed":
        problem = f"{found.get('error', 'unknown')}; to retry: {found.get('command', '')}"
    elif state not in STATES:  # a run from the hub, or a cell that has not started
        is_begun = (folder / "metrics.jsonl").exists()
        has_page = any(folder.glob("*.html"))
        state = "finished" if has_page else "stopped" if is_begun else "waiting"
    step, num_steps = (numbers.get(key, 0) for key in ("step", "num_steps"))
    rate, nats = numbers.get("steps_per_second", 0), found.get("nats")
    if state == "running" and rate > 0:
        left = duration(max(0.0, (num_steps - step) / rate))
    return Status(
        name,
        state,
        f"{step:,} of {num_steps:,}" if num_steps else "",
        left,
        nats if isinstance(nats, str) else "",
        f"{rate:.2f}" if rate else "",
        problem,
    )


def is_done(folder: pathlib.Path) -> bool:
    """Return whether a run has finished training and probes, and has its page and scores."""
    is_finished = read_state(folder).get("state") == "finished"
    return is_finished and any(folder.glob("*.html")) and not has_lost_scores(folder)


def has_lost_scores(folder: pathlib.Path) -> bool:
    """Return whether the recorded scores of a run are missing."""
    return bool(read(folder / PROBE_STAMP).get("data")) and not (folder / "scores.json").exists()


def was_probed(folder: pathlib.Path, num_steps: int | None) -> bool:
    """Return whether the last step of a run was probed, and its scores exist."""
    return read(folder / PROBE_STAMP).get("step") == num_steps and not has_lost_scores(folder)


def table(rows: Sequence[Status], width: int) -> str:
    """Format the states of runs as aligned columns, with lines truncated to `width`.

    >>> print(table([Status("a", "running", "50 of 200", "1:15")], 80))
    name  state    step       left
    a     running  50 of 200  1:15
    """
    texts = [(cut(name, max(8, width // 2)), *columns) for name, *columns, _ in rows]
    return "\n".join(line[:width].rstrip() for line in text_table([HEAD, *texts]))


def cut(text: str, width: int) -> str:
    """Shorten a name at its beginning, since the ends of names distinguish cells.

    >>> cut("sweep/seed=0", 8)
    '…/seed=0'
    """
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def read_all(root: pathlib.Path) -> list[Status]:
    """Return the state of each run in a folder, and of each unreadable folder."""

    def name_of(path):
        return str(path.relative_to(root)) if path != root else path.name

    unreadable: list[tuple[pathlib.Path, str]] = []
    rows = [read_status(path, name_of(path)) for path in dict.fromkeys(find_runs(root, unreadable))]
    return rows + [Status(name_of(path), "unreadable", problem=why) for path, why in unreadable]


def describe(rows: Sequence[Status]) -> str:
    """Format the table, the errors, and the number of runs in each state, for the terminal."""
    states = {state: sum(row.state == state for row in rows) for state in STATES}
    count = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    problems = [f"{row.name}: {row.problem}" for row in rows if row.problem]
    width = shutil.get_terminal_size((120, 24)).columns
    return "\n".join([table(rows, width), *problems, count])


def run(folders: Sequence[str], watch: float | None = None) -> None:
    """Print the table of a folder, and repeat this every `watch` seconds if `watch` is set."""
    if len(folders) != 1:
        raise UserError(f"cpc status takes one folder (got {len(folders)}): pass one, e.g. runs")
    root = pathlib.Path(folders[0]).expanduser()
    if not root.is_dir():
        raise UserError(f"{root} is not a directory: pass one that contains runs, e.g. runs")
    while True:
        rows = read_all(root)
        text = describe(rows) if rows else f"{root} contains no run yet"
        is_screen = watch is not None and sys.stdout.isatty()
        print(f"\x1b[2J\x1b[H{text}" if is_screen else text, flush=True)
        if watch is None:
            return
        time.sleep(max(0.1, watch))


if __name__ == "__main__":
    WATCH = flags.DEFINE_float("watch", None, "Seconds between updates of the table.")
    cli.run(lambda folders: run(folders, WATCH.value), takes_folders=True, shared=())
