"""A score: what an evaluator measured, its identity, and how it is printed."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

#: A pandas.DataFrame. Its own annotations call most of what one does with a frame a mistake.
Frame: TypeAlias = Any
#: A row of a frame of scores, from `itertuples`: a `Score` with NaN for a missing number.
Row: TypeAlias = Any


class Outcomes:
    """What each test item contributed to a score, by which scores are paired.

    The score is `sums.sum() / counts.sum()`. Items vary independently: an image, or an utterance
    with all of its frames.
    """

    def __init__(self, sums: Any, counts: Any = None, items: str = "") -> None:
        """Store the sums and counts of each item.

        Args:
            sums: (items,) such as correct frames, wrong words, or booleans for one answer per item.
            counts: (items,) such as frames; ones by default.
            items: identifies the items, such as a `digest` of their labels; scores are paired only
                if these are equal.
        """
        self.sums = np.asarray(sums)
        self.counts = np.ones(len(self.sums), np.int32) if counts is None else np.asarray(counts)
        self.items = items

    def __repr__(self) -> str:
        """Return a short text for tables of scores."""
        return f"Outcomes({len(self.sums)} items)"


class Score(NamedTuple):
    """One measured number of a run. It is never NaN: leave such scores out."""

    task: str
    """Such as "phones"."""
    data: str
    """Such as "fashion_mnist"."""
    unit: str
    """The counted items, such as "frame", "utterance" or "image"."""
    features: str
    """Such as "c", "z", "mfcc", "random c" (of an untrained network) or "supervised"."""
    method: str
    """Such as "linear", "hidden", "knn", "frozen" or "fine-tuned"."""
    metric: str
    """Such as "accuracy", "top-5 accuracy", "error rate" or "nats"."""
    value: float
    """Accuracies and rates in 0..1, others in the unit of the metric."""
    low: float | None = None
    """With `high` a 95 % interval."""
    high: float | None = None
    chance: float | None = None
    """The value of guessing, such as always the most frequent class; None if there is none."""
    higher_is_better: bool = True
    seed: int = 0
    step: int = 0
    num_train: int | None = None
    """Labelled items that the method was fitted on."""
    num_test: int | None = None
    setting: str = ""
    """Such as "l2 0.01" or "k 20"."""
    outcomes: Outcomes | None = None


#: Fields that identify a score.
QUESTION = ("task", "data", "unit", "features", "method", "metric")
IDENTITY = (*QUESTION, "seed", "step", "num_train")
STORED = Score._fields[:-1]


def check_score(score: Score) -> Score:
    """Return a score that was read from a file.

    Raises:
        ValueError: a field has the wrong type, or the value is not finite.
    """
    texts = [getattr(score, name) for name in (*QUESTION, "setting")]
    numbers = [score.value, score.low, score.high, score.chance, score.num_train, score.num_test]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a word is no text")
    if not all(one is None or type(one) in (int, float) for one in numbers):
        raise ValueError("a number is none")
    if not all(type(one) is int and abs(one) < 2**63 for one in (score.seed, score.step)):
        raise ValueError("the seed or step is no whole number")
    if type(score.higher_is_better) is not bool or not math.isfinite(score.value):
        raise ValueError("the value is not finite")
    return score


def identity(score: Score) -> tuple:
    """Return what distinguishes a score within a run, including its share of the labels."""
    return (*(getattr(score, name) for name in IDENTITY), share_of(score))


def share_of(score: Row) -> str:
    """Return the share of the labels that a setting names; "" if it names none.

    >>> score = Score("CTC", "voices", "phone", "c", "linear", "phone error rate", 0.5)
    >>> share_of(score._replace(setting="10 min")), share_of(score._replace(setting="l2 0.01"))
    ('10 min', '')
    >>> share_of(score._replace(setting="l2 1, 2 % of the labels"))
    '2 % of the labels'
    """
    share = score.setting.rpartition(", ")[2]
    return share if share.endswith(("of the labels", " min")) else ""


def answer(score: Score) -> tuple:
    """Return what a later score replaces: the identity without the number of labels."""
    names = [name for name in IDENTITY if name != "num_train"]
    return (*(getattr(score, name) for name in names), share_of(score))


def digest(*parts: Any) -> str:
    """Return a short text that identifies arrays and texts in their order.

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
    """Return the value of the score with these outcomes."""
    return float(outcomes.sums.sum() / outcomes.counts.sum())


def in_percent(metric: str) -> bool:
    """Return whether values of a metric are fractions, which are shown in percent.

    >>> in_percent("top-5 accuracy"), in_percent("phone error rate"), in_percent("nats")
    (True, True, False)
    """
    return metric.endswith(("accuracy", "rate", "error"))


def show_value(value: float | int | None, metric: str) -> str:
    """Format a value without its unit; a dash if there is none.

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
    """Return the unit that follows a shown value.

    >>> unit_of("accuracy"), unit_of("nats"), unit_of("return")
    ('%', 'nats', '')
    """
    return "%" if in_percent(metric) else metric if metric in ("nats", "bits") else ""


def with_unit(value: float | int, metric: str) -> str:
    """Format a value with its unit; a dash if it is NaN."""
    unit = "" if math.isnan(value) else unit_of(metric)
    return f"{show_value(value, metric)} {unit}".strip()


def name_of(score: Score) -> str:
    """Return the name of a score in the metrics of a run.

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


def print_scores(scores: Iterable[Score]) -> None:
    """Print a table of scores."""
    rows = [
        ("task", "data", "features", "method", "fitted on", "score", "95 % interval", "metric",
         "chance", "setting")
    ]  # fmt: skip
    scores = list(scores)
    order = list(dict.fromkeys((one.data, one.unit, one.method) for one in scores))
    for score in sorted(scores, key=lambda one: order.index((one.data, one.unit, one.method))):
        ends = [show_value(end, score.metric) for end in (score.low, score.high)]
        interval = "" if "–" in ends else " to ".join(ends)
        chance = "" if score.chance is None else show_value(score.chance, score.metric)
        fitted_on = "" if score.num_train is None else f"{score.num_train:,}"
        task = f"{score.task} by {score.unit}"
        probe = (score.data, score.features, score.method, fitted_on)
        value = with_unit(score.value, score.metric)
        rows.append((task, *probe, value, interval, score.metric, chance, score.setting))
    for line in text_table(rows):
        print(f"  {line}")  # noqa: T201
