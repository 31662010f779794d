"""What evaluators asked of several runs, and how answers and leads are shown."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from cpc.report.engine import show
from cpc.report.scores import METHODS, lead_phrase
from cpc.results import QUESTION, Frame, show_value

NOTE = (
    "All intervals are 95 %. With one seed they are over test items; with several, over seeds "
    "(Student's) and test items, of those seeds that came to their last step. Over untrained: "
    "the difference from the same network at random initialization by the same method. Over the "
    "first: the difference from the first cell. Both are taken on the same items or the same seeds "
    "where these are recorded, and from two independent intervals otherwise. The more cells there "
    "are, the more of them differ from the first by chance."
)
LEARNED = ("c", "z")
#: Ceilings log N so near are alike, in nats: seeds draw other windows, more or fewer of which are
#: short or share sound.
ALIKE = 0.1


class Question(NamedTuple):
    """What a score answers: the same in all cells."""

    task: str
    data: str
    unit: str
    features: str
    method: str
    metric: str

    @property
    def title(self) -> str:
        """The question in words."""
        by = "" if self.unit == "image" else f" by {self.unit}"
        how = METHODS.get(self.method, self.method)
        what = "" if self.metric == "accuracy" else f", {self.metric}"
        return f"{self.task}{by}, {self.data}, {how} on {self.features}{what}"


def questions(scores: Frame) -> list[Question]:
    """Return what was asked, in the order in which it was recorded."""
    asked = scores[scores.task != "information"].drop_duplicates(list(QUESTION))
    return [Question(*row) for row in asked[list(QUESTION)].itertuples(index=False)]


def headline(scores: Frame) -> list[Question]:
    """Return for each task the question that is asked for first: linear, on learned features."""
    first: dict[tuple, Question] = {}
    asked = [one for one in questions(scores) if one.features in LEARNED]
    for one in sorted(asked, key=lambda one: one.method != "linear"):
        if one.method == "linear" or not has_curve(one, scores):
            first.setdefault((one.task, one.data, one.unit, one.metric), one)
    return list(first.values())


def has_curve(question: Question, scores: Frame) -> bool:
    """Return whether a question was asked with several numbers of labels."""
    return answers(question, scores).num_train.nunique() > 1


def other_questions(scores: Frame) -> list[Question]:
    """Return the other questions about learned features."""
    first = headline(scores)
    return [one for one in questions(scores) if one.features in LEARNED and one not in first]


def answers(question: Question, scores: Frame) -> Frame:
    """Return the rows of one question."""
    chosen = scores[list(QUESTION)] == list(question)
    return scores[chosen.all(axis=1)]


def estimate(row: Any) -> tuple[float, float, float, str] | None:
    """Return value, interval and metric of a row of the comparison."""
    return None if row is None else (row.value, row.low, row.high, row.metric)


def show_estimate(cell: tuple[float, float, float, str] | None) -> str:
    """Return a value with its interval.

    >>> show_estimate((0.5, 0.4, 0.6, "accuracy"))
    '50.0 (40.0 to 60.0)'
    """
    if not isinstance(cell, tuple):
        return ""
    value, low, high = (show_value(one, cell[3]).replace("-", "−") for one in cell[:3])
    return f"{value} ({low} to {high})" if math.isfinite(cell[1] + cell[2]) else value


def show_nats(cell: tuple[float, float, float, bool] | None) -> str:
    """Return log N - L in nats with its interval; what is no bound says so."""
    if not isinstance(cell, tuple):
        return ""
    text = show(cell[0], ".2f")
    if math.isfinite(cell[1] + cell[2]):
        text += f" ({show(cell[1], '.2f')} to {show(cell[2], '.2f')})"
    return text if cell[3] else f"{text} (estimate)"


def lead_of(row: Any, over: str) -> tuple[float, float, float, str] | None:
    """Return a difference of a row, over_untrained or over_first; None if there is none."""
    if row is None or math.isnan(getattr(row, over)):
        return None
    return (*(getattr(row, f"{over}{end}") for end in ("", "_low", "_high")), row.metric)


def show_lead(cell: tuple[float, float, float, str] | None) -> str:
    """Return a difference with its interval."""
    return lead_phrase(cell[:3], cell[3]) if isinstance(cell, tuple) else ""


def short_title(question: Question, others: Sequence[Question]) -> str:
    """Return as much of a question as tells it from the others.

    >>> a = Question("phones", "voices", "frame", "c", "linear", "accuracy")
    >>> short_title(a, [a]), short_title(a, [a, a._replace(unit="utterance")])
    ('phones', 'phones by frame')
    """
    same = [one for one in others if one.task == question.task]
    differs = {name: len({getattr(one, name) for one in same}) > 1 for name in Question._fields}
    title = question.task + (f" by {question.unit}" if differs["unit"] else "")
    more = [getattr(question, name) for name in ("data", "features", "metric") if differs[name]]
    return ", ".join([title, *more])


def one_row(rows: Frame, cell: str) -> Any:
    """Return the row of a cell, the one with the most labels; None if there is none."""
    own = rows[rows.cell == cell].sort_values("num_train")
    return None if not len(own) else list(own.itertuples())[-1]
