"""How all runs of a folder stand: a table, once or every few seconds.

    cpc status runs
    cpc status runs --watch 5

nats is the strict bound, mean over offsets, at the last evaluation; where none is recorded, an
estimate (marked). score is the first one of learned features: where it is no accuracy it is named,
and an arrow says that lower is better. A run is done (training, probes and report), running, dead
(nothing was recorded for long and no process lives), stopped (it saved, and resumes), failed (it
ended in an error), audited (by --audit: nothing was trained), or, of a sweep's cells, waiting (it
was not started yet). What may not be read is unreadable, whatever it holds.
"""

import itertools
import math
import pathlib
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from absl import flags

from cpc.files import read_object, read_text
from cpc.results import (
    Row,
    Run,
    Score,
    information,
    last_scores,
    read_run,
    show_value,
    unit_of,
)
from cpc.train.metrics import duration
from cpc.types import UserError
from experiments.command import cli, lock

#: A run that has recorded nothing for so long, and for so many of its intervals, is dead.
PATIENCE_SECONDS, PATIENCE_INTERVALS = 300, 10
#: By how much the clocks of a machine and of its files may differ.
CLOCK_SECONDS = 60
#: The options and step by which a run's own command has fitted its probes, the data of their
#: scores, and the (task, feature) pairs that `experiments.probe` has replaced since.
PROBED = "probes/done.json"
#: Where runs keep much that is of no concern here.
NOT_RUNS = ("checkpoints", "tensorboard", "figures", "probes", "slurm")


class Status(NamedTuple):
    """How a run stands. What is not known is None."""

    name: str
    state: str
    step: int | None = None
    num_steps: int | None = None
    steps_per_second: float | None = None
    information: Score | None = None
    """log N - L in nats; its method says whether it is a bound."""
    score: Row | None = None
    """The first one of learned features."""
    problem: str = ""
    """The error's sentence and the command to try again."""


def find_runs(
    root: pathlib.Path, unreadable: list[tuple[pathlib.Path, str]]
) -> Iterator[pathlib.Path]:
    """Yield the folders below that hold a run, or a cell of a sweep that waits or failed.

    A folder is known by device and inode, so that links in a circle end; its own path comes before
    those of links to it. What cannot be read is added to `unreadable`, with the reason.
    """
    seen: set[tuple[int, int]] = set()
    folders, links = [root], []
    while folders or links:
        folder = (folders or links).pop()
        try:
            status, children = folder.stat(), sorted(folder.iterdir(), reverse=True)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            waiting, holds_run = read(folder / "sweep.json").get("cells"), is_run(folder)
        except OSError as error:
            unreadable.append((folder, describe_error(error)))
            continue
        waiting = waiting if isinstance(waiting, dict) else {}
        yield from (folder / name for name in waiting)
        if holds_run:
            yield folder
            continue
        for child in children:
            if child.name in (*waiting, *NOT_RUNS) or child.name.startswith("."):
                continue
            try:
                if child.is_dir():
                    (links if child.is_symlink() else folders).append(child)
            except OSError as error:
                unreadable.append((child, describe_error(error)))


def is_run(folder: pathlib.Path) -> bool:
    """Return whether a folder is the directory of a run, or of one that failed at once."""
    has_config = isinstance(read(folder / "config.json").get("seed"), int)
    return has_config or any((folder / name).is_file() for name in ("metrics.jsonl", "failed.json"))


def describe_error(error: OSError) -> str:
    """Return in a line why something is left out."""
    return f"it cannot be read ({error.strerror or error})"


def read(path: pathlib.Path) -> dict:
    """Return the object in a file, an empty one where there is none."""
    return read_object(path, []) or {}


def read_status(folder: pathlib.Path, name: str, now: float) -> Status:
    """Return how a run stands, from its files, which may be damaged or of something else."""
    try:
        run = read_run(folder)
    except UserError:
        run = None
    except OSError as error:
        return Status(name, "unreadable", problem=describe_error(error))
    failure, process = read(folder / "failed.json"), lock.is_held(folder)
    problem = ""
    if run is not None and is_complete(run):
        state = "done"
    elif process:  # whatever an earlier start has left there
        state = "running"
    elif failure:
        state = "failed"
        problem = f"{failure.get('error', 'no word')}; to try again: {failure.get('command', '')}"
    elif run is None or not (run.config or len(run.metrics)):
        state = "waiting"
    elif read(folder / "audit.json").get("is_all") and not len(run.metrics):
        state = "audited"
    elif was_stopped(folder) or lock.was_released(folder):
        state = "stopped"
    else:
        state = "running" if process is None and is_fresh(run, now) else "dead"
    if run is None:
        return Status(name, state, problem=problem)
    rates = run.train.get("steps_per_second", [])
    rate = [one for one in rates if isinstance(one, float) and math.isfinite(one)][-1:]
    return Status(
        name,
        state,
        run.step if len(run.train) else None,
        run.num_steps,
        rate[0] if rate else None,
        information(run),
        first_score(run),
        problem,
    )


def first_score(run: Run) -> Row | None:
    """Return the first score that was recorded of learned features, a linear one before others."""
    scores = list(last_scores(run.scores).itertuples())
    learned = [score for score in scores if score.features in ("c", "z")]
    linear = [score for score in learned if score.method == "linear"]
    return next(iter(linear or learned or scores), None)


def is_done(folder: pathlib.Path) -> bool:
    """Return whether a run has trained to its end, been probed, and has its page."""
    try:
        return is_complete(read_run(folder))
    except UserError:
        return False


def is_complete(run: Run) -> bool:
    """Return whether a run has trained to its end, been probed, and has its page."""
    if "num_steps" not in run.train:  # what trains towards no step has a page when all is measured
        return any(run.workdir.glob("*.html"))
    if not (run.workdir / "report.html").exists():
        return False
    num_steps, probe = run.num_steps, run.config.get("probe")
    tasks = probe.get("tasks") if isinstance(probe, dict) else None
    probed = not tasks or was_probed(run.workdir, num_steps)
    return len(run.train) > 0 and run.step == num_steps and probed


def was_probed(folder: pathlib.Path, num_steps: int | None) -> bool:
    """Return whether a run has recorded that its last step was probed, and has the scores."""
    stamp = read(folder / PROBED)
    is_lost = stamp.get("data") and not (folder / "scores.json").exists()
    return not is_lost and stamp.get("step") == num_steps


def was_stopped(folder: pathlib.Path) -> bool:
    """Whether a cell of a sweep was told to stop, and saved."""
    try:
        lines = read_text(folder / "log.txt", errors="replace").splitlines()
    except OSError:
        return False
    return bool(lines) and lines[-1].startswith("stopped by ")


def is_fresh(run: Run, now: float) -> bool:
    """Return whether the newest file is recent, which has to do where no process is known."""
    folder = run.workdir
    times = [time_of(path) for path in [folder, *folder.glob("*"), *folder.glob("probes/*")]]
    seconds = [one for one in run.train.get("seconds", []) if isinstance(one, int | float)]
    gaps = [b - a for a, b in itertools.pairwise(seconds) if b > a]
    interval = statistics.median(gaps) if gaps else 0.0
    return now - max(times) < max(PATIENCE_SECONDS, PATIENCE_INTERVALS * interval)


def time_of(path: pathlib.Path) -> float:
    """When it was written; 0 if it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def table(rows: Sequence[Status], width: int) -> str:
    """Aligned columns; where they do not fit, those that say least go, then names are cut.

    >>> score = Score("words", "news", "utterance", "c", "ctc", "error rate", 0.5, None, None, None,
    ...     higher_is_better=False)
    >>> print(table([Status("a", "running", 50, 200, 2.0, None, score)], 80))
    name       step  steps/s  nats  score                left  state
    a     50 of 200     2.00     –  50.0 % error rate ↓  1:15  running
    """
    columns = [
        ("name", [row.name for row in rows], False),
        ("step", aligned_steps(rows), True),
        ("steps/s", [show(row.steps_per_second, ".2f") for row in rows], True),
        ("nats", [nats_text(row.information) for row in rows], True),
        ("score", [score_text(row.score) for row in rows], False),
        ("left", [time_left(row) for row in rows], True),
        ("state", [row.state for row in rows], False),
    ]
    widths = {head: max(map(len, [head, *cells])) for head, cells, _ in columns}
    for head in ("steps/s", "left", "score", "nats"):
        if sum(widths.values()) + 2 * len(widths) - 2 > width and widths["name"] > 12:
            del widths[head]
    over = sum(widths.values()) + 2 * len(widths) - 2 - width
    if over > 0:
        widths["name"] = max(8, widths["name"] - over)
    lines = []
    for number in range(-1, len(rows)):
        cells = []
        for head, texts, is_right in columns:
            if head in widths:
                text = cut(head if number < 0 else texts[number], widths[head])
                cells.append(text.rjust(widths[head]) if is_right else text.ljust(widths[head]))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def cut(text: str, width: int) -> str:
    """Return a name cut at its beginning, as the end is what tells cells apart.

    >>> cut("sweep/seed=0", 8)
    '…/seed=0'
    """
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def aligned_steps(rows: Sequence[Status]) -> list[str]:
    """Step and number of steps."""
    ends = [show(row.num_steps, ",.0f") for row in rows]
    width = max(map(len, ends), default=0)
    return [
        f"{show(row.step, ',.0f')} of {end:>{width}}" if row.step is not None else end
        for row, end in zip(rows, ends, strict=True)
    ]


def show(value: float | int | None, style: str) -> str:
    """Return a number, or a dash."""
    return "–" if value is None else format(value, style)


def nats_text(found: Score | None) -> str:
    """Return log N - L in nats; what is no bound says so."""
    if found is None:
        return "–"
    return f"{found.value:.2f}" + ("" if found.method == "bound" else " (estimate)")


def score_text(score: Row | None) -> str:
    """Return a score with its unit; what is no accuracy is named, an arrow if lower is better."""
    if score is None:
        return "–"
    metric = "" if score.metric in ("accuracy", unit_of(score.metric)) else score.metric
    parts = show_value(score.value, score.metric), unit_of(score.metric), metric
    return " ".join([*filter(None, parts), *([] if score.higher_is_better else ["↓"])])


def time_left(row: Status) -> str:
    """Return the time left of the training, at its last rate."""
    if row.state != "running" or not row.steps_per_second or None in (row.step, row.num_steps):
        return "–"
    return duration(max(0.0, ((row.num_steps or 0) - (row.step or 0)) / row.steps_per_second))


def read_all(root: pathlib.Path) -> list[Status]:
    """Every run of a folder, and what of it cannot be read."""

    def name_of(path):
        return str(path.relative_to(root)) if path != root else path.name

    now, unreadable = time.time(), []
    found = dict.fromkeys(find_runs(root, unreadable))
    rows = [read_status(path, name_of(path), now) for path in found]
    return rows + [Status(name_of(path), "unreadable", problem=why) for path, why in unreadable]


def describe(rows: Sequence[Status], width: int) -> str:
    """The table, what failed, and the count of each state."""
    states = {state: sum(row.state == state for row in rows) for state in STATES}
    count = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    problems = [f"{row.name}: {row.problem}" for row in rows if row.problem]
    return "\n".join([table(rows, width), *problems, count])


STATES = ("done", "running", "stopped", "waiting", "audited", "dead", "failed", "unreadable")


def run(folders: Sequence[str], watch: float | None = None) -> None:
    """Print the table of a folder, again and again every `watch` seconds if that is given."""
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
