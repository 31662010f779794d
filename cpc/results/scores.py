"""Scores: what an evaluator measured, how it is written to a run directory and read again."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpc.files import (
    exclusive,
    parse_json,
    read_arrays,
    read_lines,
    read_object,
    write_arrays,
    write_sealed,
)
from cpc.results.score import (
    QUESTION,
    SLASH,
    STORED,
    Frame,
    Outcomes,
    Score,
    answer,
    check_score,
    digest,
    identity,
    mean_outcome,
)
from cpc.types import UserError

SCORES, OUTCOMES = "scores.json", "scores.npz"


#: What reading a row raises whose keys or types are not as they were written.
DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


def write_scores(workdir: str | Path, scores: Iterable[Score]) -> None:
    """Add scores to those of a run directory, whose answers to the same questions they replace.

    So the points of a curve over labels come together, unless their settings name their shares of
    the labels ("5 % of the labels", "10 min").

    Values, intervals and settings go to scores.json, outcomes of test items to scores.npz. A
    damaged scores.json is kept aside under another name.
    """
    with exclusive(Path(workdir)):
        _merge_scores(Path(workdir), list(scores))


def _merge_scores(workdir: Path, given: Sequence[Score]) -> None:
    problems: list[str] = []
    kept = _read_recorded(workdir, problems)
    if any(SCORES in problem for problem in problems):
        (workdir / SCORES).replace(workdir / f"damaged-{SCORES}")
    arrays, rows = {}, []
    for score in _merged(kept, given):
        rows.append({name: getattr(score, name) for name in STORED})
        if score.outcomes is not None and score.outcomes.items:
            rows[-1]["items"] = score.outcomes.items
            arrays[_key(score)] = score.outcomes.sums
            if (score.outcomes.counts != 1).any():
                arrays[f"counts-{_key(score)}"] = score.outcomes.counts
    if arrays:
        write_arrays(workdir / OUTCOMES, **arrays)
    write_sealed(workdir / SCORES, {"scores": rows})


def _merged(kept: Sequence[Score], given: Sequence[Score]) -> list[Score]:
    """Return the given scores and those kept whose questions they do not answer anew."""
    new, answered = {identity(score) for score in given}, {answer(score) for score in given}
    merged = {identity(score): score for score in (*kept, *given)}
    return [one for key, one in merged.items() if key in new or answer(one) not in answered]


def read_scores(workdir: str | Path) -> list[Score]:
    """Return the scores of a run directory, as far as they are whole."""
    workdir = Path(workdir)
    config = read_object(workdir / "config.json", []) or {}
    return scores_of(workdir, read_records(workdir, []), config, [])


def score_frame(scores: Iterable[Score]) -> Frame:
    """Return scores as a frame, a column for each field."""
    import pandas as pd

    frame = pd.DataFrame(list(scores), columns=pd.Index(Score._fields))
    numbers = ["value", "low", "high", "chance", "num_train", "num_test"]
    return frame.astype({name: float for name in numbers} | {"seed": int, "step": int})


def to_scores(frame: Frame) -> list[Score]:
    """Return the rows of `score_frame` as scores again."""
    scores = []
    for row in frame[list(Score._fields)].itertuples(index=False):
        fields: dict[str, Any] = {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in row._asdict().items()
        }
        for name in ("num_train", "num_test"):
            fields[name] = None if fields[name] is None else int(fields[name])
        scores.append(Score(**fields))
    return scores


def scores_of(
    workdir: Path, records: Sequence[Mapping], config: Mapping[str, Any], problems: list[str]
) -> list[Score]:
    """Return the recorded scores, and those that the metrics alone have, of steps on the way."""
    recorded = _read_recorded(workdir, problems)
    seed = config.get("seed")
    seed = seed if isinstance(seed, int) else 0
    measured = {(*(getattr(s, name) for name in QUESTION), s.step) for s in recorded}
    on_the_way = [
        score._replace(seed=seed)
        for record in records
        if record.get("series") == "probes"
        for score in _recorded_scores(record)
        if (*(getattr(score, name) for name in QUESTION), score.step) not in measured
    ]
    return _merged(on_the_way, recorded)


def _read_recorded(workdir: Path, problems: list[str]) -> list[Score]:
    content = read_object(workdir / SCORES, problems)
    rows = content.get("scores") if content else None
    arrays, scores = {}, []
    if (workdir / OUTCOMES).exists():
        try:
            arrays = read_arrays(workdir / OUTCOMES)
        except UserError:
            problems.append(f"{workdir / OUTCOMES} is damaged: nothing is paired by test item.")
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
    # The two files are not replaced in one step: the outcomes may be of another fit.
    return (
        found if abs(mean_outcome(found) - score.value) < 1e-5 * max(1, abs(score.value)) else None
    )


def _key(score: Score) -> str:
    *parts, share = identity(score)
    return digest(*(str(part) for part in parts), *([share] if share else []))


def _recorded_scores(record: Mapping[str, Any]) -> list[Score]:
    """Return the scores of a record of the metrics, by their names (`name_of`)."""
    scores = []
    for name, value in record.items():
        parts = [part.replace(SLASH, "/") for part in name.split("/")]
        if isinstance(value, int | float) and len(parts) in (5, 6):
            task, data, features, method, unit = parts[:5]
            metric = parts[5] if len(parts) == 6 else "accuracy"
            question = task, data, unit, features, method, metric
            scores.append(Score(*question, float(value), step=int(record["step"])))
    return scores


def read_records(workdir: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl by step; the later one where a resume logged it anew."""
    path = workdir / "metrics.jsonl"
    try:
        lines = read_lines(path)
    except OSError as error:
        if path.exists():
            problems.append(f"{path} cannot be read ({error.strerror}).")
        return []
    latest: dict[tuple, dict[str, Any]] = {}
    for number, (line, is_sound) in enumerate(lines, start=1):
        try:
            if not is_sound:
                raise ValueError("its checksum is wrong")
            record = parse_json(line)
            record["step"] = step = int(record["step"])
            if not 0 <= step < 2**63:
                raise ValueError("no step")
            key = tuple(str(record.get(name)) for name in ("split", "rule", "series"))
        except (*DAMAGED, RecursionError):
            # The last one may be half written, and without its sum: the run may be writing it.
            if number < len(lines) or not is_sound:
                problems.append(f"Line {number} of {path} is damaged and is left out.")
            continue
        latest[step, *key] = record
    return sorted(latest.values(), key=lambda record: record["step"])
