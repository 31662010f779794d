"""Reads what a run recorded. Every number of the report comes from here."""

import json
import math
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


#: Files of pictures under probes/ with the number of axes of each of their arrays.
ARRAYS = {
    "neighbours": {
        "queries": 4,
        "neighbours": 5,
        "query_labels": 1,
        "neighbour_labels": 2,
        "class_names": 1,
    },
    "units": {"units": 1, "patches": 5},
    "augmented": {"plain": 6, "augmented": 6},
}
PIXELS = ("queries", "neighbours", "patches", "plain", "augmented")


class Run(NamedTuple):
    """A run directory, read. Parts that are missing are empty or None."""

    workdir: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    train: list[Record]
    tests: dict[str, list[Record]]
    """Test records by the rule of their negatives, the training rule first."""
    probe_records: list[Record]
    """Accuracies of probes fitted during the training, by name."""
    probes: dict[str, dict[str, Any]]
    """By task: {"step": n, "rows": [...]}."""
    picture: Picture | None
    picture_problem: str
    """Why there is no picture although there is a file of it."""
    few_labels: list[Record]
    """Accuracy by share of labels: one row for each of the features, mode and share."""
    arrays: dict[str, dict[str, np.ndarray]]
    """Of the pictures: "neighbours", "units" and "augmented", where they are recorded."""
    array_problems: list[str]
    """Why some of them are left out although there is a file."""
    audit: dict[str, Any] | None
    """Who is contrasted with whom: {"rule", "title", "rows": [{"name", "value", ...}]}."""
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
    train = [record for record in records if record.get("split") == "train"]
    tested = [record for record in records if record.get("split") == "test"]
    trained = str(train[-1].get("rule")) if train else None
    skipped = workdir / "skipped.txt"
    picture, picture_problem = read_picture(workdir / "probes" / "picture.npz")
    arrays = {
        name: read_arrays(workdir / "probes" / f"{name}.npz", ARRAYS[name]) for name in ARRAYS
    }
    return Run(
        workdir=workdir,
        config=read_json(workdir / "config.json") or {},
        environment=read_json(workdir / "environment.json") or {},
        train=train,
        tests=group_by_rule(tested, trained),
        probe_records=[record for record in tested if record.get("series") == "probes"],
        probes={
            path.stem: content
            for path in sorted(workdir.glob("probes/*.json"))
            if path.stem != "few_labels" and (content := read_json(path)) and content.get("rows")
        },
        picture=picture,
        picture_problem=picture_problem,
        few_labels=(read_json(workdir / "probes" / "few_labels.json") or {}).get("rows", []),
        arrays={name: found for name, (found, _) in arrays.items() if found is not None},
        array_problems=[problem for _, problem in arrays.values() if problem],
        audit=read_json(workdir / "audit.json"),
        skipped=skipped.read_text(errors="replace").splitlines() if skipped.exists() else [],
        truth=read_json(workdir / "truth.json"),
    )


def group_by_rule(tested: list[Record], trained: str | None) -> dict[str, list[Record]]:
    """Test records by rule, the training rule first, the strict bound under a name of its own."""
    plain = {record.get("rule") for record in tested if "series" not in record}
    groups: dict[str, list[Record]] = {}
    for record in tested:
        if record.get("series") == "probes":
            continue
        rule = str(record.get("rule"))
        if "series" in record and record.get("rule") in plain:
            rule = f"{rule}, {record['series']}"
        groups.setdefault(rule, []).append(record | {"rule": rule})
    return {rule: groups[rule] for rule in sorted(groups, key=lambda rule: rule != trained)}


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
            record = nan_for_null(json.loads(line))
        except json.JSONDecodeError:
            if number == len(lines):  # the run was killed while it wrote, or still writes
                break
            raise UserError(f"line {number} of {path} is damaged; remove that line") from None
        latest[tuple(record.get(key) for key in ("step", "split", "rule", "series"))] = record
    return sorted(latest.values(), key=lambda record: record.get("step", 0))


def nan_for_null(record: Record) -> Record:
    """JSON has no NaN, so that a number without a value was written as null.

    >>> nan_for_null({"loss": None, "bound": [1.0, None], "state": ["fine", "fine"]})
    {'loss': nan, 'bound': [1.0, nan], 'state': ['fine', 'fine']}
    """

    def fill(value: Any) -> Any:
        return math.nan if value is None else value

    return {
        key: [fill(one) for one in value] if isinstance(value, list) else fill(value)
        for key, value in record.items()
    }


def read_picture(path: Path) -> tuple[Picture | None, str]:
    """The frames of the speaker picture, or None and, if there is a file, why it is of no use."""
    if not path.exists():
        return None, ""
    damaged = f"{path} cannot be used (it is damaged); fit the probes again to write it anew"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            features, speaker = arrays["features"].astype(np.float32), arrays["speaker"]
            names = tuple(str(name) for name in arrays["names"])
        whole = len(features) == len(speaker) and features.shape[1] > 1
        whole = whole and np.isfinite(features).all() and set(speaker) <= set(range(len(names)))
    except Exception:  # numpy and zip raise many kinds for damaged and foreign files
        return None, damaged
    return (Picture(features, speaker, names), "") if whole else (None, damaged)


def read_arrays(path: Path, axes: dict[str, int]) -> tuple[dict[str, np.ndarray] | None, str]:
    """Arrays of pictures, or None and, if there is a file, why it is of no use."""
    if not path.exists():
        return None, ""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in axes}
        whole = all(arrays[name].ndim == axes[name] and arrays[name].size for name in axes)
        whole = whole and all(
            array.dtype == np.uint8 and array.shape[-1] in (1, 3)
            for name, array in arrays.items()
            if name in PIXELS
        )
        if whole and "neighbours" in arrays:
            labels = arrays["query_labels"], arrays["neighbour_labels"]
            lengths = {len(arrays[name]) for name in axes if name != "class_names"}
            whole = len(lengths) == 1 and labels[1].shape == arrays["neighbours"].shape[:2]
            numbers = np.concatenate([one.ravel() for one in labels])
            whole = whole and 0 <= numbers.min() <= numbers.max() < len(arrays["class_names"])
        whole = whole and len(arrays.get("units", [])) == len(arrays.get("patches", []))
    except Exception:  # numpy and zip raise many kinds for damaged and foreign files
        whole, arrays = False, {}
    damaged = f"{path} cannot be used (it is damaged); fit the probes again to write it anew"
    return (arrays, "") if whole else (None, damaged)


def rule_name(record: Record) -> str:
    """The rule of the negatives as a person reads it, with the direction of a single one.

    >>> rule_name({"rule": "same_group", "direction": "down"})
    'same group, down'
    """
    rule = str(record.get("rule", "unnamed")).replace("_", " ")
    return f"{rule}, {record['direction']}" if "direction" in record else rule


def by_direction(record: Record) -> list[Record]:
    """A record of each direction of prediction; the record itself where there is only one.

    >>> record = {"offsets": [2, 2], "bound": [1.0, 3.0], "directions": ["down", "up"]}
    >>> by_direction(record)[1]
    {'offsets': [2], 'bound': [3.0], 'direction': 'up'}
    """
    directions = record.get("directions")
    if not directions:
        return [record]
    parts = []
    for direction in dict.fromkeys(directions):
        chosen = [number for number, one in enumerate(directions) if one == direction]
        part = {
            key: [value[number] for number in chosen]
            if isinstance(value, list) and len(value) == len(directions)
            else value
            for key, value in record.items()
            if key != "directions"
        }
        parts.append(part | {"direction": direction})
    return parts


def mean_by_offset(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """Offsets at which log N - L has a value, and its mean there over directions.

    >>> mean_by_offset({"offsets": [2, 3, 2, 3], "bound": [1.0, 5.0, 3.0, float("nan")]})
    (array([2, 3]), array([2., 5.]))
    """
    offsets, bound = np.array(record["offsets"], int), np.array(record["bound"], float)
    found = np.unique(offsets[np.isfinite(bound)])
    return found, np.array([mean_known(bound[offsets == offset]) for offset in found])


def known(numbers: Any) -> np.ndarray:
    """Those of the numbers that have a value.

    >>> known([1.0, float("nan"), 3.0]).tolist()
    [1.0, 3.0]
    """
    array = np.atleast_1d(np.asarray(numbers, float))
    return array[np.isfinite(array)]


def mean_known(numbers: Any) -> float:
    """Mean of those that have a value, NaN if none has."""
    values = known(numbers)
    return float(values.mean()) if len(values) else math.nan


def series(records: list[Record], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of one number over the run, where it has a value.

    Of a list of numbers, such as one for each offset, the mean is taken.
    """
    found = [(record["step"], mean_known(record[key])) for record in records if key in record]
    pairs = np.array([pair for pair in found if math.isfinite(pair[1])], float).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def final_test(run: Run) -> Record | None:
    """The last test record under the training rule."""
    return next((records[-1] for records in run.tests.values()), None)


def final_bound(run: Run) -> Record | None:
    """The last test record whose log N - L is a bound, if any rule gives one."""
    bounds = [records[-1] for records in run.tests.values() if records[-1].get("is_bound")]
    return bounds[-1] if bounds else None
