"""Runs side by side: which of them are one cell, in what cells differ, and by how much."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from cpc.report import markup
from cpc.report.probe_figures import PROBES, feature_order, grouped_rows
from cpc.report.records import Record, Run, known, mean_known, read_run
from cpc.report.tables import flatten
from cpc.report.words import PICTURES, words_of
from cpc.types import UserError

#: Keys of a config that change no number of the table; the seed has its own place there, and what
#: was probed shows in the columns.
ASIDE = (
    "seed",
    "log_every",
    "eval_every",
    "save_every",
    "data.num_threads",
    "probe.tasks",
    "probe.features",
)


class Estimate(NamedTuple):
    """A number with its 95 % interval, whose ends are NaN where nothing gives one."""

    value: float | int
    low: float | int
    high: float | int


class Probe(NamedTuple):
    """What tells the probes of a run apart."""

    task: str
    data: str
    unit: str
    features: str
    probe: str


class Entry(NamedTuple):
    """One run; None where it has recorded nothing, and why it is not whole, if it is not."""

    name: str
    run: Run | None
    problem: str


class Cell(NamedTuple):
    """Runs that differ in nothing but the seed."""

    name: str
    entries: list[Entry]

    @property
    def runs(self) -> list[Run]:
        """Those that have recorded something."""
        return [entry.run for entry in self.entries if entry.run is not None]

    @property
    def config(self) -> dict[str, Any]:
        """Of the first run."""
        return self.runs[0].config if self.runs else {}


class ProbeRow(NamedTuple):
    """A probe of a cell, beside the same probe of the untrained network and of the first cell."""

    accuracy: Estimate
    over_untrained: Estimate | None
    over_first: Estimate | None


def read_cells(runs: Sequence[tuple[str, Path]]) -> list[Cell]:
    """Runs by cell, in the order given.

    A cell of a sweep that failed has a failed.json with the error's sentence and the command.
    """
    return group_by_seed([entry for name, path in runs if (entry := read_entry(name, path))])


def read_entry(name: str, path: Path) -> Entry | None:
    """A run as far as it is; nothing where it has not begun."""
    problem, run = "", None
    try:
        failure = json.loads((path / "failed.json").read_text())
        problem = f"failed: {failure['error']}. To try again: {failure['command']}"
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        if (path / "config.json").exists() or (path / "metrics.jsonl").exists():
            run = read_run(path)
    except (UserError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        problem = problem or f"cannot be read: {error}"
    return Entry(name, run, problem) if run or problem else None


def group_by_seed(entries: Sequence[Entry]) -> list[Cell]:
    """One cell for runs whose configs are equal but for the seed, which differs."""
    groups: list[list[Entry]] = []
    for entry in entries:
        for group in groups:
            if all(are_one_cell(entry, other) for other in group):
                group.append(entry)
                break
        else:
            groups.append([entry])
    names = [stem(group[0].name) for group in groups]
    return [
        Cell(name if names.count(name) == 1 else group[0].name, group)
        for name, group in zip(names, groups, strict=True)
    ]


def are_one_cell(a: Entry, b: Entry) -> bool:
    """By config; names decide where they end in a seed, and where nothing is recorded."""
    if a.run is not None and b.run is not None:
        one, other = dict(a.run.config), dict(b.run.config)
        if one.pop("seed", None) == other.pop("seed", None) or one != other:
            return False
        if stem(a.name) == a.name or stem(b.name) == b.name:
            return True
    return stem(a.name) == stem(b.name)


def stem(name: str) -> str:
    """A run's name without its seed.

    >>> stem("norm,seed=3"), stem("voices")
    ('norm', 'voices')
    """
    return re.sub(r"[,_-]seed[=_-]?\d+$", "", name) or name


def differing_keys(cells: Sequence[Cell]) -> list[str]:
    """Keys of the configs that have not the same value in all cells, and matter to the numbers."""
    flat = [dict(flatten(cell.config)) for cell in cells if cell.runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    return [key for key in keys if key not in ASIDE and len({one.get(key) for one in flat}) > 1]


def value_of(cell: Cell, key: str) -> Any:
    """A key's value in a cell; None if it has none."""
    value: Any = cell.config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def over_seeds(values: Sequence[float | int]) -> Estimate:
    """Mean and Student's t-interval of measurements with different seeds.

    mean +- t(0.975, n - 1) s / sqrt(n); t is 4.3027 for three.

    >>> estimate = over_seeds([1.0, 2.0, 3.0])
    >>> estimate.value, round(estimate.high - 2, 4), round(4.30265 / 3**0.5, 4)
    (2.0, 2.4841, 2.4841)
    """
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Estimate(mean, math.nan, math.nan)
    half = stdtrit(count - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(count)
    return Estimate(mean, float(mean - half), float(mean + half))


def with_interval(estimate: Estimate, scale: float | int, style: str) -> str:
    """A number and, in brackets, its interval.

    >>> with_interval(Estimate(0.5, 0.4, 0.6), 100, ".1f")
    '50.0 (40.0 to 60.0)'
    """
    value, low, high = (scale * one for one in estimate)
    text = markup.number_text(value, style)
    if math.isfinite(low + high):
        text += f" ({low:{style}} to {high:{style}})"
    return text.replace("-", "−")


def difference(a: Estimate, b: Estimate) -> Estimate:
    """Difference a - b of independent estimates, from their intervals.

    The method of variance estimates recovery (Zou and Donner 2008, equation 5).

    >>> difference(Estimate(0.6, 0.57, 0.63), Estimate(0.5, 0.46, 0.54))
    Estimate(value=0.1, low=0.05, high=0.15)
    """
    value = a.value - b.value
    low = value - math.hypot(a.value - a.low, b.high - b.value)
    high = value + math.hypot(a.high - a.value, b.value - b.low)
    return Estimate(round(value, 12), round(low, 12), round(high, 12))


def watched(run: Run) -> list[Record]:
    """The test records to follow: those whose log N - L is a bound, else those of training."""
    groups = list(run.tests.values())
    bounds = [records for records in groups if records[-1].get("is_bound")]
    return (bounds[-1:] or groups[:1] or [[]])[0]


def nats(cell: Cell) -> tuple[Estimate, bool] | None:
    """The last evaluation's log N - L, mean over offsets; and whether it is a bound."""
    finals = [records[-1] for run in cell.runs if (records := watched(run))]
    finals = [record for record in finals if len(known(record.get("bound", [])))]
    if not finals:
        return None
    values = [mean_known(record["bound"]) for record in finals]
    return over_seeds(values), all(record.get("is_bound") for record in finals)


def probes_of(run: Run) -> dict[Probe, dict[str, Any]]:
    """Rows of the final probes."""
    return {
        Probe(*group, row["features"], row["probe"]): row
        for group, rows in grouped_rows(run).items()
        for row in rows
    }


def probe_title(probe: Probe) -> str:
    """In words.

    >>> probe_title(Probe("phones", "festvox-ru", "frame", "c", "linear"))
    'phones by frame, festvox-ru, linear on c'
    """
    kind = PROBES.get(probe.probe, probe.probe)
    by = "" if probe.unit == "picture" else f" by {probe.unit}"
    return f"{probe.task}{by}, {probe.data}, {kind} on {probe.features}"


def all_probes(cells: Sequence[Cell]) -> list[Probe]:
    """Every probe that a cell has, in the order of the tables."""
    found = {probe: None for cell in cells for run in cell.runs for probe in probes_of(run)}
    return sorted(found, key=lambda p: (p[:3], p.probe != "linear", p.probe, feature_order(p[3])))


def learned(probes: Sequence[Probe]) -> list[Probe]:
    """Those of features that the training made."""
    return [probe for probe in probes if probe.features in ("c", "z")]


def headline(cells: Sequence[Cell]) -> list[Probe]:
    """The probes that are asked for first: linear, on the features that are spoken of first."""
    wanted = "z" if any(words_of(run) is PICTURES for cell in cells for run in cell.runs) else "c"
    linear = [probe for probe in learned(all_probes(cells)) if probe.probe == "linear"]
    return [probe for probe in linear if probe.features == wanted] or linear


def by_seed(cell: Cell, probe: Probe) -> dict[Any, dict[str, Any]]:
    """Rows of one probe by the seed of their run."""
    return {
        run.config.get("seed"): rows[probe]
        for run in cell.runs
        if probe in (rows := probes_of(run))
    }


def accuracy(rows: Sequence[dict[str, Any]]) -> Estimate:
    """Over seeds where there are several, else over test items."""
    if len(rows) == 1:
        return Estimate(*(rows[0][key] for key in ("accuracy", "low", "high")))
    value, low, high = over_seeds([row["accuracy"] for row in rows])
    return Estimate(value, max(0.0, low), min(1.0, high))


def probe_row(cell: Cell, first: Cell, probe: Probe) -> ProbeRow | None:
    """A probe of a cell beside the untrained network's and the first cell's."""
    ours = by_seed(cell, probe)
    if not ours:
        return None
    random = probe._replace(features=f"random {probe.features}")
    theirs = by_seed(first, probe) if first is not cell else {}
    versus = [row.get("versus", {}).get(random.features) for row in ours.values()]
    if len(ours) == 1 and versus[0]:
        over_untrained = Estimate(*versus[0][:3])  # paired over test items
    else:
        over_untrained = lead(ours, by_seed(cell, random))
    mine = accuracy(list(ours.values()))
    return ProbeRow(mine, over_untrained, lead(ours, theirs))


def lead(ours: Mapping[Any, Record], theirs: Mapping[Any, Record]) -> Estimate | None:
    """Difference of two sets of rows by seed: paired by seed where two or more are shared."""
    if not ours or not theirs:
        return None
    shared = [seed for seed in ours if seed in theirs]
    if len(shared) > 1:
        return over_seeds([ours[s]["accuracy"] - theirs[s]["accuracy"] for s in shared])
    return difference(accuracy(list(ours.values())), accuracy(list(theirs.values())))


def steps_of(run: Run) -> tuple[int, int, float]:
    """Steps made, steps wanted, and seconds of training."""
    last = run.train[-1] if run.train else {}
    wanted = run.config.get("num_steps")
    step = int(last.get("step", 0))
    return step, wanted if isinstance(wanted, int) else step, mean_known(last.get("seconds", []))
