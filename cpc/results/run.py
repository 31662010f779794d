"""The reader of run directories, which returns all records of a run as frames."""

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpc.files import read_object, read_sealed
from cpc.results.score import Frame, read_records, read_scores, score_frame
from cpc.types import UserError


class Run(NamedTuple):
    """The content of a run directory. Fields whose files are missing are empty or None."""

    workdir: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: Frame
    """One row per record of metrics.jsonl: step, split ("train" or "test"), series ("" or
    "strict"), rule, is_bound, and all of its single numbers."""
    offsets: Frame
    """One row per offset (and direction) of each record: step, split, series, rule, is_bound,
    offset, direction, n, log_n, offset_loss, bound, bound_low, bound_high, acc_top1, chance_top1,
    acc_pairwise, state, and any other numbers recorded by offset."""
    scores: Frame
    """The scores of the run, as returned by `score_frame`."""
    audit: dict[str, Any] | None
    """Statistics of the negatives: {"rule", "title", "rows": [{"name", "value", ...}]}."""
    truth: Frame | None
    """The exact mutual_information at each offset, if it is known."""
    skipped: list[str]
    """Data files that were not used, with reasons."""
    problems: list[str]
    """A sentence for each damaged file."""

    @property
    def name(self) -> str:
        """The name in the config. If it has none, the directory name."""
        return str(self.config.get("name") or self.workdir.resolve().name)

    @property
    def seed(self) -> int:
        """The seed in the config, or 0 if the config has no seed."""
        seed = self.config.get("seed")
        return seed if isinstance(seed, int) else 0

    @property
    def step(self) -> int:
        """The last recorded step of training."""
        return int(self.train.step.max()) if len(self.train) else 0

    @property
    def num_steps(self) -> int | None:
        """The planned number of training steps, or None if it is not in the config or records."""
        known = self.train.get("num_steps", [])
        wanted = self.config.get("num_steps", *list(known)[-1:])
        return int(wanted) if isinstance(wanted, int | float) and wanted == wanted else None

    @property
    def train(self) -> Frame:
        """The training records among `metrics`."""
        return self.metrics[self.metrics.split == "train"]


def read_run(workdir: str | Path) -> Run:
    """Read a run directory. Each damaged file is described by a sentence in `Run.problems`."""
    workdir = Path(workdir)
    if not (workdir / "config.json").exists() and not (workdir / "metrics.jsonl").exists():
        raise UserError(
            f"{workdir} holds no run (neither config.json nor metrics.jsonl exists): "
            "pass the --workdir of a training run"
        )
    problems: list[str] = []
    config = read_object(workdir / "config.json", problems) or {}
    records = read_records(workdir, problems)
    metrics, offsets = make_frames(records)
    problems += _missing_records(workdir)
    audit = read_object(workdir / "audit.json", problems)
    if audit is not None and not _is_audit(audit):
        problems.append(f"{workdir / 'audit.json'} does not contain an audit and is left out.")
        audit = None
    skipped = workdir / "skipped.txt"
    return Run(
        workdir=workdir,
        config=config,
        environment=read_object(workdir / "environment.json", problems) or {},
        metrics=metrics,
        offsets=offsets,
        scores=score_frame(read_scores(workdir, problems)),
        audit=audit,
        truth=_read_truth(workdir / "truth.json", problems),
        skipped=skipped.read_text("utf-8", "replace").splitlines() if skipped.is_file() else [],
        problems=problems,
    )


def _missing_records(workdir: Path) -> list[str]:
    """Return a sentence if metrics.jsonl has lost records or its last line is incomplete.

    Records are lost if the newest checkpoint has counted more than the file has. An incomplete last
    line is reported only if a page exists, because the run has then ended and will not repair it.
    """
    path = workdir / "metrics.jsonl"
    names = [path.name for path in workdir.glob("checkpoints/*") if path.name.isdecimal()]
    newest = max(map(int, names), default=0)
    try:
        content = path.read_bytes() if path.is_file() else b""
    except OSError:  # `read_records` reports it
        return []
    with contextlib.suppress(UserError, LookupError, TypeError, ValueError):
        meta = read_sealed(workdir / "checkpoints" / str(newest) / "meta" / "metadata")
        written, found = int(meta["metadata"]["records"]), max(0, content.count(b"\n") - 1)
        if found < written:  # the first line is not a record
            end = f"{written - found:,} of {written:,} records up to step {newest} are lost"
            return [f"{path} is not complete: {end}."]
    if content and any(workdir.glob("*.html")) and not content.endswith(b"\n"):
        return [f"{path} ends within a line, which is left out."]
    return []


def last_known(rows: Frame, key: str) -> float:
    """Return a column's last non-missing value, or NaN if all values are missing."""
    known = rows[key].dropna().tolist() if key in rows else []
    return float(known[-1]) if known else math.nan


def last_scores(frame: Frame) -> Frame:
    """Return each task and data set's scores at the last step at which they were measured."""
    if not len(frame):
        return frame
    last = frame.groupby(["task", "data"], sort=False)["step"].transform("max")
    return frame[frame["step"] == last]


def is_last(run: Run, steps: Any) -> Any:
    """Return whether each step is the run's last, or True if the run did not train."""
    known = run.num_steps if len(run.train) else None
    return (steps == known) | (known is None)


def at_end(run: Run, rows: Frame) -> Frame:
    """Return the rows of a run's scores or offsets at its last step."""
    return rows[is_last(run, rows.step)]


def evaluations(run: Run) -> dict[str, Frame]:
    """Return the test rows of `Run.offsets` by negative sampling rule, the training's rule first.

    Keys are rule titles. If the strict evaluation shares a rule, ", strict" is added to its title.
    """
    test = run.offsets[run.offsets.split == "test"]
    plain, found = set(test.rule[test.series == ""]), {}
    own = training_rule(run)
    groups = sorted(
        test.groupby(["rule", "series"], sort=False), key=lambda group: group[0][0] != own
    )
    for (rule, series), rows in groups:
        title = rule_title(rule)
        found[f"{title}, {series}" if series and rule in plain else title] = rows
    return found


def headline_mask(
    offsets: Any, values: Any, states: Iterable[str], shared: Any = None
) -> np.ndarray:
    """Return a mask of the offsets that a mean of log N - L should include.

    Saturated offsets are excluded, because their log N - L is only the ceiling log N. Offsets with
    `shared` above 0 are excluded, because the context has seen a part of the target's input and
    log N - L measures that part. If this excludes all offsets with a known value, only the furthest
    of them is included.

    >>> headline_mask([1, 2, 3], [4.0, 3.0, 2.0], ["saturated", "warn", "fine"], [0.5, 0.1, 0])
    array([False, False,  True])
    """
    offsets, values = np.asarray(offsets), np.asarray(values, float)
    known, is_clear = ~np.isnan(values), np.array([one != "saturated" for one in states], bool)
    if shared is not None:
        is_clear &= ~(np.asarray(shared, float) > 0)
    if (known & is_clear).any():
        return known & is_clear
    return known & (offsets == np.max(offsets, initial=0, where=known))


def headline_rows(rows: Frame) -> Frame:
    """Return the rows of an evaluation at the offsets that `headline_mask` includes."""
    import pandas as pd

    shared = pd.to_numeric(rows.shared, errors="coerce") if "shared" in rows else None
    return rows[headline_mask(rows.offset, rows.bound, rows.state, shared)]


def offset_ranges(offsets: Any) -> str:
    """Format offsets as text, joining consecutive offsets to ranges.

    >>> offset_ranges([1, 2, 3, 7]), offset_ranges([1, 2, 1, 2])
    ('1–3, 7', '1–2')
    """
    offsets = np.unique(np.asarray(offsets, int))
    runs = np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1)
    parts = [f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs if len(run)]
    return ", ".join(parts)


def rule_title(rule: str) -> str:
    """Return the title of a negative sampling rule.

    >>> rule_title("same_group")
    'same group'
    """
    return rule.replace("_", " ") or "unnamed"


def last_evaluation(run: Run, strict: bool = False) -> Frame:
    """Return the `Run.offsets` rows of the last evaluation with the training's negative sampling.

    If `strict` is true, the last evaluation whose log N - L is a bound is used instead.
    """
    found = list(evaluations(run).values())
    found = [rows for rows in found if rows.is_bound.all()][-1:] if strict else found[:1]
    rows = found[0] if found else run.offsets[:0]
    return rows[rows.step == rows.step.max()]


def training_rule(run: Run) -> str:
    """Return the training's negative sampling rule, or "" if it is not recorded."""
    return str(run.train.rule.iloc[-1]) if len(run.train) else ""


def make_frames(records: Sequence[Mapping[str, Any]]) -> tuple[Frame, Frame]:
    """Convert records to the frames `Run.metrics` and `Run.offsets`.

    >>> records = [{"step": 5, "split": "test", "offsets": [1, 2], "bound": [0.5, None], "loss": 2}]
    >>> metrics, offsets = make_frames(records)
    >>> metrics.loss.tolist(), offsets.offset.tolist(), offsets.bound.tolist()
    ([2], [1, 2], [0.5, nan])
    """
    import pandas as pd

    own = ("step", "split", "series", "rule", "is_bound")
    singles, index, columns = [], [], {}
    taken = {*own, "offset", "direction", "record"}
    keys = dict.fromkeys(
        k for r in records for k, v in r.items() if isinstance(v, list) and k not in taken
    )
    for number, record in enumerate(records):
        singles.append({key: v for key, v in record.items() if not isinstance(v, list | dict)})
        offsets = record.get("offsets")
        if isinstance(offsets, list):
            index += [number] * len(offsets)
            for key in keys:
                value = record.get(key)
                fits = isinstance(value, list) and len(value) == len(offsets)
                columns.setdefault(key, []).extend(value if fits else [None] * len(offsets))
    metrics = pd.DataFrame(singles)
    for name, default in zip(own, (0, "", "", "", False), strict=True):
        if name not in metrics:
            metrics[name] = default
        metrics[name] = [default if _is_missing(v) else v for v in metrics[name]]
    metrics = metrics.astype({"is_bound": bool, "rule": str, "series": str, "split": str})
    for name in metrics.columns.difference([*own]):
        metrics[name] = _numbers(metrics[name].tolist())
    named = {"offsets": "offset", "directions": "direction"}
    columns = {named.get(key, key): _numbers(values) for key, values in columns.items()}
    offsets = pd.DataFrame({**columns, "record": index}).join(metrics[[*own]], on="record")
    wanted = (
        "n", "log_n", "offset_loss", "bound", "bound_low", "bound_high", "acc_top1", "chance_top1",
        "acc_pairwise",
    )  # fmt: skip
    for name in ("offset", *wanted):
        if name not in offsets:
            offsets[name] = math.nan
    for name in ("direction", "state"):
        texts = offsets[name] if name in offsets else [None] * len(offsets)
        offsets[name] = [text if isinstance(text, str) else "" for text in texts]
    return metrics, offsets


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _numbers(values: Sequence[Any]) -> Any:
    """Convert values to an array with NaN for missing numbers, or to a list if all are texts."""
    try:
        found = np.array(values, dtype=float)
    except (TypeError, ValueError):
        is_text = all(isinstance(value, str) or _is_missing(value) for value in values)
        kept = [value if is_text or isinstance(value, int | float) else None for value in values]
        return kept if is_text else np.array(kept, dtype=float)
    return found.astype(int) if all(isinstance(value, int) for value in values) else found


def _is_audit(audit: Mapping[str, Any]) -> bool:
    rows = audit.get("rows")
    return isinstance(rows, list) and all(
        isinstance(row, dict)
        and isinstance(row.get("name"), str)
        and (row.get("value") is None or type(row["value"]) in (int, float))
        for row in rows
    )


def _read_truth(path: Path, problems: list[str]) -> Frame | None:
    import pandas as pd

    content = read_object(path, problems)
    if content is None:
        return None
    try:
        names = {"offset": "offsets", "mutual_information": "mutual_information"}
        columns = {name: np.ravel([content[key]]) for name, key in names.items()}
        frame = pd.DataFrame(columns)
        return frame.astype({"offset": int, "mutual_information": float})
    except (LookupError, ValueError, TypeError):
        problems.append(f"{path} contains no information by offset and is left out.")
        return None
