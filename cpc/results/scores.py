"""The writer and reader of scores and metrics in run directories."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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
from cpc.results.score import (
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
#: Exceptions of reading a row with wrong keys or types.
DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


def write_scores(workdir: str | Path, scores: Iterable[Score]) -> None:
    """Add scores to a run directory, replacing earlier answers to the same questions.

    Points of a curve over labels replace the whole earlier curve, unless their settings name their
    shares of the labels ("5 % of the labels", "10 min").

    Values, intervals and settings go to scores.json, outcomes of test items to scores.npz. A
    damaged scores.json is renamed.
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
    """Return a frame with one row per score and one column per field, NaN for a missing number."""
    import pandas as pd

    frame = pd.DataFrame(list(scores), columns=pd.Index(Score._fields))
    numbers = ["value", "low", "high", "chance", "num_train", "num_test"]
    return frame.astype({name: float for name in numbers} | {"seed": int, "step": int})


def read_scores(workdir: str | Path, problems: list[str] | None = None) -> list[Score]:
    """Return the undamaged scores of a run directory; `problems` gets a sentence per damage."""
    workdir, problems = Path(workdir), [] if problems is None else problems
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
    is_same = abs(mean_outcome(found) - score.value) < 1e-5 * max(1, abs(score.value))
    return found if is_same else None


def _key(score: Score) -> str:
    *parts, share = identity(score)
    return digest(*(str(part) for part in parts), *([share] if share else []))


def read_records(workdir: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl by step; of repeated records the later one."""
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
