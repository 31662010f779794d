"""Show the state of all runs in a folder: a table, once or every few seconds.

    cpc status runs
    cpc status runs --watch 5

nats is the strict bound at the last evaluation, the mean over offsets k that are neither saturated
nor share input with the context, or else the furthest; if none is recorded, an estimate (marked).
score is the first one of learned features; it is named unless it is an accuracy, and an arrow says
that lower is better. Each run records its own state: running, finished (training, probes and
report), stopped (it saved, and resumes), failed (it ended in an error) or audited (by --audit:
nothing was trained). A running one whose process is gone is dead, and a sweep's cells are waiting
until they start. A run without permission to read is unreadable.
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

#: A run on another machine, whose lock cannot be tried from here, is dead after this silence.
PATIENCE_SECONDS = 1800
#: The options and step by which a run's own command has fitted its probes, the data of their
#: scores, and the (task, feature) pairs that `experiments.probe` has replaced since.
PROBE_STAMP = "probes/done.json"
#: Folders of a run that hold no other runs.
NOT_RUNS = ("checkpoints", "tensorboard", "figures", "probes", "slurm")
STATES = ("finished", "running", "stopped", "waiting", "audited", "dead", "failed", "unreadable")


class Status(NamedTuple):
    """The state of a run; None for an unknown value."""

    name: str
    state: str
    step: int | None = None
    num_steps: int | None = None
    steps_per_second: float | None = None
    information: Score | None = None
    """log N - L in nats; its method says whether it is a bound."""
    score: Row | None = None
    """The first one of learned features, a linear probe's before others."""
    problem: str = ""
    """The error's sentence and the command to try again."""


def find_runs(
    root: pathlib.Path, unreadable: list[tuple[pathlib.Path, str]]
) -> Iterator[pathlib.Path]:
    """Yield the folders below that hold a run, or a cell of a sweep that waits or failed.

    A folder is known by device and inode, so that links in a circle end. Folders that cannot be
    read are added to `unreadable`, with the reason.
    """
    seen: set[tuple[int, int]] = set()

    def skip(error: OSError, path: pathlib.Path) -> None:
        unreadable.append((path, f"it cannot be read ({error.strerror or error})"))

    walk = os.walk(root, followlinks=True, onerror=lambda e: skip(e, pathlib.Path(e.filename)))
    for path, names, _ in walk:
        folder, children = pathlib.Path(path), names[:]
        names.clear()  # unless this folder holds no run
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
    """Return the object in a file, an empty one if there is none."""
    return read_object(path, []) or {}


def read_status(folder: pathlib.Path, name: str, now: float) -> Status:
    """Return the state of a run, from its files, which may be damaged or of another program."""
    recorded = read_state(folder)
    state, problem = recorded.get("state"), ""
    if state == "running":
        is_held = lock.is_held(folder)
        if is_held is None:  # the updates are all that shows it from here
            updated = recorded.get("updated")
            is_held = isinstance(updated, float) and now - updated < PATIENCE_SECONDS
        state = "running" if is_held else "dead"
    elif state == "failed":
        problem = f"{recorded.get('error', 'no word')}; to try again: {recorded.get('command', '')}"
    try:
        run = read_run(folder)
    except UserError:
        return Status(name, state or "waiting", problem=problem)
    except OSError as error:
        return Status(name, "unreadable", problem=f"it cannot be read ({error.strerror})")
    if state not in STATES:  # a run without a record of its own, such as one from a hub
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
    """Return whether a run has trained to its end, been probed, and has its page and scores."""
    is_finished = read_state(folder).get("state") == "finished"
    return is_finished and any(folder.glob("*.html")) and not has_lost_scores(folder)


def has_lost_scores(folder: pathlib.Path) -> bool:
    """Return whether a run has recorded scores of its probes that are gone."""
    return bool(read(folder / PROBE_STAMP).get("data")) and not (folder / "scores.json").exists()


def was_probed(folder: pathlib.Path, num_steps: int | None) -> bool:
    """Return whether a run has recorded that its last step was probed, and has the scores."""
    return read(folder / PROBE_STAMP).get("step") == num_steps and not has_lost_scores(folder)


def table(rows: Sequence[Status], width: int) -> str:
    """Return aligned columns, cut at the right if they do not fit.

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
    """Return a name cut at its beginning, as the end is what tells cells apart.

    >>> cut("sweep/seed=0", 8)
    '…/seed=0'
    """
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def score_text(score: Row | None) -> str:
    """Return a score with its unit, its name unless accuracy, and an arrow if lower is better."""
    if score is None:
        return ""
    metric = "" if score.metric in ("accuracy", unit_of(score.metric)) else score.metric
    parts = show_value(score.value, score.metric), unit_of(score.metric), metric
    return " ".join([*filter(None, parts), *([] if score.higher_is_better else ["↓"])])


def read_all(root: pathlib.Path) -> list[Status]:
    """Return the state of every run of a folder, and of every folder that cannot be read."""

    def name_of(path):
        return str(path.relative_to(root)) if path != root else path.name

    now, unreadable = time.time(), []
    found = dict.fromkeys(find_runs(root, unreadable))
    rows = [read_status(path, name_of(path), now) for path in found]
    return rows + [Status(name_of(path), "unreadable", problem=why) for path, why in unreadable]


def describe(rows: Sequence[Status], width: int) -> str:
    """Return the table, the errors, and the count of each state."""
    states = {state: sum(row.state == state for row in rows) for state in STATES}
    count = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    problems = [f"{row.name}: {row.problem}" for row in rows if row.problem]
    return "\n".join([table(rows, width), *problems, count])


def run(folders: Sequence[str], watch: float | None = None) -> None:
    """Print the table of a folder, again every `watch` seconds if that is given."""
    if len(folders) != 1:
        raise UserError(f"{len(folders)} folders are given: name one with runs, such as runs")
    root = pathlib.Path(folders[0]).expanduser()
    if not root.is_dir():
        raise UserError(f"{root} is not a directory: pass one that contains runs, e.g. runs")
    while True:
        rows = read_all(root)
        width = shutil.get_terminal_size((120, 24)).columns
        text = describe(rows, width) if rows else f"{root} holds no run yet"
        is_screen = watch is not None and sys.stdout.isatty()
        print(f"\x1b[2J\x1b[H{text}" if is_screen else text, flush=True)
        if watch is None:
            return
        time.sleep(max(0.1, watch))


if __name__ == "__main__":
    WATCH = flags.DEFINE_float("watch", None, "Seconds after which the table is shown again.")
    cli.run(lambda folders: run(folders, WATCH.value), takes_folders=True, shared=())
