"""Show the state of all runs in a folder as a table, once or every few seconds.

    cpc status runs
    cpc status runs --watch 5

The column nats contains the strict bound at the last evaluation. It is averaged over the offsets k
that are neither saturated nor share input with the context, or is the bound at the furthest offset
if there are none. Without a bound, the column contains an estimate, marked as such. The column
score contains the first score of learned features, with its name unless it is an accuracy, and an
arrow if lower is better. A run records its state: running, finished (training, probes and report),
stopped (saved, so that it can be resumed), failed (ended by an error) or audited (by --audit,
without training). A running run whose process is gone is dead, cells of a sweep are waiting until
they start, and a run without read permission is unreadable.
"""

import math
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from absl import flags

from cpc.files import read_object
from cpc.results import Row, Score, information, last_scores, read_run, show_value, unit_of
from cpc.results.score import text_table
from cpc.train.metrics import duration
from cpc.types import UserError
from experiments.command import cli, lock
from experiments.command.run_dir import STATE, read_state

#: A run on another machine, whose lock cannot be tested, is dead after this time without updates.
PATIENCE_SECONDS = 1800
#: File with the options and step of the probes fitted by the training command, the data of their
#: scores, and the (task, feature) pairs that `experiments.probe` has replaced since.
PROBE_STAMP = "probes/done.json"
#: Folders of a run that do not contain other runs.
NOT_RUNS = ("checkpoints", "tensorboard", "figures", "probes", "slurm")
STATES = ("finished", "running", "stopped", "waiting", "audited", "dead", "failed", "unreadable")


class Status(NamedTuple):
    """The state of a run. Unknown values are None."""

    name: str
    state: str
    step: int | None = None
    num_steps: int | None = None
    steps_per_second: float | None = None
    information: Score | None = None
    """log N - L in nats, whose method is "bound" or "estimate"."""
    score: Row | None = None
    """The first score of learned features, preferably by a linear probe."""
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

    def skip(error: OSError, path: pathlib.Path) -> None:
        unreadable.append((path, f"it cannot be read ({error.strerror or error})"))

    walk = os.walk(root, followlinks=True, onerror=lambda e: skip(e, pathlib.Path(e.filename)))
    for path, names, _ in walk:
        folder, children = pathlib.Path(path), names[:]
        names.clear()  # do not descend into a run
        try:
            found = folder.stat()
            cells = read(folder / "sweep.json").get("cells")
            holds_run = isinstance(read(folder / "config.json").get("seed"), int) or any(
                (folder / name).is_file() for name in ("metrics.jsonl", STATE)
            )
        except OSError as error:
            skip(error, folder)
            continue
        if (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
        cells = cells if isinstance(cells, dict) else {}
        yield from (folder / name for name in cells)
        if holds_run:
            yield folder
            continue
        others = [n for n in children if n not in (*cells, *NOT_RUNS) and not n.startswith(".")]
        names += sorted(others, key=lambda name: ((folder / name).is_symlink(), name))


def read(path: pathlib.Path) -> dict:
    """Return the JSON object in a file, or {} if the file has no readable object."""
    return read_object(path, []) or {}


def read_status(folder: pathlib.Path, name: str, now: float) -> Status:
    """Return a run's state from its files, even if some are damaged or unrelated."""
    recorded = read_state(folder)
    state, problem = recorded.get("state"), ""
    if state == "running":
        is_held = lock.is_held(folder)
        if is_held is None:  # on another machine: only recent updates show that it runs
            updated = recorded.get("updated")
            is_held = isinstance(updated, float) and now - updated < PATIENCE_SECONDS
        state = "running" if is_held else "dead"
    elif state == "failed":
        problem = f"{recorded.get('error', 'unknown')}; to retry: {recorded.get('command', '')}"
    try:
        run = read_run(folder)
    except UserError:
        return Status(name, state or "waiting", problem=problem)
    except OSError as error:
        return Status(name, "unreadable", problem=f"it cannot be read ({error.strerror})")
    if state not in STATES:  # not recorded, such as in a run from the hub
        is_begun = run.config or len(run.metrics)
        has_page = any(folder.glob("*.html"))
        state = "finished" if has_page else "stopped" if is_begun else "waiting"
    rates = run.train.get("steps_per_second", [])
    rate = [one for one in rates if isinstance(one, float) and math.isfinite(one)][-1:]
    step = run.step if len(run.train) else None
    scores = list(last_scores(run.scores).itertuples())
    learned = [score for score in scores if score.features in ("c", "z")]
    linear = [score for score in learned if score.method == "linear"]
    return Status(
        name,
        state,
        step,
        run.num_steps,
        steps_per_second=(*rate, None)[0],
        information=information(run),
        score=next(iter(linear or learned or scores), None),
        problem=problem,
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

    >>> score = Score("words", "news", "utterance", "c", "ctc", "error rate", 0.5, None, None, None,
    ...     higher_is_better=False)
    >>> print(table([Status("a", "running", 50, 200, 2.0, None, score)], 80))
    name  state    step       left  score                steps/s
    a     running  50 of 200  1:15  50.0 % error rate ↓  2.00
    """
    texts = [("name", "state", "step", "left", "nats", "score", "steps/s")]
    for row in rows:
        step = end = "" if row.num_steps is None else f"{row.num_steps:,}"
        nats = left = rate = ""
        if row.step is not None:
            step = f"{row.step:,} of {end or '?'}"
        if found := row.information:
            kind = "" if found.method == "bound" else ", estimate"
            nats = f"{found.value:.2f} ({found.setting}{kind})"
        if row.steps_per_second:
            rate = f"{row.steps_per_second:.2f}"
            if row.state == "running" and row.num_steps is not None:
                missing = row.num_steps - (row.step or 0)
                left = duration(max(0.0, missing / row.steps_per_second))
        name = cut(row.name, max(8, width // 2))
        texts.append((name, row.state, step, left, nats, score_text(row.score), rate))
    return "\n".join(line[:width].rstrip() for line in text_table(texts))


def cut(text: str, width: int) -> str:
    """Shorten a name at its beginning, since the ends of names distinguish cells.

    >>> cut("sweep/seed=0", 8)
    '…/seed=0'
    """
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def score_text(score: Row | None) -> str:
    """Format a score with its unit, its name if not accuracy, and an arrow if lower is better."""
    if score is None:
        return ""
    metric = "" if score.metric in ("accuracy", unit_of(score.metric)) else score.metric
    parts = show_value(score.value, score.metric), unit_of(score.metric), metric
    return " ".join([*filter(None, parts), *([] if score.higher_is_better else ["↓"])])


def read_all(root: pathlib.Path) -> list[Status]:
    """Return the state of each run in a folder, and of each unreadable folder."""

    def name_of(path):
        return str(path.relative_to(root)) if path != root else path.name

    now, unreadable = time.time(), []
    found = dict.fromkeys(find_runs(root, unreadable))
    rows = [read_status(path, name_of(path), now) for path in found]
    return rows + [Status(name_of(path), "unreadable", problem=why) for path, why in unreadable]


def describe(rows: Sequence[Status], width: int) -> str:
    """Format the table, the errors, and the number of runs in each state."""
    states = {state: sum(row.state == state for row in rows) for state in STATES}
    count = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    problems = [f"{row.name}: {row.problem}" for row in rows if row.problem]
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
        width = shutil.get_terminal_size((120, 24)).columns
        text = describe(rows, width) if rows else f"{root} contains no run yet"
        is_screen = watch is not None and sys.stdout.isatty()
        print(f"\x1b[2J\x1b[H{text}" if is_screen else text, flush=True)
        if watch is None:
            return
        time.sleep(max(0.1, watch))


if __name__ == "__main__":
    WATCH = flags.DEFINE_float("watch", None, "Seconds between updates of the table.")
    cli.run(lambda folders: run(folders, WATCH.value), takes_folders=True, shared=())
