"""Reads what a run recorded. Every number of the report comes from here."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpc.types import UserError

Record = dict[str, Any]


class Picture(NamedTuple):
    """Features of some frames with their speakers, for the picture of the paper's Figure 2."""

    features: np.ndarray
    """(n, h)"""
    speaker: np.ndarray
    """(n,), an index into names."""
    names: tuple[str, ...]


class Run(NamedTuple):
    """A run directory, read. Parts that are missing are empty or None."""

    workdir: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    train: list[Record]
    tests: dict[str, list[Record]]
    """Test records by the rule of their negatives, the training rule first."""
    probes: dict[str, dict[str, Any]]
    """By task: {"step": n, "rows": [...]}."""
    picture: Picture | None
    skipped: list[str]
    truth: dict[str, list[float]] | None


def read_run(workdir: Path) -> Run:
    """Read the recorded files of a run.

    Raises:
        UserError: there is no such directory, or nothing of a run in it.
    """
    if not (workdir / "config.json").exists() and not (workdir / "metrics.jsonl").exists():
        raise UserError(
            f"{workdir} holds no run (neither config.json nor metrics.jsonl); "
            "give the --workdir of a training run"
        )
    records = read_lines(workdir / "metrics.jsonl")
    tests: dict[str, list[Record]] = {}
    for record in records:
        if record.get("split") == "test":
            tests.setdefault(str(record.get("rule")), []).append(record)
    train = [record for record in records if record.get("split") == "train"]
    trained = str(train[-1].get("rule")) if train else None
    ordered = sorted(tests, key=lambda rule: rule != trained)
    skipped = workdir / "skipped.txt"
    return Run(
        workdir=workdir,
        config=read_json(workdir / "config.json") or {},
        environment=read_json(workdir / "environment.json") or {},
        train=train,
        tests={rule: tests[rule] for rule in ordered},
        probes={
            path.stem: content
            for path in sorted(workdir.glob("probes/*.json"))
            if (content := read_json(path)) and content.get("rows")
        },
        picture=read_picture(workdir / "probes" / "picture.npz"),
        skipped=skipped.read_text().splitlines() if skipped.exists() else [],
        truth=read_json(workdir / "truth.json"),
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of a json file, or None when there is none."""
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged ({error}); remove it and write it anew") from None


def read_lines(path: Path) -> list[Record]:
    """Records of a jsonl file; when a step was logged twice (after a resume), the later one."""
    if not path.exists():
        return []
    latest: dict[tuple, Record] = {}
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines):  # the run was killed while it wrote, or still writes
                break
            raise UserError(f"line {number} of {path} is damaged; remove that line") from None
        latest[record.get("step"), record.get("split"), record.get("rule")] = record
    return sorted(latest.values(), key=lambda record: record.get("step", 0))


def read_picture(path: Path) -> Picture | None:
    """The frames of the speaker picture, or None when there are none."""
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as arrays:
        names = tuple(str(name) for name in arrays["names"])
        return Picture(arrays["features"].astype(np.float32), arrays["speaker"], names)


def rule_name(record: Record) -> str:
    """The rule of the negatives as a person reads it."""
    return str(record.get("rule", "unnamed")).replace("_", " ")


def series(records: list[Record], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of one number over the run, where it was recorded."""
    found = [(record["step"], record[key]) for record in records if record.get(key) is not None]
    steps, values = zip(*found, strict=True) if found else ((), ())
    return np.array(steps, float), np.array(values, float)


def mean_series(records: list[Record], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the mean over offsets of one list of numbers over the run."""
    found = [(record["step"], np.mean(record[key])) for record in records if record.get(key)]
    steps, values = zip(*found, strict=True) if found else ((), ())
    return np.array(steps, float), np.array(values, float)


def final_test(run: Run) -> Record | None:
    """The last test record under the training rule."""
    return next((records[-1] for records in run.tests.values()), None)


def final_bound(run: Run) -> Record | None:
    """The last test record whose log N - L is a bound, if any rule gives one."""
    bounds = [records[-1] for records in run.tests.values() if records[-1].get("is_bound")]
    return bounds[-1] if bounds else None
