"""Scores of a run: records of measured numbers, their formatting, and their files."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cpc.files import (
    RUN_SPLIT,
    locked,
    read_arrays,
    read_lines,
    read_object,
    write_arrays,
    write_sealed,
)
from cpc.types import UserError

#: A pandas.DataFrame. With the annotations of pandas, type checkers would reject most uses.
Frame: TypeAlias = Any
#: A row of a score frame, from `itertuples`. It has the fields of `Score`; missing numbers are NaN.
Row: TypeAlias = Any
SCORES, OUTCOMES = "scores.json", "scores.npz"
#: Exceptions raised while reading a row with wrong keys or types.
DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


class Outcomes:
    """Each test item's contribution to a score, for computing paired differences.

    The score is `sums.sum() / counts.sum()`. Items should be independent, such as images, or
    utterances with all of their frames.
    """

    def __init__(self, sums: Any, counts: Any = None, items: str = "") -> None:
        """Store each item's sum and count.

        Args:
            sums: (items,) such as correct frames, wrong words, or booleans for one answer per item.
            counts: (items,) such as numbers of frames; ones by default.
            items: a text that identifies the items, such as a `digest` of their labels. Scores are
                paired only if their `items` are equal and not empty.
        """
        self.sums = np.asarray(sums)
        self.counts = np.ones(len(self.sums), np.int32) if counts is None else np.asarray(counts)
        self.items = items

    def __repr__(self) -> str:
        """Return a short text for tables of scores."""
        return f"Outcomes({len(self.sums)} items)"


class Score(NamedTuple):
    """One measured number of a run. The value must be finite: omit NaN and infinite scores."""

    task: str
    """Name of the task, such as "phones"."""
    data: str
    """Name of the data set, such as "fashion_mnist"."""
    unit: str
    """The counted items, such as "frame", "utterance" or "image"."""
    features: str
    """Tested features, such as "c", "z", "mfcc", "random c" (untrained) or "supervised"."""
    method: str
    """Probe or training method, such as "linear", "hidden", "knn", "frozen" or "fine-tuned"."""
    metric: str
    """Metric or unit, such as "accuracy", "top-5 accuracy", "error rate" or "nats"."""
    value: float
    """Accuracies and rates are between 0 and 1. Other values have the unit of the metric."""
    low: float | None = None
    """Lower end of the 95 % interval; `high` is the upper end."""
    high: float | None = None
    chance: float | None = None
    """Score of guessing, such as always the most frequent class. None if it is undefined."""
    higher_is_better: bool = True
    seed: int = 0
    step: int = 0
    num_train: int | None = None
    """Number of labeled items that the method was fitted on."""
    num_test: int | None = None
    setting: str = ""
    """Hyperparameters of the method, such as "l2 0.01" or "k 20"."""
    outcomes: Outcomes | None = None


#: `QUESTION` identifies the measured quantity, and `IDENTITY` a score within a run.
QUESTION = ("task", "data", "unit", "features", "method", "metric")
IDENTITY = (*QUESTION, "seed", "step", "num_train")
STORED = Score._fields[:-1]


def check_score(score: Score) -> Score:
    """Validate a score that was read from a file, and return it.

    Raises ValueError if a field is invalid.
    """
    texts = [getattr(score, name) for name in (*QUESTION, "setting")]
    numbers = [score.value, score.low, score.high, score.chance, score.num_train, score.num_test]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a text field is not a string")
    if not all(one is None or type(one) in (int, float) for one in numbers):
        raise ValueError("a numeric field is not a number")
    if not all(type(one) is int and abs(one) < 2**63 for one in (score.seed, score.step)):
        raise ValueError("the seed or step is not a 64-bit integer")
    if type(score.higher_is_better) is not bool or not math.isfinite(score.value):
        raise ValueError("the value is not finite")
    return score


def identity(score: Score) -> tuple:
    """Return the key that identifies a score in its run: its `IDENTITY` fields and label share."""
    return (*(getattr(score, name) for name in IDENTITY), label_fraction(score))


def label_fraction(score: Row) -> str:
    """Return the label share at the end of a score's setting, or "" if it names none.

    >>> score = Score("CTC", "voices", "phone", "c", "linear", "phone error rate", 0.5)
    >>> settings = "10 min", "l2 0.01", "l2 1, 2 % of the labels"
    >>> [label_fraction(score._replace(setting=setting)) for setting in settings]
    ['10 min', '', '2 % of the labels']
    """
    share = score.setting.rpartition(", ")[2]
    return share if share.endswith(("of the labels", " min")) else ""


def answer(score: Score) -> tuple:
    """Return the key by which a new score replaces an old one: `identity` without `num_train`."""
    names = [name for name in IDENTITY if name != "num_train"]
    return (*(getattr(score, name) for name in names), label_fraction(score))


def digest(*parts: Any) -> str:
    """Return a short hexadecimal digest of a sequence of arrays and texts.

    >>> digest("test", [1, 2]) == digest("test", np.array([1, 2])), digest([1]) == digest([2])
    (True, False)
    """
    found = hashlib.sha256()
    for part in parts:
        array = np.asarray(part)
        if array.dtype.kind in "biu":
            array = array.astype(np.int64)
        content = str(part).encode() if array.dtype.kind == "U" else array.tobytes()
        found.update(f"{array.shape}".encode() + content)
    return found.hexdigest()[:16]


def mean_outcome(outcomes: Outcomes) -> float:
    """Return the score's value: the total sum divided by the total count."""
    return float(outcomes.sums.sum() / outcomes.counts.sum())


def in_percent(metric: str) -> bool:
    """Return whether a metric is a fraction and is therefore shown in percent.

    >>> in_percent("top-5 accuracy"), in_percent("phone error rate"), in_percent("nats")
    (True, True, False)
    """
    return metric.endswith(("accuracy", "rate", "error"))


def show_value(value: float | int | None, metric: str) -> str:
    """Format a value without its unit. None and non-finite values become a dash.

    >>> show_value(0.1234, "error rate"), show_value(1.234, "nats"), show_value(None, "nats")
    ('12.3', '1.23', '–')
    >>> show_value(0.954, "R"), show_value(1234.5, "return")
    ('0.954', '1,234')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if in_percent(metric):
        return f"{100 * value:.1f}"
    style = ".2f" if metric in ("nats", "bits") else ",.0f" if abs(value) >= 1000 else ".3g"
    return format(value, style)


def unit_of(metric: str) -> str:
    """Return the unit that follows a formatted value, or "" for a metric without a unit.

    >>> unit_of("accuracy"), unit_of("nats"), unit_of("return")
    ('%', 'nats', '')
    """
    return "%" if in_percent(metric) else metric if metric in ("nats", "bits") else ""


def with_unit(value: float | int, metric: str) -> str:
    """Format a value with its unit. NaN becomes a dash."""
    unit = "" if math.isnan(value) else unit_of(metric)
    return f"{show_value(value, metric)} {unit}".strip()


def name_of(score: Score) -> str:
    """Return the name under which metrics.jsonl records a score.

    >>> name_of(Score("classes", "imagenette/160px", "image", "z", "knn", "accuracy", 0.5))
    'classes/imagenette%2F160px/z/knn/image'
    """
    parts = [score.task, score.data, score.features, score.method, score.unit]
    if score.metric != "accuracy":
        parts.append(score.metric)
    return "/".join(part.replace("/", "%2F") for part in parts)


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of an aligned table, without columns that are empty below their head.

    >>> text_table([("task", "%", "seed"), ("phones", "73.1", "")])
    ['task    %', 'phones  73.1']
    """
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    return ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]


def score_cells(scores: Iterable[Row]) -> list[dict[str, str]]:
    """Return a dict per score that maps table columns to cell texts. Missing numbers become ""."""
    lines = []
    for score in scores:
        ends = [show_value(end, score.metric) for end in (score.low, score.high)]
        count, chance = score.num_train or math.nan, show_value(score.chance, score.metric)
        line = {
            "task": f"{score.task} by {score.unit}",
            "data": score.data,
            "features": score.features,
            "method": score.method,
            "fitted on": f"{count:,.0f}" if math.isfinite(count) else "",
            "score": with_unit(score.value, score.metric),
            "95 % interval": "" if "–" in ends else " to ".join(ends),
            "metric": score.metric,
            "chance": chance.replace("–", ""),
            "setting": score.setting,
        }
        lines.append(line)
    return lines


def print_scores(scores: Iterable[Score]) -> None:
    """Print a table of scores."""
    scores = list(scores)
    order = list(dict.fromkeys((one.data, one.unit, one.method) for one in scores))
    scores.sort(key=lambda one: order.index((one.data, one.unit, one.method)))
    lines = score_cells(scores)
    for line in text_table([[*lines[0]], *([*line.values()] for line in lines)] if lines else []):
        print(f"  {line}")  # noqa: T201


def write_scores(workdir: str | Path, scores: Iterable[Score]) -> None:
    """Add scores to a run directory, replacing earlier scores with the same `answer`.

    New points of a learning curve replace the whole earlier curve, unless their settings name a
    label share ("5 % of the labels", "10 min").

    Values, intervals and settings are written to scores.json, and outcomes of test items to
    scores.npz. A damaged scores.json is renamed before the new file is written.
    """
    workdir, given, problems = Path(workdir), list(scores), []
    workdir.mkdir(parents=True, exist_ok=True)
    with locked(workdir):
        kept = read_scores(workdir, problems)
        if any(SCORES in problem for problem in problems):
            (workdir / SCORES).replace(workdir / f"damaged-{SCORES}")
        answered, new = {answer(score) for score in given}, {identity(score) for score in given}
        merged = {identity(score): score for score in (*kept, *given)}
        arrays, rows = {}, []
        for key, score in merged.items():
            if key not in new and answer(score) in answered:
                continue
            rows.append({name: getattr(score, name) for name in STORED})
            if score.outcomes is not None and score.outcomes.items:
                rows[-1]["items"] = score.outcomes.items
                arrays[_key(score)] = score.outcomes.sums
                if (score.outcomes.counts != 1).any():
                    arrays[f"counts-{_key(score)}"] = score.outcomes.counts
        if arrays:
            write_arrays(workdir / OUTCOMES, **arrays)
        write_sealed(workdir / SCORES, {"scores": rows}, is_durable=True)


def score_frame(scores: Iterable[Score]) -> Frame:
    """Return a frame with one row per score and one column per field. Missing numbers are NaN."""
    import pandas as pd

    frame = pd.DataFrame(list(scores), columns=pd.Index(Score._fields))
    numbers = ["value", "low", "high", "chance", "num_train", "num_test"]
    return frame.astype({name: float for name in numbers} | {"seed": int, "step": int})


def read_scores(workdir: str | Path, problems: list[str] | None = None) -> list[Score]:
    """Return the undamaged scores of a run directory.

    For each damaged file or row, a sentence is appended to `problems`.
    """
    workdir, problems = Path(workdir), [] if problems is None else problems
    content = read_object(workdir / SCORES, problems)
    rows = content.get("scores") if content else None
    arrays, scores = {}, []
    if (workdir / OUTCOMES).exists():
        try:
            arrays = read_arrays(workdir / OUTCOMES)
        except UserError:
            problems.append(f"{workdir / OUTCOMES} is damaged: scores are not paired by test item.")
    for row in rows if isinstance(rows, list) else []:
        try:
            score = check_score(Score(**{name: row[name] for name in STORED if name in row}))
            scores.append(score._replace(outcomes=_outcomes(score, row.get("items"), arrays)))
        except DAMAGED:
            problems.append(f"A row of {workdir / SCORES} is damaged and is left out.")
    return scores


def _outcomes(score: Score, items: str | None, arrays: Mapping[str, np.ndarray]) -> Outcomes | None:
    key = _key(score)
    if items is None or key not in arrays:
        return None
    found = Outcomes(arrays[key], arrays.get(f"counts-{key}"), items)
    # The two files are not replaced together, so the outcomes may come from another fit.
    is_same = abs(mean_outcome(found) - score.value) < 1e-5 * max(1, abs(score.value))
    return found if is_same else None


def _key(score: Score) -> str:
    *parts, share = identity(score)
    return digest(*(str(part) for part in parts), *([share] if share else []))


def read_records(workdir: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl sorted by step. Later records replace repeated ones."""
    path = workdir / "metrics.jsonl"
    try:
        lines = read_lines(path)
    except OSError as error:
        if path.exists():
            problems.append(f"{path} cannot be read ({error.strerror}).")
        return []
    latest: dict[tuple, dict[str, Any]] = {}
    for number, (_, record) in enumerate(lines, start=1):
        if record is None:
            problems.append(f"Line {number} of {path} is damaged and is left out.")
        elif record.get("split") != RUN_SPLIT:
            key = tuple(str(record.get(name)) for name in ("step", "split", "rule", "series"))
            latest[key] = record
    return sorted(latest.values(), key=lambda record: record["step"])
