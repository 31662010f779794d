"""How all runs of a folder stand: a table, once or every few seconds.

python -m experiments.status runs
python -m experiments.status runs --watch 5

nats is the strict bound, mean over offsets, at the last evaluation; where none is recorded, the
score (marked). probe is the linear probe on c (pictures: z). A run is done (training, probes and
report), running, dead (nothing was recorded for long and no process lives), or, of a sweep's cells,
stopped (it saved, and resumes), failed (it ended in an error), waiting (it was not started yet).
"""

import argparse
import itertools
import json
import os
import pathlib
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cpc.train.metrics import duration
from cpc.types import UserError
from experiments.launch import fail

#: A run that has recorded nothing for so long, and for so many of its intervals, is dead.
PATIENCE_SECONDS, PATIENCE_INTERVALS = 300, 10
#: By how much the clocks of a machine and of its files may differ.
CLOCK_SECONDS = 60
#: Where runs keep much that is of no concern here.
NOT_RUNS = ("checkpoints", "tensorboard", "figures", "probes", "slurm")


class Status(NamedTuple):
    """How a run stands. What is not known is None."""

    name: str
    state: str
    step: int | None = None
    num_steps: int | None = None
    steps_per_second: float | None = None
    nats: float | None = None
    is_bound: bool = True
    probe: float | None = None
    """Accuracy, 0 to 1."""
    problem: str = ""
    """The error's sentence and the command to try again."""


def find_runs(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Folders below that hold a run, or a cell of a sweep that waits or failed."""
    waiting = read_json(root / "sweep.json").get("cells")
    waiting = waiting if isinstance(waiting, dict) else {}
    yield from (root / name for name in waiting)
    try:
        children = sorted(path for path in root.iterdir() if path.is_dir())
    except OSError:
        children = []
    is_run = isinstance(read_json(root / "config.json").get("seed"), int)
    if is_run or (root / "metrics.jsonl").is_file() or (root / "failed.json").is_file():
        yield root
        return
    for child in children:
        if child.name not in (*waiting, *NOT_RUNS) and not child.name.startswith("."):
            yield from find_runs(child)


def read_status(folder: pathlib.Path, name: str, now: float) -> Status:
    """From the files of a run, which may be damaged or of something else."""
    config, records = read_json(folder / "config.json"), read_records(folder / "metrics.jsonl")
    train = [record for record in records if record.get("split") == "train"]
    last = train[-1] if train else {}
    rate = number(last.get("steps_per_second"))
    nats, is_bound = read_nats(records)
    failure, process = read_json(folder / "failed.json"), has_process(folder)
    problem = ""
    if is_done(folder):
        state = "done"
    elif process:  # whatever an earlier start has left there
        state = "running"
    elif failure:
        state = "failed"
        problem = f"{failure.get('error', 'no word')}; to try again: {failure.get('command', '')}"
    elif not config and not records:
        state = "waiting"
    elif was_stopped(folder):
        state = "stopped"
    else:
        state = "running" if process is None and is_fresh(folder, train, now) else "dead"
    steps = [number(value) for value in (last.get("step"), config.get("num_steps"))]
    step, num_steps = (None if value is None else int(value) for value in steps)
    probe = read_probe(folder)
    return Status(name, state, step, num_steps, rate, nats, is_bound, probe, problem)


def is_done(folder: pathlib.Path) -> bool:
    """Whether a run has trained to its end, probed, and written its report."""
    config = read_json(folder / "config.json")
    if not (folder / "report.html").exists():
        return False
    if "protocol" in config:  # estimates of mutual information
        return (folder / "table.json").exists()
    num_steps, probe = config.get("num_steps"), config.get("probe")
    tasks = probe.get("tasks") if isinstance(probe, dict) else None
    train = [r for r in read_records(folder / "metrics.jsonl") if r.get("split") == "train"]
    probed = not tasks or read_json(folder / "probes" / "done.json").get("step") == num_steps
    return bool(train) and train[-1].get("step") == num_steps and probed


def was_stopped(folder: pathlib.Path) -> bool:
    """Whether a cell of a sweep was told to stop, and saved."""
    try:
        lines = (folder / "log.txt").read_text(errors="replace").splitlines()
    except OSError:
        return False
    return bool(lines) and lines[-1].startswith("stopped by ")


def has_process(folder: pathlib.Path) -> bool | None:
    """Whether the recorded process lives; None if none is recorded, or one of another machine."""
    path = folder / "environment.json"
    environment = read_json(path)
    pid = environment.get("pid")
    if isinstance(pid, int) and pid > 0 and environment.get("host") == platform.node():
        return is_alive(pid, time_of(path))
    return None


def is_alive(pid: int, recorded: float) -> bool:
    """Whether a process that was there at that time, in seconds since 1970, still is."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is another user's
        pass
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # this is no Linux
        return True
    # proc(5): what follows the name in brackets is the state, Z of one that has ended, and in the
    # 22nd field the start, in ticks since boot. Who started later has been given the number anew.
    state, *fields = stat.rpartition(")")[2].split()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[18]) / os.sysconf("SC_CLK_TCK")
    return state not in "ZX" and time.time() - age < recorded + CLOCK_SECONDS


def is_fresh(folder: pathlib.Path, train: list[dict[str, Any]], now: float) -> bool:
    """Whether its newest file is: all there is to go by where no process is known."""
    times = [time_of(path) for path in [folder, *folder.glob("*"), *folder.glob("probes/*")]]
    seconds = [found for r in train if (found := number(r.get("seconds"))) is not None]
    gaps = [b - a for a, b in itertools.pairwise(seconds) if b > a]
    interval = statistics.median(gaps) if gaps else 0.0
    return now - max(times) < max(PATIENCE_SECONDS, PATIENCE_INTERVALS * interval)


def time_of(path: pathlib.Path) -> float:
    """When it was written; 0 if it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def read_nats(records: list[dict[str, Any]]) -> tuple[float | None, bool]:
    """The newest bound on held-out data, or else the newest score; and which it is."""
    for is_bound in (True, False):
        for record in reversed(records):
            nats = number(record.get("nats"))
            kind = record.get("split"), record.get("is_bound")
            if kind == ("test", is_bound) and nats is not None:
                return nats, is_bound
    return None, True


def read_probe(folder: pathlib.Path) -> float | None:
    """Accuracy of the first task's linear probe on c, for pictures on z."""
    for path in sorted(folder.glob("probes/*.json")):
        rows = read_json(path).get("rows")
        rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        first = "zc" if any(row.get("unit") == "picture" for row in rows) else "cz"
        for features in first:
            for row in rows:
                if row.get("features") == features and row.get("probe") == "linear":
                    return number(row.get("accuracy"))
    return None


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """The object in a file; an empty one where there is none."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def read_records(path: pathlib.Path) -> list[dict[str, Any]]:
    """The lines of a file that are records."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and number(record.get("step")) is not None:
            records.append(record)
    return records


def number(value: Any) -> float | None:
    """A finite number, or None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e18 else None


def table(rows: Sequence[Status], width: int) -> str:
    """Aligned columns; where they do not fit, those that say least go, then names are cut.

    >>> print(table([Status("a", "running", 50, 200, 2.0, 1.5, True, 0.5)], 80))
    name       step  steps/s  nats  probe %  left  state
    a     50 of 200     2.00  1.50     50.0  1:15  running
    """
    columns = [
        ("name", [row.name for row in rows], False),
        ("step", aligned_steps(rows), True),
        ("steps/s", [show(row.steps_per_second, ".2f") for row in rows], True),
        ("nats", [nats_text(row) for row in rows], True),
        ("probe %", [show(row.probe, ".1f", 100) for row in rows], True),
        ("left", [time_left(row) for row in rows], True),
        ("state", [row.state for row in rows], False),
    ]
    widths = {head: max(map(len, [head, *cells])) for head, cells, _ in columns}
    for head in ("steps/s", "left", "probe %", "nats"):
        if sum(widths.values()) + 2 * len(widths) - 2 > width and widths["name"] > 12:
            del widths[head]
    over = sum(widths.values()) + 2 * len(widths) - 2 - width
    if over > 0:
        widths["name"] = max(8, widths["name"] - over)
    lines = []
    for place in range(-1, len(rows)):
        cells = []
        for head, texts, is_right in columns:
            if head in widths:
                text = cut(head if place < 0 else texts[place], widths[head])
                cells.append(text.rjust(widths[head]) if is_right else text.ljust(widths[head]))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def cut(text: str, width: int) -> str:
    """Its end is what tells cells apart.

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


def show(value: float | None, style: str, scale: float = 1.0) -> str:
    """A number, or a dash."""
    return "–" if value is None else format(scale * value, style)


def nats_text(row: Status) -> str:
    """What is no bound says so."""
    return show(row.nats, ".2f") + ("" if row.is_bound else " (score)")


def time_left(row: Status) -> str:
    """Of the training, at its last rate."""
    if row.state != "running" or not row.steps_per_second or None in (row.step, row.num_steps):
        return "–"
    return duration(max(0.0, ((row.num_steps or 0) - (row.step or 0)) / row.steps_per_second))


def read_all(root: pathlib.Path) -> list[Status]:
    """Every run of a folder."""
    now = time.time()
    found = list(dict.fromkeys(find_runs(root)))
    names = [str(path.relative_to(root)) if path != root else path.name for path in found]
    return [read_status(path, name, now) for path, name in zip(found, names, strict=True)]


def describe(rows: Sequence[Status], width: int) -> str:
    """The table, what failed, and the count of each state."""
    states = {state: sum(row.state == state for row in rows) for state in STATES}
    count = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    problems = [f"{row.name}: {row.problem}" for row in rows if row.problem]
    return "\n".join([table(rows, width), *problems, count])


STATES = ("done", "running", "stopped", "waiting", "dead", "failed")


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    words = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "experiments.status", description=__doc__, formatter_class=words
    )
    parser.add_argument("runs", type=pathlib.Path, help="folder with runs, at any depth")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="show again and again")
    options = parser.parse_args(argv)
    root = options.runs.expanduser()
    if not root.is_dir():
        raise UserError(f"{root} is no folder: name one with runs, such as runs")
    while True:
        rows = read_all(root)
        width = shutil.get_terminal_size((120, 24)).columns
        text = describe(rows, width) if rows else f"{root} holds no run yet"
        is_screen = options.watch is not None and sys.stdout.isatty()
        print(f"\x1b[2J\x1b[H{text}" if is_screen else text, flush=True)
        if options.watch is None:
            return
        time.sleep(max(0.1, options.watch))


if __name__ == "__main__":
    try:
        main()
    except UserError as problem:
        fail(str(problem))
    except KeyboardInterrupt:
        sys.exit(0)
